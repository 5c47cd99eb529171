"""`Result`: the output of every analysis, and its text, JSON and HTML.

A result consists of facts (single figures), tables, and notes (caveats). Command line, pages,
notebooks and JSON only render facts, tables and notes.
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

PROVENANCES = ("exact", "configuration", "measured", "modelled", "assumed", "bound", "unknown")
"""Provenances of facts.

Exact: read from the program. Configuration: from a configuration inside the program or given by the
user. Measured: timed by a profiler. Modelled: computed by a model. Assumed: taken as given. Bound:
a lower or upper bound.
"""


class _Tables(dict[str, "Table"]):
    """Tables by name."""

    def __missing__(self, name: str) -> Table:
        from hlofast._names import unknown

        raise unknown("table", name, self)


class Fact:
    """One figure: its field, value and provenance."""

    __slots__ = ("field", "provenance", "value")

    def __init__(self, field: Field, value: Any, provenance: str = "exact") -> None:
        if isinstance(value, float) and value != value:
            value = None  # NaN means unknown.
        self.field = field
        """The description: name, kind, unit, label, documentation."""
        self.value = value
        """A number, a text or a flag; None if unknown."""
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
        """Returns value (None for infinity, which JSON lacks), unit and provenance."""
        value = _text.finite(self.value)
        return {"value": value, "unit": self.unit or None, "provenance": self.provenance}

    def __repr__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"<Fact {self.name}: {self.value!r}{unit} ({self.provenance})>"


class Note:
    """A caveat about a result."""

    __slots__ = ("code", "figures", "text")

    def __init__(self, code: str, text: str, **figures: int | float | None) -> None:
        self.code = code
        """The kind of note, a stable word."""
        self.text = text
        """The note as a sentence."""
        self.figures: dict[str, int | float | None] = figures
        """The numbers in the note, by name."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes by name."""
        return {"code": self.code, "text": self.text, "figures": _text.finite(self.figures)}

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Note {self.code}: {self.text}>"


class Section:
    """A table of a result, and how text output shows it."""

    __slots__ = ("columns", "figure", "is_whole", "name", "named", "paragraphs", "table", "title")

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
        named: str | None = None,
    ) -> None:
        self.name = name
        """The name of the table in JSON and `Result.tables`."""
        self.title = title
        """The heading."""
        self.table = table
        """All rows and columns."""
        self.columns = table.columns if columns is None else tuple(columns)
        """The columns that text output shows, in order; JSON has all. A table without columns is
        for JSON only."""
        self.paragraphs = paragraphs
        """The rows as text instead of a table: for each row a heading, and labels with texts."""
        self.is_whole = is_whole
        """Whether text output shows all rows regardless of `--top`, as for the parts of a sum."""
        self.figure = figure
        """The column that narrow terminals keep beside the name and the source; by default the
        first time, size or number of FLOPs."""
        self.named = named
        """The column that names a row; by default, the first column."""


