"""Rows of tables: the columns, filters, order and sums that a caller asks for."""

from __future__ import annotations

import re

from hlofast import _units
from hlofast._mcp.files import RefusedError
from hlofast._names import meant
from hlofast._result import Section
from hlofast.table import with_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from hlofast._core import Field
    from hlofast._module import Module
    from hlofast.table import Table

ANALYSES = (
    "summary", "cost", "matmuls", "collectives", "lint", "remat", "memory", "time", "stages",
    "profile", "verdict", "instructions",
)  # fmt: skip
"""The analyses whose tables may be asked for: methods of `Module`, and the instruction table."""
_SHOWN = ("instruction", "opcode", "computation", "shape", "shape_bytes", "op_name", "source")
_CONDITION = re.compile(r"\s*([A-Za-z_]\w*)\s*(!=|>=|<=|=|>|<|~)\s*(.*?)\s*", re.DOTALL)
_READERS: dict[str, Callable[[str], float]] = {
    "bytes": _units.read_bytes,
    "seconds": lambda text: _units.read_seconds(text, least=0),
    "flops": _units.read_rate,
    "flop_rate": _units.read_rate,
}


def sections(module: Module, analysis: str) -> dict[str, Section]:
    """Returns the tables of an analysis by name."""
    if analysis == "instructions":
        table = with_source(module.table())
        return {"instructions": Section("instructions", "Instructions", table, _SHOWN)}
    found: dict[str, Section] = {}
    result = getattr(module, analysis)()
    for own in (*result.every_section(), *result.sections()):
        # What text output shows comes last: its columns are the main ones.
        found[own.name] = own
    return found


def found(module: Module, arguments: Mapping[str, Any]) -> Table:
    """Returns the instructions that meet all conditions of the arguments."""
    words = {name: arguments[name] for name in ("opcode", "shape", "computation")
             if name in arguments}  # fmt: skip
    given: dict[str, Any] = dict(words)
    if "scope" in arguments:
        given["op_name"] = arguments["scope"]
    if "source" in arguments:
        given["source_file"] = arguments["source"]
    if "min_bytes" in arguments:
        given["min_bytes"] = _units.read_bytes(arguments["min_bytes"])
    if "opcode" in given:
        known = sorted(set(module.table().values("opcode")))
        for opcode in given["opcode"]:
            if opcode not in known:
                hint = meant(opcode, known) or ";"
                raise RefusedError(f"no {opcode!r} here{hint} opcodes: {', '.join(known)}")
    if "computation" in given and given["computation"] not in module.computations:
        names = [own.name for own in module.computations]
        hint = meant(given["computation"], names) or "; show names one"
        raise RefusedError(f"no computation {given['computation']!r}{hint}")
    chosen = module.where(**given).tolist()
    if "name" in arguments:
        part = arguments["name"].removeprefix("%").casefold()
        chosen = [row for row in chosen if part in module[row].name.casefold()]
    table = with_source(module.table().take(chosen))
    if "sort" in arguments:
        table = _sorted(table, arguments["sort"])
    return _columns(table, _SHOWN)


def chosen(section: Section, module: Module, arguments: Mapping[str, Any]) -> Section:
    """Returns a table with the rows, columns and sums that the arguments ask for."""
    table, shown = section.table, list(section.columns) or list(section.table.columns)
    for condition in arguments.get("where", ()):
        table = _where(table, module, condition)
    if "by" in arguments:
        table = table.by(_column(table, arguments["by"]))
        shown = list(table.columns)
    if "sort" in arguments:
        table = _sorted(table, arguments["sort"])
    if "columns" in arguments:
        wanted = arguments["columns"]
        shown = list(table.columns) if wanted == ["*"] else [_column(table, own) for own in wanted]
    return Section(section.name, section.title or section.name, table, shown)


def _column(table: Table, name: str) -> str:
    """Returns the name of a column; raises `RefusedError` for an unknown one."""
    if name not in table:
        hint = meant(name, table.columns) or ";"
        raise RefusedError(f"no column {name!r}{hint} known: {', '.join(table.columns)}")
    return name


def _columns(table: Table, names: Sequence[str]) -> Table:
    from hlofast.table import Table

    described = table._described_by_name()
    return Table(described[name] for name in names)


def _sorted(table: Table, order: str) -> Table:
    """Returns the rows in the order of a column; texts of instructions by row."""
    name = _column(table, order.removeprefix("-"))
    return table.sort_by(name, descending=order.startswith("-"))


def _where(table: Table, module: Module, condition: str) -> Table:
    """Returns the rows that meet a condition."""
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise RefusedError(
            f"where: {condition[:80]!r} is not COLUMN=VALUE (or != > >= < <= ~), such as "
            "opcode=fusion"
        )
    name, sign, text = match.groups()
    field = table.field(_column(table, name))
    values = table.values(name)
    if field.kind == "instruction":
        values = [None if row is None else module[row].name for row in values]
    is_text = field.is_text or field.kind == "instruction"
    compare = _texts(sign, text) if is_text else _numbers(field, sign, text)
    rows = [row for row, value in enumerate(values) if compare(value)]
    return table.take(rows)


def _texts(sign: str, text: str) -> Callable[[Any], bool]:
    folded = text.casefold()
    if sign == "~":
        return lambda value: value is not None and folded in str(value).casefold()
    if sign not in ("=", "!="):
        raise RefusedError(f"where: texts take = != or ~, not {sign}")
    wanted = None if text in ("null", "-", "") else text
    return lambda value: (value == wanted) == (sign == "=")


def _numbers(field: Field, sign: str, text: str) -> Callable[[Any], bool]:
    if field.kind == "flag":
        wanted: float | bool | None = {"true": True, "yes": True, "false": False, "no": False}.get(
            text.lower()
        )
        if wanted is None:
            raise RefusedError(f"where: {field.name} is true or false, not {text[:40]!r}")
    elif text in ("null", "-", ""):
        wanted = None
    else:
        try:
            wanted = _READERS.get(field.kind, float)(text)
        except ValueError as error:
            raise RefusedError(f"where: {field.name}: {error}") from None
    if sign in ("=", "!="):
        return lambda value: (value == wanted) == (sign == "=")
    if wanted is None or sign == "~":
        raise RefusedError(f"where: numbers take = != > >= < <=, not {sign} {text[:40]!r}")
    least = wanted
    signs: dict[str, Callable[[Any], bool]] = {
        ">": lambda value: value is not None and value > least,
        ">=": lambda value: value is not None and value >= least,
        "<": lambda value: value is not None and value < least,
        "<=": lambda value: value is not None and value <= least,
    }
    return signs[sign]
