"""Generated parts of the pages in docs/: options of verbs, measured errors of models.

A part stands between `<!-- NAME -->` and `<!-- /NAME -->`. `tests/generated.py` writes the parts.
"""

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from hlofast.cli import VERBS, parser_of

TOP = Path(__file__).parents[1]
COMMANDS = TOP / "docs" / "commands.md"
FIGURES = TOP / "docs" / "figures.md"
BENCHES = TOP / "benches" / "README.md"
ERRORS = (
    # Subject, the row of a table of benches/README.md, its columns fitted and held out.
    ("XLA peak of TPU programs, median error", "XLA peak: median error", 3, 4),
    ("XLA peak of TPU programs, worst error", "XLA peak: worst error", 3, 4),
    ("bytes allocated in HBM, median error", "allocated in HBM: median error", 3, 4),
    ("bytes allocated in HBM, worst error", "allocated in HBM: worst error", 3, 4),
    ("peak under another checkpoint policy, median error", "scanned: median error", 2, 3),
    ("the same, from a checkpointed text", "scanned, checkpointed: median error", 2, 3),
    (
        "the same, from texts compiled after the rules for them",
        "scanned, checkpointed, second texts: median error",
        2,
        3,
    ),
    ("the same, of unrolled layers", "unrolled: median error", 2, 3),
    (
        "the same, of unrolled layers that no rule was made with",
        "unrolled, further programs: median error",
        2,
        3,
    ),
    ("collectives on GPUs, median error", "collectives: median error", 1, 2),
    ("collectives on GPUs, within 35 %", "collectives: within 35 %", 1, 2),
    ("matmuls on GPUs, median error", "matmuls: median error", 1, 2),
    ("matmuls on GPUs, within 25 %", "matmuls: within 25 %", 1, 2),
    ("instructions on A100, time within 25 %", "A100 instructions: share", 1, 2),
)


def verb_page(verb: str) -> Path:
    """The page of a verb."""
    return TOP / "docs" / "commands" / f"{verb}.md"


def replaced(text: str, name: str, part: str) -> str:
    """`text` with another part of this name; at the end, if it has none."""
    whole = f"<!-- {name} -->\n{part}\n<!-- /{name} -->"
    found = re.compile(rf"<!-- {name} -->\n.*?<!-- /{name} -->", re.DOTALL)
    return found.sub(lambda _: whole, text) if found.search(text) else f"{text}\n{whole}\n"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; bars in cells are escaped."""
    lines = [[*heads], ["---" for _ in heads], *([*row] for row in rows)]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |".replace("| --- ", "|---") for line in escaped)


def _argument(action: argparse.Action) -> str:
    value = action.metavar or ("{" + ",".join(action.choices) + "}" if action.choices else "")
    if isinstance(value, tuple):
        value = " ".join(value)
    if not action.option_strings:
        return f"`{value or action.dest.upper()}`"
    takes = f" {value or action.dest.upper()}" if action.nargs != 0 else ""
    return ", ".join(f"`{option}{takes}`" for option in action.option_strings)


def options(verb: str) -> str:
    """The arguments of a verb, and what its help ends with."""
    parser = parser_of(verb)
    rows = [
        (_argument(action), (action.help or "") % {"default": action.default})
        for action in parser._actions
        if action.help not in (None, argparse.SUPPRESS) and action.dest != "help"
    ]
    parts = ["## Arguments", "", table(("argument", "meaning"), rows)]
    if parser.epilog:
        parts += ["", "```text", parser.epilog.strip(), "```"]
    if "--json" in parser._option_string_actions:
        parts += ["", f"[Facts and columns](../reference/tables.md#{verb})"]
    return "\n".join(parts)


def links() -> str:
    """Links to the pages of all verbs."""
    return " ·\n".join(f"[{verb}](commands/{verb}.md)" for verb in VERBS)


def errors() -> str:
    """Measured errors, from the tables of benches/README.md."""
    text = BENCHES.read_text()
    rows = []
    for subject, start, fitted, held_out in ERRORS:
        (line,) = re.findall(rf"^\| {re.escape(start)}.*$", text, flags=re.MULTILINE)
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows.append((subject, cells[fitted], cells[held_out]))
    return table(("figure", "fitted", "held out"), rows)


def generated() -> dict[Path, str]:
    """The pages with generated parts, and their texts."""
    pages = {
        verb_page(verb): replaced(verb_page(verb).read_text(), "arguments", options(verb))
        for verb in VERBS
    }
    pages[COMMANDS] = replaced(COMMANDS.read_text(), "verbs", links())
    pages[FIGURES] = replaced(FIGURES.read_text(), "errors", errors())
    return pages
