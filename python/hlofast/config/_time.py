"""`StepTime`: the modelled time of a training step that a config implies.

A step is the sum of its parts, which `StepTime.parts` lists:

* products with weights and attention: their operations, recomputed ones included, at the share of
  the device's peak that each kind of work achieves;
* element-wise work (norms, rotary embeddings, activation functions, copies): each value of a layer
  passes through memory a number of times, and a kept one further times;
* attention without a flash kernel: the square of token pairs is computed whole, and its scores pass
  through memory;
* the optimizer: one read and one write of the state and one read of the gradients;
* collectives on the links inside a slice or host, and on the network between slices or hosts.
  Gathers of weights overlap with the work of their layers on TPUs and do not on GPUs, unless a
  trainer's own rates say otherwise; all other collectives are exposed;
* transfers to host memory, as far as they take longer than the work of forward, and back as far as
  they take longer than that of backward;
* a wait that grows with every doubling of slices: the device figure `slice_wait`, as in the time of
  a dump;
* the time between two steps.

Most shares and counts in `TPU` and `GPU` are fitted on step times that AXLearn published beside its
configs; `benches/config_accuracy.py` repeats the fit and shows the error of each step when it is
left out.
"""

from __future__ import annotations

import math

from hlofast._core import Field
from hlofast.config._implied import needed_values, per_mesh, per_policy, per_steps
from hlofast.config._memory import state
from hlofast.config._policies import OFFLOADED, RECOMPUTED
from hlofast.config._traffic import EXCHANGE, RAGGED, SUM, of_sequence, of_weights
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from hlofast.config._flops import StepFlops
    from hlofast.config._implied import Implied
    from hlofast.config._parts import Value
    from hlofast.devices import Device

PARTS = (
    Field("word", "part", "What the time is spent on."),
    Field("seconds", "seconds", "Seconds of a step.", adds_up=True),
    Field("word", "provenance", "Provenance of the figure."),
)
_WIDEST = 2
"""Bytes per element of the types that the peaks of devices are for."""
_SCORES = ("logits", "probabilities")
"""Names of the values that hold one element per pair of tokens."""
_WHOLE_DEPTH = 128
"""Width of a head that fills a systolic array or a warp's tiles; narrower heads waste the rest."""
_LOGITS_PASSES = 5
"""Forward writes the logits and reads them twice (maximum, sum); backward reads them and writes
their gradients: counted, not fitted."""
_LOGITS_SIZE = 4
"""Bytes per element of logits in the loss, which AXLearn computes in float32."""
_HOST_BANDWIDTH = 16e9
"""Bytes per second between a device and its host in one direction where the device's figure is not
known: 16 lanes of PCIe 3.0."""
GATHERS = "gathers of weights"
_REDUCTIONS, _SUMS = "reductions of gradients", "reductions of activations"
NETWORK = "network"
_EXCHANGES = (RAGGED, EXCHANGE)
"""Collectives in which every device sends a part to every other one."""
EXPOSED = (GATHERS, _REDUCTIONS, _SUMS, NETWORK)
"""The parts of a step that are collectives."""
_HOST_MEMORY = "host memory"
_PROVENANCES = {_HOST_MEMORY: "assumed"}
"""Provenances of parts that are not modelled."""

LOW, HIGH = -0.095, 0.206
"""10th and 90th percentile of the published over the modelled step, minus 1, each step left out of
the fit: `benches/config_accuracy.py`."""


def too_wide(implied: Implied) -> str | None:
    """Why no step time is known for the type of the computation; None if it is."""
    if not implied.has_type or implied.itemsize <= _WIDEST:
        return None
    return f"no step time for elements of {implied.itemsize} bytes: peaks are for bfloat16"


