"""`Context`: meshes, devices and budgets, given once, and where each was found."""

import pickle
from collections import OrderedDict
from pathlib import Path

import pytest

import hlofast
from conftest import FIXTURES
from hlofast import Context, ContextError, Mesh
from test_cli import hlofast_command

HEADER = "HloModule jit_step, num_partitions=8"
BODY = """
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main (p: f32[8,4]) -> f32[8,4] {
  %p = f32[8,4]{1,0} parameter(0)
  ROOT %r = f32[8,4]{1,0} all-reduce(%p), replica_groups=[2,4]<=[8], channel_id=1, use_global_device_ids=true, to_apply=%sum
}
"""
TEXT = f"{HEADER}\n{BODY}"
BEFORE = f'{HEADER}, frontend_attributes={{xla.sdy.meshes={{mesh = #sdy.mesh<["data"=2, "model"=4]>}}}}\n{BODY}'
STEM = "module_0001.jit_step"
TARGET = 'version: "TPU_VERSION_VIPERFISH"\nvariant: "lite"\n'
TPU = "f32[8,4]{1,0:T(8,128)}"


class JaxMesh:
    """As `jax.sharding.Mesh` is shaped."""

    def __init__(self, **shape: int) -> None:
        self.shape = OrderedDict(shape)
        self.axis_names = tuple(shape)
        self.devices = object()


class Sharding:
    def __init__(self, mesh: object) -> None:
        self.mesh = mesh
        self.spec = ("data",)


class Compiled:
    def __init__(self, inputs: object, outputs: object, text: str = TEXT) -> None:
        self.input_shardings = inputs
        self.output_shardings = outputs
        self.text = text

    def as_text(self) -> str:
        return self.text

    def runtime_executable(self) -> object:
        return object()


def dump(folder: Path, text: str = TEXT, **others: str) -> Path:
    path = folder / f"{STEM}.after_optimizations.txt"
    path.write_text(text)
    for name, content in others.items():
        (folder / f"{STEM}.{name}.txt").write_text(content)
    return path


class TestContext:
    def test_what_is_told_is_read_once(self) -> None:
        told = Context("data=2,model=4", "v5e", hosts=2, hbm="16GiB", step_seconds="300ms")
        assert told.mesh == Mesh({"data": 2, "model": 4}, hosts=2)
        assert told.device is not None
        assert (told.device.name, told.hosts, told.slices) == ("tpu-v5e", 2, None)
        assert (told.hbm, told.step_seconds) == (16 << 30, 0.3)
        assert told.sources == dict.fromkeys(
            ("mesh", "device", "hosts", "hbm", "step_seconds"), "given"
        )
        assert repr(told) == (
            "Context(mesh='data=2,model=4', device='tpu-v5e', hosts=2, hbm=17179869184, "
            "step_seconds=0.3)"
        )

    def test_it_is_a_frozen_value(self) -> None:
        told = Context("data=8", rules=[("loss", "forward")])
        assert told == Context({"data": 8}, rules=[("loss", "forward")]) != Context("data=4")
        assert hash(told) == hash(Context({"data": 8}, rules=[("loss", "forward")]))
        again = pickle.loads(pickle.dumps(told))
        assert (again, again.sources) == (told, told.sources)
        with pytest.raises(AttributeError):
            told.mesh = None
        with pytest.raises(AttributeError):
            del told.mesh
        told.sources["mesh"] = "nowhere"
        assert told.sources["mesh"] == "given"

    def test_replace_keeps_the_rest(self) -> None:
        told = Context("data=8", "tpu-v5p", hosts=2)
        assert told.replace(hbm="8GiB") == Context("data=8", "tpu-v5p", hosts=2, hbm="8GiB")
        assert told.replace(mesh="data=4") == Context("data=4", "tpu-v5p")
        assert told.replace(hosts=4) == Context("data=8", "tpu-v5p", hosts=4)
        assert told.replace(device=None).sources.keys() == {"mesh", "hosts"}
        with pytest.raises(TypeError):
            told.replace(mash="data=8")

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"mesh": "data"}, "data"),
            ({"mesh": "data=8", "hosts": 3}, "host"),
            ({"device": "abacus"}, "abacus"),
            ({"hbm": "16 apples"}, "16GiB"),
            ({"hbm": -1}, "-1"),
            ({"step_seconds": "soon"}, "300ms"),
            ({"step_seconds": 0}, "0"),
            ({"rules": [("(", "forward")]}, "closing"),
            ({"rules": [("a", "sideways")]}, "sideways"),
        ],
        ids=repr,
    )
    def test_what_makes_no_sense_is_refused(self, arguments: dict[str, object], said: str) -> None:
        with pytest.raises(ValueError, match=said):
            Context(**arguments)
        with pytest.raises(ValueError, match=said):
            hlofast.loads(TEXT, **arguments)

    @pytest.mark.parametrize(
        ("text", "bytes_"),
        [("16GiB", 16 << 30), ("900 MB", 900_000_000), ("1.5kib", 1536), ("512", 512), (7, 7)],
    )
    def test_sizes_have_units(self, text: int | str, bytes_: int) -> None:
        assert Context(hbm=text).hbm == bytes_

    @pytest.mark.parametrize(
        ("text", "seconds"), [("300ms", 0.3), ("20us", 2e-5), ("1.5 s", 1.5), ("2min", 120), (3, 3)]
    )
    def test_times_have_units(self, text: float | str, seconds: float) -> None:
        assert Context(step_seconds=text).step_seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    "mesh",
    [
        "data=2,model=4",
        {"data": 2, "model": 4},
        Mesh.parse("data=2,model=4"),
        JaxMesh(data=2, model=4),
    ],
    ids=lambda mesh: type(mesh).__name__,
)
def test_a_mesh_may_be_given_as_anything_that_is_one(mesh: object) -> None:
    module = hlofast.loads(TEXT)
    told = module.with_context(mesh=mesh)
    every = [
        hlofast.loads(TEXT, mesh=mesh).collectives(),
        told.collectives(),
        module.collectives(mesh),
    ]
    for collectives in every:
        assert [row["axes"] for row in collectives] == ["model"]
        assert collectives.mesh_source == "given"
    assert list(module.time("tpu-v5e", mesh=mesh).exposed) == ["model"]
    assert module.lint(mesh).mesh == module.remat(mesh=mesh).mesh == Mesh.parse("data=2,model=4")
    assert [row["axes"] for row in module.collectives()] != ["model"]


