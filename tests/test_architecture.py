"""What ARCHITECTURE.md points to is there."""

import re

import pytest

from conftest import CHECKOUT

pytestmark = pytest.mark.once


def test_every_place_is_there() -> None:
    tops = [CHECKOUT / top for top in (".ci", "benches", "python", "rust", "tests")]
    paths = [CHECKOUT / "pyproject.toml", *tops, *(path for top in tops for path in top.rglob("*"))]
    places = [path.relative_to(CHECKOUT).as_posix() for path in paths]
    ends = {place.split("/", count)[-1] for place in places for count in range(12)}
    named = re.findall(r"`([^`\s<]+)`", (CHECKOUT / "ARCHITECTURE.md").read_text())
    is_place = re.compile(r"/|\.(rs|pyi?|toml|js|md|json)$").search
    pointed_to = {name.rstrip("/") for name in named if is_place(name)}
    assert len(pointed_to) > 200
    assert sorted(pointed_to - ends) == []
