"""`StepMemory`: the memory of a training step on one device that a config implies."""

from __future__ import annotations

from operator import mul

from hlofast._core import Field
from hlofast.config._implied import needed_values, per_mesh, per_policy
from hlofast.config._peak import Held, expected_peak, parameter_size
from hlofast.config._policies import OFFLOADED, SAVED
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hlofast.config._implied import Implied
    from hlofast.config._policies import Policy

_NOTABLE = 0.01
_NOTABLE_BYTES = 1 << 26
"""The smallest share of a device's state, and the smallest bytes, of a parameter that is listed."""

_EXPECTED = (
    Field("word", "term", "What the memory holds."),
    Field("bytes", "bytes", "Bytes per device at the peak.", adds_up=True),
    Field("flag", "is_needed", "Whether the term remains when memory is tight."),
)
_TERMS = (
    Field("word", "term", "What the memory holds."),
    Field("word", "place", "Where it is held: device or host."),
    Field("bytes", "bytes", "Bytes per device.", nullable=True, adds_up=True),
    Field("word", "provenance", "Provenance of the size."),
    Field("text", "text", "A description."),
)
_ACTIVATIONS = (
    Field("path", "module", "The module that computes the value: its path in the model's state."),
    Field("name", "value", "The value's name within the module."),
    Field("name", "name", "The checkpoint name of the value, if any.", nullable=True),
    Field("word", "fate", "Saved, offloaded or recomputed; unknown if the "
          "policy is not modelled.", nullable=True),
    Field("flag", "is_needed", "Whether the backward pass needs it."),
    Field("count", "layers", "Layers that compute it."),
    Field("bytes", "bytes", "Bytes per layer and device; unknown without a mesh or batch.",
          nullable=True),
    Field("bytes", "total_bytes",
          "Bytes kept over all layers; unknown if the size or the fate is.", nullable=True,
          adds_up=True),
)  # fmt: skip
_REPLICATED = (
    Field("name", "path", "The parameter's path in the model's state."),
    Field("text", "partition_spec", "Its partition spec, as configs write it."),
    Field("axes", "axes", "Axes that shard most of the model but not this parameter."),
    Field("count", "elements", "Elements on one device.", adds_up=True),
    Field("bytes", "state_bytes", "Bytes of its state on one device.", adds_up=True),
    Field("bytes", "bytes_saved", "Bytes of state that those axes would save.", adds_up=True),
)


class Term:
    """One part of a step's memory: `place` is `device` or `host`, `bytes` is None if unknown."""

    __slots__ = ("bytes", "name", "place", "provenance", "text")

    def __init__(self, name: str, place: str, size: int | None, provenance: str, text: str) -> None:
        self.name = name
        self.place = place
        self.bytes = size
        self.provenance = provenance
        self.text = text