class TestAnalyses:
    def test_they_take_what_they_are_not_given(self) -> None:
        rules = [(".*", "optimizer")]
        module = hlofast.loads(
            TEXT, mesh="x=2,y=4", device="tpu-v5e", hbm="1MiB", rules=rules, step_seconds="1ms"
        )
        assert module.time().device.name == "tpu-v5e"
        assert module.time().mesh == "x=2,y=4"
        assert module.time("tpu-v5p").device.name == "tpu-v5p"
        assert (module.remat().hbm, module.remat(hbm=5).hbm) == (1 << 20, 5)
        assert module.remat().device == module.memory().device == module.context.device
        assert module.trace().time.device.name == "tpu-v5e"
        assert {row["phase"] for row in module.collectives()} == {"optimizer"}
        assert {row["phase"] for row in module.collectives(rules=[])} != {"optimizer"}
        assert module.cost().mfu().step_seconds == 0.001
        assert module.cost().mfu(2.0).step_seconds == 2.0
        assert module.report(plots=False).verdict["step"] is not None

    def test_without_a_device_it_is_said(self) -> None:
        with pytest.raises(ContextError, match="no device given"):
            hlofast.loads(TEXT).time()
        with pytest.raises(ContextError, match="step"):
            hlofast.loads(TEXT).cost().mfu()

    def test_views_and_copies_know_the_context(self) -> None:
        module = hlofast.loads(TEXT)
        told = module.with_context(mesh="x=2,y=4")
        assert told == module
        assert told.columns is module.columns
        assert module.context.mesh != told.context.mesh
        for other in (told[0].module, told.entry.module, pickle.loads(pickle.dumps(told))):
            assert other.context == told.context
        assert told.with_context(hbm=5).context.mesh == told.context.mesh
        assert told.with_context(Context(hbm=5)).context.mesh == module.context.mesh

    def test_every_module_of_a_page_is_told(self) -> None:
        page = f"first\n{TEXT}\nsecond\n{TEXT.replace('num_partitions=8', 'num_partitions=16')}\n"
        first, second = hlofast.find_modules(page, mesh="x=2,y=4")
        assert first.module is not None
        assert second.module is not None
        assert first.module.collectives().mesh == Mesh.parse("x=2,y=4")
        with pytest.raises(ContextError, match="the module is for 16"):
            second.module.collectives()


