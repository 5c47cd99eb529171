"""`StepTraffic`: the collectives of a training step that a config implies."""

from __future__ import annotations

from hlofast._core import Field
from hlofast.config._implied import per_mesh, per_policy
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast.config._implied import Implied
    from hlofast.config._parts import Parameter, Product

_TRAFFIC = (
    Field("name", "tensor", "The parameter, or the matmul whose partial results are summed."),
    Field("word", "tensor_kind", "The tensor kind: weights, gradients or activations."),
    Field("word", "kind", "The collective."),
    Field("axes", "axes", "The mesh axes of its groups."),
    Field("word", "phase", "When it runs: forward, backward or recomputed."),
    Field("bytes", "payload", "Bytes of the whole array, per call."),
    Field("count", "count", "Calls per step.", adds_up=True),
    Field("bytes", "total_payload", "Payload of all calls.", adds_up=True),
    Field("word", "provenance", "Provenance of the figures."),
)
GATHER, REDUCE, SUM = "all-gather", "reduce-scatter", "all-reduce"
RAGGED = "ragged-all-to-all"
"""Rows that travel to the devices of their experts."""
EXCHANGE = "all-to-all"
"""Shards of tokens that become shards of heads, or back."""


class Transfer:
    """A collective with a payload of `payload` bytes that runs `count` times per step."""

    __slots__ = ("axes", "count", "kind", "layers", "payload", "phase", "tensor", "tensor_kind")

    def __init__(
        self,
        tensor: str,
        tensor_kind: str,
        kind: str,
        axes: tuple[str, ...],
        phase: str,
        payload: int,
        count: int,
        layers: int,
    ) -> None:
        self.tensor = tensor
        self.tensor_kind = tensor_kind
        self.kind = kind
        self.axes = axes
        self.phase = phase
        self.payload = payload
        self.count = count
        self.layers = layers


class StepTraffic:
    """Collectives of one step that the shardings of weights and activations need, per device.

    Weights sharded along a token axis are gathered once for forward and once for backward, in the
    compute type; their gradients are reduced. Weights sharded along other axes need all-reduces of
    activations. Tokens travel to their experts and back in all-to-alls; attention gathers the keys
    and values of a sequence that lies on several devices, and reduces their gradients, or exchanges
    shards of tokens for shards of heads. With gradient accumulation, all of this happens for each
    part of the batch. The figures are modelled: a compiler may choose other collectives. If a part
    is not modelled (`gaps`), `transfers` lists the remaining collectives and totals are None.
    """

    __slots__ = ("_is_known", "gaps", "transfers")

    gaps: tuple[tuple[str, str], ...]
    transfers: tuple[Transfer, ...]

    def __init__(self, implied: Implied) -> None:
        self.gaps = tuple(implied.gaps) + tuple(unmodelled_traffic(implied))
        self._is_known = bool(implied.mesh) and not implied.gaps
        self.transfers = tuple(_transfers(implied)) if implied.mesh else ()

    def total(
        self, kind: str | None = None, tensor_kind: str | None = None, axis: str | None = None
    ) -> int | None:
        """Payload bytes of a step; None if not known.

        Filters by collective `kind`, by tensor kind (`weights`, `gradients`, `activations`) and by
        mesh `axis`.
        """
        if not self._is_known or (tensor_kind in (None, "activations") and self.gaps):
            return None
        return sum(
            each.payload * each.count
            for each in self.transfers
            if kind in (None, each.kind)
            and tensor_kind in (None, each.tensor_kind)
            and (axis is None or axis in each.axes)
        )

    @property
    def gathered_bytes(self) -> int | None:
        """Weights that one device gathers in a step: the payloads of all all-gathers."""
        return self.total(GATHER, "weights")

    @property
    def gathered_bytes_per_layer(self) -> int | None:
        """Weights of the largest layer that one device gathers for its forward pass."""
        if not self._is_known:
            return None
        sums: dict[int, int] = {}
        for each in self.transfers:
            if each.kind == GATHER and each.phase == "forward" and each.layers > 1:
                sums[each.layers] = sums.get(each.layers, 0) + each.payload
        return max(sums.values(), default=0)

    @property
    def table(self) -> Table:
        """One row per collective.

        Columns: tensor, tensor_kind (weights, gradients, activations), kind, axes, phase, payload
        (bytes per call), count (calls per step), total_payload, provenance.
        """
        return of_rows(
            _TRAFFIC,
            [
                (
                    row.tensor,
                    row.tensor_kind,
                    row.kind,
                    ",".join(row.axes),
                    row.phase,
                    row.payload,
                    row.count,
                    row.payload * row.count,
                    "modelled",
                )
                for row in self.transfers
            ],
        )

    def __repr__(self) -> str:
        total, gathered = (
            "unknown" if size is None else f"{size:,} bytes"
            for size in (self.total(), self.gathered_bytes)
        )
        return f"<StepTraffic: {total} a step, {gathered} gathered>"


def unmodelled_traffic(implied: Implied) -> list[tuple[str, str]]:
    """Mesh axes along which traffic is not modelled, each with the reason."""
    gaps = []
    for axis in implied.batch.sequence_axes:
        if implied.mesh.get(axis, 1) > 1 and axis not in implied.parts.moved_axes:
            gaps.append(("mesh_shape", f"traffic along {axis!r} within attention is not modelled"))
    return gaps


def _transfers(implied: Implied) -> list[Transfer]:
    found = [(own, own.payload) for own in of_weights(implied)]
    if implied.batch.tokens is not None:
        rows = implied.rows(padded=True)[0]
        found += [(own, own.payload * rows) for own in of_sequence(implied)]
    if implied.parts.is_staged:
        # Stages gather weights in each iteration, and pass activations on: not modelled.
        found = [(own, payload) for own, payload in found if own.layers == 1]
    return [
        Transfer(
            own.tensor, own.tensor_kind, own.kind, own.axes, own.phase, payload,
            own.count * implied.steps, own.layers,
        )
        for own, payload in found
    ]  # fmt: skip


