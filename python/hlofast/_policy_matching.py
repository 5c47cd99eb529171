"""Which savable values a user means: by number, name, line of the source, or words of the scope."""

from __future__ import annotations

import re

from hlofast import _policy_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hlofast._module import Module
    from hlofast._policy_code import Row


def matching(module: Module, rows: Sequence[Row], wanted: int | str) -> list[int]:
    """The numbers of the savable values that are meant; `ValueError` if none is."""
    if isinstance(wanted, int):
        if not 0 <= wanted < len(rows):
            raise ValueError(f"no value {wanted}; there are {len(rows)} values to save")
        return [wanted]

    if not wanted:
        raise ValueError("a value to save must not be an empty text")
    names = _policy_code.value_names(rows)
    for known in (_policy_code.shown_names(module, rows), names):
        if wanted in known and wanted != _policy_code.INPUT:
            return [at for at, name in enumerate(known) if name == wanted]
    lines = _policy_code.of_lines(rows, names)
    if wanted in lines:
        return lines[wanted]

    words = re.compile(rf"(?<!\w){re.escape(wanted)}(?!\w)")

    def matches(row: Row) -> bool:
        if row["kind"] == "input":
            return wanted in (row["name"], _policy_code.INPUT)
        place = f"{row['source_file']}:{row['source_line']}"
        ends = place == wanted or place.endswith(f"/{wanted}")
        return ends or row["name"] == wanted or bool(words.search(row["op_name"] or ""))

    # Other values are cheap to recompute; a text means them only by name or line.
    found = [at for at, row in enumerate(rows) if matches(row)]
    heavy = [at for at in found if rows[at]["kind"] != "other"]
    if not found:
        raise ValueError(
            f"no value to save matches {wanted!r}: give an instruction, a source line such as "
            "model.py:88 or whole words of an operation name, such as attention or "
            "mlp/dot_general; `remat` lists the values of a layer that a policy could save"
        )
    return heavy or found
