"""`hlofast FILE`: the kind of a file, its verdict, and the commands that show more."""

import gzip
import hashlib
import json
import lzma
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES
from shown import check_one_source, checked, figures

FOLDER = FIXTURES / "dump_folders" / "cpu"
DEVICE = ("--device", "tpu-v5e")


def document(run: Any, *arguments: object, code: int = 0) -> Any:
    """The results of the command without a verb."""
    return checked("verdict", run(*arguments, "--json"), code)


def test_the_figures_are_those_of_the_analyses(train_step: Path, run: Any) -> None:
    module = hlofast.load(train_step, device="tpu-v5e")
    time, memory = module.time(), module.memory()
    (result,) = document(run, train_step, *DEVICE)
    shown = figures(result)
    assert shown["step"] == time.step_seconds
    assert shown["mfu"] == time.mfu
    assert shown["bound"] == time.bound
    assert shown["peak"] == memory.allocated_in_hbm
    assert shown["exposed"] == pytest.approx(sum(time.exposed.values()))
    assert all(axes in shown["exposed_axes"] for axes in time.exposed)
    assert shown["hbm_share"] == pytest.approx(memory.allocated_in_hbm / shown["hbm"])
    assert shown["flops"] == module.cost().flops
    assert [row["code"] for row in result["tables"]["findings"]][: len(module.lint())] == [
        finding.code for finding in module.lint()
    ]


def test_the_short_form_and_python_say_the_same(train_step: Path, run: Any) -> None:
    code, short, _ = run(train_step, *DEVICE)
    assert code == 0
    assert run("verdict", train_step, *DEVICE) == (0, short, "")
    assert run(*DEVICE, train_step) == (0, short, "")
    check_one_source(hlofast.load(train_step, device="tpu-v5e").verdict(), short)
    assert len(short.splitlines()) <= 32


def test_the_page_has_the_same_figures(train_step: Path) -> None:
    module = hlofast.load(train_step, device="tpu-v5e")
    page = module.report(plots=False).verdict
    shown = {fact.name: fact.value for fact in module.verdict().facts}
    assert page == {name: shown[name] for name in page}


def test_unknown_figures_say_what_gives_them(train_step: Path, run: Any) -> None:
    _, out, _ = run(train_step)
    assert "step time              unknown" in out
    assert "unknown: step time, MFU, exposed communication; no device given, use --device" in out
    (result,) = document(run, train_step)
    assert result["facts"]["mfu"] == {"value": None, "unit": None, "provenance": "unknown"}