class Result:
    """The output of an analysis: facts, tables and notes."""

    __slots__ = ()

    VERB: ClassVar[str] = ""
    """The verb that prints the result, and the name of its schema."""
    VERSION: ClassVar[int] = 2
    """The version of the schema."""
    FACTS: ClassVar[tuple[Field, ...]] = ()
    """The fields of all possible facts."""

    @property
    def title(self) -> str:
        """The subject of the result: the name of the module."""
        # Results without a module override this property.
        return str(self.module.name)  # type: ignore[attr-defined]

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The single figures, in display order."""
        return ()

    def _facts(self, values: Iterable[tuple[str, Any, str]]) -> tuple[Fact, ...]:
        """Returns facts from names in `FACTS`, values and provenances."""
        known = {field.name: field for field in self.FACTS}
        return tuple(Fact(known[name], value, how) for name, value, how in values)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Caveats about the figures."""
        return ()

    @property
    def shown_facts(self) -> tuple[tuple[str, str], ...]:
        """The facts as text output shows them: pairs of label and text."""
        return tuple((fact.field.label, _text.known_as(fact)) for fact in self.facts)

    @property
    def every_note(self) -> tuple[Note, ...]:
        """The notes, after one on a profile in the context that does not measure the module."""
        module = self._module
        if module is None or getattr(module, "_told", None) is None:
            return self.notes
        from hlofast._context import unmeasured

        text = unmeasured(module)  # type: ignore[arg-type]
        return self.notes if text is None else (Note("not-in-profile", text), *self.notes)

    def sections(self) -> tuple[Section, ...]:
        """Returns the tables to show; subclasses take options that choose tables and keys."""
        return ()

    def shown_sections(self) -> tuple[Section, ...]:
        """Returns the tables that `str` and notebooks show."""
        return self.sections()

    def every_section(self) -> tuple[Section, ...]:
        """Returns the sections of all options together; the schema describes these."""
        return self.sections()

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables by name."""
        return _Tables((section.name, section.table) for section in self.every_section())

    @property
    def _module(self) -> Module | None:
        """The module whose rows the columns of kind `instruction` refer to."""
        return getattr(self, "module", None)

    def to_dict(self, sections: Iterable[Section] | None = None) -> dict[str, Any]:
        """Returns facts, tables and notes for JSON; instructions are given by name.

        `sections` chooses the tables, by default those of `sections()`.
        """
        chosen = self.sections() if sections is None else sections
        return {
            "name": self.title,
            "facts": {fact.name: fact.to_dict() for fact in self.facts},
            "tables": {own.name: rows_of(own.table, self._module) for own in chosen},
            "notes": [note.to_dict() for note in self.every_note],
        }

    def to_json(self, *, indent: int | None = 1) -> str:
        """Returns the document that the command prints with `--json`."""
        from hlofast import _json

        return _json.dumps(document(self, [self.to_dict()], []), indent)

    def __str__(self) -> str:
        from io import StringIO

        from hlofast._text import Printer

        stream = StringIO()
        Printer(stream).result(self, self.shown_sections())
        return stream.getvalue().rstrip("\n")

    def _repr_html_(self) -> str:
        from hlofast._html import result

        return result(self, self.shown_sections())


def document(
    of: Result | type[Result], results: list[dict[str, Any]], errors: list[dict[str, Any]]
) -> dict[str, Any]:
    """Returns the JSON document of results of one kind."""
    return {
        "schema": f"hlofast.{of.VERB}",
        "version": of.VERSION,
        "results": results,
        "errors": errors,
    }


def rows_of(table: Table, module: Module | None) -> list[dict[str, Any]]:
    """Returns the rows of a table; instructions are given by name, infinity and NaN are None."""
    from math import isfinite

    columns: list[list[Any]] = []
    for field in table.fields:
        values = table.values(field.name)
        if field.kind == "instruction" and module is not None:
            values = [None if row is None else module[row].name for row in values]
        elif _TYPES.get(field.kind) == "number":
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
    "flop_rate": "number",
    "byte_rate": "number",
    "ratio": "number",
    "number": "number",
    "flag": "boolean",
}


def value_schema(field: Field) -> dict[str, Any]:
    """Returns the JSON Schema of a value of `field`."""
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


def _row_schema(fields: Sequence[Field]) -> dict[str, Any]:
    """Returns the schema of a row; a table without columns has columns that depend on the input."""
    return _object({own.name: value_schema(own) for own in fields}) if fields else _ANY_ROW


def _either(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of rows of a table that has further columns with a profile."""
    if _ANY_ROW in (one, other):
        return _ANY_ROW
    required = [name for name in one["required"] if name in other["required"]]
    return _object(one["properties"] | other["properties"], required)


def schema(sample: Result, *others: Result) -> dict[str, Any]:
    """Returns the JSON Schema of `VERB --json`, from the fields of facts and tables.

    `others` are results of other kinds that the verb also shows.
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
    tables: dict[str, Any] = {}
    for section in (own for shown in (sample, *others) for own in shown.every_section()):
        row = _row_schema(section.table.fields)
        known = tables.get(section.name)
        if known is not None:
            row = _either(known["items"], row)
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
        "line": {"type": ["integer", "null"], "description": "The line where the module starts."},
        "label": {"type": ["string", "null"], "description": "The file name given in a log."},
    }
    result = _object(
        {
            "name": {"type": "string", "description": "The subject of the result."},
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
