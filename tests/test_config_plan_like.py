"""One choice of a run against the fastest one: what it loses, or why it has no figures."""

import pytest

import hlofast
from hlofast._verdict_figures import seconds
from hlofast.config._plan_choice import read_choice
from test_config_plan import EIGHT, SEVEN, run


@pytest.fixture(scope="module")
def eight():
    return run(*EIGHT).plan("v5p-512")


@pytest.fixture(scope="module")
def large():
    return run("model_name=llama3.1-405b", "per_device_batch_size=2").plan("v5e-16")


def test_a_policy_that_a_plan_lists_has_commas() -> None:
    choice = read_choice("fsdp=64,policy=save query_proj mlpwi_0, offload context,batch=0.5")
    assert choice == {
        "fsdp": 64, "policy": "save query_proj mlpwi_0, offload context", "batch": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("mesh=data=4,fsdp=16,policy=full", {"data": 4, "fsdp": 16, "policy": "full"}),
        ("policy=full,mesh=data=4:fsdp=16", {"data": 4, "fsdp": 16, "policy": "full"}),
    ],
)
def test_a_mesh_may_have_its_name(text: str, choice: dict[str, int | str]) -> None:
    assert read_choice(text) == choice


@pytest.mark.parametrize("text", ["64", "mesh", "mesh=64", "fsdp=64:tensor=4", "own=2,full"])
def test_an_error_shows_the_form(text: str) -> None:
    with pytest.raises(ValueError, match="write a choice as fsdp=64,tensor=4,policy=full, or own"):
        read_choice(text)


class TestWithoutBest:
    """Choices of a run of which nothing fits."""

    def test_a_whole_choice_has_its_figures(self, large) -> None:
        likened = large.like("data=4,fsdp=4,policy=minimal,batch=1")
        lines = ("ici_data_parallelism=4", "ici_fsdp_parallelism=4", "remat_policy=minimal")
        config = run(
            "model_name=llama3.1-405b", "per_device_batch_size=1", *lines,
            "gradient_accumulation_steps=2",
        )  # fmt: skip
        verdict = config.select("v5e-16").verdict()
        facts = {fact.name: fact.value for fact in likened.facts}
        assert facts["peak_bytes"] == verdict.expected_peak_bytes
        assert facts["step_seconds"] == pytest.approx(verdict.step_seconds)
        assert facts["fits"] is False and not likened.is_fitting
        over = facts["peak_bytes"] - facts["usable_bytes"]
        (note,) = likened.notes
        assert note.text == f"it does not fit: its peak exceeds the usable memory by {over:,} B"
        rows = list(likened.tables["peak"])
        assert sum(row["this"] for row in rows) == facts["peak_bytes"]
        assert {row["best"] for row in rows} == {row["more"] for row in rows} == {None}

    @pytest.mark.parametrize(
        ("choice", "completed"),
        [
            ("fsdp=16", "policy=full (the config's),batch=1,accumulation=2"),
            ("policy=minimal", "fsdp=16,batch=1,accumulation=2"),
            ("fsdp=16,batch=2", "policy=full (the config's)"),
        ],
    )
    def test_defaults_complete_a_choice(self, large, choice, completed) -> None:
        likened = large.like(choice)
        assert likened.notes[-1].text == (
            f"nothing fits, so defaults complete the choice: {completed}"
        )
        assert likened.choice[0].axes == {"fsdp": 16}

    def test_a_policy_without_a_model_is_replaced_by_the_least(self) -> None:
        plan = run("model_name=llama3.1-405b", "remat_policy=future").plan("v5e-16")
        assert plan.like("fsdp=16").choice[0].option.name == "offload layer inputs"

    def test_offloaded_values_beyond_the_host(self) -> None:
        device = hlofast.devices.get("tpu-v5e").replace(host_memory_bytes=8e9)
        plan = run(*SEVEN).plan("v5e-16", device=device)
        likened = plan.like("fsdp=16,policy=minimal_offloaded,batch=4")
        assert likened.notes[0].text.startswith(
            "it does not fit: its offloaded values exceed the usable host memory by "
        )