def test_no_share_of_the_peak_without_known_flops(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "step.txt"
    path.write_text(
        "HloModule m, is_scheduled=true\n\nENTRY main {\n  x = f32[512,512]{1,0} parameter(0)\n"
        '  ROOT z = f32[512,512]{1,0} custom-call(x), custom_call_target="mystery"\n}\n'
    )
    _, out, _ = run(path, *DEVICE)
    assert re.search(r"^MFU +unknown$", out, re.MULTILINE)
    assert re.search(r"^FLOPs +at least 0 FLOP$", out, re.MULTILINE)
    assert "unknown: MFU; the FLOPs of the step are unknown" in out
    module = hlofast.load(path, device="tpu-v5e")
    assert "mfu" not in {fact.name for fact in module.time().facts}
    with pytest.raises(ValueError, match="FLOPs of the step are unknown"):
        _ = module.time().mfu
    (result,) = document(run, path, *DEVICE, "--step-time", "1ms")
    assert result["facts"]["measured_mfu"]["provenance"] == "bound"


def test_a_measured_step_needs_a_device_for_its_mfu(train_step: Path, run: Any) -> None:
    _, out, _ = run(train_step, "--step-time", "1ms")
    assert "measured step          1 ms" in out
    assert "exposed communication, measured MFU; no device given, use --device" in out
    _, out, _ = run("time", train_step, *DEVICE, "--step-time", "1ms", "--json")
    (timed,) = json.loads(out)["results"]
    shown = figures(timed)
    assert shown["measured_step"] == 0.001
    assert shown["measured_mfu"] == pytest.approx(shown["mfu"] * shown["step_seconds"] / 0.001)


@pytest.mark.parametrize("verb", ["verdict", "collectives"])
def test_a_mesh_in_another_order_is_said(train_step: Path, run: Any, verb: str) -> None:
    _, out, _ = run(verb, train_step, "--mesh", "model=4,data=2")
    assert (
        "no collective follows whole axes of the mesh model=4,data=2; the text has "
        "axis_0=2,axis_1=4: is the order or the size of an axis wrong?"
    ) in out
    for fits in ("data=2,model=4", "data=2,fsdp=2,model=2", "a=1,data=2,model=4"):
        assert "whole axes" not in run(verb, train_step, "--mesh", fits)[1]


def test_a_folder_of_configs(tmp_path: Path, run: Any) -> None:
    names = ("decoder_small.txt", "decoder_70b.txt")
    for name in names:
        (tmp_path / name).write_bytes((FIXTURES / "configs" / name).read_bytes())
    code, out, error = run(tmp_path)
    assert (code, error) == (0, "")
    assert "folder of trainer configs" in out
    commands = [line for line in out.splitlines() if "hlofast config" in line]
    assert len(commands) == 2
    assert run(*shlex.split(commands[0].partition("hlofast ")[2]))[0] == 0


def test_a_folder_of_damaged_profiles(tmp_path: Path, run: Any) -> None:
    (tmp_path / "host.xplane.pb").write_bytes(b"\0")
    code, _, error = run(tmp_path)
    assert code == 3
    assert "host.xplane.pb: error: this is not a profile" in error


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_trace_of_nothing_is_a_profile(tmp_path: Path, run: Any, pack: Any) -> None:
    path = tmp_path / "events.json"
    path.write_bytes(pack(TRACE))
    (result,) = document(run, path)
    assert figures(result)["kind"] == "profile"
    assert [note["code"] for note in result["notes"]] == ["no-events"]


def test_the_largest_program_is_found_in_compressed_files(tmp_path: Path, run: Any) -> None:
    def text(name: str, lines: str) -> bytes:
        rest = f"ENTRY e {{\n{lines}  ROOT r = f32[8] parameter(0)\n}}\n"
        return f"HloModule {name}\n\n{rest}".encode()

    same = "".join(f"  c{at} = f32[8] constant({{1,2,3,4,5,6,7,8}})\n" for at in range(4000))
    random = "".join(
        f"  v{hashlib.sha256(str(at).encode()).hexdigest()} = f32[8] constant({{...}})\n"
        for at in range(400)
    )

    def zstd(content: bytes) -> bytes:
        # The frame of a file states its size, the frame of a pipe does not.
        (tmp_path / "plain").write_bytes(content)
        command = ["zstd", "-c", tmp_path / "plain"]
        return subprocess.run(command, capture_output=True, check=True).stdout

    packers = {"gz": gzip.compress, "xz": lzma.compress}
    if shutil.which("zstd"):
        packers["zst"] = zstd
    for ending, pack in packers.items():
        folder = tmp_path / ending
        folder.mkdir()
        for name, lines in (("jit_large", same), ("jit_small", random)):
            path = (
                folder / f"module_000{name == 'jit_large'}.{name}.after_optimizations.txt.{ending}"
            )
            path.write_bytes(pack(text(name, lines)))
        small, large = sorted(folder.iterdir(), key=lambda one: "large" in one.name)
        assert small.stat().st_size > large.stat().st_size
        listed, chosen = document(run, folder)
        assert chosen["name"] == "jit_large"
        (first, second) = listed["tables"]["programs"]
        assert first["bytes"] == len(text("jit_large", same))
        assert second["bytes"] == len(text("jit_small", random))


def test_what_is_known_of_the_run_is_in_the_commands(train_step: Path, run: Any) -> None:
    told = (*DEVICE, "--hbm", "8MiB", "--step-time", "1ms")
    (result,) = document(run, train_step, *told)
    shown = figures(result)
    assert shown["hbm"] == 8 << 20
    assert shown["hbm_share"] > 1
    assert shown["measured_step"] == 0.001
    rows = result["tables"]["commands"] + result["tables"]["findings"]
    for row in rows:
        assert all(word in shlex.split(row["command"]) for word in told)


@pytest.mark.parametrize("options", [DEVICE, ()])
def test_every_command_that_is_named_works(
    train_step: Path,
    tmp_path: Path,
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a step.txt"
    path.write_bytes(train_step.read_bytes())
    (result,) = document(run, path, *options)
    for row in result["tables"]["commands"] + result["tables"]["findings"]:
        words = shlex.split(row["command"].replace("NAME", "tpu-v5e"))
        assert words[0] == "hlofast"
        assert run(*words[1:])[0] == 0, words


def test_a_finding_alone(run: Any) -> None:
    path = FIXTURES / "sharded" / "layers_cpu_2x2x2.txt.gz"
    (result,) = document(run, path)
    first = result["tables"]["findings"][0]
    code, out, _ = run(*shlex.split(first["command"])[1:])
    assert code == 0
    assert first["found"] in out
    others = {row["code"] for row in result["tables"]["findings"]} - {first["code"]}
    assert others
    assert not any(f"{other}:" in out for other in others)


def test_a_folder_lists_its_programs_and_takes_the_largest(tmp_path: Path, run: Any) -> None:
    texts = {}
    for number, size in enumerate((3, 9, 5)):
        lines = "".join(f"  x{i} = f32[{size}] parameter({i})\n" for i in range(size))
        name = f"jit_f{number}"
        texts[name] = (
            f"HloModule {name}\n\nENTRY e {{\n{lines}  ROOT r = f32[{size}] add(x0, x1)\n}}\n"
        )
        path = tmp_path / f"module_{number:04}.{name}.after_optimizations.txt"
        path.write_text(texts[name])
    listed, chosen = document(run, tmp_path)
    assert figures(listed) == {"kind": "XLA dump directory", "programs": 3}
    rows = listed["tables"]["programs"]
    assert [row["program"] for row in rows] == ["jit_f1", "jit_f2", "jit_f0"]
    assert chosen["name"] == "jit_f1"
    assert "largest" in {note["code"] for note in listed["notes"]}
    for row in rows:
        assert run(*shlex.split(row["command"])[1:])[1].startswith(row["program"])
    *_, other = document(run, tmp_path, "--module", "jit_f2")
    assert other["name"] == "jit_f2"
    code, _, err = run(tmp_path, "--module", "jit_g2")
    assert code == 2
    assert "did you mean jit_f" in err


def test_a_text_of_several_modules_takes_the_largest(tmp_path: Path, run: Any) -> None:
    page = tmp_path / "log.txt"
    small = "HloModule small\n\nENTRY e {\n  ROOT p = f32[] parameter(0)\n}\n"
    large = (
        "HloModule large\n\nENTRY e {\n  p = f32[2] parameter(0)\n  ROOT n = f32[2] negate(p)\n}\n"
    )
    page.write_text(f"some text\n\n{small}\nmore\n\n{large}")
    listed, chosen = document(run, page)
    assert [row["program"] for row in listed["tables"]["programs"]] == ["large", "small"]
    assert chosen["name"] == "large"
    assert all("--module large" in row["command"] for row in chosen["tables"]["commands"])
    _, out, _ = run(page, "--module", "small")
    assert out.startswith("small\n")


def test_a_trainer_config_points_to_its_verb(run: Any) -> None:
    path = FIXTURES / "configs" / "decoder_70b.txt"
    (result,) = document(run, path)
    assert figures(result)["kind"] == "trainer config"
    assert figures(result)["mesh_rules"] == 6
    commands = [row["command"] for row in result["tables"]["commands"]]
    assert f"hlofast config {path}" in commands


OUT_OF_MEMORY = """\
Traceback (most recent call last):
jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. \
Ran out of memory in memory space hbm. Used 20.51G of 15.75G hbm. Exceeded hbm capacity by 4.77G.
"""
TRACE = b'{"displayTimeUnit":"ns","traceEvents":[{"ph":"M","pid":1,"name":"process_name"}]}'


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("error.txt", b"RESOURCE_EXHAUSTED: quota\n", ("an error message", "hlofast oom")),
        ("host.xplane.pb", b"\x0a\x20\x08\x01\x12\x0e/host:metadata\x22", ("at byte 0",)),
        ("hello.txt", b"hello", ("no HLO module found",)),
    ],
)
def test_what_is_not_read_is_named(
    tmp_path: Path, run: Any, name: str, content: bytes, said: tuple[str, ...]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    code, out, err = run(path)
    assert code == 3
    assert out == ""
    assert all(words in err for words in said), err
    document(run, path, code=3)


def test_an_out_of_memory_message_is_read(tmp_path: Path, run: Any) -> None:
    path = tmp_path / "error.txt"
    path.write_text(OUT_OF_MEMORY)
    (result,) = document(run, path)
    assert figures(result)["kind"] == "tpu-compile"
    assert figures(result)["ran_out"].endswith("20.51G used of 15.75G, 4.77G missing")


def test_an_empty_folder_says_how_to_dump(tmp_path: Path, run: Any) -> None:
    code, _, err = run(tmp_path)
    assert code == 3
    assert "--xla_dump_to" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("summry",), "did you mean summary"),
        (("help", "colectives"), "did you mean collectives"),
        (("nowhere.txt",), "nowhere.txt: No such file or directory"),
        (("summary", "--devce", "x", "FILE"), "unknown option --devce; did you mean --device"),
        (("cost", "--by", "phas", "FILE"), "did you mean phase?"),
        (("lint", "--only", "reduced-twise", "FILE"), "did you mean reduced-twice"),
    ],
)
def test_what_may_have_been_meant(
    train_step: Path, run: Any, arguments: tuple[str, ...], said: str
) -> None:
    code, _, err = run(*(train_step if word == "FILE" else word for word in arguments))
    assert code in (2, 3)
    assert said in err


