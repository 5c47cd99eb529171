"""Ctrl-C on the command line while an analysis runs in the core."""

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hlofast import _core
from hlofast.cli import VERBS, file_of, main

pytestmark = pytest.mark.skipif(not hasattr(os, "wait4"), reason="signals and processes of POSIX")

COMMAND = [sys.executable, "-P", "-m", "hlofast"]
LAYERS = 60_000
"""Fusions of the text: reading and analysing it takes seconds."""
TYPE = "f32[128,256]{1,0}"


def _text(layers: int) -> Iterator[str]:
    yield "HloModule large, is_scheduled=true\n\n"
    for at in range(layers):
        yield f"%fused.{at} (a.{at}: f32[128,256], b.{at}: f32[128,256]) -> f32[128,256] {{\n"
        yield f"  %a.{at} = {TYPE} parameter(0)\n  %b.{at} = {TYPE} parameter(1)\n"
        yield f"  %c.{at} = {TYPE} add(%a.{at}, %b.{at})\n"
        yield f"  ROOT %d.{at} = {TYPE} exponential(%c.{at})\n}}\n\n"
    yield f"ENTRY %main (p: f32[128,256]) -> f32[128,256] {{\n  %p = {TYPE} parameter(0)\n"
    before = "p"
    for at in range(layers):
        metadata = f'metadata={{op_name="jit(step)/layer_{at}/mlp/add" source_line={at + 1}}}'
        fusion = f"fusion(%{before}, %p), kind=kLoop, calls=%fused.{at}, {metadata}"
        yield f"  %fusion.{at} = {TYPE} {fusion}\n"
        before = f"fusion.{at}"
    yield f"  ROOT %out = {TYPE} negate(%{before})\n}}\n"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "step.txt"
    with path.open("w") as file:
        file.writelines(_text(LAYERS))
    return path


def _started(*arguments: str | Path, ignores: bool = False) -> subprocess.Popen[bytes]:
    """The command line as a process; a background job of a shell ignores the signal."""
    number = signal.SIG_IGN if ignores else signal.SIG_DFL
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, number),
    )


def _processor_time(process: subprocess.Popen[bytes]) -> float:
    """What a running process has used of the processors, in seconds."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, float]:
    """Exit code, standard error and processor time of a process that ends."""
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read()
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    process.stderr.close()
    return process.returncode, said, used.ru_utime + used.ru_stime


def _until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while not condition():
        assert process.poll() is None, "it ended before the condition held"
        time.sleep(0.002)


def _interrupted(
    process: subprocess.Popen[bytes], condition: Callable[[], bool]
) -> tuple[int, bytes, float]:
    """What became of a process that is interrupted once `condition` holds."""
    try:
        _until(condition, process)
        process.send_signal(signal.SIGINT)
        return _ended(process)
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def whole(large: Path) -> float:
    """Processor time of `time` when nothing interrupts it."""
    code, said, seconds = _ended(_started("time", "--device", "v5e", large))
    assert (code, said) == (0, b"")
    return seconds


class TestCtrlC:
    @pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no processor time in /proc")
    def test_ends_a_call_into_the_core(self, large: Path, whole: float) -> None:
        process = _started("time", "--device", "v5e", large)
        condition = lambda: _processor_time(process) > whole / 4  # noqa: E731 - it needs the process.
        code, said, seconds = _interrupted(process, condition)
        assert (code, said) == (130, b"")
        # The moment that Python has to act is a part of the time of the call.
        assert seconds < whole / 4 + 0.7 * (whole * 3 / 4)

    @pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace.pftrace"])
    def test_leaves_no_half_written_file(self, large: Path, tmp_path: Path, name: str) -> None:
        process = _started("trace", "--device", "v5e", large, "-o", tmp_path / name)
        code, said, _ = _interrupted(process, lambda: any(tmp_path.iterdir()))
        assert (code, said) == (130, b"")
        assert list(tmp_path.iterdir()) == []

    def test_keeps_the_file_that_was_to_be_replaced(self, large: Path, tmp_path: Path) -> None:
        out = tmp_path / "trace.json"
        out.write_text("before")
        process = _started("trace", "--device", "v5e", large, "-o", out)
        code, _, _ = _interrupted(process, lambda: len(list(tmp_path.iterdir())) > 1)
        assert code == 130
        assert list(tmp_path.iterdir()) == [out]
        assert out.read_text() == "before"

    def test_is_ignored_where_the_shell_ignores_it(self, large: Path, tmp_path: Path) -> None:
        out = tmp_path / "trace.json"
        process = _started("trace", "--device", "v5e", large, "-o", out, ignores=True)
        code, _, _ = _interrupted(process, lambda: any(tmp_path.iterdir()))
        assert code == 0
        assert list(tmp_path.iterdir()) == [out]


class TestInOtherPrograms:
    def test_a_call_leaves_the_handler_of_its_program(self, tmp_path: Path) -> None:
        before = signal.getsignal(signal.SIGINT)
        path = tmp_path / "m.txt"
        path.write_text("HloModule m\n\nENTRY e {\n  ROOT p = f32[] parameter(0)\n}\n")
        assert main(["summary", str(path)]) == 0
        assert signal.getsignal(signal.SIGINT) is before

    def test_another_handler_stays(self) -> None:
        before = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, lambda *_: None)
        try:
            own = signal.getsignal(signal.SIGINT)
            _core._watch_interrupts(130)
            assert signal.getsignal(signal.SIGINT) is own
        finally:
            signal.signal(signal.SIGINT, before)

    def test_no_verb_is_forgotten(self) -> None:
        own = {
            verb
            for verb in VERBS
            if getattr(
                importlib.import_module(f"hlofast.cli.{file_of(verb)}"), "ENDS_ITSELF", False
            )
        }
        assert own == {"scan", "mcp", "top"}
