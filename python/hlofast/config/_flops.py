"""`StepFlops`: floating-point operations of a training step, as a config implies them."""

from __future__ import annotations

from hlofast._core import Field
from hlofast._units import read_seconds
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast.config._implied import Implied
    from hlofast.devices import Device

_PRODUCTS = (
    Field("name", "product", "The parameter that it multiplies by, or its own name."),
    Field("count", "layers", "Layers that have it."),
    Field("count", "multiplications", "Multiplications per token, of attention per pair of them."),
    Field("flops", "forward", "Operations of the forward pass of a step.", adds_up=True),
    Field("flops", "backward", "Operations of the backward pass of a step.", adds_up=True),
    Field("flops", "recomputed",
          "Operations that backward runs again; unknown where the policy is not modelled.",
          nullable=True, adds_up=True),
)  # fmt: skip


class StepFlops:
    """Floating-point operations of one step, on all devices together.

    A product of M by K and K by N numbers is 2·M·N·K. Backward has two such products for each of
    forward. `attention` counts pairs of a token and those before it, half of the square (`causal`);
    `full_attention` counts the whole square. Everything is modelled from the config; a figure is
    None where something that it needs is not modelled or the batch is not known (`gaps`).
    """

    __slots__ = (
        "attention", "full_attention", "gaps", "matmul", "parameters", "recomputed_attention",
        "recomputed_matmul", "table", "tokens",
    )  # fmt: skip

    matmul: int | None
    """Products with weights, forward and backward."""
    attention: int | None
    """Attention, forward and backward, each token with those before it.

    None where a mask is not modelled."""
    full_attention: int | None
    """The same with all pairs."""
    recomputed_matmul: int | None
    """Products with weights that backward runs a second time forward."""
    recomputed_attention: int | None
    """The same of attention."""
    parameters: int | None
    tokens: int | None
    """Of one step."""
    table: Table
    """Columns: product, layers, multiplications (per token, or pair of tokens), forward,
    backward, recomputed (operations of a step; None: unknown)."""

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
        self.tokens = batch.tokens
        length = batch.length or 0
        rows: list[tuple[str, int, int, int, int, int | None]] = []
        sums = {(attention, again): 0 for attention in (False, True) for again in (False, True)}
        is_policy_known = True
        for product in parts.products:
            # Of a square of pairs the half that is causal.
            times = (self.tokens or 0) * product.layers
            forward = 2 * product.multiplications * times
            if product.is_attention:
                forward = forward * length // 2
            again = implied.is_recomputed(product)
            is_policy_known = is_policy_known and again is not None
            rows.append(
                (
                    product.parameter or product.name,
                    product.layers,
                    product.multiplications,
                    forward,
                    2 * forward,
                    None if again is None else forward if again else 0,
                )
            )
            sums[product.is_attention, False] += 3 * forward
            sums[product.is_attention, True] += forward if again else 0
        has_batch = is_known and self.tokens is not None and not learner.is_partial
        has_policy = has_batch and is_policy_known
        self.matmul = sums[False, False] if has_batch else None
        self.attention = sums[True, False] if has_batch and not masks else None
        self.full_attention = 2 * sums[True, False] if has_batch else None
        self.recomputed_matmul = sums[False, True] if has_policy else None
        self.recomputed_attention = sums[True, True] if has_policy and not masks else None
        self.table = of_rows(_PRODUCTS, rows)

    @property
    def six_n_t(self) -> int | None:
        """6 · parameters · tokens, the usual estimate (embeddings counted, attention not).

        From Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1.
        """
        if self.parameters is None or self.tokens is None:
            return None
        return 6 * self.parameters * self.tokens

    @property
    def model(self) -> int | None:
        """What the step has to compute: products and causal attention, forward and backward."""
        if self.matmul is None or self.attention is None:
            return None
        return self.matmul + self.attention

    @property
    def recomputed(self) -> int | None:
        """What it computes again because of its policies."""
        if self.recomputed_matmul is None or self.recomputed_attention is None:
            return None
        return self.recomputed_matmul + self.recomputed_attention

    @property
    def executed(self) -> int | None:
        """Both."""
        if self.model is None or self.recomputed is None:
            return None
        return self.model + self.recomputed

    def mfu(
        self, step_seconds: float | str, devices: int, device: Device, dtype: str = "bf16"
    ) -> float:
        """Model FLOPs utilisation of a step of this length: `six_n_t` over what devices can do.

        `devices` counts JAX devices of this kind; `dtype` names the peak. A `ValueError` where the
        operations are not known or arguments are not positive, an `UnknownFigureError` where a
        figure of the device is not.
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
