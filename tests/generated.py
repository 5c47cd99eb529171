"""What is generated from the fields of results: JSON Schemas and the reference of tables.

`python tests/generated.py` writes `python/hlofast/schemas/` and `docs/reference/tables.md`;
`test_generated.py` fails if what is committed differs. A verb whose results are new needs one line
in `SAMPLES`.
"""

import json
from collections.abc import Callable
from pathlib import Path

import hlofast
from hlofast._result import Result, schema

TOP = Path(__file__).parents[1]
SCHEMAS = TOP / "python" / "hlofast" / "schemas"
TABLES = TOP / "docs" / "reference" / "tables.md"
SMALLEST = "HloModule m\n\nENTRY e {\n  ROOT p = f32[] parameter(0)\n}\n"


def module() -> hlofast.Module:
    """The smallest module: fields do not depend on what is in it."""
    return hlofast.loads(SMALLEST)


SAMPLES: dict[str, Callable[[], Result]] = {
    "collectives": lambda: module().collectives(),
    "remat": lambda: module().remat(),
    "show": lambda: module().show("e"),
    "stages": lambda: module().stages(),
    "summary": lambda: module().summary(),
}
"""A result of each verb."""


def generated() -> dict[Path, str]:
    """The generated files and their texts."""
    samples = {verb: make() for verb, make in sorted(SAMPLES.items())}
    files = {
        SCHEMAS / f"{verb}.json": json.dumps(schema(sample), indent=1) + "\n"
        for verb, sample in samples.items()
    }
    return files | {TABLES: "\n".join(reference(samples))}


def reference(samples: dict[str, Result]) -> list[str]:
    """The reference of facts and tables, by verb."""
    lines = ["# Facts and tables", "", "Generated from the fields; see `tests/generated.py`.", ""]
    for verb, sample in samples.items():
        lines += [f"## {verb}", ""]
        if sample.FACTS:
            lines += ["| fact | kind | what it is |", "|---|---|---|"]
            lines += [f"| `{own.name}` | {own.kind} | {own.doc} |" for own in sample.FACTS]
            lines.append("")
        for section in sample.every_section():
            lines += [f"### {verb}: {section.name}", ""]
            lines += ["| column | kind | may be unknown | adds up | what it is |"]
            lines += ["|---|---|---|---|---|"]
            for field in section.table.fields:
                null, sums = ("yes" if holds else "" for holds in (field.nullable, field.adds_up))
                lines.append(f"| `{field.name}` | {field.kind} | {null} | {sums} | {field.doc} |")
            lines.append("")
    return lines


if __name__ == "__main__":
    for path, text in generated().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