class TestLike:
    def test_the_config_itself(self, eight) -> None:
        own = eight.like({"own": 1})
        verdict = run(*EIGHT).select("v5p-512").verdict()
        facts = {fact.name: fact.value for fact in own.facts}
        assert facts["step_seconds"] == pytest.approx(verdict.step_seconds)
        assert facts["peak_bytes"] == verdict.expected_peak_bytes
        assert facts["slower_seconds"] == pytest.approx(
            verdict.step_seconds - eight.best["step_seconds"]
        )
        assert sum(own.tables["step"]["more"]) == pytest.approx(facts["slower_seconds"])
        assert sum(own.tables["peak"]["this"]) == verdict.expected_peak_bytes
        assert facts["policy"] == "full (the config's)"

    @pytest.mark.parametrize("sequences", [512, 4096])
    def test_the_config_with_another_batch(self, sequences: int) -> None:
        plan = run(*EIGHT).plan("v5p-512", sequences=sequences)
        same = run(*EIGHT, f"per_device_batch_size={sequences / 256:g}")
        verdict = same.select("v5p-512").verdict()
        facts = {fact.name: fact.value for fact in plan.facts}
        assert facts["own_sequences"] == sequences
        assert facts["own_step_seconds"] == pytest.approx(verdict.step_seconds)
        assert facts["own_status"] == verdict.status
        own = {fact.name: fact.value for fact in plan.like({"own": 1}).facts}
        assert own["step_seconds"] == facts["own_step_seconds"]

    def test_the_config_keeps_its_batch_where_the_plan_chooses_one(self) -> None:
        plan = run(*EIGHT).plan("v5p-512", sequences=0)
        verdict = run(*EIGHT).select("v5p-512").verdict()
        facts = {fact.name: fact.value for fact in plan.facts}
        assert facts["own_step_seconds"] == pytest.approx(verdict.step_seconds)
        assert facts["own_sequences"] == 1024 != facts["sequences"]
        # A step of the plan's choice is longer, but for more sequences.
        each = facts["own_step_seconds"] / 1024 * facts["sequences"]
        (finding,) = plan.report(plots=False).tables["findings"]
        assert f"{facts['sequences']:,} sequences" in finding["text"]
        assert finding["stake"] == f"{seconds(each - facts['step_seconds'])} per step"

    def test_the_config_on_a_batch_that_it_cannot_run(self) -> None:
        plan = run(*EIGHT).plan("v5p-512", sequences=1000)
        facts = {fact.name: fact.value for fact in plan.facts}
        assert facts["own_step_seconds"] is None and facts["own_status"] is None
        (note,) = (note for note in plan.notes if note.code == "own-choice")
        assert "1,000 sequences do not divide into 256 shards" in note.text

    def test_the_best_loses_nothing(self, eight) -> None:
        again = eight.like({})
        facts = {fact.name: fact.value for fact in again.facts}
        assert facts["slower_seconds"] == 0 and facts["fits"]
        assert len(again.tables["different"]) == 0
        named = {fact.name: fact.value for fact in eight.like(again.to_choice()).facts}
        assert named["mesh"] == facts["mesh"]

    def test_a_choice_loses_where_it_differs(self, eight) -> None:
        other = eight.like({"fsdp": 64, "tensor": 4, "policy": "minimal"})
        most = next(iter(other.tables["step"]))
        assert most["part"] == "reductions of activations" and most["best"] == 0
        different = {row["choice"] for row in other.tables["different"]}
        assert different == {"mesh", "policy", "batch/device"} or different == {"mesh", "policy"}

    @pytest.mark.parametrize(
        ("choice", "why"),
        [
            ({"fsdp": 128}, "128 devices, not 256"),
            ({"fsdp": 1}, "the mesh has 1 device, not 256"),
            ({"fsdp": 16, "tensor": 16}, "does not divide 8"),
            ({"accumulation": 3}, "do not divide into"),
            ({"data": 2, "context": 128}, "context"),
        ],
    )
    def test_what_the_trainer_cannot_run(self, eight, choice, why) -> None:
        other = eight.like(choice)
        assert why in other.notes[0].text
        assert other.notes[0].text.startswith("the trainer cannot run it: ")
        assert not other.is_fitting
        assert not {"fits", "peak_bytes", "step_seconds"} & {fact.name for fact in other.facts}

    def test_what_is_not_modelled_is_told_from_what_cannot_run(self) -> None:
        """A run whose type has no step time is one that the trainer can run."""
        plan = run(*SEVEN, "dtype=float32").plan("v5e-16")
        (note,) = plan.like({"own": 1}).notes
        assert note.text.startswith("only its memory is modelled: no step time for elements of 4")
        plan = run(*SEVEN).plan("v5e-16")
        (note,) = plan.like({"tensor": 2, "sequence": 8}).notes
        assert note.text.startswith("it has no figures: sequence is not modelled")
        # The mesh also has an axis that is not modelled.
        (note,) = plan.like({"fsdp": 2, "sequence": 4}).notes
        assert note.text.startswith("the trainer cannot run it: the mesh has 8 devices")

    @pytest.mark.parametrize(
        ("choice", "why"),
        [
            ({"rows": 4}, "'rows' is not a choice"),
            ({"policy": "best"}, "policy 'best' is not known"),
            ({"policy": "minimal_with_contxt"}, "did you mean 'minimal_with_context'"),
            ({"fdsp": 16}, "'fdsp' is not a choice; did you mean fsdp"),
            ({"state": "narrow"}, "state 'narrow' is not known; known: own"),
            ({"fsdp": 0}, "fsdp must be a whole number from 1 to 256, not 0"),
            ({"fsdp": True}, "fsdp must be a whole number from 1 to 256, not True"),
            ({"fsdp": "64"}, "fsdp must be a whole number from 1 to 256, not '64'"),
            ({"accumulation": 1.5}, "accumulation must be a whole number from 1 to .*, not 1.5"),
            ({"policy": None}, "policy must be a name, not None"),
            ({1: 2}, "1 is not a choice; known: "),
            ({"mesh": 64}, "mesh must be sizes of axes, such as .*, not 64"),
            ({"mesh": {"policy": "full"}}, "mesh must be sizes of axes, such as "),
            ({"mesh": {"fsdp": 64}, "fsdp": 64}, "fsdp is given twice"),
            ({"mesh": {"fdsp": 64}}, "'fdsp' is not a choice; did you mean fsdp"),
            ({"batch": "many"}, "batch must be a number of sequences above 0, not 'many'"),
            ({"batch": float("nan")}, "batch must be a number of sequences above 0, not nan"),
            ({"own": 0}, "own is a whole choice: give {'own': 1}, or 'own' as text, not 0"),
            ({"own": True}, "own is a whole choice: give .*, not True"),
            ({"own": "1"}, "own is a whole choice: give .*, not '1'"),
            ({"mesh": {}}, "mesh must be sizes of axes, such as .*, or 'one device', not {}"),
            ("mesh=one device:fsdp=64", "'one device' is not NAME=VALUE"),
            ({"own": 1, "policy": "full"}, "own is a whole choice: give it alone"),
            ({"batch": 3}, "batch=3 on 256 devices does not make the 1,024 sequences"),
            ({"batch": 2, "accumulation": 3}, "batch=2 on 256 devices and accumulation=3 does not"),
        ],
    )
    def test_what_is_no_choice(self, eight, choice, why) -> None:
        with pytest.raises(ValueError, match=why):
            eight.like(choice)

    @pytest.mark.parametrize("choice", [None, 64, ["fsdp=64"], b"own"])
    def test_what_is_neither_a_mapping_nor_text(self, eight, choice) -> None:
        why = "a choice must be a mapping such as .*, or text such as .*, not "
        with pytest.raises(TypeError, match=why):
            eight.like(choice)

    def test_a_mesh_may_be_one_part(self, eight) -> None:
        flat = eight.like({"fsdp": 64, "tensor": 4, "policy": "full"})
        for mesh in ("fsdp=64,tensor=4", {"fsdp": 64, "tensor": 4}, {"fsdp": 64.0, "tensor": 4.0}):
            assert eight.like({"mesh": mesh, "policy": "full"}).to_choice() == flat.to_choice()
        # As the rows of a plan have it.
        for row in list(eight.ranked)[:3]:
            numbers = {"batch": row["per_device_batch"], "accumulation": row["accumulation_steps"]}
            likened = eight.like({"mesh": row["mesh"], "policy": row["policy"], **numbers})
            assert likened.choice[1].peak == row["peak_bytes"]
        for one in ({"mesh": "one device"}, "mesh=one device", "policy=full, mesh=one device"):
            (note,) = eight.like(one).notes
            assert "the mesh has 1 device, not 256" in note.text

    @pytest.mark.parametrize("batch", [1e-7, 0.3])
    def test_a_batch_of_no_whole_sequences(self, batch: float) -> None:
        plan = run("model_name=llama3.1-8b").plan("v5p-128", sequences=0)
        with pytest.raises(ValueError, match="does not make a whole number of sequences"):
            plan.like({"batch": batch})

    def test_what_the_model_does_not_tell_from_the_best(self, eight) -> None:
        (note,) = eight.like({"data": 2, "fsdp": 128}).notes
        assert note.code == "tied" and 0 < note.figures["slower"] < 0.095
        assert not eight.like({"own": 1}).notes and not eight.like({}).notes

    def test_both_names_of_a_policy_are_known(self, eight) -> None:
        former, later = (
            eight.like({"policy": name}) for name in ("minimal_flash", "minimal_with_context")
        )
        assert former.choice[1].peak == later.choice[1].peak
        assert former.choice[0].option.name == "minimal_flash"
        # MaxText warns of the former name.
        assert "minimal_flash" not in {*eight.ranked["policy"], *eight.frontier["policy"]}
        assert "remat_policy=minimal_with_context" in eight.lines

    def test_what_does_not_fit(self) -> None:
        plan = run(*SEVEN).plan("v5e-16")
        other = plan.like({"policy": "minimal_flash", "accumulation": 1})
        assert not other.is_fitting
        assert "exceeds the usable memory by" in other.notes[0].text
