"""The README's table of results, from `benches/results`.

    python benches/table.py [--check]

`--check` changes nothing and fails if the table is not what the results say.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

BENCHES = Path(__file__).resolve().parent
RESULTS = BENCHES / "results"
README = BENCHES.parent / "README.md"
START, END = "<!-- benches -->", "<!-- /benches -->"


def load(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The results in the order of their names."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def number(value: float, unit: str) -> str:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f}{'' if unit.startswith('×') else ' '}{unit}"


def asked(figure: dict[str, Any]) -> str:
    if figure["at_least"] is not None:
        return f"≥ {figure['at_least']:g}"
    if figure["at_most"] is not None:
        return f"≤ {figure['at_most']:g}"
    return ""


def table(results: list[dict[str, Any]]) -> str:
    """Markdown: one row per figure, and where and when they were measured."""
    if not results:
        return "Not measured yet.\n"
    lines = ["| what | asked | measured |", "|---|---|---|"]
    runs: dict[str, list[str]] = {}
    for result in results:
        for figure in result["figures"]:
            note = f" ({figure['note']})" if figure["note"] else ""
            missed = "" if figure["met"] else " (missed)"
            measured = number(figure["measured"], figure["unit"])
            lines.append(f"| {figure['what']}{note} | {asked(figure)} | {measured}{missed} |")
        machine, versions = result["machine"], result["versions"]
        packages = ", ".join(
            f"{name} {versions[name]}" for name in ("python", "jaxlib", "xprof") if name in versions
        )
        run = (
            f"{result['date']}, commit {result['commit']}, {machine['cpu']}, "
            f"{machine['cores']} cores; {packages}"
        )
        runs.setdefault(run, []).append(result["name"])
    lines.append("")
    lines += [f"{', '.join(names)}: {run}.  " for run, names in runs.items()]
    return "\n".join(lines) + "\n"


def with_table(readme: str, results: list[dict[str, Any]]) -> str:
    """`readme` with the table between its markers."""
    before, start, rest = readme.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"the README lacks {START} or {END}")
    return f"{before}{START}\n{table(results)}{END}{after}"


def update() -> None:
    README.write_text(with_table(README.read_text(), load()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if the table is out of date")
    if not parser.parse_args().check:
        update()
        return 0
    readme = README.read_text()
    if readme == with_table(readme, load()):
        return 0
    print("the README's table is not what benches/results says: run benches/table.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