class Rates:
    """The shares of datasheet figures that steps achieve on one kind of device."""

    __slots__ = (
        "attention", "between_steps", "gathers_exposed", "kept_passes", "links", "matmul",
        "network", "network_exposed", "passes", "reductions", "score_passes",
    )  # fmt: skip

    def __init__(
        self,
        *,
        matmul: float,
        attention: float,
        passes: float,
        score_passes: float,
        links: float,
        reductions: float,
        gathers_exposed: float,
        network: float,
        network_exposed: float,
        between_steps: float,
        kept_passes: float = 0.0,
    ) -> None:
        self.kept_passes = kept_passes
        """Further times that the bytes of a saved or offloaded value do: forward stores it with
        those of all layers, backward loads it, both often in another layout."""
        self.matmul = matmul
        """Products with weights: share of the peak."""
        self.attention = attention
        """Attention kernels: share of the peak, for heads of 128 elements or more."""
        self.passes = passes
        """Times that the bytes of a layer's value pass through memory in a step."""
        self.score_passes = score_passes
        """The same for the scores of attention without a kernel."""
        self.links = links
        """Collectives inside a slice or host: share of the links' bandwidth."""
        self.reductions = reductions
        """Reductions of gradients: times the bytes of a reduce-scatter."""
        self.gathers_exposed = gathers_exposed
        """Share of the gathers of weights that does not overlap."""
        self.network = network
        """Collectives between slices or hosts: share of the network's bandwidth."""
        self.network_exposed = network_exposed
        """Share of the collectives between slices or hosts that does not overlap."""
        self.between_steps = between_steps
        """Seconds between two steps."""


TPU = Rates(
    # Not fitted: a published step of MaxText runs at 89 % of the peak, attention included.
    matmul=0.92,
    # Not fitted: splash kernels of published steps, whose programs were compiled again, take about
    # this share.
    attention=0.4,
    passes=21.0,
    score_passes=4.5,
    # Not fitted: line rate, but XLA reduces gradients by an all-reduce and a slice.
    links=1.0,
    reductions=2.0,
    # Not fitted: the compiler schedules gathers behind the products of their layers.
    gathers_exposed=0.0,
    # Not fitted: line rate, and a tenth is exposed, as in the fit of the device figure `slice_wait`
    # (`SHOWN` of benches/time_slices.py).
    network=1.0,
    network_exposed=0.1,
    between_steps=0.052,
)
GPU = Rates(
    matmul=0.79,
    # Not fitted: FlashAttention-2 on H100 (Shah et al., FlashAttention-3, 2024, abstract).
    attention=0.35,
    passes=21.0,
    score_passes=4.5,
    links=0.28,
    reductions=1.0,
    # Not fitted: without XLA's latency-hiding scheduler, nothing overlaps.
    gathers_exposed=1.0,
    network=0.3,
    # Not fitted: without XLA's latency-hiding scheduler, nothing overlaps.
    network_exposed=1.0,
    between_steps=0.052,
)
JUDGED = ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "h100")
"""The devices of the published steps, on which the model was judged."""


def rates_of(device: Device, own: Mapping[str, Mapping[str, float]]) -> Rates:
    """The rates for a device; other kinds than TPUs are taken to run like GPUs.

    `own` has those that differ for a trainer, by backend and by device.
    """
    backend, rates = ("tpu", TPU) if device.backend == "tpu" else ("gpu", GPU)
    changed = {**own.get(backend, {}), **own.get(device.name, {})}
    if not changed:
        return rates
    return Rates(**{name: getattr(rates, name) for name in Rates.__slots__} | changed)


