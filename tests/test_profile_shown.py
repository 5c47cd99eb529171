"""Measured beside modelled figures: verdicts, tables, pages, traces and differences."""

import json
import lzma
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import generated
import hlofast
from browser import Browser
from conftest import FIXTURES
from hlofast import _text
from hlofast._report.data import Analyses
from hlofast._top.view import Overview, View
from hlofast.cli import main
from shown import check_one_source, codes, figures
from xplane_writer import Event, Plane, space

A100 = FIXTURES / "a100"
TRACE = A100 / "nvtx_gpu_proj_trace.csv.xz"
MODULE = next(A100.glob("*.hlo.pb.xz"))
SHARDED = FIXTURES / "profiles" / "sharded.xplane.pb.xz"
SEVERAL = FIXTURES / "profiles" / "several.xplane.pb.xz"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """The command in this process: exit code, standard output, standard error."""

    def ran(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            code = int(str(exit_.code))
        return code, *capsys.readouterr()

    return ran


@pytest.fixture(scope="module")
def a100() -> hlofast.Module:
    """A training step on A100 GPUs with its profile."""
    return hlofast.load(MODULE, device="a100", profile=TRACE)


@pytest.fixture(scope="module")
def sharded() -> hlofast.Module:
    """A training step on eight CPU devices with its profile."""
    return hlofast.load(SHARDED, module="jit_train_step", profile=SHARDED)


def document(run: Any, verb: str, *arguments: object, code: int = 0) -> Any:
    done, out, _ = run(verb, *arguments, "--json")
    whole = json.loads(out)
    jsonschema.validate(whole, json.loads((generated.SCHEMAS / f"{verb}.json").read_text()))
    assert done == code
    return whole["results"]


def test_the_verdict_begins_with_what_was_measured(a100: hlofast.Module, run: Any) -> None:
    verdict, measured, time = a100.verdict(), a100.profile(), a100.time()
    facts = {fact.name: fact for fact in verdict.facts}
    assert facts["measured_step"].value == measured.step_seconds == pytest.approx(0.1275, rel=1e-3)
    assert facts["measured_step"].provenance == "measured"
    assert facts["step"].value == time.step_seconds
    assert facts["step"].provenance == "modelled"
    assert facts["measured_mfu"].value == pytest.approx(
        time.mfu * time.step_seconds / 0.12746, 1e-3
    )
    assert facts["measured_exposed"].value == pytest.approx(0.004074, rel=1e-3)
    code, out, _ = run(MODULE, "--profile", TRACE, "--device", "a100")
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "step time 127.5 ms measured, 108 ms modelled" in lines
    assert "bound by compute measured, memory modelled" in lines
    assert "MFU 23.5 % measured, 27.8 % modelled" in lines
    assert "exposed by axis axis_0 4.074 ms measured, axis_0 918 us modelled" in lines
    assert sum("step time" in line for line in lines) == 1
    check_one_source(verdict, out)
    (result,) = document(run, "verdict", MODULE, "--profile", TRACE, "--device", "a100")
    assert figures(result) == {name: fact.value for name, fact in facts.items()}


def test_what_to_change_does_not_depend_on_the_profile(a100: hlofast.Module) -> None:
    plain = a100.with_context(profile=None).verdict()
    ours, theirs = (
        [(row["code"], row["found"]) for row in verdict.tables["findings"]]
        for verdict in (a100.verdict(), plain)
    )
    assert ours == theirs
    assert "measured_step" not in {fact.name for fact in plain.facts}


def test_figures_of_another_kind_of_device_are_told_apart(sharded: hlofast.Module) -> None:
    module = sharded.with_context(device="tpu-v5p")
    verdict = module.verdict()
    facts = {fact.name: fact.value for fact in verdict.facts}
    assert "measured_mfu" not in facts
    assert facts["mfu"] is not None
    assert "other-device" in {note.code for note in verdict.notes}
    assert "measured_mfu" not in {fact.name for fact in module.time().facts}
    assert "mfu" not in {fact.name for fact in module.cost().facts}


VERBS = ("verdict", "summary", "cost", "matmuls", "collectives", "lint", "remat", "memory", "time")


@pytest.mark.parametrize("verb", VERBS)
def test_a_profile_of_another_program_is_said(train_step: Path, run: Any, verb: str) -> None:
    options = ("--device", "tpu-v5e", "--profile", TRACE)
    (result,) = document(run, verb, train_step, *options)
    (note,) = [note for note in result["notes"] if note["code"] == "not-in-profile"]
    assert note["text"].startswith(
        "nothing is measured: no event of the profile names an instruction of jit_train_step; "
        "programs in the profile: pjit__wrapped_step_fn"
    )
    _, out, _ = run(verb, train_step, *options)
    assert out.count("nothing is measured") == 1
    (result,) = document(run, verb, train_step, "--device", "tpu-v5e")
    assert "not-in-profile" not in codes(result)


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("fmt", ()), ("graph", ()), ("show", ("main",)), ("stages", ()), ("top", ()),
        ("trace", ("-o", "t.json")), ("report", ("--no-charts", "-o", "r.html")),
        ("history", ()), ("check", ("d.toml",)),
    ],
)  # fmt: skip
def test_other_verbs_say_so_too(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, options: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "dump"
    folder.mkdir()
    path = folder / "module_0001.step.cpu_after_optimizations.txt"
    path.write_text(STEP)
    (tmp_path / "d.toml").write_text("[mesh]\naxes = { data = 2 }\n")
    file = [folder] if verb == "history" else [path]
    words = [*options, *file] if verb == "check" else [*file, *options]
    given = ["--device", "tpu-v5e"] if verb in ("trace", "report", "top") else []
    _, out, error = run(verb, *words, *given, "--profile", TRACE)
    text = "nothing is measured: no event of the profile names an instruction of step; programs"
    assert (out + error).count(text) == 1, out + error


def test_a_profile_with_a_few_equal_names_measures_nothing(train_step: Path) -> None:
    # Both programs are called jit_train_step and share some names of instructions.
    module = hlofast.load(train_step, profile=SHARDED)
    verdict = module.verdict()
    (note,) = [note for note in verdict.every_note if note.code == "not-in-profile"]
    assert "<0.1 % of the device time of jit_train_step in the profile" in note.text
    assert "measured_step" not in {fact.name for fact in verdict.facts}
    with pytest.raises(ValueError, match="nothing is measured"):
        module.profile()


def test_a_profile_as_the_file_gives_the_measured_verdict(run: Any) -> None:
    code, out, _ = run(TRACE, "--device", "a100")
    assert code == 0
    assert len(out.splitlines()) <= 40
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "step time 127.5 ms measured, 108 ms modelled" in lines
    assert "MFU 23.5 % measured, 27.8 % modelled" in lines
    assert "idle share 2.5 %" in lines
    assert "profile 1 host, 1 device, 1 program, 5 launches, 13,050 events, 692 ms" in lines
    assert f"measured beside modelled, and what to change: hlofast --profile {TRACE}" in out
    assert f"what the profile holds: hlofast summary {TRACE}" in out
    (result,) = document(run, "verdict", TRACE)
    facts = figures(result)
    assert facts["measured_step"] == pytest.approx(0.12746, rel=1e-3)
    assert (facts["kind"], facts["devices"], facts["events"]) == ("profile", 1, 13_050)
    (first, *_) = result["tables"]["instructions"]
    assert first["instruction"] == "custom-call.219.0"


def test_the_modules_in_a_profile_are_measured_by_it(sharded: hlofast.Module, run: Any) -> None:
    step = _text.seconds(sharded.profile().step_seconds)
    _, out, _ = run(SHARDED)
    (command,) = [line for line in out.splitlines() if "measured beside modelled" in line]
    assert command.endswith(f"hlofast {SHARDED} --module jit_train_step")
    _, out, _ = run(SHARDED, "--module", "jit_train_step")
    assert f"step time              {step} measured\n" in out
    assert f"hlofast profile {SHARDED} {SHARDED} --module jit_train_step" in out
    assert "unknown: modelled step time, MFU, modelled exposed communication; no device" in out


def test_a_profile_without_a_module_says_what_ran(run: Any) -> None:
    code, out, _ = run(SHARDED.with_name("sharded.trace.json.gz"))
    assert code == 0
    assert "Programs by busy time" in out
    assert "a module is needed of one of the programs in the profile: jit_train_step" in out


def test_the_page_opens_with_what_was_measured(
    a100: hlofast.Module, run: Any, tmp_path: Path
) -> None:
    report = a100.report(plots=False)
    facts = {fact.name: fact.value for fact in a100.verdict().facts}
    assert report.verdict == {name: facts[name] for name in report.verdict}
    first = report.html.index('id="figure-measured_step"')
    assert first < report.html.index('id="figure-step"')
    # The modelled figure stands in the note of the measured one.
    assert '<br>modelled <data id="figure-step"' in report.html
    assert report.html.count('<div class="figure ') == len(report.verdict) - 3
    assert report.html.index('<a href="#measured">') < report.html.index('<a href="#memory">')
    page = tmp_path / "page.html"
    (result,) = document(
        run, "report", MODULE, "--device", "a100", "--profile", TRACE, "--no-charts", "-o", page
    )
    assert figures(result)["measured_step"] == facts["measured_step"]
    _, out, _ = run("report", MODULE, "--device", "a100", "--profile", TRACE, "--no-charts",
                    "-o", page)  # fmt: skip
    assert "Step time              127.5 ms measured, 108 ms modelled\n" in out
    plain = a100.with_context(profile=None).report(plots=False)
    assert 'id="measured"' not in plain.html
    assert "figure-measured" not in plain.html


def test_the_section_of_the_page_says_what_is_missing(train_step: Path) -> None:
    html = hlofast.load(train_step, profile=TRACE).report(plots=False).html
    assert '<h2 id="measured-title">Measured</h2>' in html
    assert "nothing is measured: no event of the profile names an instruction" in html


@pytest.mark.once
def test_rates_and_measured_times_in_a_browser(
    a100: hlofast.Module, browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    a100.report(path, plots=False)
    opened = browser.open(path, until="body[data-state]")
    assert opened.errors == []
    page = opened.page
    text = page.locator("#measured").inner_text()
    assert "257.47 TFLOP/s" in text
    assert "371.80 GB/s" in text
    assert "120.2 ms" in text
    table = page.locator("#instructions-table")
    table.locator("input[type=search]").first.fill("custom-call.219.0")
    table.locator("tbody a", has_text="custom-call.219.0").first.wait_for()
    assert "2.458 ms" in table.inner_text()


def test_the_terminal_view_sorts_by_measured_time(a100: hlofast.Module, run: Any) -> None:
    overview = Overview(Analyses(a100))
    table = overview.tables["instructions"]
    times = [own for own in table.values("measured_seconds") if own is not None]
    assert times == sorted(times, reverse=True)
    assert sum(times) == pytest.approx(sum(a100.profile().table().values("measured_seconds")))
    assert "257.5 TFLOP/s" in str(overview)
    (result,) = document(run, "top", MODULE, "--device", "a100", "--profile", TRACE)
    assert result["tables"]["measured_parts"][0]["part"] == "compute"
    by_phase = next(
        sheet
        for section in overview.contents.sections
        for sheet in section.sheets
        if sheet.key == "measured-by-phase"
    )
    assert View(by_phase, a100).group(0) == ("phase", "backward")


@pytest.mark.parametrize(
    "key", ["phase", "scope", "source", "source_file", "opcode", "computation"]
)
def test_cost_has_the_measured_time_of_every_group(a100: hlofast.Module, key: str) -> None:
    table = a100.cost().sections(key, depth=4)[0].table
    whole = sum(a100.profile().table().values("measured_seconds"))
    times = table.values("measured_seconds")
    assert sum(own for own in times if own is not None) == pytest.approx(whole)
    if key in ("phase", "source", "opcode", "computation"):
        by = a100.profile().by(key)
        expected = dict(zip(by.values(key), by.values("measured_seconds"), strict=True))
        found = dict(zip(table.values("key"), times, strict=True))
        assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_cost_without_measured_time(a100: hlofast.Module) -> None:
    for sections in (
        a100.with_context(profile=None).cost().sections(),
        a100.cost(xla=True).sections(),
        a100.cost().sections("dtype"),
    ):
        assert "measured_seconds" not in sections[0].table


def test_matmuls_have_measured_time_and_achieved_flops(
    a100: hlofast.Module, sharded: hlofast.Module
) -> None:
    measured = {a100[row["instruction"]].name: row for row in a100.profile().table()}
    rows = a100.matmuls().to_pylist()
    assert len(rows) == 223
    known = [row for row in rows if row["measured_seconds"] is not None]
    assert len(known) > 170
    for row in known:
        own = measured.get(row["name"])
        if own is not None:
            assert row["measured_seconds"] == own["measured_seconds"]
            assert row["flops_per_second"] == pytest.approx(row["flops"] / own["measured_seconds"])
    # One row of the profile's own table, of the library's kernel with most time.
    (longest,) = [row for row in rows if row["name"] == "custom-call.219.0"]
    assert longest["flops_per_second"] == pytest.approx(257.47e12, rel=1e-4)
    # Dots inside fusions have the time of the fusion that holds no other matmul.
    times = {sharded[row["instruction"]].name: row["measured_seconds"]
             for row in sharded.profile().table()}  # fmt: skip
    found = {row["name"]: row["measured_seconds"] for row in sharded.matmuls()}
    assert found == {
        "dot.12": times["dot.12"],
        "dot.13": times["ynn_fusion"],
        "dot.14": times["ynn_fusion.1"],
    }
    by_phase = a100.matmuls().sections("phase")[0].table
    assert sum(by_phase.values("measured_seconds")) == pytest.approx(
        sum(row["measured_seconds"] for row in known)
    )


def test_two_matmuls_of_one_fusion_have_no_time_of_their_own() -> None:
    text = """HloModule m, is_scheduled=true
f {
  p = f32[8,8] parameter(0)
  d = f32[8,8] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT e = f32[8,8] dot(d, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
ENTRY main {
  q = f32[8,8] parameter(0)
  ROOT both = f32[8,8] fusion(q), kind=kOutput, calls=f
}
"""
    plane = Plane("/device:TPU:0")
    plane.line("XLA Modules", [Event("m(1)", 0, 2_000_000)])
    plane.line("XLA Ops", [Event("%both = f32[8,8] fusion(%q)", 0, 2_000_000, {}, {}, "both")])
    profile = hlofast.load_profile(space([plane]))
    module = hlofast.loads(text, profile=profile)
    assert module.profile().table().values("measured_seconds") == [2e-6]
    assert module.matmuls().values("measured_seconds") == [None, None]
    assert module.matmuls().values("flops_per_second") == [None, None]


def test_collectives_have_measured_time(a100: hlofast.Module, run: Any) -> None:
    expected = {row["instruction"]: row for row in a100.profile().collectives}
    rows = a100.collectives().to_pylist()
    assert len(rows) == len(expected) == 23
    for row in rows:
        own = expected[row["scheduled_as"]]
        assert row["measured_seconds"] == own["measured_seconds"]
        assert row["measured_exposed_seconds"] == own["measured_exposed_seconds"]
    (result,) = document(run, "collectives", MODULE, "--profile", TRACE)
    (group,) = result["tables"]["groups"]
    assert group["measured_exposed_seconds"] == pytest.approx(
        sum(row["measured_exposed_seconds"] or 0 for row in rows)
    )
    # Instructions without an event are no gap of the totals of bytes.
    plain = a100.with_context(profile=None).collectives()
    assert a100.collectives().by("axes").to_pylist() == plain.by("axes").to_pylist()


@pytest.mark.parametrize("verb", ["cost", "matmuls", "collectives", "time"])
def test_tables_with_measured_columns_keep_to_the_schema(run: Any, verb: str) -> None:
    (result,) = document(run, verb, MODULE, "--device", "a100", "--profile", TRACE)
    name = {"matmuls": "matmuls"}.get(verb, "groups")
    assert "measured_seconds" in result["tables"][name][0]
    (plain,) = document(run, verb, MODULE, "--device", "a100")
    assert plain["tables"][name][0].get("measured_seconds") is None


STEP = """HloModule step, is_scheduled=true
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}
ENTRY main {
  q = f32[64,64] parameter(0)
  one = f32[64,64] exponential(q), metadata={op_name="jit(step)/jvp(attention)/exp" source_file="m.py" source_line=3}
  two = f32[64,64] negate(one), metadata={op_name="jit(step)/transpose(jvp(mlp))/neg" source_file="m.py" source_line=5}
  ROOT sum = f32[64,64] all-reduce(two), replica_groups={{0,1}}, to_apply=add
}
"""


def recorded(*times: tuple[str, int]) -> bytes:
    """A profile of two runs of a program, whose instructions take these numbers of ns."""
    plane = Plane("/device:TPU:0")
    whole = 1000 * sum(length for _, length in times)
    plane.line("XLA Modules", [Event("step(1)", at * 2 * whole, whole) for at in range(2)])
    ops = []
    for run in range(2):
        start = run * 2 * whole
        for name, length in times:
            ops.append(Event(f"%{name} = f32[] op()", start, 1000 * length, {}, {}, name))
            start += 1000 * length
    plane.line("XLA Ops", ops)
    return space([plane])


def test_two_profiles_of_two_programs_are_compared(tmp_path: Path, run: Any) -> None:
    # In the second program an instruction has another name, and another one is new.
    after = STEP.replace("one", "uno").replace(
        "ROOT sum = f32[64,64] all-reduce(two)",
        "more = f32[64,64] cosine(two)\n  ROOT sum = f32[64,64] all-reduce(more)",
    )
    for name, text, times in (
        ("a", STEP, (("one", 3000), ("two", 4000), ("sum", 2000))),
        ("b", after, (("uno", 6000), ("two", 2000), ("more", 500), ("sum", 2000))),
    ):
        (tmp_path / f"{name}.txt").write_text(text)
        (tmp_path / f"{name}.xplane.pb").write_bytes(recorded(*times))
    first = hlofast.load(tmp_path / "a.txt", profile=tmp_path / "a.xplane.pb")
    second = hlofast.load(tmp_path / "b.txt", profile=tmp_path / "b.xplane.pb")
    comparison = first.diff(second)
    assert comparison.measured is not None
    rows = {row["name"]: row for row in comparison.measured.instructions()}
    assert {
        name: (row["name_before"], row["before_seconds"], row["after_seconds"])
        for name, row in rows.items()
    } == {
        "uno": ("one", 3e-6, 6e-6),
        "two": (None, 4e-6, 2e-6),
        "more": (None, None, pytest.approx(0.5e-6)),
        "sum": (None, 2e-6, 2e-6),
    }
    assert [row["name"] for row in comparison.tables["measured_instructions"]] == [
        "uno", "two", "more",
    ]  # fmt: skip
    parts = {(row["part"], row["axes"]): row["change_seconds"]
             for row in comparison.tables["measured_parts"]}  # fmt: skip
    assert parts["step", None] == pytest.approx(1.5e-6)
    assert parts["compute", None] == pytest.approx(1.5e-6)
    phases = {row["phase"]: row["change_seconds"] for row in comparison.tables["measured_by_phase"]}
    assert phases["forward"] == pytest.approx(3e-6)
    assert phases["backward"] == pytest.approx(-2e-6)
    options = [tmp_path / "a.txt", tmp_path / "b.txt", "--profile", tmp_path / "a.xplane.pb",
               "--profile-after", tmp_path / "b.xplane.pb"]  # fmt: skip
    code, out, _ = run("diff", *options)
    assert code == 1
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "measured step before 9 us" in lines
    assert "change of the step +16.7 %" in lines
    assert "uno one 3 us 6 us +3 us +100.0 % forward m.py:3" in lines
    assert "two - 4 us 2 us -2 us -50.0 % backward m.py:5" in lines
    (result, _) = document(run, "diff", *options, code=1)
    assert figures(result)["measured_change"] == pytest.approx(1.5 / 9)


def test_measured_times_do_not_make_programs_different(tmp_path: Path, run: Any) -> None:
    (tmp_path / "a.txt").write_text(STEP)
    for name, length in (("a", 3000), ("b", 3500)):
        content = recorded(("one", length), ("two", 4000), ("sum", 2000))
        (tmp_path / f"{name}.xplane.pb").write_bytes(content)
    options = ["--profile", tmp_path / "a.xplane.pb", "--profile-after", tmp_path / "b.xplane.pb"]
    code, out, _ = run("diff", tmp_path / "a.txt", tmp_path / "a.txt", *options)
    assert code == 0
    assert "+500 ns" in out
    code, out, _ = run("diff", tmp_path / "a.txt", tmp_path / "a.txt", *options[:2])
    assert code == 0
    assert "no profile of the second module (--profile-after)" in out


def test_profiles_are_compared_by_their_own_modules(
    sharded: hlofast.Module, run: Any, tmp_path: Path
) -> None:
    step = _text.seconds(sharded.profile().step_seconds)
    code, out, _ = run("diff", SHARDED, SHARDED)
    assert code == 0
    assert f"measured step before  {step}\n" in out
    code, out, _ = run("diff", SEVERAL, SEVERAL, "--module", "jit_attend")
    assert code == 0
    assert out.startswith("jit_attend\n")
    # Folders of recordings are profiles too.
    for name in ("monday", "tuesday"):
        folder = tmp_path / name / "plugins" / "profile" / "2026_11_23_06_12_59"
        folder.mkdir(parents=True)
        (folder / "vm.xplane.pb").write_bytes(lzma.decompress(SHARDED.read_bytes()))
    code, out, _ = run("diff", tmp_path / "monday", tmp_path / "tuesday")
    assert code == 0
    assert f"measured step after   {step}\n" in out
    code, _, error = run("diff", SHARDED, SHARDED.with_name("sharded.trace.json.gz"))
    assert code == 3
    assert "a module is needed of one of the programs in the profile: jit_train_step" in error


def chrome(path: Path, pid: int) -> tuple[dict[int, str], list[dict[str, Any]]]:
    """Names of the threads and complete events of one process of a trace."""
    events = [own for own in json.loads(path.read_text())["traceEvents"] if own["pid"] == pid]
    names = {own["tid"]: own["args"]["name"] for own in events if own["name"] == "thread_name"}
    return names, [own for own in events if own["ph"] == "X"]


def test_traces_have_the_measured_run_beside_the_modelled(
    a100: hlofast.Module, run: Any, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    trace = a100.trace(path)
    names, events = chrome(path, 2)
    assert set(names.values()) == {"thunks", "NCCL"}
    measured = a100.profile()
    by_name: dict[str, float] = {}
    for event in events:
        by_name[event["name"]] = by_name.get(event["name"], 0.0) + event["dur"] * 1e-6
    rows = {a100[row["instruction"]].name: row["measured_seconds"] for row in measured.table()}
    # One device: the step is the one run that the trace shows.
    # Events of an asynchronous collective have the name of the instruction inside.
    assert sum(by_name.values()) == pytest.approx(sum(rows.values()), rel=1e-6)
    assert by_name["custom-call.219.0"] == pytest.approx(rows["custom-call.219.0"])
    end = max(event["ts"] + event["dur"] for event in events) * 1e-6
    assert end == pytest.approx(measured.step_seconds, rel=1e-6)
    assert min(event["ts"] for event in events) == 0
    (gemm,) = [event for event in events if event["name"] == "custom-call.219.0"]
    assert gemm["cat"] == "custom-call"
    assert gemm["args"]["phase"] == "forward"
    assert gemm["args"]["source"] == "/opt/paxml/paxml/trainer_lib.py:799"
    # What is modelled does not change.
    plain = tmp_path / "plain.json"
    a100.with_context(profile=None).trace(plain)
    assert chrome(path, 1)[0] == chrome(plain, 1)[0]
    assert len(chrome(path, 1)[1]) == len(chrome(plain, 1)[1]) > 2000
    assert chrome(plain, 2) == ({}, [])
    tracks = {row["track"]: row["slices"] for row in trace.tables["measured_tracks"]}
    assert sum(tracks.values()) == len(events)
    (result,) = document(
        run, "trace", MODULE, "--device", "a100", "--profile", TRACE, "-o", tmp_path / "b.json.gz"
    )
    assert {row["track"]: row["slices"] for row in result["tables"]["measured_tracks"]} == tracks


def test_both_formats_hold_the_same_measured_events(
    sharded: hlofast.Module, tmp_path: Path
) -> None:
    messages = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = sharded.trace(device="tpu-v5e")
    for name in ("a.json", "a.pftrace"):
        trace.write(tmp_path / name)
    names, events = chrome(tmp_path / "a.json", 2)
    assert len(names) == 8
    expected = sorted(
        (names[own["tid"]], round(own["ts"] * 1000), round((own["ts"] + own["dur"]) * 1000),
         own["name"], own["args"].get("opcode")) for own in events
    )  # fmt: skip
    content = (tmp_path / "a.pftrace").read_bytes()
    message = messages.Trace.FromString(content)
    assert message.ByteSize() == len(content)
    tracks: dict[int, str] = {}
    running: dict[int, list[tuple[int, str, str]]] = {}
    found = []
    last = 0
    for packet in message.packet:
        if packet.trusted_packet_sequence_id != 2:
            continue
        if packet.HasField("track_descriptor"):
            descriptor = packet.track_descriptor
            if descriptor.HasField("process"):
                assert descriptor.process.process_name == "measured"
            else:
                tracks[descriptor.uuid] = descriptor.name
            continue
        event = packet.track_event
        assert packet.timestamp >= last
        last = packet.timestamp
        if event.type == messages.TrackEvent.TYPE_SLICE_BEGIN:
            arguments = {own.name: own.string_value for own in event.debug_annotations}
            begun = (packet.timestamp, event.name, arguments.get("opcode"))
            running.setdefault(event.track_uuid, []).append(begun)
        else:
            begin, name, opcode = running[event.track_uuid].pop()
            found.append((tracks[event.track_uuid], begin, packet.timestamp, name, opcode))
    assert not any(running.values())
    assert sorted(found) == expected
    assert len(found) == 8 * 76


def test_runs_without_marks_are_found_in_the_profile(tmp_path: Path) -> None:
    # Without launches, the runs are those that repeat; the second of three is the median.
    plane = Plane("/device:TPU:0")
    ops = []
    start = 5_000_000
    for length in (3000, 2000, 1000):
        for name, own in (("one", 1000), ("two", length), ("sum", 500)):
            program = {"hlo_module": "step", "program_id": 1}
            ops.append(Event(f"%{name} = f32[] op()", start, 1000 * own, {}, program, name))
            start += 1000 * own
        start += 700_000
    plane.line("XLA Ops", ops)
    module = hlofast.loads(STEP, profile=hlofast.load_profile(space([plane])))
    if len(module.profile().runs) != 3:
        pytest.skip("the core does not find runs that no event marks in this profile")
    module.trace(tmp_path / "t.json", device="tpu-v5e")
    _, events = chrome(tmp_path / "t.json", 2)
    found = [(own["name"], own["ts"], own["dur"]) for own in events]
    assert found == [("one", 0, 1), ("two", 1, 2), ("sum", 3, 0.5)]


def test_overlapping_events_take_further_tracks(tmp_path: Path) -> None:
    plane = Plane("/device:TPU:0")
    plane.line("XLA Modules", [Event("step(1)", 0, 9_000_000)])
    times = {"one": (0, 4), "two": (2, 4), "sum": (3, 1)}
    ops = [
        Event(f"%{name} = f32[] op()", begin * 1_000_000, length * 1_000_000, {}, {}, name)
        for name, (begin, length) in times.items()
    ]
    plane.line("XLA Ops", ops)
    module = hlofast.loads(STEP, profile=hlofast.load_profile(space([plane])))
    module.trace(tmp_path / "t.json", device="tpu-v5e")
    names, events = chrome(tmp_path / "t.json", 2)
    assert {own["name"]: names[own["tid"]] for own in events} == {
        "one": "XLA Ops", "two": "XLA Ops (2)", "sum": "XLA Ops",
    }  # fmt: skip
