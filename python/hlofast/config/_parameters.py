"""The table of a model's parameters."""

from __future__ import annotations

from hlofast._core import Field
from hlofast.config._memory import spec_text
from hlofast.config._peak import parameter_size
from hlofast.table import Table, of_rows

_PARAMETERS = (
    Field("name", "path", "Its path in the model's state; `*` stands for a layer's number."),
    Field("path", "module", "Path of its module in the config."),
    Field("name", "class", "The class of its module."),
    Field("shape", "shape", "The shape, including the dimension of stacked layers."),
    Field("word", "dtype", "The element type."),
    Field("text", "partition_spec", "Its partition spec, as configs write it."),
    Field("count", "layers", "Layers whose weights it holds."),
    Field("count", "copies", "Number of equal arrays."),
    Field("count", "elements", "Elements of all copies.", adds_up=True),
    Field("bytes", "bytes", "Bytes of all copies.", adds_up=True),
    Field("count", "elements_per_device",
          "Elements on one device, including the padding of uneven shards; unknown without a mesh.",
          nullable=True, adds_up=True),
    Field("bytes", "bytes_per_device",
          "Bytes on one device, including the padding of uneven shards; unknown without a mesh.",
          nullable=True, adds_up=True),
)  # fmt: skip
_GAPS = (
    Field("path", "path", "The part of the config that is not modelled."),
    Field("text", "why", "Why it is not modelled."),
)

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
    rows = []
    for row in implied.parts.parameters:
        size, held = parameter_size(row), implied.held_of(row) if implied.mesh else None
        rows.append(
            (
                row.path,
                row.module,
                row.class_name,
                ",".join(map(str, row.shape)),
                row.dtype.rpartition(".")[2],
                spec_text(row.sharding),
                row.layers,
                row.copies,
                row.elements,
                row.elements * size,
                held,
                None if held is None else held * size,
            )
        )
    return of_rows(_PARAMETERS, rows)


def gap_table(implied: Implied) -> Table:
    """See `Config.unmodelled`."""
    gaps = list(dict.fromkeys([*implied.gaps, *implied.masks, *implied.learner.gaps]))
    return of_rows(_GAPS, gaps)
