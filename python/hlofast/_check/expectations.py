"""`Expectations`: what a test or a CI gate requires of a program, from TOML or a mapping."""

from __future__ import annotations

from dataclasses import dataclass

from hlofast._check.comparison import AGREES, ERROR, WARNING, Comparison
from hlofast._check.program import Program
from hlofast._measurements import KINDS
from hlofast._names import meant
from hlofast._text import counted
from hlofast._toml import read_count, read_file, read_size, read_tables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from os import PathLike
    from typing import Any

ANY = "any"
LIMITS = ("min", "max", "exactly")
BYTES = {
    "peak": "bytes at the peak in the main memory of a device",
    "arguments": "bytes of the arguments, as XLA counts them",
    "host": "bytes of host memory",
}
COUNTS = {"flops": "FLOPs of matmuls in a step"}
OF_COLLECTIVES = {
    "count": "calls in a step",
    "bytes": "payload in a step",
    "wire_bytes": "wire bytes of a device in a step",
}


@dataclass(frozen=True)
class Limit:
    """A limit on a figure of the program."""

    subject: str
    """The figure, such as `peak` or `collectives.fsdp.all-gather.bytes`."""
    path: tuple[str, ...]
    limit: str
    """`min`, `max` or `exactly`."""
    value: int


class Expectations:
    """Requirements of a test or a CI gate on a program.

    Created from a TOML file (`Expectations.load`), TOML text (`Expectations.loads`) or a mapping of
    the same form, whose keys may be joined by dots::

        peak.max = "15.5GiB"
        arguments.max = "9.1GiB"
        flops.max = 1.8e15
        collectives.fsdp.all-gather.max_bytes = "1.6GiB"
        collectives.any.all-to-all.max_count = 0
        lint.forbid = ["missed-reduce-scatter"]

    A figure takes `min`, `max` and `exactly`. Collectives take `min_`, `max_` and `exactly_` before
    `count`, `bytes` (payload) and `wire_bytes`, all per step and device. Collectives are selected
    by axes (`data+fsdp` for groups along both, `any`) and kind (or `any`); an axis that the mesh
    does not have is an error. A limit that holds only for the known sizes and trip counts is a
    warning.
    """

    __slots__ = ("forbidden", "limits", "source")

    def __init__(self, tables: Mapping[str, Any], *, source: str = "the expectations") -> None:
        self.source = source
        """The name of the expectations in messages."""
        self.limits: tuple[Limit, ...] = ()
        """Limits on figures."""
        self.forbidden: tuple[str, ...] = ()
        """Codes of `Module.lint` that must not occur."""
        try:
            self._read(_nested(tables))
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None
        except RecursionError:
            raise ValueError(f"{source}: nested too deeply") from None

    @staticmethod
    def load(path: str | PathLike[str]) -> Expectations:
        """Reads expectations from a TOML file.

        Raises `OSError`, or `ValueError` if the file is invalid or has no limits.
        """
        text, source = read_file(path)
        expected = Expectations.loads(text, source=source)
        if not expected.limits and not expected.forbidden:
            # A check without limits would pass.
            raise ValueError(f'{source}: has no limits; give one such as peak.max = "15.5GiB"')
        return expected

    @staticmethod
    def loads(text: str, *, source: str = "the expectations") -> Expectations:
        """Reads expectations from TOML `text`; raises `ValueError` if it is invalid."""
        return Expectations(read_tables(text, source), source=source)

    def _read(self, tables: dict[str, Any]) -> None:
        limits: list[Limit] = []
        for key, table in tables.items():
            if key == "lint":
                self.forbidden = _forbidden(table)
            elif key == "collectives":
                limits += _of_collectives(table)
            elif key in BYTES or key in COUNTS:
                read = read_size if key in BYTES else read_count
                for limit, value in _items(table, key):
                    if limit not in LIMITS:
                        raise ValueError(f"{key} takes {', '.join(LIMITS)}, not {limit!r}")
                    place = f"{key}.{limit}"
                    limits.append(Limit(key, (key,), limit, read(value, place)))
            else:
                known = ", ".join((*BYTES, *COUNTS, "collectives", "lint"))
                raise ValueError(f"unknown key {key!r}; known keys: {known}")
        self.limits = tuple(limits)

    def __repr__(self) -> str:
        count = len(self.limits) + bool(self.forbidden)
        return f"<Expectations of {self.source}: {count}>"


