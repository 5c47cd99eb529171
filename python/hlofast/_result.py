"""`Result`: what every analysis gives, and how it becomes text, JSON and HTML.

A result says everything once: facts (single figures), tables, and notes (what to keep in mind).
Command line, pages, notebooks and JSON render these and add nothing.
"""

from __future__ import annotations

from hlofast import _text
from hlofast._core import Field

TYPE_CHECKING = False  # Verbs print results; importing typing would slow their start.
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, ClassVar

    from hlofast._core import Module
    from hlofast.table import Table

PROVENANCES = ("exact", "configuration", "modelled", "assumed", "bound", "unknown")
"""How a fact is known.

Read off the program; from a configuration inside it; by a model; taken for granted; at least (or at
most) this much; not at all.
"""


class Fact:
    """One figure: what it is, its value, and how it is known."""

    __slots__ = ("field", "provenance", "value")

    def __init__(self, field: Field, value: Any, provenance: str = "exact") -> None:
        if isinstance(value, float) and value != value:
            value = None  # NaN is no figure.
        self.field = field
        """What it is: name, kind, unit, label, documentation."""
        self.value = value
        """A number, a text or a flag; None if it is unknown."""
        self.provenance = provenance if value is not None else "unknown"
        """One of `hlofast._result.PROVENANCES`."""

    @property
    def name(self) -> str:
        """The name."""
        return self.field.name

    @property
    def unit(self) -> str:
        """The unit: B, FLOP, s, or empty."""
        return self.field.unit

    def to_dict(self) -> dict[str, Any]:
        """Value (None for infinity, which JSON has not), unit and provenance."""
        value = _text.finite(self.value)
        return {"value": value, "unit": self.unit or None, "provenance": self.provenance}

    def __repr__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"<Fact {self.name}: {self.value!r}{unit} ({self.provenance})>"


class Note:
    """Something to keep in mind about a result."""

    __slots__ = ("code", "figures", "text")

    def __init__(self, code: str, text: str, **figures: int | float | None) -> None:
        self.code = code
        """What kind of note it is, a stable word."""
        self.text = text
        """The note in a sentence."""
        self.figures: dict[str, int | float | None] = figures
        """The numbers in it, by name."""

    def to_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return {"code": self.code, "text": self.text, "figures": _text.finite(self.figures)}

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Note {self.code}: {self.text}>"


class Section:
    """A table of a result as people see it."""

    __slots__ = ("columns", "figure", "is_whole", "name", "paragraphs", "table", "title")

    def __init__(
        self,
        name: str,
        title: str,
        table: Table,
        columns: Sequence[str] | None = None,
        *,
        paragraphs: Sequence[tuple[str, Sequence[tuple[str, str]]]] | None = None,
        is_whole: bool = False,
        figure: str | None = None,
    ) -> None:
        self.name = name
        """The name of the table, which JSON and `Result.tables` use."""
        self.title = title
        """The heading."""
        self.table = table
        """All rows and columns."""
        self.columns = table.columns if columns is None else tuple(columns)
        """The columns that people are shown, in order; JSON has all. Without columns the table is
        for JSON alone."""
        self.paragraphs = paragraphs
        """Where rows read better as text: of each row a heading, and labels with texts."""
        self.is_whole = is_whole
        """Whether people are shown all rows, however few they ask for: the parts of a figure."""
        self.figure = figure
        """The column that is kept in narrow terminals beside the first one and the source; by
        default the first time, size or number of FLOPs."""


