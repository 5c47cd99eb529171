"""`Verdict`: whether a step fits in device memory, its largest term, and its modelled time."""

from __future__ import annotations

from hlofast.config._flops import StepFlops
from hlofast.config._memory import StepMemory
from hlofast.config._time import JUDGED, Demand, StepTime, network, rates_of, too_wide
from hlofast.config._traffic import StepTraffic
from hlofast.devices import UnknownFigureError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast.config._implied import Implied
    from hlofast.devices import Device

FITS, TIGHT, TOO_LARGE, UNKNOWN = "fits", "tight", "does not fit", "unknown"
"""Bytes of the widest elements that devices multiply at their bfloat16 peak."""
_TIGHT = 0.9
"""Share of a device's memory above which the compiler is expected to save memory."""


class Verdict:
    """Expected memory and time of a training step on devices of one kind.

    `status` is `does not fit` if the expected peak exceeds the memory, `tight` if the relaxed peak
    exceeds 90% of it, otherwise `fits`; it is `unknown` if the peak or the memory is not known. If
    the known part of the lower bound alone exceeds the memory, the status is `does not fit`, even
    if other figures are not known. Returned by `EffectiveConfig.verdict`.
    """

    __slots__ = (
        "binding_term", "capacity_bytes", "communication_seconds", "compute_seconds", "device",
        "devices", "expected_peak_bytes", "flops", "gaps", "hbm_lower_bound", "host_bytes",
        "memory", "mfu", "mfu_bound", "relaxed_peak_bytes", "sequences_per_device", "statements",
        "status", "step_bound_seconds", "time", "traffic",
    )  # fmt: skip

    status: str
    memory: StepMemory
    flops: StepFlops
    traffic: StepTraffic
    device: str | None
    """The kind of device."""
    devices: int | None
    capacity_bytes: int | None
    """Memory of one JAX device that programs may use."""
    hbm_lower_bound: int | None
    """`StepMemory.hbm_lower_bound`."""
    expected_peak_bytes: int | None
    """`StepMemory.expected_peak_bytes`."""
    relaxed_peak_bytes: int | None
    """`StepMemory.relaxed_peak_bytes`."""
    binding_term: str | None
    """The largest term in device memory."""
    host_bytes: int | None
    """Host memory for the offloaded values of one device."""
    sequences_per_device: float | None
    """Sequences on a device at a time: per gradient accumulation step."""
    compute_seconds: float | None
    """All operations of the busiest device, including recomputation, at its bfloat16 peak.

    None if elements wider than bfloat16 are multiplied."""
    communication_seconds: float | None
    """All collectives in sequence, at the devices' link bandwidths.

    None if traffic is not modelled or a bandwidth is not known."""
    step_bound_seconds: float | None
    """A lower bound of the step: computation at the peak or collectives at line rate.

    The longer of the two; without the time of collectives, computation alone."""
    time: StepTime | None
    """The modelled step and its parts; None if the operations or a figure are not known.

    Without the time of collectives (`communication_seconds`), it leaves them out."""
    mfu: float | None
    """Model FLOPs utilisation of the modelled step, from 0 to 1: see `StepFlops.mfu`.

    Where the model multiplies less than 6 · parameters · tokens, as with large embedding tables,
    its own operations count."""
    mfu_bound: float | None
    """An upper bound of the utilisation: that of a step as short as `step_bound_seconds`."""
    statements: tuple[str, ...]
    """Statements about the figures, in sentences."""
    gaps: tuple[tuple[str, str], ...]
    """Paths of unmodelled parts of the config, each with the reason."""

    def __init__(
        self,
        implied: Implied,
        device: Device | None,
        devices: int | None,
        problems: tuple[tuple[str, str], ...] = (),
        *,
        runs: bool = True,
    ) -> None:
        self.memory = memory = StepMemory(implied)
        self.flops, self.traffic = flops, traffic = StepFlops(implied), StepTraffic(implied)
        self.gaps = tuple(dict.fromkeys([*problems, *memory.gaps, *flops.gaps, *traffic.gaps]))
        self.device = None if device is None else device.name
        self.devices = devices
        self.capacity_bytes = None if device is None else capacity(device)
        self.hbm_lower_bound = memory.hbm_lower_bound
        self.host_bytes = memory.host_bytes
        self.binding_term = memory.binding_term
        self.expected_peak_bytes = memory.expected_peak_bytes
        self.relaxed_peak_bytes = memory.relaxed_peak_bytes
        self.sequences_per_device = None
        if implied.has_activations:
            count, parts = implied.rows()
            self.sequences_per_device = count / parts
        self.status = self._status(is_certain=not problems)
        self._time(implied, flops, traffic, device if runs else None)
        told = {why for _, why in problems}
        self.statements = tuple(_statements(self, implied, memory, told))

    @property
    def peak_bytes(self) -> int | None:
        """The modelled XLA peak on this device; None if the peak or the memory is not known.

        It is the relaxed peak if that fits, and the expected peak if not even that fits. Between
        them, XLA gives up some of the terms that it does not need: the middle of what remains.
        """
        least, most = self.expected_peak_bytes, self.relaxed_peak_bytes
        if least is None or most is None or self.capacity_bytes is None:
            return None
        if most <= self.capacity_bytes:
            return most
        return (least + max(least, self.capacity_bytes)) // 2

    @property
    def excess_bytes(self) -> int | None:
        """Bytes by which the expected peak exceeds the memory; 0 if it does not.

        If the peak is not known, the bytes by which the known part of the bound exceeds the memory;
        None for the status `unknown`.
        """
        if self.status == UNKNOWN or self.capacity_bytes is None:
            return None
        peak = self.memory.known_bytes
        if self.expected_peak_bytes is not None:
            peak = self.expected_peak_bytes
        return max(0, peak - self.capacity_bytes)

    def _status(self, *, is_certain: bool) -> str:
        if self.capacity_bytes is None:
            return UNKNOWN
        if self.memory.known_bytes > self.capacity_bytes:
            return TOO_LARGE
        if self.expected_peak_bytes is None or not is_certain:
            return UNKNOWN
        if self.expected_peak_bytes > self.capacity_bytes:
            return TOO_LARGE
        relaxed = self.relaxed_peak_bytes or 0
        return TIGHT if relaxed > _TIGHT * self.capacity_bytes else FITS

    def _time(
        self, implied: Implied, flops: StepFlops, traffic: StepTraffic, device: Device | None
    ) -> None:
        self.compute_seconds = self.communication_seconds = self.step_bound_seconds = None
        self.time = self.mfu = self.mfu_bound = None
        if device is None or self.devices is None or flops.executed is None:
            return
        if too_wide(implied) or implied.untimed or not implied.has_activations:
            return
        try:
            peak = device.per_jax_device("flops.bf16")
        except UnknownFigureError:
            return
        # All devices wait for the device with the most sequences; along idle axes, devices repeat
        # work.
        busy, parts = implied.rows()
        uneven = -(-busy // parts) * parts / busy
        repeated = implied.shards(implied.idle_axes)
        self.compute_seconds = flops.executed * uneven * repeated / (self.devices * peak)
        if not traffic.gaps:
            self.communication_seconds = _communication(implied, traffic, device)
        is_known = self.communication_seconds is not None
        bound = self.compute_seconds
        try:
            demand = Demand(implied, flops, device, self.devices, has_traffic=is_known)
        except UnknownFigureError:
            pass
        else:
            self.time = StepTime(demand, rates_of(device, implied.rates))
            bound = max(bound, demand.collectives)
        self.step_bound_seconds = bound
        useful = flops.useful
        if bound > 0:
            self.mfu_bound = useful / (bound * self.devices * peak)
        if self.step_seconds:
            self.mfu = useful / (self.step_seconds * self.devices * peak)

    @property
    def step_seconds(self) -> float | None:
        """The modelled time of a step: `time.seconds`."""
        return None if self.time is None else self.time.seconds

    @property
    def step_low_seconds(self) -> float | None:
        """10th percentile of the expected step, from the model's errors on published steps.

        None if the step is not known or leaves out its collectives.
        """
        return self._range()[0]

    @property
    def step_high_seconds(self) -> float | None:
        """90th percentile of the expected step; None as for `step_low_seconds`."""
        return self._range()[1]

    def _range(self) -> tuple[float | None, float | None]:
        if self.time is None or self.communication_seconds is None:
            return None, None
        return self.time.low_seconds, self.time.high_seconds

    def __repr__(self) -> str:
        if (
            self.status == UNKNOWN
            or self.expected_peak_bytes is None
            or self.capacity_bytes is None
        ):
            return f"<Verdict: {self.status}>"
        sizes = f"{self.expected_peak_bytes:,} of {self.capacity_bytes:,} bytes"
        return f"<Verdict: {self.status}, {sizes}, most for {self.binding_term}>"


def capacity(device: Device) -> int | None:
    """Memory of one JAX device that programs may use, or its whole memory if that is not known."""
    for figure in ("hbm_usable_bytes", "hbm_bytes"):
        if figure in device and "jax_devices" in device:
            return int(device.per_jax_device(figure))
    return None


def _communication(implied: Implied, traffic: StepTraffic, device: Device) -> float | None:
    """Seconds of all collectives; None if the device lacks a figure."""
    total = 0.0
    for each in traffic.transfers:
        size = implied.shards(each.axes)
        near, dimensions = network(implied, each.axes, device)
        try:
            time = device.collective_time(each.kind, each.payload, size, near=near, axes=dimensions)
        except UnknownFigureError:
            return None
        total += time.seconds * each.count
    return total


def _statements(
    verdict: Verdict, implied: Implied, memory: StepMemory, noted: set[str]
) -> list[str]:
    """Statements about the figures; parts that a note explains are not named again."""
    statements = []
    for row in memory.replicated:
        statements.append(
            f"{row['path']} is not sharded along {row['axes']}: {row['state_bytes']:,} bytes of "
            f"state on every device; sharding it would save {row['bytes_saved']:,}"
        )
    batch = implied.batch
    if implied.has_activations and batch.sequences is not None:
        count, parts = implied.rows()
        if count % parts:
            size = sum(term.bytes or 0 for term in memory.terms if term.name == "padding")
            statements.append(
                f"{batch.sequences:,} sequences are not divisible by {parts:,} shards: devices pad "
                f"to {-(-count // parts)} each, which takes {size:,} more bytes"
            )
    inputs = memory.layer_input_bytes
    idle = implied.idle_axes
    cut = {axis for unit in implied.parts.units.values() for axis in unit.feature[1]}
    cut.update(implied.token_axes, idle)
    pipeline = implied.parts.pipeline
    if pipeline is not None:
        cut.add(pipeline.axis)
        share = pipeline.bubble / pipeline.iterations
        statements.append(
            f"{pipeline.stages:,} stages run {pipeline.iterations:,} iterations of "
            f"{pipeline.layers:,} layers, {pipeline.bubble:,} of them ({share:.0%}) on nothing"
        )
    whole = [axis for axis, size in implied.mesh.items() if size > 1 and axis not in cut]
    if inputs and whole:
        statements.append(
            f"layer inputs are not sharded along {','.join(whole)}: sharding the sequence would "
            f"save {inputs - inputs // implied.shards(whole):,} bytes"
        )
    capacity, expected = verdict.capacity_bytes, verdict.expected_peak_bytes
    if expected is None and capacity is not None and memory.known_bytes > capacity:
        statements.append(
            f"the terms whose size is known exceed the memory: {memory.known_bytes:,} of "
            f"{capacity:,} bytes"
        )
    if idle and not implied.parts.gaps:
        statements.append(
            f"mesh axes {','.join(idle)} shard neither weights nor tokens: "
            f"groups of {implied.shards(idle):,} devices repeat the same work"
        )
    if verdict.compute_seconds is not None and verdict.communication_seconds is None:
        statements.append(
            "the time of collectives is not known: the step time covers computation only"
        )
    if verdict.time is not None and verdict.device not in JUDGED:
        statements.append(
            f"the step takes the efficiencies of {', '.join(JUDGED)}: the model was not evaluated "
            f"on {verdict.device}"
        )
    wide = too_wide(implied)
    if verdict.flops.executed is not None and wide is not None:
        statements.append(wide)
    told = dict.fromkeys([*memory.gaps, *verdict.flops.gaps, *verdict.traffic.gaps])
    for path, why in told:
        if why in noted:
            continue
        statements.append(f"not modelled: {path or 'the config'}: {why}")
    return statements
