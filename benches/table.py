"""The result tables in benches/README.md and README.md, from `benches/results`.

    python benches/table.py [--check]

`--check` only fails if a table is out of date, and changes no file.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rows import SECTIONS, Row, Section, digits

BENCHES = Path(__file__).resolve().parent
RESULTS = BENCHES / "results"
PAGE = BENCHES / "README.md"
FRONT = BENCHES.parent / "README.md"
START, END = "<!-- benches -->", "<!-- /benches -->"

Result = dict[str, Any]
Figure = dict[str, Any]


def load(folder: Path = RESULTS) -> list[Result]:
    """The results in the order of their names."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def measured(figure: Figure) -> str:
    unit = figure["unit"].split()[0]
    return f"{digits(figure['measured'])}{'' if unit == '×' else ' '}{unit}"


def asked(figure: Figure) -> str:
    unit = figure["unit"].split()[0]
    space = "" if unit == "×" else " "
    for sign, limit in (("≥", figure["at_least"]), ("≤", figure["at_most"])):
        if limit is not None:
            return f"{sign} {limit:g}{space}{unit}"
    return ""


def met(figure: Figure) -> str:
    return "" if not asked(figure) else "yes" if figure["met"] else "**open**"


def words(row: Row, figure: Figure) -> str:
    what: str = row.what or figure["what"]
    return f"{what} (`{figure['note']}`)" if what.endswith(("ratio", "worst case")) else what


def matched(section: Section, result: Result) -> list[tuple[Row, Figure]]:
    """Each recorded figure with its row. A figure that `rows.py` lacks gets a row with its recorded
    name: a machine without the dump called GPU step records other figures.
    """
    left, pairs = list(section.rows), []
    for figure in result["figures"]:
        row = next((row for row in left if figure["what"].startswith(row.figure)), None)
        if row is not None:
            left.remove(row)
        pairs.append((row or Row(figure["what"], ""), figure))
    return pairs


def cells(row: Row, figure: Figure, details: list[dict[str, Any]]) -> tuple[str, str, str]:
    """The cells of hlofast, of the peer and of the ratio. A figure with a unit has no ratio."""
    ours = row.ours(details) if row.ours else ""
    peer = row.peer(details) if row.peer else ""
    if figure["unit"].startswith("×"):
        return ours, peer, measured(figure)
    return measured(figure), peer, ""


def section_table(section: Section, result: Result) -> str:
    lines = [
        f"### {section.title}\n\n{section.intro}\n",
        f"| what | hlofast | {section.peer} | ratio | target | met |",
        "|---|---|---|---|---|---|",
    ]
    for row, figure in matched(section, result):
        shown = " | ".join(cells(row, figure, result["details"]))
        lines.append(f"| {words(row, figure)} | {shown} | {asked(figure)} | {met(figure)} |")
    return "\n".join(lines) + "\n"


def open_figures(results: list[Result]) -> tuple[int, list[str]]:
    """The number of figures with a target, and a line for each that misses it."""
    by_name = {result["name"]: result for result in results}
    count, missed = 0, []
    for section in SECTIONS:
        for row, figure in matched(section, by_name.get(section.result, {"figures": []})):
            count += bool(asked(figure))
            if not figure["met"]:
                short = f"{measured(figure)}, target {asked(figure)}"
                missed.append(f"* {section.title}: {words(row, figure)}: {short}")
    return count, missed


def runs(results: list[Result]) -> str:
    """Date, commit, machine and versions of the runs."""
    named: dict[str, list[str]] = {}
    for result in results:
        machine, versions = result["machine"], result["versions"]
        packages = ", ".join(
            f"{name} {versions[name]}" for name in ("python", "jaxlib", "xprof") if name in versions
        )
        run = (
            f"{result['date']}, commit {result['commit']}, {machine['cpu']}, "
            f"{machine['cores']} cores; {packages}"
        )
        named.setdefault(run, []).append(result["name"])
    return "\n".join(f"{', '.join(names)}: {run}.  " for run, names in named.items()) + "\n"


def table(results: list[Result]) -> str:
    """All results: the missed targets first, then one table per result."""
    if not results:
        return "Not measured yet.\n"
    by_name = {result["name"]: result for result in results}
    count, missed = open_figures(results)
    parts = [f"{len(missed)} of {count} targets are missed:\n\n" + "\n".join(missed)]
    if not missed:
        parts = [f"All {count} targets are met."]
    parts += [
        section_table(section, by_name[section.result])
        for section in SECTIONS
        if section.result in by_name
    ]
    return "\n\n".join(part.strip("\n") for part in [*parts, runs(results)]) + "\n"


def front_table(results: list[Result]) -> str:
    """The rows of README.md."""
    by_name = {result["name"]: result for result in results}
    lines = ["| what | hlofast | peer | ratio |", "|---|---|---|---|"]
    for section in SECTIONS:
        result = by_name.get(section.result, {"figures": [], "details": []})
        for row, figure in matched(section, result):
            if row.front:
                ours, peer, ratio = cells(row, figure, result["details"])
                lines.append(f"| {row.front} | {ours} | {peer} ({row.front_peer}) | {ratio} |")
    count, missed = open_figures(results)
    lines += ["", f"{len(missed)} of {count} targets are missed: `benches/README.md`."]
    return "\n".join(lines) + "\n"


def between(page: str, text: str) -> str:
    """`page` with `text` between its markers."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"the page lacks {START} or {END}")
    return f"{before}{START}\n{text}{END}{after}"


def pages() -> dict[Path, str]:
    """Both pages with their current tables."""
    results = load()
    texts = {PAGE: table(results), FRONT: front_table(results)}
    return {path: between(path.read_text(), text) for path, text in texts.items()}


def update() -> None:
    for path, text in pages().items():
        path.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if a table is out of date")
    if not parser.parse_args().check:
        update()
        return 0
    stale = [path for path, text in pages().items() if path.read_text() != text]
    for path in stale:
        name = path.relative_to(BENCHES.parent)
        print(f"{name} does not match benches/results: run python benches/table.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