class Result:
    """What an analysis found: facts, tables and notes."""

    __slots__ = ()

    VERB: ClassVar[str] = ""
    """The verb of the command line that prints it, and the name of its schema."""
    VERSION: ClassVar[int] = 2
    """The version of the schema."""
    FACTS: ClassVar[tuple[Field, ...]] = ()
    """What facts there can be."""

    @property
    def title(self) -> str:
        """What it is about: the name of the module."""
        # Results of modules have one; the others say their title themselves.
        return str(self.module.name)  # type: ignore[attr-defined]

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The single figures, in the order in which people should see them."""
        return ()

    def _facts(self, values: Iterable[tuple[str, Any, str]]) -> tuple[Fact, ...]:
        """Facts of `FACTS` by name, with value and provenance."""
        known = {field.name: field for field in self.FACTS}
        return tuple(Fact(known[name], value, how) for name, value, how in values)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What to keep in mind about the figures."""
        return ()

    def sections(self) -> tuple[Section, ...]:
        """The tables as people see them; subclasses take options that choose tables and keys."""
        return ()

    def every_section(self) -> tuple[Section, ...]:
        """The sections under every option, which the schema describes."""
        return self.sections()

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables by name."""
        return {section.name: section.table for section in self.every_section()}

    @property
    def _module(self) -> Module | None:
        """The module whose rows columns of instructions number."""
        return getattr(self, "module", None)

    def to_dict(self, sections: Iterable[Section] | None = None) -> dict[str, Any]:
        """Facts, tables and notes as JSON has them; instructions are their names.

        `sections` chooses the tables; without it those of `sections()`.
        """
        chosen = self.sections() if sections is None else sections
        return {
            "name": self.title,
            "facts": {fact.name: fact.to_dict() for fact in self.facts},
            "tables": {own.name: rows_of(own.table, self._module) for own in chosen},
            "notes": [note.to_dict() for note in self.notes],
        }

    def to_json(self, *, indent: int | None = 1) -> str:
        """The document that the command prints with `--json`."""
        import json

        return json.dumps(document(self, [self.to_dict()], []), indent=indent, allow_nan=False)

    def __str__(self) -> str:
        from io import StringIO

        from hlofast._text import Printer

        stream = StringIO()
        Printer(stream).result(self, self.sections())
        return stream.getvalue().rstrip("\n")

    def _repr_html_(self) -> str:
        from hlofast._html import result

        return result(self, self.sections())


def document(
    of: Result | type[Result], results: list[dict[str, Any]], errors: list[dict[str, Any]]
) -> dict[str, Any]:
    """The JSON document of some results of one kind."""
    return {
        "schema": f"hlofast.{of.VERB}",
        "version": of.VERSION,
        "results": results,
        "errors": errors,
    }


def rows_of(table: Table, module: Module | None) -> list[dict[str, Any]]:
    """The rows of a table; instructions are their names, what is not finite is None."""
    from math import isfinite

    columns: list[list[Any]] = []
    for field in table.fields:
        values = table.values(field.name)
        if field.kind == "instruction" and module is not None:
            values = [None if row is None else module[row].name for row in values]
        elif field.kind in ("seconds", "ratio", "number"):
            values = [
                None if isinstance(own, float) and not isfinite(own) else own for own in values
            ]
        columns.append(values)
    names = table.columns
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


_TYPES = {
    "index": "integer",
    "count": "integer",
    "bytes": "integer",
    "flops": "integer",
    "seconds": "number",
    "ratio": "number",
    "number": "number",
    "flag": "boolean",
}


def value_schema(field: Field) -> dict[str, Any]:
    """The JSON Schema of a value of `field`."""
    kind = _TYPES.get(field.kind, "string")
    null = field.nullable or kind == "number"
    return {"type": [kind, "null"] if null else kind, "description": field.doc}


_ANY_ROW = {"type": "object"}


def _object(properties: dict[str, Any], required: Iterable[str] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else list(required),
        "additionalProperties": False,
    }


def schema(sample: Result, *others: Result) -> dict[str, Any]:
    """The JSON Schema of what `VERB --json` prints, from the fields of facts and tables.

    `others` are results of other kinds that the verb shows too.
    """
    texts = {"type": "string"}
    facts = {}
    for field in (field for shown in (sample, *others) for field in shown.FACTS):
        of_value = value_schema(field)
        kind = of_value["type"]
        facts[field.name] = _object(
            {
                "value": {"type": kind if isinstance(kind, list) else [kind, "null"]},
                "unit": {"const": field.unit or None},
                "provenance": {"enum": list(PROVENANCES)},
            }
        ) | {"description": field.doc}
    tables = {}
    for section in (own for shown in (sample, *others) for own in shown.every_section()):
        fields = section.table.fields
        # A table without columns stands for one whose columns are only known when it is made.
        row = _object({own.name: value_schema(own) for own in fields}) if fields else _ANY_ROW
        tables[section.name] = {"type": "array", "description": section.title, "items": row}
    note = _object(
        {
            "code": texts,
            "text": texts,
            "figures": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
        }
    )
    place = {
        "path": {"type": ["string", "null"], "description": "The file."},
        "line": {"type": ["integer", "null"], "description": "Where in the file it begins."},
        "label": {"type": ["string", "null"], "description": "What a log calls it."},
    }
    result = _object(
        {
            "name": {"type": "string", "description": "What the result is about."},
            **place,
            "facts": _object(facts, ()),
            "tables": _object(tables, ()),
            "notes": {"type": "array", "items": note},
        },
        ("name", "facts", "tables", "notes"),
    )
    error = _object(
        {
            "path": texts,
            "line": {"type": ["integer", "null"]},
            "column": {"type": ["integer", "null"]},
            "kind": texts,
            "message": texts,
        }
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"hlofast.{sample.VERB}",
        "title": f"hlofast {sample.VERB} --json",
        **_object(
            {
                "schema": {"const": f"hlofast.{sample.VERB}"},
                "version": {"const": sample.VERSION},
                "results": {"type": "array", "items": result},
                "errors": {"type": "array", "items": error},
            }
        ),
    }