class TestRefused:
    def test_meshes_of_other_devices(self) -> None:
        module = hlofast.loads(TEXT)
        said = "mesh data=2 has 2 devices, the module is for 8"
        refused = (
            lambda: hlofast.loads(TEXT, mesh="data=2"),
            lambda: module.with_context(mesh="data=2"),
            lambda: module.collectives("data=2"),
            lambda: module.lint("data=2"),
            lambda: module.remat(mesh="data=2"),
            lambda: module.time("tpu-v5e", mesh="data=2"),
            lambda: module.trace(device="tpu-v5e", mesh="data=2"),
            lambda: module.diff(module, mesh="data=2"),
            lambda: module.report(mesh="data=2", plots=False),
        )
        for call in refused:
            with pytest.raises(ValueError, match=said):
                call()

    def test_a_program_of_one_slice_fits_a_mesh_of_several(self) -> None:
        with pytest.raises(ContextError, match="give slices=2"):
            hlofast.loads(TEXT, mesh="data=4,model=4")
        told = hlofast.loads(TEXT, mesh="data=4,model=4", slices=2)
        assert told.context.slices == 2

    def test_any_mesh_fits_what_is_not_partitioned(self) -> None:
        whole = hlofast.loads("HloModule m\n\nENTRY e {\n  ROOT p = f32[] parameter(0)\n}\n")
        assert whole.with_context(mesh="data=2").context.mesh == Mesh({"data": 2})

    def test_hosts_that_do_not_fit_the_mesh_of_the_text(self) -> None:
        assert hlofast.loads(TEXT, hosts=4).context.hosts == 4
        with pytest.raises(ContextError, match="host"):
            hlofast.loads(TEXT, hosts=3)

    def test_devices_of_another_backend(self) -> None:
        module = hlofast.loads(TEXT.replace("f32[8,4]{1,0}", TPU))
        assert module.time("tpu-v5e").step_seconds > 0
        for call in (
            lambda: module.time("h100"),
            lambda: module.memory(device="h100"),
            lambda: module.with_context(device="h100"),
        ):
            with pytest.raises(
                ContextError, match=r"gpu, the module is for tpu; give one such as tpu-v"
            ):
                call()

    def test_examples_of_devices_are_different_chips(self) -> None:
        module = hlofast.load(FIXTURES / "seedlike" / "gpu_train_step.txt.gz")
        with pytest.raises(ContextError) as raised:
            module.memory(device="tpu-v5e")
        _, _, names = str(raised.value).partition("give one such as ")
        chips = [name.partition("-")[0] for name in names.split(", ")]
        assert len(set(chips)) == len(chips) == 3
        assert all(hlofast.devices.get(name).backend == "gpu" for name in names.split(", "))


class TestFound:
    def test_the_mesh_of_the_text(self) -> None:
        context = hlofast.loads(BEFORE).context
        assert context.mesh == Mesh.parse("data=2,model=4")
        assert context.sources == {"mesh": "shardy_meshes"}

    def test_names_of_the_module_before_optimisation(self, tmp_path: Path) -> None:
        module = hlofast.load(dump(tmp_path, before_optimizations=BEFORE))
        source = f"shardy_meshes of {STEM}.before_optimizations.txt"
        assert module.context.sources == {"mesh": source}
        assert [row["axes"] for row in module.collectives()] == ["model"]
        assert list(module.time("tpu-v5e").exposed) == ["model"]

    def test_meshes_of_another_module_do_not_count(self, tmp_path: Path) -> None:
        other = BEFORE.replace('"data"=2', '"data"=3')
        context = hlofast.load(dump(tmp_path, before_optimizations=other)).context
        assert context.sources == {"mesh": "replica_groups"}
        (tmp_path / f"{STEM}.before_optimizations.txt").write_text("no module")
        assert hlofast.load(dump(tmp_path)).context.sources == {"mesh": "replica_groups"}

    def test_the_device_of_the_folder(self, tmp_path: Path) -> None:
        module = hlofast.load(dump(tmp_path, target_arguments=TARGET))
        assert module.time().device.name == "tpu-v5e"
        assert module.context.sources["device"] == f"{STEM}.target_arguments.txt"
        assert module.time("tpu-v5p").device.name == "tpu-v5p"
        assert hlofast.loads(TEXT).context.device is None

    def test_the_device_of_the_name(self, tmp_path: Path) -> None:
        path = tmp_path / f"{STEM}.sm_8.0_gpu_after_optimizations.txt"
        path.write_text(TEXT)
        context = hlofast.load(path).context
        assert context.device is not None
        assert (context.device.name, context.sources["device"]) == ("a100", path.name)
        for result in (hlofast.load(path).time(), hlofast.load(path).verdict()):
            (said,) = [note.text for note in result.notes if note.code == "assumed-device"]
            assert "sm_8.0" in said and "a100-40gb" in said and "give --device" in said
        given = hlofast.load(path, device="a100").time()
        assert "assumed-device" not in [note.code for note in given.notes]

    def test_devices_that_cannot_be_meant(self, tmp_path: Path) -> None:
        path = dump(tmp_path, target_arguments='version: "TPU_VERSION_ABACUS"\n')
        with pytest.raises(ContextError, match="ABACUS"):
            hlofast.load(path).time()
        text = TEXT.replace("f32[8,4]{1,0}", TPU)
        path = dump(tmp_path, text, gpu_target_config="")
        config = tmp_path / f"{STEM}.gpu_target_config.pbtxt"
        config.write_text('device_description_str: "NVIDIA H100"\n')
        (tmp_path / f"{STEM}.target_arguments.txt").unlink()
        assert hlofast.load(path).context.device is None

    def test_what_is_told_wins(self, tmp_path: Path) -> None:
        path = dump(tmp_path, before_optimizations=BEFORE, target_arguments=TARGET)
        context = hlofast.load(path, mesh="x=8", device="tpu-v5p").context
        assert context.device is not None
        assert (str(context.mesh), context.device.name) == ("x=8", "tpu-v5p")
        assert context.sources == {"mesh": "given", "device": "given"}


