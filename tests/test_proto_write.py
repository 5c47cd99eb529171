"""Modules written as protobufs: they read back unchanged, and XLA loads them."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hlofast

FIXTURES = Path(__file__).parent / "fixtures"
TEXTS = sorted(
    [
        *FIXTURES.glob("dumps/*.txt.gz"),
        *FIXTURES.glob("seedlike/*.txt.gz"),
        *FIXTURES.glob("dump_folders/*/*optimizations.txt.gz"),
    ]
)
# What protobufs do not have.
OPTIONS = {
    "allow_spmd_sharding_propagation_to_parameters",
    "allow_spmd_sharding_propagation_to_output",
    "alias_passthrough_params",
}
LEFT_OUT = re.compile(f", (?:{'|'.join(OPTIONS)})=(?:{{[^}}]*}}|[a-z]+)")
SMALL = """HloModule small, num_partitions=4

ENTRY e {
  p = f32[4]{0} parameter(0)
  ROOT r = f32[4]{0} negate(p)SUFFIX
}
"""


def small(suffix: str = "") -> str:
    return SMALL.replace("SUFFIX", suffix)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hlofast", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_texts_are_there() -> None:
    assert len(TEXTS) >= 50


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name.removesuffix(".txt.gz"))
def test_written_and_read_again(path: Path) -> None:
    for part in hlofast.find_modules(path.read_bytes()):
        module = part.module
        assert module is not None
        again = hlofast.loads(module.to_proto())
        keys = set(module.header.texts()) - OPTIONS
        assert keys <= set(again.header.texts()) <= keys | {"entry_computation_layout"}
        head, rest = module.to_text().split("\n", 1)
        own = hlofast.loads(LEFT_OUT.sub("", head) + "\n" + rest)
        assert set(own.header.texts()) == keys
        if "entry_computation_layout" in keys:
            # Configurations are spelt as strings or as what stands in them.
            prints = [
                each.fingerprint(metadata=True, backend_config=False) for each in (again, own)
            ]
            assert prints[0] == prints[1]
        assert again.num_partitions == module.num_partitions
        assert again.is_scheduled == module.is_scheduled
        assert again.cost().flops == module.cost().flops


def test_containers() -> None:
    module = hlofast.loads(small())
    bare, wrapped = module.to_proto(), module.to_proto(wrapped=True)
    assert wrapped == b"\x0a" + bytes([len(bare) & 0x7F | 0x80, len(bare) >> 7]) + bare
    assert hlofast.loads(wrapped).fingerprint() == hlofast.loads(bare).fingerprint()
    assert hlofast.loads(bare).num_partitions == 4
    assert module.to_proto() == bare


def test_what_has_no_field() -> None:
    with pytest.raises(hlofast.ParseError) as caught:
        hlofast.loads(small(", speed=3"), path="a.txt").to_proto()
    error = caught.value
    assert (error.line, error.column, error.kind) == (5, 33, "unexpected-attribute")
    assert "speed of negate" in error.message
    assert "ROOT r" in error.excerpt


def test_what_xla_loses() -> None:
    text = small().replace(", num", ", alias_passthrough_params=true, num")
    module = hlofast.loads(text)
    assert hlofast.loads(module.to_proto()).name == "small"
    with pytest.raises(hlofast.ParseError, match="no place for alias_passthrough_params") as caught:
        module.to_proto(strict=True)
    assert (caught.value.line, caught.value.column) == (1, 18)
    assert hlofast.loads(small()).to_proto(strict=True)


class TestCommandLine:
    def test_every_name(self, tmp_path: Path) -> None:
        source = tmp_path / "small.txt"
        source.write_text(small(', metadata={op_name="a"}'))
        module = hlofast.load(source)
        written = hlofast.loads(module.to_proto())
        for name, content in (
            ("a.hlo.pb", module.to_proto()),
            ("a.pb", module.to_proto()),
            ("a.hlo_proto.pb", module.to_proto(wrapped=True)),
        ):
            assert run("fmt", source, "-o", tmp_path / name).returncode == 0
            assert (tmp_path / name).read_bytes() == content
            target = tmp_path / f"{name}.gz"
            assert run("fmt", tmp_path / name, "-o", target).returncode == 0
            assert hlofast.load(target).fingerprint() == written.fingerprint()
            assert gzip.decompress(target.read_bytes())[:1] == content[:1]
        bare = tmp_path / "bare.hlo.pb"
        assert run("fmt", source, "--no-metadata", "-o", bare).returncode == 0
        assert b"op_name" not in hlofast.load(bare).text.encode()
        assert "metadata" not in hlofast.load(bare).text

    def test_what_is_left_out_is_said(self, tmp_path: Path) -> None:
        source = tmp_path / "small.txt"
        source.write_text(small().replace(", num", ", alias_passthrough_params=true, num"))
        done = run("fmt", source, "-o", tmp_path / "a.hlo.pb")
        assert done.returncode == 0
        kept = "left out, as protobufs have no field for alias_passthrough_params"
        assert f"{source}:1: {kept}" in done.stderr

    def test_nothing_is_written_if_something_is_wrong(self, tmp_path: Path) -> None:
        source, target = tmp_path / "small.txt", tmp_path / "a.hlo.pb"
        target.write_bytes(b"old")
        source.write_text(small(", speed=3"))
        done = run("fmt", source, "-o", target)
        assert done.returncode == 3
        assert "5:33" in done.stderr
        assert "speed of negate" in done.stderr
        source.write_text(small() + "\n" + small().replace("small", "other"))
        done = run("fmt", source, "-o", target)
        assert done.returncode == 2
        assert "one module, not 2" in done.stderr
        assert run("fmt", source, "--form", "short", "-o", target).returncode == 2
        assert run("fmt", source, "--json", "-o", target).returncode == 2
        assert target.read_bytes() == b"old"
        assert sorted(tmp_path.iterdir()) == [target, source]
        assert run("fmt", source, "--module", "other", "-o", target).returncode == 0
        assert hlofast.load(target).name == "other"


@pytest.mark.oracle
def test_xla_loads_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, Path(__file__).parent / "oracle" / "check_written.py", "--json", *TEXTS],
        capture_output=True,
        text=True,
        check=True,
    )
    checked = json.loads(done.stdout)
    assert checked["modules"] >= len(TEXTS)
    assert checked["faults"] == []