class StepMemory:
    """The memory of a training step on one device that a config implies, in bytes.

    All sizes are per device, without tile padding and alignment. State sizes are exact: they follow
    from shapes and specs. Other sizes are modelled: gradients have the type of the computation, and
    their sums over micro-batches the type of the parameters; the input of each layer and the values
    that its policy keeps stay until backward reaches the layer. A size is None if it depends on a
    part that is not modelled (`gaps`).
    """

    __slots__ = ("_implied", "gaps", "terms")

    gaps: tuple[tuple[str, str], ...]
    """Paths of unmodelled parts of the config, each with the reason."""
    terms: tuple[Term, ...]
    """Parameters, optimizer state, gradients, layer inputs, saved, offloaded, padding."""

    def __init__(self, implied: Implied) -> None:
        self._implied = implied
        self.terms = tuple(_terms(implied))
        self.gaps = (*implied.gaps, *implied.learner.gaps)

    def __getitem__(self, name: str) -> int | None:
        """Bytes of the terms with this name, on device and host; other names raise `KeyError`."""
        sizes = [term.bytes for term in self.terms if term.name == name]
        if not sizes:
            raise KeyError(name)
        return _sum(sizes)

    def _of(self, *names: str) -> int | None:
        return _sum([self[name] for name in names])

    @property
    def state_bytes(self) -> int | None:
        """Parameters, optimizer state and moving averages."""
        return self._of("parameters", "optimizer state", "averages")

    @property
    def gradient_bytes(self) -> int | None:
        """Gradients of all parameters, or their sums over micro-batches.

        XLA keeps gradients in the type of the computation until the optimizer reads them. Sums have
        the type of the parameters.
        """
        return self["gradients"]

    @property
    def layer_input_bytes(self) -> int | None:
        """The inputs of all layers that backward recomputes (the scan's carries)."""
        return self["layer inputs"]

    @property
    def saved_bytes(self) -> int | None:
        """Values that the policies save in device memory."""
        return self["saved"]

    @property
    def offloaded_bytes(self) -> int | None:
        """Values that the policies offload to host memory."""
        return self["offloaded"]

    @property
    def hbm_lower_bound(self) -> int | None:
        """The sum of all terms in device memory: state, gradients, layer inputs, saved, padding.

        Gathered weights, logits and other short-lived values are left out.
        """
        return _sum([term.bytes for term in self.terms if term.place == "device"])

    @property
    def known_bytes(self) -> int:
        """The sum of the terms in device memory whose size is known."""
        return sum(term.bytes or 0 for term in self.terms if term.place == "device")

    @property
    def expected_terms(self) -> Table:
        """The terms of the peak: columns term, bytes, is_needed; empty if the peak is not known.

        When memory is short, XLA does not hold the terms that are not needed.
        """
        return of_rows(_EXPECTED, self._expected or [])

    @property
    def expected_peak_bytes(self) -> int | None:
        """The modelled XLA peak when memory is short.

        Unlike `hbm_lower_bound`, it includes short-lived values: see `expected_terms`.
        """
        terms = self._expected
        return None if terms is None else sum(size for _, size, needed in terms if needed)

    @property
    def _expected(self) -> list[tuple[str, int, bool]] | None:
        """The terms of the peak; None if a part is not modelled."""
        if self.hbm_lower_bound is None:
            return None
        return expected_peak(self._implied, held(self._implied))

    @property
    def relaxed_peak_bytes(self) -> int | None:
        """The modelled XLA peak when memory is not short."""
        terms = self._expected
        return None if terms is None else sum(size for _, size, _ in terms)

    @property
    def host_bytes(self) -> int | None:
        """The sum of all terms in host memory, per device."""
        return _sum([term.bytes for term in self.terms if term.place == "host"])

    @property
    def binding_term(self) -> str | None:
        """The name of the largest term in device memory."""
        known = [
            (term.bytes, term.name)
            for term in self.terms
            if term.place == "device" and term.bytes is not None
        ]
        return max(known, key=lambda pair: pair[0])[1] if known else None

    @property
    def table(self) -> Table:
        """Columns: term, place (device, host), bytes (None: unknown), provenance, text."""
        terms = self.terms
        return of_rows(
            _TERMS,
            [(term.name, term.place, term.bytes, term.provenance, term.text) for term in terms],
        )

    @property
    def activations(self) -> Table:
        """Values of layers that backward may need, and whether each is kept.

        Columns: module (path in the model's state), value, name (the checkpoint name, or None),
        fate (saved, offloaded, recomputed; None if the policy is not modelled), is_needed (by
        backward), layers, bytes (per layer and device; None without a mesh or batch), total_bytes
        (kept over all layers).
        """
        implied = self._implied
        rows = []
        for value in implied.parts.values:
            module, _, own = value.key.rpartition(":")
            fate = implied.fates[value.key]
            size = None
            if implied.has_activations:
                size = implied.activation_bytes(value.features, value.itemsize, padded=False)
            kept: int | None = 0
            if value.is_needed and fate in (SAVED, OFFLOADED, None):
                kept = None if fate is None or size is None else value.layers * size
                if kept is not None and implied.parts.pipeline is not None:
                    kept = implied.parts.pipeline.kept(kept)
            rows.append((module, own, value.name, fate, value.is_needed, value.layers, size, kept))
        return of_rows(_ACTIVATIONS, rows)

    @property
    def replicated(self) -> Table:
        """Large parameters that are replicated along an axis that shards most of the model.

        Lists parameters that take at least 1% of the state and 64 MiB. Columns: path,
        partition_spec, axes (that do not shard it), elements (on one device), state_bytes (of its
        state on one device), bytes_saved (state per device saved if those axes sharded it too).
        """
        return _replicated(self._implied)

    def __repr__(self) -> str:
        bound, host = self.hbm_lower_bound, self.host_bytes
        shown = "unknown" if bound is None else f"{bound:,} bytes or more on a device"
        return f"<StepMemory: {shown}, {'unknown' if host is None else f'{host:,}'} on its host>"


