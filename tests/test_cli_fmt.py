"""`hlofast fmt`: printed text and protobufs, written whole or not at all."""

import subprocess
from pathlib import Path

import pytest

import hlofast
from test_cli import COMMAND, TWO_MODULES, document, hlofast_command


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.txt"
    path.write_text(TWO_MODULES)
    return path


class TestFmt:
    def test_original_is_the_bytes_of_the_file(self, train_step: Path) -> None:
        done = subprocess.run(
            [*COMMAND, "fmt", "--form", "original", train_step], capture_output=True, check=True
        )
        assert done.stdout == train_step.read_bytes().strip() + b"\n"

    def test_original_keeps_line_breaks(self, tmp_path: Path) -> None:
        text = b"HloModule m\r\n\r\nENTRY e {\r\n  ROOT p = f32[] parameter(0)\r\n}"
        for name, behind, kept in (
            ("bare", b"", b""),
            ("line", b"\n", b"\n"),
            ("carriage", b"\r\n\r\n", b"\r\n"),
            ("prose", b"\nthe end\n", b"\n"),
        ):
            file = tmp_path / name
            file.write_bytes(text + behind)
            command = [*COMMAND, "fmt", "--form", "original", file]
            assert subprocess.run(command, capture_output=True).stdout == text + kept

    @pytest.mark.parametrize("form", ["long", "short"])
    def test_printed_text_is_the_same_module(self, train_step: Path, form: str) -> None:
        done = hlofast_command("fmt", "--form", form, train_step)
        assert done.returncode == 0
        before, after = hlofast.load(train_step), hlofast.loads(done.stdout)
        # Asynchronous sugar is written out, so that what was implied is in the text.
        assert after.summary().values["implicit_instructions"] == 0
        assert sorted(after.opcodes()) == sorted(before.opcodes())
        assert after.fingerprint() == before.fingerprint()

    def test_without_metadata(self, train_step: Path) -> None:
        done = hlofast_command("fmt", "--no-metadata", train_step)
        assert "op_name" in train_step.read_text()
        assert "op_name" not in done.stdout
        assert (
            hlofast_command("fmt", "--no-metadata", "--form", "original", train_step).returncode
            == 2
        )

    def test_output_file(self, page: Path, tmp_path: Path) -> None:
        target = tmp_path / "out.txt"
        target.write_text("old")
        done = hlofast_command("fmt", page, "-o", target)
        assert done.returncode == 0
        assert done.stderr.splitlines()[-1] == (
            f"hlofast: note: {target} is 2 modules: to be measured, not run"
        )
        assert [part.module.name for part in hlofast.find_modules(target.read_text())] == [
            "first",
            "second",
        ]
        assert sorted(tmp_path.iterdir()) == [target, page]

    @pytest.mark.parametrize("name", ["out.txt", "out.hlo.pb", "out.txt.gz"])
    def test_a_file_that_cannot_be_written_is_named(
        self, train_step: Path, tmp_path: Path, name: str
    ) -> None:
        target = tmp_path / "none" / name
        done = hlofast_command("fmt", train_step, "-o", target)
        assert done.returncode == 3
        assert done.stderr.splitlines()[-1] == f"hlofast: {target}: No such file or directory"
        assert hlofast_command("fmt", train_step, "-o", tmp_path).returncode == 3

    def test_document(self, page: Path) -> None:
        results = document("fmt", page)["results"]
        assert [result["name"] for result in results] == ["first", "second"]
        values = {name: fact["value"] for name, fact in results[0]["facts"].items()}
        module = hlofast.loads(values["text"])
        assert module.fingerprint() == values["fingerprint"]
        assert values["text"] == module.to_text(form="long")