def _nested(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `tables` with keys that contain dots split into nested tables, as TOML does."""
    nested: dict[str, Any] = {}
    for key, value in tables.items():
        if not isinstance(key, str):
            raise ValueError(f"keys must be strings, not {key!r}")
        *path, last = key.split(".")
        at = nested
        for step in path:
            at = at.setdefault(step, {})
            if not isinstance(at, dict):
                raise ValueError(f"{key}: {step} is already a value")
        inner = _nested(value) if isinstance(value, dict) else value
        if isinstance(inner, dict) and isinstance(at.get(last), dict):
            at[last] = _merged(at[last], inner)
        else:
            at[last] = inner
    return nested


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for key, value in second.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _items(table: object, place: str) -> list[tuple[str, Any]]:
    if not isinstance(table, dict):
        raise ValueError(f"{place} must be a table")
    return list(table.items())


def _forbidden(table: object) -> tuple[str, ...]:
    from hlofast._lint import CODES

    forbidden: tuple[str, ...] = ()
    for key, value in _items(table, "lint"):
        if key != "forbid" or not isinstance(value, list):
            raise ValueError("lint takes only forbid, a list of codes of hlofast lint")
        if ANY in value:
            return CODES
        unknown = [code for code in value if code not in CODES]
        if unknown:
            hint = meant(str(unknown[0]), CODES) or ";"
            raise ValueError(
                f"lint.forbid: unknown code {unknown[0]!r}{hint} known codes: {', '.join(CODES)}"
            )
        forbidden = tuple(value)
    return forbidden


def _of_collectives(table: object) -> Iterator[Limit]:
    for axes, kinds in _items(table, "collectives"):
        for kind, figures in _items(kinds, f"collectives.{axes}"):
            _check_kind(kind)
            place = f"collectives.{axes}.{kind}"
            for name, value in _items(figures, place):
                limit, _, figure = name.partition("_")
                if limit not in LIMITS or figure not in OF_COLLECTIVES:
                    known = ", ".join(f"max_{figure}" for figure in OF_COLLECTIVES)
                    raise ValueError(
                        f"{place} takes {known}, also with min_ and exactly_, not {name!r}"
                    )
                read = read_count if figure == "count" else read_size
                number = read(value, f"{place}.{name}")
                path = ("collectives", axes, kind, figure)
                yield Limit(f"{place}.{figure}", path, limit, number)


def _check_kind(kind: str) -> None:
    known = (*KINDS, "cross-mesh-all-reduce")
    if kind != ANY and kind not in known:
        hint = meant(kind, known) or ";"
        raise ValueError(
            f"unknown kind of collective {kind!r}{hint} known kinds: {', '.join(known)}, {ANY}"
        )


def expectations(program: Program, expected: Expectations) -> Iterator[Comparison]:
    """Compares the program with each limit, and reports each forbidden finding."""
    for limit in expected.limits:
        unknown = _unknown_axes(program, limit)
        if unknown:
            known = ", ".join(program.axis_sizes) or "none"
            yield Comparison(
                "expectation",
                ERROR,
                limit.subject,
                f"an axis {unknown[0]!r}",
                "no such axis",
                f"the axes of the mesh are: {known}{meant(unknown[0], program.axis_sizes)}",
            )
            continue
        compiled, row, doubts = _figure(program, limit.path)
        holds: Callable[[int, int], bool] = {
            "min": int.__ge__,
            "max": int.__le__,
            "exactly": int.__eq__,
        }[limit.limit]
        words = {"min": "at least ", "max": "at most ", "exactly": ""}[limit.limit]
        is_met = holds(compiled, limit.value)
        off = abs(compiled - limit.value)
        more = "more" if compiled > limit.value else "less"
        is_open = is_met and doubts > 0 and limit.limit != "min"
        is_bytes = limit.path[-1] in ("bytes", "wire_bytes", *BYTES)
        yield Comparison(
            "expectation",
            WARNING if is_open else AGREES if is_met else ERROR,
            limit.subject,
            f"{words}{limit.value:,}",
            f"at least {compiled:,}" if doubts else f"{compiled:,}",
            f"not known to hold: {counted(doubts, 'instruction')} of unknown size or trip count"
            if is_open
            else "as expected"
            if is_met
            else f"{off:,} {more} than the limit of {expected.source}",
            off if is_bytes and not is_met else None,
            row,
            "modelled" if limit.path[0] in BYTES else "unknown" if doubts else "exact",
        )
    if expected.forbidden:
        findings = program.module.lint(program.mesh)
        forbidden = [finding for finding in findings if finding.code in expected.forbidden]
        for finding in forbidden:
            yield Comparison(
                "expectation",
                ERROR,
                f"lint.{finding.code}",
                "forbidden",
                f"{finding.places:,} places",
                f"{finding.message}; {finding.remedy}",
                finding.bytes,
                finding.instructions[0],
                finding.provenance,
            )
        if not forbidden:
            yield Comparison(
                "expectation",
                AGREES,
                "lint.forbid",
                f"{len(expected.forbidden):,} codes forbidden",
                "none of them found",
                "as expected",
            )


def _axes(text: str | None) -> set[str]:
    return set((text or "").replace("×", "+").split("+"))


def _unknown_axes(program: Program, limit: Limit) -> list[str]:
    """The axes of a limit on collectives, if the mesh does not have them."""
    if limit.path[0] != "collectives" or limit.path[1] == ANY:
        return []
    # A part of an axis is written as the axis, a colon and the part.
    names = _axes(limit.path[1])
    return sorted(name for name in names if name.partition(":")[0] not in program.axis_sizes)


def _figure(program: Program, path: tuple[str, ...]) -> tuple[int, int | None, int]:
    """The figure at `path`, a row that is evidence, and the number of rows of unknown size."""
    if path[0] == "collectives":
        return _sum(program, *path[1:])
    if path[0] == "flops":
        flops = program.module.matmuls().values("flops")
        unknown = program.module.cost()._data.unknown_products().tolist()
        return sum(number or 0 for number in flops), None, len(unknown)
    if path[0] == "host":
        memory = program.memory("host")
        return memory.host_peak if memory.backend == "tpu" else memory.live_peak, None, 0
    if path[0] == "arguments":
        return program.memory().xla["argument_size_in_bytes"], None, 0
    return *program.peak[:2], 0


def _sum(program: Program, axes: str, kind: str, figure: str) -> tuple[int, int | None, int]:
    column = {"count": "multiplicity", "bytes": "total_payload", "wire_bytes": "total_wire_bytes"}
    wanted = _axes(axes)
    total, first, doubts = 0, None, 0
    for row in program.collectives:
        is_axes = axes == ANY or _axes(row["axes"]) == wanted
        if not is_axes or kind not in (ANY, row["kind"]):
            continue
        value = row[column[figure]]
        doubts += bool(value is None or row["is_lower_bound"])
        if value:
            total += value
            first = row["instruction"] if first is None else first
    return total, first, doubts