def _sum(sizes: list[int | None]) -> int | None:
    """The sum; None if a size is not known."""
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def copies_of_parameters(implied: Implied) -> int:
    """Number of parameter-sized arrays in the state, including the parameters."""
    return 1 + len(implied.learner.moments) + len(implied.learner.averages)


def _terms(implied: Implied) -> list[Term]:
    parts, learner = implied.parts, implied.learner
    parameters, moments, averages, gradients = state(implied)
    is_known = not parts.gaps
    is_placed = is_known and bool(implied.mesh)
    kept = ", ".join(learner.moments) or "nothing"
    has_batch = is_known and implied.has_activations
    has_policy = has_batch and None not in implied.policies.values()
    inputs, saved, offloaded = activations(implied, padded=False)
    whole = activations(implied, padded=True)
    device, host = whole[0] - inputs + whole[1] - saved, whole[2] - offloaded

    def term(name: str, place: str, size: int, known: bool, provenance: str, text: str) -> Term:
        return Term(name, place, size if known else None, provenance if known else "unknown", text)

    has_gradients = is_placed and not learner.is_partial
    has_state = is_placed and not learner.gaps
    text = f"the optimizer keeps {kept} of each parameter"
    if learner.gaps:
        text = "kept by the optimizer, which is not modelled"
    one = "one per layer" if parts.pipeline is None else "one per layer of each iteration"
    terms = [
        term("parameters", "device", parameters, is_placed, "exact", "weights"),
        term("optimizer state", "device", moments, has_state, "exact", text),
        term("averages", "device", averages, has_state, "exact", "moving averages"),
        term("gradients", "device", gradients, has_gradients, "modelled", "one per weight"),
        term("layer inputs", "device", inputs, has_batch, "modelled", one),
        term("saved", "device", saved, has_policy, "modelled", "saved by policies"),
        term("offloaded", "host", offloaded, has_policy, "modelled", "offloaded by policies"),
        term("padding", "device", device, has_policy, "modelled", "for an uneven batch"),
        term("padding", "host", host, has_policy, "modelled", "for an uneven batch"),
    ]
    return [each for each in terms if each.name != "padding" or each.bytes]


def held(implied: Implied) -> Held:
    """What a step holds on one device, where all parts are modelled."""
    parameters, moments, averages, gradients = state(implied)
    inputs, saved, _ = activations(implied, padded=False)
    whole = activations(implied, padded=True)
    padding = whole[0] - inputs + whole[1] - saved
    return Held(parameters + moments + averages, inputs, saved, padding, gradients)


def state(implied: Implied) -> tuple[int, int, int, int]:
    """Bytes of parameters, optimizer state, averages and gradients on one device."""
    parameters, moments, averages, narrow = _state(implied)
    is_wide = implied.steps > 1 or implied.casts_in_layers
    return parameters, moments, averages, parameters if is_wide else narrow


