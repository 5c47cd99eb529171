"""`StepFlops`: the floating-point operations of a training step that a config implies."""

from __future__ import annotations

from hlofast._core import Field
from hlofast._units import read_seconds
from hlofast.config._implied import per_policy
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast.config._implied import Implied
    from hlofast.config._parts import Product
    from hlofast.devices import Device

_PRODUCTS = (
    Field("name", "product", "The parameter it multiplies by, or the matmul's name."),
    Field("count", "layers", "Layers that contain the matmul."),
    Field("count", "multiplications", "Multiplications per token (attention: per token pair)."),
    Field("flops", "forward", "FLOPs of the forward pass of a step.", adds_up=True),
    Field("flops", "backward", "FLOPs of the backward pass of a step.", adds_up=True),
    Field("flops", "recomputed",
          "FLOPs that the backward pass recomputes; unknown if the policy is not modelled.",
          nullable=True, adds_up=True),
)  # fmt: skip


class StepFlops:
    """Floating-point operations of one step, summed over all devices.

    A matmul of M×K by K×N is 2·M·N·K operations. Backward runs two matmuls of the same size for
    each forward matmul. `attention` counts the causal half of the square of token pairs;
    `full_attention` counts the whole square. Every figure is modelled from the config. A figure is
    None if it depends on a part that is not modelled, or if the batch is not known (`gaps`).
    """

    __slots__ = (
        "_implied", "_multiplies_once", "attention", "full_attention", "gaps", "matmul",
        "parameters", "recomputed_attention", "recomputed_matmul", "routing", "tokens",
    )  # fmt: skip

    matmul: int | None
    """Matmuls with weights, forward and backward."""
    attention: int | None
    """Causal attention, forward and backward; None if a mask is not modelled."""
    full_attention: int | None
    """Attention over all pairs of tokens, forward and backward."""
    routing: int | None
    """Matmuls by the masks of a router (MaxText with dropped tokens): forward, backward and what
    backward recomputes. They only move rows to experts and back, so `model` leaves them out."""
    recomputed_matmul: int | None
    """Forward matmuls with weights that backward recomputes."""
    recomputed_attention: int | None
    """Causal attention that backward recomputes."""
    parameters: int | None
    tokens: int | None
    """Tokens per step."""

    def __init__(self, implied: Implied) -> None:
        parts, batch = implied.parts, implied.batch
        masks = implied.masks
        learner = implied.learner
        frozen = learner.gaps if learner.is_partial else []
        self.gaps = (*implied.gaps, *masks, *frozen)
        is_known = not parts.gaps
        self.parameters = (
            sum(parameter.elements for parameter in parts.parameters) if is_known else None
        )
        self._multiplies_once = parts.multiplies_once
        self.tokens = batch.tokens
        self._implied = implied
        sequences = batch.sequences or 0
        each, is_policy_known = _of_sequence(implied)
        whole, matmul, attention, again_matmul, again_attention, routing = (
            operations * sequences for operations in each
        )
        has_batch = is_known and self.tokens is not None and not learner.is_partial
        has_policy = has_batch and is_policy_known
        self.matmul = matmul if has_batch else None
        self.attention = attention if has_batch and not masks else None
        self.full_attention = whole if has_batch else None
        self.routing = routing if has_policy else None
        self.recomputed_matmul = again_matmul if has_policy else None
        self.recomputed_attention = again_attention if has_policy and not masks else None

    @property
    def table(self) -> Table:
        """One row per matmul.

        Columns: product, layers, multiplications (per token, or pair of tokens), forward, backward,
        recomputed (operations of a step; None: unknown).
        """
        sequences = self._implied.batch.sequences or 0
        rows = []
        for product, each, again in _products(self._implied):
            forward = each * sequences
            name = product.parameter or product.name
            repeated = None if again is None else forward if again else 0
            sizes = (product.layers, product.multiplications)
            backward = (product.mask_gradients or 2) * forward
            rows.append((name, *sizes, forward, backward, repeated))
        return of_rows(_PRODUCTS, rows)

    @property
    def six_n_t(self) -> int | None:
        """6 · parameters · tokens, the usual estimate (embeddings counted, attention not).

        From Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1. None for
        convolutions, whose weights multiply many positions.
        """
        if self.parameters is None or self.tokens is None or not self._multiplies_once:
            return None
        return 6 * self.parameters * self.tokens

    @property
    def model(self) -> int | None:
        """The operations of matmuls and causal attention, forward and backward."""
        if self.matmul is None or self.attention is None:
            return None
        return self.matmul + self.attention

    @property
    def useful(self) -> int:
        """The operations that count for utilisation: `six_n_t`, or `model` if it is less."""
        if not self._multiplies_once:
            return self.model or 0
        return min(self.six_n_t or 0, self.model or 0)

    @property
    def recomputed(self) -> int | None:
        """The operations that the rematerialisation policies recompute."""
        if self.recomputed_matmul is None or self.recomputed_attention is None:
            return None
        return self.recomputed_matmul + self.recomputed_attention

    @property
    def executed(self) -> int | None:
        """`model`, `routing` and `recomputed` together."""
        if self.model is None or self.routing is None or self.recomputed is None:
            return None
        return self.model + self.routing + self.recomputed

    def mfu(
        self, step_seconds: float | str, devices: int, device: Device, dtype: str = "bf16"
    ) -> float:
        """Model FLOPs utilisation: `six_n_t` divided by the devices' peak and the step time.

        `devices` counts JAX devices; `dtype` selects the peak. Raises `ValueError` if the
        operations are not known or an argument is not positive, and `UnknownFigureError` if the
        device lacks a figure.
        """
        if self.six_n_t is None:
            raise ValueError("the operations of a step are not known: see gaps")
        if devices < 1:
            raise ValueError(f"devices is at least 1, not {devices}")
        peak = device.per_jax_device(f"flops.{dtype}")
        return self.six_n_t / (read_seconds(step_seconds) * devices * peak)

    def __repr__(self) -> str:
        shown = "unknown" if self.executed is None else f"{self.executed:.4g}"
        again = "" if not self.recomputed else f", {self.recomputed:.4g} of them recomputed"
        return f"<StepFlops: {shown} operations{again}>"


def _products(implied: Implied) -> list[tuple[Product, int, bool | None]]:
    """Matmuls with the operations of forward of one sequence, and whether backward repeats them."""
    length, found = implied.batch.length or 0, []
    for product in implied.parts.products:
        # Causal attention computes half of the square of pairs.
        times = product.pairs(length) if product.is_attention else length
        forward = 2 * product.multiplications * product.layers * times
        found.append((product, forward, implied.is_recomputed(product)))
    return found


@per_policy
def _of_sequence(implied: Implied) -> tuple[tuple[int, ...], bool]:
    """Operations of one sequence, and whether all policies are modelled.

    They are those of attention over all pairs, of matmuls with weights, of causal attention, those
    that backward repeats of both, and all of those by masks of a router.
    """
    length, whole, is_known = implied.batch.length or 0, 0, True
    sums, repeated = {False: 0, True: 0}, {False: 0, True: 0}
    routing = 0
    for product, forward, again in _products(implied):
        if product.is_attention:
            whole += 6 * product.multiplications * product.layers * length * length
        is_known = is_known and again is not None
        if product.mask_gradients:
            routing += (1 + product.mask_gradients + (again or 0)) * forward
            continue
        sums[product.is_attention] += 3 * forward
        repeated[product.is_attention] += forward if again else 0
    of_all = (whole, sums[False], sums[True], repeated[False], repeated[True], routing)
    return of_all, is_known
