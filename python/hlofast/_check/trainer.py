"""The declaration of a trainer config on an instance."""

from __future__ import annotations

import re

from hlofast._check.declaration import Declaration, DeclaredParameter, DeclaredValue, Prediction

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast.config import EffectiveConfig
    from hlofast.config._implied import Implied

_DTYPES = {2: "bf16", 4: "f32"}
"""Element types that AXLearn trains in, by bytes."""
_PLACES = {"saved": "device", "offloaded": "host"}


def declaration_of(effective: EffectiveConfig) -> Declaration:
    """The mesh, shardings, policy, loops and predictions of `effective`.

    Parts of the config that hlofast does not model are left out and therefore not compared.
    """
    implied = effective._implied()
    rule = "no rule" if effective.rule is None else f"rule {effective.rule}"
    source = f"the config on {effective.instance.name} ({rule})"
    # Stages name, stack and repeat layers in another way: nothing of them is compared.
    is_staged = implied.parts.is_staged
    units = [] if is_staged else list(implied.parts.units.values())
    layers = {unit.layers for unit in units}
    has_batch = bool(implied.mesh) and implied.batch.tokens is not None
    carry = None
    if has_batch and len(units) == 1:
        carry = implied.activation_bytes((units[0].feature,), implied.itemsize, padded=True)
    is_policy_known = has_batch and None not in implied.policies.values() and len(layers) == 1
    return Declaration(
        source=source,
        mesh=effective.mesh,
        batch_axes=implied.token_axes,
        moved_axes=tuple({axis: None for move in implied.parts.moves for axis in move.axes}),
        parameters=tuple(_parameters(implied)),
        # What is not modelled may have weights of its own.
        has_all_weights=not is_staged and not implied.gaps,
        kept=tuple(_kept(implied)) if is_policy_known else None,
        carry_bytes=carry,
        layers=layers.pop() if len(layers) == 1 else None,
        accumulation_steps=effective.accumulation_steps,
        batch=implied.batch.sequences,
        sequence=implied.batch.length,
        dtype=_DTYPES.get(implied.itemsize) if implied.has_activations else None,
        matmul_type=effective.config.front.matmul_type(effective.config),
        fuses_attention=effective.config.front.fuses_attention(effective.config),
        # AXLearn's trainer always donates its state.
        donates=True,
        available=effective.verdict().capacity_bytes,
        predictions=_predictions(effective, source),
        gaps=_gaps(effective),
    )


def _gaps(effective: EffectiveConfig) -> tuple[tuple[str, str], ...]:
    """Parts that are not modelled or not checked, and problems of the rule and its mesh."""
    kinds = (
        "selector", "no-rule", "not-modelled", "not-checked", "fails", "not-known", "devices",
        "mesh",
    )  # fmt: skip
    notes = [
        (row["path"] or row["kind"], row["text"]) for row in effective.notes if row["kind"] in kinds
    ]
    tiles = effective._implied().parts.head_tiles
    if tiles > 1:
        text = f"whether the program computes the logits in {tiles} parts is not checked"
        notes.append(("num_vocab_tiling", text))
    gaps = [*notes, *effective.verdict().gaps]
    return tuple(dict.fromkeys(gaps))


def _parameters(implied: Implied) -> Iterator[DeclaredParameter]:
    """The weights, and the optimizer state under the same paths."""
    for parameter in implied.parts.parameters:
        if implied.parts.is_staged and parameter.layers > 1:
            continue
        path = "[^/]+".join(map(re.escape, parameter.path.split("*")))
        # Flax NNX holds each array as the attribute `value` of a variable.
        pattern = f"(.*/)?{path}([./]value)?"
        yield DeclaredParameter(pattern, parameter.sharding, parameter.shape)


def _kept(implied: Implied) -> Iterator[DeclaredValue]:
    for value in implied.parts.values:
        place = _PLACES.get(implied.fates[value.key] or "")
        if place is not None and value.is_needed:
            size = implied.activation_bytes(value.features, value.itemsize, padded=True)
            yield DeclaredValue(value.name or value.key, size, place)


def _predictions(effective: EffectiveConfig, source: str) -> dict[str, Prediction]:
    memory, traffic, flops = effective.memory(), effective.traffic(), effective.flops()
    predictions: dict[str, Prediction] = {}

    def add(name: str, value: int | None) -> None:
        if value is not None:
            predictions[name] = Prediction(value, source)

    if effective.mesh is None:
        return predictions
    is_staged = effective._implied().parts.is_staged
    if not is_staged:
        add("state_bytes", memory.state_bytes)
    add("offloaded_bytes", memory.offloaded_bytes)
    if not traffic.gaps:
        of_layers = [each for each in traffic.transfers if each.layers > 1]
        weights = [each for each in of_layers if each.tensor_kind == "weights"]
        add("gathered_bytes", sum(each.payload * each.count for each in weights))
    is_known = None not in (flops.matmul, flops.recomputed_matmul) and not is_staged
    if is_known and effective.devices:
        total = sum(own or 0 for own in (flops.matmul, flops.routing, flops.recomputed_matmul))
        add("flops", total // effective.devices)
    add("peak_bytes", memory.hbm_lower_bound)
    add("expected_peak_bytes", memory.expected_peak_bytes)
    return predictions