def test_help_is_a_verb_too(run: Any) -> None:
    assert run("help")[:2] == run("--help")[:2]
    assert run("help", "cost")[:2] == run("cost", "--help")[:2]
    assert run("help", "roofline")[:2] == run("time", "--help")[:2]


def test_a_text_before_fusion_is_told_to_move_too_many_bytes(train_step: Path) -> None:
    module = hlofast.load(FIXTURES / "policies" / "two_forms.txt.gz", device="h100")
    assert module.summary().is_unfused
    [note] = [note for note in module.verdict().notes if note.code == "unfused"]
    assert "several times fewer bytes" in note.text and "MFU higher" in note.text
    assert "unfused" not in {note.code for note in hlofast.load(train_step).verdict().notes}


def test_policies_are_not_judged_before_optimisation() -> None:
    """Without the step under another policy, none is said to be no faster."""
    path = FIXTURES / "shares" / "attention.before.txt.xz"
    said = str(hlofast.load(path, device="tpu-v5p").verdict())
    assert "no findings; whether another checkpoint policy is faster is evaluated on" in said
    assert "no known policy would help" not in said
    page = hlofast.load(path, device="tpu-v5p").report(plots=False).html
    assert "No findings; whether another checkpoint policy" in page
    assert "Nothing to change" not in page
