"""Protobufs are read wherever text is, and give what the text of the same module gives."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hlofast

FOLDERS = Path(__file__).parent / "fixtures" / "dump_folders"
PROTOS = sorted(FOLDERS.glob("*/*.hlo.pb.gz"))
PAIRS = [(proto, proto.with_name(proto.name.replace(".hlo.pb", ".txt"))) for proto in PROTOS]


def both(pair: tuple[Path, Path]) -> tuple[hlofast.Module, hlofast.Module]:
    proto, text = pair
    return hlofast.load(proto), hlofast.load(text)


def test_the_pairs_are_there() -> None:
    assert len(PAIRS) >= 4


@pytest.mark.parametrize(
    "pair", PAIRS, ids=lambda pair: f"{pair[0].parent.name}-{pair[0].name[-40:]}"
)
def test_analyses_of_proto_and_text(pair: tuple[Path, Path]) -> None:
    own, other = both(pair)
    assert own.name == other.name
    assert own.is_scheduled == other.is_scheduled
    assert own.num_partitions == other.num_partitions
    assert [i.name for i in own.instructions] == [i.name for i in other.instructions]
    assert [str(i.shape) for i in own.instructions] == [str(i.shape) for i in other.instructions]
    assert own.cost().flops == other.cost().flops
    assert own.cost(xla=True).cost_analysis() == other.cost(xla=True).cost_analysis()
    assert own.collectives().to_pylist() == other.collectives().to_pylist()
    assert own.matmuls().to_pylist() == other.matmuls().to_pylist()
    if own.is_scheduled:
        assert own.memory().live_peak == other.memory().live_peak
        assert own.memory().xla_peak == other.memory().xla_peak


def test_every_container_and_compression() -> None:
    data = gzip.decompress(PROTOS[0].read_bytes())
    whole = hlofast.loads(data)
    assert whole.name == hlofast.load(PROTOS[0]).name
    # Field 1 of an HloProto is the module by itself; an HloSnapshot has the HloProto as field 1.
    length, shift, at = 0, 0, 1
    while True:
        byte = data[at]
        length |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            break
    inner = data[at : at + length]
    head = bytes([0x0A])
    size = len(data)
    while size >= 0x80:
        head += bytes([size & 0x7F | 0x80])
        size >>= 7
    snapshot = head + bytes([size]) + data
    for content in (inner, snapshot, gzip.compress(inner), bytearray(data)):
        assert hlofast.loads(content).fingerprint() == whole.fingerprint()
    (part,) = hlofast.find_modules(data)
    assert part.module is not None
    assert part.module.fingerprint() == whole.fingerprint()


def test_buffer_assignment_comes_with_the_proto() -> None:
    (proto,) = (FOLDERS / "cpu").glob("*cpu_after_optimizations.hlo.pb.gz")
    (file,) = (FOLDERS / "cpu").glob("*-buffer-assignment.txt.gz")
    module = hlofast.load(proto)
    assert module.buffer_assignment is not None
    memory = module.memory()
    own = memory.file(module.buffer_assignment)
    other = memory.file(gzip.decompress(file.read_bytes()))
    assert own.total_bytes == other.total_bytes
    assert own.table.to_pylist() == other.table.to_pylist()
    (before,) = (FOLDERS / "cpu").glob("*before_optimizations.hlo.pb.gz")
    assert hlofast.load(before).buffer_assignment is None


def test_faults_say_where() -> None:
    data = gzip.decompress(PROTOS[0].read_bytes())
    with pytest.raises(hlofast.ParseError) as caught:
        hlofast.loads(data[: len(data) // 2], path="step.hlo.pb")
    error = caught.value
    assert error.kind == "invalid-proto"
    assert "bytes where" in error.message
    assert "of the protobuf" in error.message
    assert error.excerpt == ""
    assert str(error).startswith("step.hlo.pb: error:")
    with pytest.raises(hlofast.ParseError) as caught:
        hlofast.loads(b"\x0a\x04\x01abc\x12\x02hi")
    assert caught.value.kind == "not-hlo"


def test_fields_that_text_does_not_have_are_listed() -> None:
    fields = dict(hlofast.protobuf_fields_not_in_text)
    assert len(fields) == len(hlofast.protobuf_fields_not_in_text) >= 20
    assert all(re.fullmatch(r"[A-Z]\w+Proto\.[a-z_]+|OpMetadata\.[a-z_]+", name) for name in fields)
    assert all(fields.values())
    assert {
        f"HloInstructionProto.{it}" for it in ("async_group_id", "outer_dimension_partitions")
    } <= (fields.keys())
    # What is read of those listed with an exception.
    assert "num_partitions" in fields["HloModuleProto.device_assignment"]
    assert "protobuf_fields_not_in_text" in (hlofast.load.__doc__ or "")


def test_command_line(tmp_path: Path) -> None:
    path = tmp_path / "misnamed.txt"
    path.write_bytes(gzip.decompress(PROTOS[0].read_bytes()))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hlofast", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("summary", "--json", str(path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"][0]["name"] == hlofast.load(PROTOS[0]).name
    cut = tmp_path / "cut.hlo.pb"
    cut.write_bytes(path.read_bytes()[:5000])
    done = run("summary", str(cut))
    assert done.returncode == 3
    assert "cut.hlo.pb" in done.stderr
    assert "protobuf" in done.stderr
