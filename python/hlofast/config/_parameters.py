"""The table of a model's parameters."""

from __future__ import annotations

from hlofast.config._memory import spec_text
from hlofast.config._peak import parameter_size
from hlofast.table import Table, column_of, text_column_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast.config._implied import Implied


def parameter_count(implied: Implied) -> int | None:
    """Parameters of the model; None if a part of it is not modelled."""
    if implied.parts.gaps:
        return None
    return sum(parameter.elements for parameter in implied.parts.parameters)


def parameter_table(implied: Implied) -> Table:
    """See `Config.parameters`."""
    rows = implied.parts.parameters
    held = [implied.held_of(row) if implied.mesh else -1 for row in rows]
    sizes = [parameter_size(row) for row in rows]
    return Table(
        [
            ("path", text_column_of([row.path for row in rows])),
            ("module", text_column_of([row.module for row in rows])),
            ("class", text_column_of([row.class_name for row in rows])),
            ("shape", text_column_of([",".join(map(str, row.shape)) for row in rows])),
            ("dtype", text_column_of([row.dtype.rpartition(".")[2] for row in rows])),
            ("partition_spec", text_column_of([spec_text(row.sharding) for row in rows])),
            ("layers", column_of([row.layers for row in rows])),
            ("copies", column_of([row.copies for row in rows])),
            ("elements", column_of([row.elements for row in rows])),
            (
                "bytes",
                column_of([row.elements * size for row, size in zip(rows, sizes, strict=True)]),
            ),
            ("elements_per_device", column_of(held)),
            (
                "bytes_per_device",
                column_of(
                    [
                        -1 if part < 0 else part * size
                        for part, size in zip(held, sizes, strict=True)
                    ]
                ),
            ),
        ]
    )


def gap_table(implied: Implied) -> Table:
    """See `Config.unmodelled`."""
    gaps = list(dict.fromkeys([*implied.gaps, *implied.masks, *implied.learner.gaps]))
    return Table(
        [
            ("path", text_column_of([path for path, _ in gaps])),
            ("why", text_column_of([why for _, why in gaps])),
        ]
    )
