"""`Utilization`: the share of a device's peak that a step uses, from `Cost.mfu`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast._cost import Cost
    from hlofast.devices import Device


class Utilization:
    """Fractions of a device's peak, from `Cost.mfu`.

    MFU counts the operations of the model; HFU also counts recomputed operations and matmuls that
    the compiler copied into several fusions. Neither counts the additions inside collectives. On a
    known device, a matmul counts at the peak of the element type that it multiplies: the fractions
    are seconds at those peaks over seconds of the step.
    """

    __slots__ = (
        "hfu", "is_lower_bound", "matmul_hfu", "matmul_mfu", "mfu", "num_devices", "peak_flops",
        "step_seconds",
    )  # fmt: skip

    matmul_mfu: float
    """Matmuls and convolutions without recomputation and copies."""
    matmul_hfu: float
    """Matmuls and convolutions, with recomputation and copies."""
    mfu: float
    """All operations without recomputation and copies."""
    hfu: float
    """All operations, with recomputation and copies."""
    step_seconds: float
    """The step time used, in seconds."""
    peak_flops: float
    """The peak used, in FLOP/s: operations over their seconds at the peaks of their types."""
    num_devices: int
    """Devices that share the FLOPs: all devices of a module that is not partitioned yet, 1 for the
    program of one device."""
    is_lower_bound: bool
    """Whether FLOPs are missing: executed instructions are inside a loop of unknown trip count
    (which counts once) or have an unknown cost (which counts as 0)."""

    def __init__(
        self,
        *,
        matmul_mfu: float,
        matmul_hfu: float,
        mfu: float,
        hfu: float,
        step_seconds: float,
        peak_flops: float,
        num_devices: int = 1,
        is_lower_bound: bool = False,
    ) -> None:
        self.matmul_mfu = matmul_mfu
        self.matmul_hfu = matmul_hfu
        self.mfu = mfu
        self.hfu = hfu
        self.step_seconds = step_seconds
        self.peak_flops = peak_flops
        self.num_devices = num_devices
        self.is_lower_bound = is_lower_bound

    def as_dict(self) -> dict[str, float]:
        """The fields by name; `num_devices` is an int, `is_lower_bound` a bool."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Utilization) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash(tuple(self.as_dict().values()))

    def __repr__(self) -> str:
        figures = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"Utilization({figures})"


def of_cost(
    cost: Cost, step_seconds: float, peak_flops: float, device: Device | None
) -> Utilization:
    """The utilization of a step; of `device`, the peaks by element type."""
    products = cost.matmuls().to_pylist()
    matmul = sum(row["flops"] or 0 for row in products)
    recomputed = sum(row["flops"] or 0 for row in products if row["phase"] == "recompute")
    copies = cost.repeated_matmul_flops
    collectives, recomputed_collectives = cost._data.collective_flops()
    by_phase = {row["phase"]: row["flops"] for row in cost.by("phase")}
    operations = cost._totals[0] - collectives
    repeated = by_phase.get("recompute", 0) - recomputed_collectives
    devices = cost._devices()
    parts = None if device is None else cost._data.flops_by_peak(device._parts())
    if parts is None:
        parts = [(peak_flops, matmul, recomputed + copies, operations, repeated + copies)]
    parts = [part for part in parts if part[3]]
    if parts:
        # One peak stays as it is; several are weighted by the seconds at each.
        ideal = sum(part[3] / part[0] for part in parts)
        several = sum(part[3] for part in parts) / ideal
        peak_flops = parts[0][0] if len(parts) == 1 else several

    def share(amounts: list[int]) -> float:
        total = 0.0
        for amount, (peak, *_) in zip(amounts, parts, strict=True):
            budget = step_seconds * peak * devices
            # The product of two tiny numbers can underflow to 0.
            total += amount / budget if budget else float("inf")
        return total

    return Utilization(
        matmul_mfu=share([part[1] - part[2] for part in parts]),
        matmul_hfu=share([part[1] for part in parts]),
        mfu=share([part[3] - part[4] for part in parts]),
        hfu=share([part[3] for part in parts]),
        step_seconds=step_seconds,
        peak_flops=peak_flops,
        num_devices=devices,
        is_lower_bound=cost.misses_flops,
    )