class TestJax:
    def test_the_mesh_of_the_shardings(self) -> None:
        named = Sharding(JaxMesh(data=2, model=4))
        for stage in (
            Compiled(((named, object()), {}), None),
            Compiled(((), {"x": [object(), named]}), None),
            Compiled(None, {"loss": (named,)}),
        ):
            module = hlofast.from_jax(stage)
            assert module.context.mesh == Mesh.parse("data=2,model=4")
            assert module.context.sources["mesh"] == "shardings"
            assert [row["axes"] for row in module.collectives()] == ["model"]
        placed = hlofast.from_jax(Compiled(named, None), hosts=2, device="tpu-v5e")
        assert placed.context.hosts == 2
        assert placed.time().device.name == "tpu-v5e"

    def test_what_is_told_wins(self) -> None:
        stage = Compiled(Sharding(JaxMesh(data=2, model=4)), None)
        assert hlofast.from_jax(stage, mesh="x=8").context.sources["mesh"] == "given"

    def test_shardings_that_name_no_mesh_of_the_module(self) -> None:
        deep: list[object] = []
        deep.append(deep)
        for shardings in (None, object(), deep, Sharding(JaxMesh()), Sharding(JaxMesh(data=3))):
            module = hlofast.from_jax(Compiled(shardings, None))
            assert module.context.sources["mesh"] == "replica_groups"


class TestCommandLine:
    def test_misfits_end_with_exit_code_2(self, tmp_path: Path) -> None:
        path = dump(tmp_path)
        done = hlofast_command("collectives", path, "--mesh", "data=2")
        said = f"hlofast: {path}: mesh data=2 has 2 devices, the module is for 8\n"
        assert (done.returncode, done.stderr, done.stdout) == (2, said, "")
        path = dump(tmp_path, TEXT.replace("f32[8,4]{1,0}", TPU))
        done = hlofast_command("time", path, "--device", "h100")
        assert done.returncode == 2
        assert "the module is for tpu" in done.stderr

    def test_arguments_are_read_together(self, tmp_path: Path) -> None:
        import argparse

        from hlofast.cli import inputs

        parser = argparse.ArgumentParser()
        inputs.add_context(parser)
        rules = tmp_path / "rules.toml"
        rules.write_text('[[rule]]\npattern = "loss"\nphase = "forward"\n')
        line = "--mesh data=2,model=4 --hosts 2 --device v5e --hbm 16GiB --step-time 300ms"
        told = inputs.read_context(parser.parse_args([*line.split(), "--rules", str(rules)]))
        assert told == Context(
            "data=2,model=4", "v5e", hosts=2, hbm=16 << 30, step_seconds=0.3, rules=rules
        )
        assert inputs.read_context(parser.parse_args([])) == Context()
        hosts = inputs.read_context(parser.parse_args(["--hosts", "2"]))
        assert hlofast.loads(TEXT).with_context(hosts).context.hosts == 2
        for wrong in ("--mesh x", "--device abacus", "--hbm 1apple", "--step-time 0"):
            with pytest.raises(ContextError, match=wrong.split()[0]):
                inputs.read_context(parser.parse_args(wrong.split()))
        with pytest.raises(ContextError, match="nowhere"):
            inputs.read_context(parser.parse_args(["--rules", "nowhere.toml"]))


def test_a_program_of_another_backend_is_told_wherever_its_device_counts() -> None:
    module = hlofast.load(FIXTURES / "dumps" / "cpu_recurrent.after.bare.txt.gz", device="h100")
    results = (module.verdict(), module.time(), module.memory())
    told = [[note.text for note in own.notes if note.code == "other-backend"] for own in results]
    assert [len(own) for own in told] == [1, 1, 1]
    assert "compiled for CPU, the device is h100" in told[0][0]
    bare = hlofast.load(FIXTURES / "dumps" / "cpu_recurrent.after.bare.txt.gz")
    assert "other-backend" not in {note.code for note in bare.memory().notes}
