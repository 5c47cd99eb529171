"""The stubs have the docstrings of the compiled module."""

from pathlib import Path

import pytest

from stubs import STUBS, Documented


@pytest.mark.parametrize("path", STUBS, ids=lambda path: path.name)
def test_docstrings_are_those_of_the_compiled_module(path: Path) -> None:
    text = path.read_text()
    documented = Documented(text)
    assert documented.missing == []
    assert documented.text() == text, "python tests/stubs.py writes them"


def test_a_docstring_that_is_missing_or_stale_is_written() -> None:
    (path,) = [path for path in STUBS if path.name == "_views.pyi"]
    text = path.read_text()
    stale = text.replace('"""The name', '"""Another name', 1)
    assert stale != text
    assert Documented(stale).text() == text
    bare = "class Column:\n    @property\n    def nbytes(self) -> int: ...  # a comment\n"
    lines = Documented(bare).text().splitlines()
    assert lines[1].startswith('    """')
    assert "    def nbytes(self) -> int:  # a comment" in lines
    assert lines[-1].strip().startswith('"""')
