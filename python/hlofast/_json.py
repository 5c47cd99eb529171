"""JSON documents with one value per line, as `json.dumps` writes them, several times as fast."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SCALARS = frozenset({str, int, float, bool, type(None)})


def dumps(value: Any, indent: int | None = 1) -> str:
    """Returns `json.dumps(value, indent=indent, allow_nan=False)`.

    The keys of dictionaries are texts. Python's encoder in C writes no indentation, but takes any
    text as a separator: it writes all that has no further level, such as rows of tables. Raises
    `ValueError` for infinity and NaN, which JSON cannot represent.
    """
    from json import JSONEncoder

    if indent is None:
        return JSONEncoder(allow_nan=False).encode(value)
    encoders: list[tuple[str, Callable[[Any], str]]] = []
    parts: list[str] = []

    def write(value: Any, level: int) -> None:
        is_list = isinstance(value, list | tuple)
        if not value or not (is_list or isinstance(value, dict)):
            parts.append(plain.encode(value))
            return
        if level == len(encoders):
            line = "\n" + " " * (indent * (level + 1))
            separators = (f",{line}", ": ")
            encoders.append((line, JSONEncoder(allow_nan=False, separators=separators).encode))
        line, encode = encoders[level]
        begin, end = "[]" if is_list else "{}"
        parts.append(begin + line)
        if _SCALARS.issuperset(map(type, value if is_list else value.values())):
            parts.append(encode(value)[1:-1])
        else:
            between = ""
            for item in value:
                parts.append(between)
                between = f",{line}"
                if is_list:
                    write(item, level + 1)
                else:
                    parts.append(f"{plain.encode(item)}: ")
                    write(value[item], level + 1)
        parts.append(line[: -indent or None] + end)

    plain = JSONEncoder(allow_nan=False)
    write(value, 0)
    return "".join(parts)