class Demand:
    """What one device has to do in a step: seconds at the figures of its datasheet.

    Without traffic, collectives are left out. Raises `UnknownFigureError` if the device lacks a
    figure.
    """

    __slots__ = (
        "activations", "at_peak", "forward", "gathers", "kept", "kernels", "logits", "matmul",
        "network", "offload", "optimizer", "reductions", "score_memory", "scores", "slice_wait",
        "values",
    )  # fmt: skip

    def __init__(
        self,
        implied: Implied,
        flops: StepFlops,
        device: Device,
        count: int,
        *,
        has_traffic: bool = True,
    ) -> None:
        peak = device.per_jax_device("flops.bf16")
        memory = device.per_jax_device("hbm_bandwidth")
        # All devices wait for the device with the most sequences; along idle axes, devices repeat
        # work.
        busy, shards = implied.rows()
        uneven = -(-busy // shards) * shards / busy
        repeated = implied.shards(implied.idle_axes)
        self.at_peak = at_peak = uneven * repeated / (count * peak)
        """Seconds per operation, of all devices together."""
        self.slice_wait = 0.0
        """The logarithm of the factor by which waiting for other slices makes the step longer."""
        if implied.slices > 1 and str(device.value("topology")).startswith("torus"):
            self.slice_wait = device.require("slice_wait") * math.log2(implied.slices)
        self.matmul = ((flops.matmul or 0) + (flops.recomputed_matmul or 0)) * at_peak
        self.kernels = self.scores = 0.0
        sequences = implied.batch.sequences or 0
        for operations, depth in _attention(implied):
            seconds = operations * sequences * at_peak
            if depth is None:
                # Without a kernel, the half that the mask removes is computed too.
                self.scores += 2 * seconds
            else:
                self.kernels += seconds / min(1.0, depth / _WHOLE_DEPTH)
        rows = implied.rows(padded=True)[0] * implied.steps
        values, scores = _values(implied)
        kept, offloaded = _kept(implied)
        self.values = values * rows / memory
        self.kept = kept * rows / memory
        self.score_memory = scores * rows / memory
        self.logits = 0.0
        if implied.parts.head is not None:
            size = implied.activation_bytes((implied.parts.head,), _LOGITS_SIZE, padded=True)
            self.logits = size * implied.steps / memory
        has_host = "host_bandwidth" in device and "jax_devices" in device
        host = device.per_jax_device("host_bandwidth") if has_host else _HOST_BANDWIDTH
        self.offload = offloaded * rows / host
        """Moving offloaded values in one direction."""
        self.forward = (flops.model or 0) / 3 / ((flops.model or 0) + (flops.recomputed or 0) or 1)
        """Share of the operations that forward runs."""
        self.optimizer = _optimizer_bytes(implied) / memory
        self.gathers = self.reductions = self.activations = self.network = 0.0
        if has_traffic:
            self.gathers, self.reductions, network = _of_weights(implied, device)
            self.activations, self.network = _of_activations(implied, device, rows, network)

    @property
    def collectives(self) -> float:
        """Collectives inside slices or hosts, or between them, whichever takes longer."""
        return max(self.gathers + self.reductions + self.activations, self.network)


class StepTime:
    """The modelled time of a step, with its parts."""

    __slots__ = ("demand", "parts", "seconds")

    demand: Demand
    parts: tuple[tuple[str, float], ...]
    """Names and seconds; they add up to `seconds`."""
    seconds: float

    def __init__(self, demand: Demand, rates: Rates) -> None:
        self.demand = demand
        products = demand.matmul / rates.matmul
        kernels = demand.kernels / rates.attention
        scores = demand.scores / rates.matmul + demand.score_memory * rates.score_passes
        values = demand.values * rates.passes + demand.logits * _LOGITS_PASSES
        values += demand.kept * rates.kept_passes
        work = products + kernels + scores + values
        forward = work * demand.forward
        gathers = demand.gathers / rates.links
        exposed = gathers * rates.gathers_exposed
        exposed += max(0.0, gathers - exposed - work)
        # Collectives between slices hide behind no more than the rest of the step.
        between = demand.network / rates.network
        between = max(between * rates.network_exposed, between - work - exposed)
        parts = [
            ("matmuls", products),
            ("attention", kernels + scores),
            ("element-wise", values),
            ("optimizer", demand.optimizer),
            (GATHERS, exposed),
            (_REDUCTIONS, demand.reductions * rates.reductions / rates.links),
            (_SUMS, demand.activations / rates.links),
            (NETWORK, between),
            (
                _HOST_MEMORY,
                sum(max(0.0, demand.offload - part) for part in (forward, work - forward)),
            ),
        ]
        own = sum(seconds for name, seconds in parts if name != NETWORK)
        parts += [
            ("waiting for slices", own * math.expm1(demand.slice_wait)),
            ("between steps", rates.between_steps),
        ]
        self.parts = tuple((name, seconds) for name, seconds in parts if seconds > 0)
        self.seconds = sum(seconds for _, seconds in self.parts)

    @property
    def low_seconds(self) -> float:
        """10th percentile of the expected step, from the errors of published steps."""
        return self.seconds * (1 + LOW)

    @property
    def high_seconds(self) -> float:
        """90th percentile of the expected step, from the errors of published steps."""
        return self.seconds * (1 + HIGH)

    @property
    def table(self) -> Table:
        """Columns: part, seconds, provenance."""
        return of_rows(
            PARTS, [(*part, _PROVENANCES.get(part[0], "modelled")) for part in self.parts]
        )

    def __repr__(self) -> str:
        return (
            f"<StepTime: {self.seconds:.4g} s, {self.low_seconds:.4g} to {self.high_seconds:.4g}>"
        )


def network(
    implied: Implied, axes: tuple[str, ...], device: Device
) -> tuple[int | None, int | None]:
    """Devices of a group that share a slice or host, and the torus dimensions the group uses."""
    size, total = implied.shards(axes), implied.shards(implied.mesh)
    topology = str(device.value("topology") or "")
    block = total // implied.slices
    if not topology.startswith("torus"):
        block = int(device.value("chips_per_host") or total) * int(device.value("jax_devices") or 1)
    # The last axis varies fastest in device numbers; consecutive numbers share a block.
    near, stride = 1, 1
    for axis, extent in reversed(implied.mesh.items()):
        if axis in axes:
            # Groups that do not divide into blocks lie in parts across them.
            near *= math.gcd(extent, max(1, block // stride))
        stride *= extent
    if not topology.startswith("torus"):
        return (near if near < size else None), None
    whole = int(topology[6]) if size >= block else 1
    return (near if near < size else None), whole


@per_steps
def _of_weights(implied: Implied, device: Device) -> tuple[float, float, float]:
    """Seconds at line rate of gathers, of reductions, and of both between slices or hosts."""
    gathers = reductions = between = 0.0
    # Layers of a cycle have equal weights.
    known: dict[tuple[tuple[str, ...], str, int], tuple[float, float]] = {}
    for own in of_weights(implied):
        key = (own.axes, own.kind, own.payload * own.count * implied.steps)
        if key not in known:
            known[key] = _line_seconds(_place(implied, own.axes, device), *key[1:])
        near, far = known[key]
        between += far
        if own.tensor_kind == "weights":
            gathers += near
        else:
            reductions += near
    return gathers, reductions, between


@per_policy
def _of_activations(
    implied: Implied, device: Device, rows: int, between: float
) -> tuple[float, float]:
    """Seconds at line rate of the collectives of activations of this many sequences of a shard.

    The second figure adds those between slices or hosts to `between`.
    """
    inside = 0.0
    for own in of_sequence(implied):
        size = own.payload * own.count * rows
        near, far = _line_seconds(_place(implied, own.axes, device), own.kind, size)
        inside += near
        between += far
    return inside, between


class _Place:
    """Where the groups of some mesh axes lie on a network.

    Raises `UnknownFigureError` if the device lacks a figure.
    """

    __slots__ = ("bandwidth", "exchange", "far", "near", "outer")

    def __init__(self, implied: Implied, axes: tuple[str, ...], device: Device) -> None:
        size = implied.shards(axes)
        inside, dimensions = network(implied, axes, device)
        self.near = near = size if inside is None else inside
        """Devices of a group in one slice or host."""
        self.far = size // near
        """Slices or hosts of a group."""
        self.bandwidth = self.outer = 0.0
        """Bytes per second of all links that a ring uses, and between slices or hosts."""
        self.exchange: tuple[int, int, float] | None = None
        """Of an exchange on a torus: the side, a divisor, and the bandwidth of a link."""
        if near > 1:
            links = float(device.require("link_count"))
            if dimensions is not None:
                # A ring along each dimension, in both directions.
                links = min(links, 2 * dimensions)
            elif device.value("topology") == "fully-connected":
                links = min(links, near - 1)
            bandwidth = device.per_jax_device("link_bandwidth")
            self.bandwidth = links * bandwidth
            if dimensions is not None:
                side = round(near ** (1 / dimensions))
                wraps = side % int(device.value("wraparound_multiple") or side + 1) == 0
                self.exchange = side, 8 if wraps else 4, bandwidth
        if self.far > 1:
            self.outer = device.per_jax_device("network_bandwidth")


@per_mesh
def _place(implied: Implied, axes: tuple[str, ...], device: Device) -> _Place:
    return _Place(implied, axes, device)


def _line_seconds(place: _Place, kind: str, size: int) -> tuple[float, float]:
    """Seconds of a payload at line rate: inside slices or hosts, and between them."""
    near, far = place.near, place.far
    sent = float(size * (2 if kind == SUM else 1))
    inner = outer = 0.0
    if near > 1:
        inner = sent * (near - 1) / near / place.bandwidth
        if kind in _EXCHANGES and place.exchange is not None:
            # Parts travel a quarter of the longest side on average, as in `time/collective.rs`.
            side, divisor, bandwidth = place.exchange
            inner = sent * side / divisor / bandwidth
    if far > 1:
        # Each device carries its shard of the block's array over the network; in an exchange, all
        # that goes to other blocks.
        part = sent if kind in _EXCHANGES else sent / near
        outer = part * (far - 1) / far / place.outer
    return inner, outer


def _optimizer_bytes(implied: Implied) -> int:
    """Bytes that the optimizer, and sums of gradients over micro-batches, read and write."""
    parameters, moments, averages, _ = state(implied)
    # Each micro-batch reads and writes the sum, and reads its own gradient.
    sums = 3 * (implied.steps - 1)
    return parameters * (3 + sums) + 2 * (moments + averages)


@per_policy
def _attention(implied: Implied) -> list[tuple[int, int | None]]:
    """Attention of one sequence: its operations and, in kernels, the width of a head.

    Operations are those of the causal half: forward, backward and recomputed.
    """
    contents = {
        value.key: value.features[-1][0]
        for value in implied.parts.values
        if _name(value) == "content"
    }
    length, found = implied.batch.length or 0, []
    for product in implied.parts.products:
        if product.is_attention:
            runs = 4 if implied.is_recomputed(product) else 3
            # All devices wait for the one with the most pairs.
            pairs = product.slowest_pairs(length, implied.parts.causal_shards)
            each = 2 * product.multiplications * pairs * product.layers * runs
            kept = (key for keys in product.kept_by for key in keys)
            found.append((each, next((contents[key] for key in kept if key in contents), None)))
    return found


@per_mesh
def _values(implied: Implied) -> tuple[int, int]:
    """Bytes of one sequence on a device of all values but scores of attention, and of scores."""
    sums = {False: 0, True: 0}
    for value in implied.parts.values:
        size = value.layers * implied.row_bytes(value.features, value.itemsize)
        sums[_name(value) in _SCORES] += size
    return sums[False], sums[True]


@per_policy
def _kept(implied: Implied) -> tuple[int, int]:
    """Bytes of one sequence on a device of values that are kept, and of those on the host."""
    kept = offloaded = 0
    for key, layers, size in needed_values(implied):
        fate = implied.fates[key]
        if fate != RECOMPUTED:
            kept += layers * size
            offloaded += layers * size if fate == OFFLOADED else 0
    return kept, offloaded


def _name(value: Value) -> str:
    """The value's name within its module."""
    return value.key.rpartition(":")[2]