@per_mesh
def _state(implied: Implied) -> tuple[int, int, int, int]:
    """The same, with gradients in the type of the computation if that is narrower.

    Sums over micro-batches, and gradients of layers that cast their weights, have the type of the
    parameters.
    """
    own, learner = implied.parts.parameters, implied.learner
    sizes = [parameter_size(each) for each in own]
    held = [implied.held_of(each) for each in own]
    return (
        sum(map(mul, held, sizes)),
        sum(implied.state_bytes(each, learner.moments) for each in own),
        sum(implied.state_bytes(each, learner.averages) for each in own),
        sum(each * min(size, implied.itemsize) for each, size in zip(held, sizes, strict=True)),
    )


def activations(implied: Implied, *, padded: bool) -> tuple[int, int, int]:
    """Bytes of layer inputs, saved and offloaded values on one device."""
    if not implied.mesh or implied.batch.tokens is None:
        return 0, 0, 0
    count, parts = implied.rows(padded=padded)
    if count % parts == 0:
        inputs, saved, offloaded = of_sequence(implied)
        if (pipeline := implied.parts.pipeline) is not None:
            # Each iteration keeps the inputs of its layers, and what the policy saves of them.
            inputs, saved, offloaded = map(pipeline.kept, (inputs, saved, offloaded))
        return inputs * (count // parts), saved * (count // parts), offloaded * (count // parts)
    # Each size is rounded up by itself.
    policies, fates = implied.policies, implied.fates
    return kept_of(implied, policies, fates, lambda size: -(-count * size // parts))


@per_policy
def of_sequence(implied: Implied) -> tuple[int, int, int]:
    """Bytes of layer inputs, saved and offloaded values of one sequence of each shard."""
    return kept_of(implied, implied.policies, implied.fates)


def kept_of(
    implied: Implied,
    policies: Mapping[str, Policy | None],
    fates: Mapping[str, str | None],
    rounded: Callable[[int], int] = int,
) -> tuple[int, int, int]:
    """The same under these policies, with the size of each value of one sequence `rounded`."""
    inputs, sums = 0, {SAVED: 0, OFFLOADED: 0}
    for unit in implied.parts.units.values():
        size = rounded(implied.row_bytes((unit.feature,), implied.itemsize))
        policy = policies[unit.path]
        if policy is not None and policy.offloads_inputs:
            sums[OFFLOADED] += unit.layers * size
        else:
            inputs += unit.layers * size
    for key, layers, size in needed_values(implied):
        fate = fates[key]
        if fate in sums:
            sums[fate] += layers * rounded(size)
    return inputs, sums[SAVED], sums[OFFLOADED]


def _replicated(implied: Implied) -> Table:
    parts = implied.parts
    copies = copies_of_parameters(implied)
    weight: dict[str, int] = {}
    total = held = 0
    for parameter in parts.parameters:
        total += parameter.elements
        held += implied.held_of(parameter)
        for axis in parameter.axes:
            if implied.mesh.get(axis, 1) > 1:
                weight[axis] = weight.get(axis, 0) + parameter.elements
    usual = [axis for axis, elements in weight.items() if 2 * elements > total]
    rows = []
    for parameter in parts.parameters:
        missing = [axis for axis in usual if axis not in parameter.axes]
        elements = implied.held_of(parameter)
        size = elements * copies * parameter_size(parameter)
        if not missing or elements < _NOTABLE * held or size < _NOTABLE_BYTES:
            continue
        rows.append((parameter, missing, elements, size))
    rows.sort(key=lambda row: -row[3])
    return of_rows(
        _REPLICATED,
        [
            (
                parameter.path,
                spec_text(parameter.sharding),
                ",".join(missing),
                elements,
                size,
                size - -(-size // implied.shards(missing)),
            )
            for parameter, missing, elements, size in rows
        ],
    )


def spec_text(sharding: tuple[tuple[str, ...], ...]) -> str:
    """A sharding as configs write partition specs."""
    words = [
        "None" if not axes else repr(axes[0]) if len(axes) == 1 else repr(axes) for axes in sharding
    ]
    return f"PartitionSpec({', '.join(words)}{',' if len(words) == 1 else ''})"
