"""ARCHITECTURE.md names existing files; imports go in one direction."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import PurePosixPath

from conftest import CHECKOUT

TOPS = (".ci", ".github", "benches", "docs", "python", "rust", "tests")
SOURCES = ("rust/hlofast/src", "python/hlofast")
"""Folders that paths in ARCHITECTURE.md may be relative to."""
IS_PLACE = re.compile(r"/|\.(rs|pyi?|toml|js|md|json)$").search


def tracked_files() -> list[str]:
    """Tracked and new files; without git, all files below `TOPS`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        paths = [path for top in TOPS for path in (CHECKOUT / top).rglob("*")]
        paths.append(CHECKOUT / "pyproject.toml")
        return [path.relative_to(CHECKOUT).as_posix() for path in paths if path.is_file()]
    return [name for name in done.stdout.splitlines() if (CHECKOUT / name).is_file()]


def test_every_place_is_there() -> None:
    files = set(tracked_files())
    parents = (PurePosixPath(name).parents for name in files)
    places = files | {str(folder) for folders in parents for folder in folders}
    pointed_to, missing = 0, []
    for row in (CHECKOUT / "ARCHITECTURE.md").read_text().splitlines():
        quoted = re.findall(r"`([^`\s<]+)`", row)
        named = [name.rstrip("/") for name in quoted if IS_PLACE(name)]
        pointed_to += len(named)
        whole = [name for name in named if name in places]
        # A short name is in or below a folder named in the same row, or beside a file named there.
        rooms = {name.rpartition("/")[0] if name in files else name for name in whole} - {""}
        below = [place for place in places if any(place.startswith(f"{room}/") for room in rooms)]
        missing += [
            f"{name}: {row}"
            for name in named
            if name not in whole
            and not any(place.endswith(f"/{name}") for place in below)
            and not ("/" in name and any(f"{top}/{name}" in places for top in SOURCES))
        ]
    assert pointed_to > 200
    assert missing == []


def test_compiled_code_imports_nothing_of_the_package() -> None:
    sources = sorted((CHECKOUT / "rust/hlofast-py/src").rglob("*.rs"))
    assert len(sources) > 40
    imports = re.compile(r'import(_bound)?\([^)]*"hlofast')
    assert [path.name for path in sources if imports.search(path.read_text())] == []


def test_nothing_but_the_command_line_imports_it() -> None:
    package = CHECKOUT / "python" / "hlofast"
    imports = []
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name.startswith("cli/") or name == "__main__.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            imports += [f"{name}: {own}" for own in names if f"{own}.".startswith("hlofast.cli.")]
    assert imports == []


def imports_at_load(body: list[ast.stmt]) -> Iterator[str]:
    """Names that a module imports when it is loaded: not in functions, not for types alone."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If):
            is_for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            yield from imports_at_load([] if is_for_types else node.body)
            yield from imports_at_load(node.orelse)
        elif isinstance(node, ast.Try | ast.ClassDef | ast.With):
            yield from imports_at_load(node.body)


def test_modules_import_each_other_in_one_direction() -> None:
    python = CHECKOUT / "python"
    files = {
        ".".join(path.relative_to(python).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (python / "hlofast").rglob("*.py")
    }
    known = {*files, "hlofast._core"}
    later: dict[str, set[str]] = {"hlofast._core": set()}
    for module, path in files.items():
        names = set(imports_at_load(ast.parse(path.read_text()).body))
        modules = {name if name in known else name.rpartition(".")[0] for name in names}
        later[module] = modules & known - {module}
    # Removes modules that import none of the rest, until only cycles are left.
    while free := {module for module, others in later.items() if not others & later.keys()}:
        later = {module: others for module, others in later.items() if module not in free}
    assert later == {}