def _cut(implied: Implied, axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes with more than one device."""
    return tuple(axis for axis in axes if implied.mesh.get(axis, 1) > 1)


@per_policy
def of_sequence(implied: Implied) -> list[Transfer]:
    """Collectives of activations of one sequence of each shard, in one step of accumulation."""
    return [*_of_activations(implied), *_of_moves(implied)]


@per_mesh
def of_weights(implied: Implied) -> tuple[Transfer, ...]:
    """Gathers of all weights and reductions of their gradients, in one step of accumulation."""
    multiplied = {product.parameter for product in implied.parts.products}
    tokens = _cut(implied, implied.token_axes)
    return tuple(
        transfer
        for parameter in implied.parts.parameters
        for transfer in _of_weights(
            implied, parameter, tokens, is_multiplied=parameter.path in multiplied
        )
    )


def _of_weights(
    implied: Implied, parameter: Parameter, tokens: tuple[str, ...], *, is_multiplied: bool
) -> list[Transfer]:
    along = implied.gathered_axes(parameter)
    others = tuple(axis for axis in parameter.axes if axis not in along)
    layers = parameter.layers
    payload = implied.itemsize * parameter.elements // layers // implied.shards(others)
    last = tuple(axis for axis in along if axis in parameter.last)
    first = tuple(axis for axis in along if axis not in last)
    # A later gather starts with the whole result of the earlier one.
    parts = [(first, payload // implied.shards(last)), (last, payload)]
    transfers = []

    def add(tensor_kind: str, kind: str, axes: tuple[str, ...], phase: str, size: int) -> None:
        if axes:
            transfers.append(
                Transfer(parameter.path, tensor_kind, kind, axes, phase, size, layers, layers)
            )

    for axes, size in parts:
        add("weights", GATHER, axes, "forward", size)
        if is_multiplied:
            # Backward does not read weights that are only looked up, such as embeddings.
            add("weights", GATHER, axes, "backward", size)
    for axes, size in parts[::-1]:
        add("gradients", REDUCE, axes, "backward", size)
    rest = tuple(axis for axis in tokens if axis not in along and axis not in parameter.apart)
    add("gradients", SUM, rest, "backward", payload // implied.shards(along))
    return transfers


def _of_activations(implied: Implied) -> list[Transfer]:
    """Sums of activations along axes that shard weights but not tokens."""
    return [
        transfer
        for product, transfer in _sums(implied)
        if product is None or implied.is_recomputed(product)
    ]


@per_mesh
def _sums(implied: Implied) -> list[tuple[Product | None, Transfer]]:
    """The same, with the product that backward has to repeat for a collective, if any.

    Where such an axis shards the width of a layer's input too, products gather their input and
    scatter the sums of their result; backward gathers the input again. Elsewhere, sums are whole.
    """
    transfers: list[tuple[Product | None, Transfer]] = []
    if not _cut(implied, tuple(axis for axis in implied.mesh if axis not in implied.token_axes)):
        return transfers
    parameters = {parameter.path: parameter for parameter in implied.parts.parameters}
    joints: set[str] = set()
    spread = {path: unit.feature[1] for path, unit in implied.parts.units.items()}

    def add(
        product: Product, kind: str, axes: list[str], phase: str, width: int, *, again: bool = False
    ) -> None:
        features = ((width, ()),)
        payload = implied.row_bytes(features, implied.itemsize)
        tensor, layers = product.parameter or product.name, product.layers
        own = Transfer(tensor, "activations", kind, tuple(axes), phase, payload, layers, layers)
        transfers.append((product if again else None, own))

    for product in implied.parts.products:
        parameter = parameters.get(product.parameter or "")
        if parameter is None or product.is_routed:
            continue
        inside: list[str] = []
        outside: list[str] = []
        width = results = 1
        for index, (size, axes) in enumerate(parameter.of_layer):
            cut = [axis for axis in _cut(implied, axes) if axis not in implied.token_axes]
            if index in product.contracted:
                inside += cut
                width *= size
            else:
                outside += cut
                results *= size
        along = spread.get(product.remat or "", ())
        if inside:
            is_spread = all(axis in along for axis in inside)
            kind = REDUCE if is_spread else SUM
            add(product, kind, inside, "forward", results)
            add(product, kind, inside, "recomputed", results, again=True)
            if is_spread:
                add(product, GATHER, inside, "backward", results)
        if outside and product.joint not in joints:
            joints.add(product.joint)
            is_spread = all(axis in along for axis in outside)
            if is_spread:
                add(product, GATHER, outside, "forward", width)
                add(product, GATHER, outside, "recomputed", width)
            add(product, REDUCE if is_spread else SUM, outside, "backward", width)
    return transfers


def _of_moves(implied: Implied) -> list[Transfer]:
    """Activations that travel to experts and back, and those that attention gathers."""
    transfers: list[Transfer] = []
    for move in implied.parts.moves:
        axes = _cut(implied, move.axes)
        if not axes:
            continue
        payload = implied.row_bytes(move.features, move.itemsize)
        payload *= implied.shards(axes) if move.whole else 1
        kinds = [("forward", move.forward), ("backward", move.backward)]
        if implied.is_again(move.remat, move.kept_by):
            kinds.insert(1, ("recomputed", move.forward))
        layers = move.layers
        transfers += [
            Transfer(move.name, "activations", kind, axes, phase, payload, layers, layers)
            for phase, kind in kinds
            if kind is not None
        ]
    return transfers
