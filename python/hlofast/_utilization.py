"""`Utilization`: the share of a device's peak that a step uses, from `Cost.mfu`."""

from __future__ import annotations


class Utilization:
    """Fractions of a device's peak, from `Cost.mfu`.

    MFU counts the operations of the model; HFU also counts recomputed operations. Neither counts
    the additions inside collectives. On a known device, a matmul counts at the peak of the element
    type that it multiplies: the fractions are seconds at those peaks over seconds of the step.
    """

    __slots__ = (
        "hfu", "is_lower_bound", "matmul_hfu", "matmul_mfu", "mfu", "num_devices", "peak_flops",
        "step_seconds",
    )  # fmt: skip

    matmul_mfu: float
    """Matmuls and convolutions without recomputation."""
    matmul_hfu: float
    """Matmuls and convolutions, with recomputation."""
    mfu: float
    """All operations without recomputation."""
    hfu: float
    """All operations, with recomputation."""
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
