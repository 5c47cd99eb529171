"""The front for MaxText: YAML configs, their meshes and their models."""

from __future__ import annotations

import re

from hlofast._text import names
from hlofast.config import _instances, _mesh, _torus
from hlofast.config._front import Batch, Learner, Model, Sources, Space
from hlofast.config._parts import LARGEST_SIZE, FailsError, Gap, Parts, UnmodelledError, item_size
from hlofast.config._plan_space import spread
from hlofast.config._policies import UnknownPolicyError
from hlofast.config._select import (
    CHANGES,
    NEAR,
    NOTES,
    RULES,
    EffectiveConfig,
    slice_notes,
)
from hlofast.config.maxtext import (
    _pipeline,
    _refused,
    _remat,
    _settings,
    _sharding,
    _tables,
    _unmodelled,
    _written,
)
from hlofast.config.maxtext._blocks import build
from hlofast.config.maxtext._builder import Run
from hlofast.config.maxtext._logged import logged
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from hlofast._core import Mesh
    from hlofast.config._front import Values
    from hlofast.config._implied import Implied
    from hlofast.config._instances import Instance
    from hlofast.config._plan_space import Candidate
    from hlofast.config._policies import Policy
    from hlofast.config._tree import Config
    from hlofast.devices import Device

_KEY = re.compile(r"^([A-Za-z_]\w*):(?:[ \t\r]|$)", re.M)
_ENTRY = re.compile(r"^[^\s#].*", re.M)
_SHORT = 4000
"""Characters of a text that is taken to be whole."""
_FEWEST = 2
"""Known keys that make a text a MaxText config."""
_MOST_SEQUENCES = 1 << 40
_UNPLACED = {
    "sequence": "heads within attention, tokens elsewhere",
    "tensor_transpose": "widths in place of heads",
    "context_usp_ulysses": "heads within attention",
    "autoregressive": "for decoding",
}
"""Mesh axes along which activations are not modelled, with what they shard."""
_TOKENS, _EXPERTS = "tokens of a sequence within attention", "experts"
"""What an axis shards under some rules."""
_WORSE = {
    "autoregressive": "it is for decoding: it shards only weights, so its devices repeat the work",
    "tensor_transpose": "compiled steps use as much memory as with tensor, send twice as much and "
    "are slower, because they exchange the wider inner dimension",
}
"""Mesh axes that no plan sizes because others do better, with the reason."""
_UNMODELLED = {
    "context_usp_ulysses": "MaxText takes it only with context_parallel_strategy=usp, which is not "
    "modelled",
    "stage": "compiled steps with four stages take 1.3 and 1.8 times as long as with fsdp and use "
    "1.4 and 1.6 times as much memory; stages across slices are not modelled",
    "sequence": "MaxText 0.2 and later do not have this axis, and its traffic is not modelled",
}
"""Mesh axes that no plan sizes, with the reason; compiled steps: `benches/config_axes.py`."""
_MOMENTS = {"adamw": ("mu", "nu"), "adam_pax": ("mu", "nu"), "sgd": ()}
_RATES = {
    "tpu": {"matmul": 0.91, "passes": 10.5, "kept_passes": 6.0},
    "tpu-v6e": {"matmul": 0.74, "gathers_exposed": 1.0},
}
"""Rates of steps (`config/_time.py`), fitted on the time of compiled steps of MaxText for v5e and
v6e (`benches/plan_choices.py`): XLA fuses more of its element-wise work than AXLearn's published
steps show. No text for v6e has asynchronous gathers, all those for v5e have. Steps that MaxText
published judge the rates: `benches/maxtext_accuracy.py`."""
_UNTIMED = "the step and the traffic of pipeline stages are not modelled"
_SPLIT = "allow_split_physical_axes"
_HOST_STATE = ("parameter_memory_host_offload", "optimizer_memory_host_offload")


class MaxText:
    """YAML configs of MaxText."""

    name = "MaxText"
    split = (
        "axes of the mesh split axes of the torus: MaxText needs allow_split_physical_axes=true, "
        "and collectives may be slower than modelled"
    )

    def is_config(self, text: str) -> bool:
        """Whether all top-level keys are plain names, and some are MaxText's."""
        if len(text) > _SHORT:
            # The start of a text may end inside a line.
            text = text[: text.rfind("\n") + 1]
        keys = _KEY.findall(text)
        lines = [line for line in _ENTRY.findall(text) if not line.startswith(("]", "}", "-", "["))]
        known = {"base_config", *_tables.defaults()}
        return len(keys) == len(lines) and len(known.intersection(keys)) >= _FEWEST

    def is_named(self, path: str) -> bool:
        """Whether the file is YAML."""
        return path.endswith((".yml", ".yaml"))

    def loads(self, text: str | bytes, path: str | None, sources: Sources) -> Config:
        """Reads a run: a file, the files that it inherits from, arguments and environment."""
        from hlofast.config.maxtext._config import MaxTextConfig

        return MaxTextConfig(_settings.resolve(text, path, sources))

    def model(self, config: Config, mesh: Mapping[str, int], *, steps: int | None) -> Model:
        """The model of a run; the mesh gives the number of devices, and so the batch."""
        gaps: list[tuple[str, str]] = []
        parts, run = Parts(), None
        try:
            run = Run(config, mesh)
            parts = run.parts
            build(run)
        except (UnmodelledError, OverflowError) as fault:
            parts.gaps.append(Gap("decoder_block", str(config.get("decoder_block")), fault))
        gaps += [(gap.path, gap.why) for gap in parts.gaps]
        fails = [(gap.path, gap.why) for gap in parts.gaps if gap.fails]
        wrong = [*_refused.quantization(config), *_refused.indexer(config)]
        gaps += wrong
        fails += wrong
        refused: list[tuple[str, str]] = []
        batch = _batch(config, run, mesh, steps, gaps, fails, refused)
        untimed = _staged(run, batch, gaps, fails)
        learner = _learner(config)
        told = [] if run is None else run.unmodelled
        for own in _unmodelled.found(config):
            place = (own.key, own.why)
            if own.effect == _unmodelled.TIME:
                untimed.append(place)
            elif own.effect == _unmodelled.STATE:
                learner.gaps.append(place)
            if own.effect in (_unmodelled.STATE, _unmodelled.ACTIVATIONS):
                told.append(place)
        masks = _unmodelled.routing(parts)
        if masks is not None and not masks[0]:
            untimed.append(masks[1])
        if told:
            gaps += told
            batch.is_placed = False
        policies: dict[str, Policy | None] = dict.fromkeys(parts.units)
        try:
            policy = _remat.policy_of(config)
        except UnknownPolicyError as error:
            refused.append(("remat_policy", str(error)))
            gaps.append(refused[-1])
        else:
            policies = dict.fromkeys(parts.units, policy)
        gaps += [("decoder_block", why) for why in sorted(parts.unmoved)]
        quantization = config.get("quantization")
        if quantization and not wrong:
            # Told wherever a figure of the memory is shown.
            why = (
                f"the rate of matmuls under quantization {quantization!r} is not modelled; memory "
                "is that of unquantised values, without copies that only quantised steps hold"
            )
            untimed.append(("quantization", why))
        return Model(
            parts,
            learner,
            batch,
            policies,
            itemsize=None if run is None else run.itemsize,
            steps=steps,
            gaps=[*gaps, *untimed],
            masks=[(gap.path, gap.why) for gap in parts.masks],
            untimed=untimed,
            refused=refused,
            fails=fails,
            casts_in_layers=True,
            rates=_RATES,
        )

    def steps(self, config: Config) -> int | None:
        """`gradient_accumulation_steps`."""
        steps = config.get("gradient_accumulation_steps")
        return steps if type(steps) is int and 0 < steps <= LARGEST_SIZE else None

    def logged(self, config: Config) -> tuple[float, float, float] | None:
        """The TFLOPs of MaxText's log."""
        try:
            own = logged(config, causal=True)
        except ValueError:
            return None
        return own.total, own.learnable_weight, own.attention

    def rules(self, config: Config) -> Table:
        """None: MaxText has no mesh rules."""
        del config
        return of_rows(RULES, ())

    def select(self, config: Config, instance: str, devices: int | None) -> EffectiveConfig:
        """The run on an instance, such as `v5p-128` (as `compile_topology` names it)."""
        spelt = (instance, f"tpu-{instance}", f"gpu-{instance}")
        found = [_instances.read(name) for name in spelt]
        known = next((own for own in found if own.device is not None), found[0])
        return _effective(config, known, devices)

    def select_all(self, config: Config, devices: int | None) -> list[EffectiveConfig]:
        """The run on its `compile_topology`, or on devices that it does not name."""
        topology = config.get("compile_topology")
        if isinstance(topology, str) and topology:
            return [self.select(config, topology, devices)]
        why = "the config names no devices (compile_topology): give an instance"
        return [_effective(config, _instances.Instance("this run", why), devices)]

    def space(self, config: Config) -> Space:
        """The mesh axes, the policies with a name, and policies `custom`."""
        axes = config.get("mesh_axes")
        return Space(
            axes if isinstance(axes, tuple) else (),
            {name: _remat.named(name) for name in _remat.NAMED},
            usual=("data", "fsdp", "tensor"),
            offloads=True,
            offloads_inputs=True,
            worse=_WORSE,
            unmodelled=_UNMODELLED,
        )

    def states(self, config: Config, dtype: str) -> list[tuple[str, Values]]:
        """`mu_dtype`, `weight_dtype`; without `mu_dtype`, moments have the type of the weights."""
        found: list[tuple[str, Values]] = []
        if config.get("weight_dtype") != dtype:
            if "mu" in _MOMENTS.get(str(config.get("opt_type")), ()):
                found.append((f"first moments {dtype}", {"mu_dtype": dtype}))
            found.append((f"weights and moments {dtype}", {"weight_dtype": dtype, "mu_dtype": ""}))
        return found

    def failing(self, config: Config, device: Device) -> str | None:
        """The first value at which MaxText fails when it reads the run, or runs its attention."""
        notes = getattr(config, "settings_notes", ())
        told = next((text for kind, _, text in notes if kind == "fails"), None)
        return told or next((why for _, why in self.fails_on(config, device)), None)

    def fails_on(self, config: Config, device: Device) -> list[tuple[str, str]]:
        """`attention`."""
        why = _refused.attention(config, device)
        return [] if why is None else [("attention", why)]

    def matmul_type(self, config: Config) -> str | None:
        """`quantization`."""
        return _refused.matmul_type(config)

    def fuses_attention(self, config: Config) -> bool | None:
        """`attention`; `autoselected` depends on the device and on sizes."""
        kind = str(config.get("attention"))
        return {"dot_product": False, "flash": True, "cudnn_flash_te": True}.get(kind)

    def own_policy(self, config: Config) -> str:
        """`remat_policy`."""
        return f"{config.get('remat_policy')} (the config's)"

    def policy(
        self, saved: Sequence[str], offloaded: Sequence[str], *, offloads_inputs: bool
    ) -> Policy:
        """A policy `custom`."""
        return _remat.policy(saved, offloaded, offloads_inputs=offloads_inputs)

    def written(self, config: Config, candidate: Candidate, instance: str) -> list[str]:
        """Arguments of the command line."""
        return _written.arguments(config, candidate, instance)


FRONT = MaxText()


def _effective(config: Config, instance: Instance, devices: int | None) -> EffectiveConfig:
    """Resolves the mesh of a run on an instance."""
    from hlofast import devices as known

    notes: list[tuple[str, str | None, str]] = [*getattr(config, "settings_notes", ())]
    notes += [*_remat.notes(config), *_unmodelled.notes(config)]
    if instance.device is not None:
        failing_here = FRONT.fails_on(config, known.get(instance.device))
        notes += [("fails", path, why) for path, why in failing_here]
    instance = _with_slices(config, instance)
    count = devices if devices is not None else instance.devices
    mesh: Mesh | None = None
    if count is None:
        notes.append(("devices", None, instance.why))
    notes += slice_notes(instance, count)
    try:
        mesh = _sharding.resolve(config, count, instance.slices, _nodes(config, instance, count))
    except _mesh.MeshError as error:
        notes.append(("mesh", "ici_*_parallelism", str(error)))
    if mesh is not None and _is_split(config, mesh, instance, count):
        text = "axes of the mesh split axes of the torus: MaxText fails here unless "
        notes.append(("mesh", _SPLIT, f"{text}{_SPLIT}=true"))
    if mesh is not None:
        inner = _sharding.inner(config, mesh, instance.slices)
        notes += _refused.ring(config, instance.slices, inner)
    if count is None and mesh is not None:
        count = mesh.device_count
    effective = EffectiveConfig(
        source=config,
        config=config,
        instance=instance,
        devices=count,
        rule=None,
        selector=None,
        mesh=mesh,
        changes=of_rows(CHANGES, ()),
        notes=of_rows(NOTES, notes),
        near=of_rows(NEAR, ()),
    )
    implied = effective._implied()
    told = [*_uneven(implied), *(("fails", path, why) for path, why in implied.fails)]
    masks = _unmodelled.routing(implied.parts)
    if masks is not None and masks[0]:
        told.append(("not-checked", *masks[1]))
    if not told:
        return effective
    return EffectiveConfig(
        **{name: getattr(effective, name) for name in EffectiveConfig.__slots__ if name != "notes"},
        notes=of_rows(NOTES, [*notes, *told]),
    )


def _is_split(config: Config, mesh: Mesh, instance: Instance, count: int | None) -> bool:
    """Whether JAX refuses the mesh of a slice."""
    if count is None or instance.device is None or config.get(_SPLIT):
        return False
    if _refused.has_ring(config, instance.slices):
        return False
    torus = _torus.shape(instance.device, count // instance.slices)
    # Slices are taken to fill the outermost axes.
    sizes = list(mesh.shape.values())
    across = spread(sizes, instance.slices)
    if torus is None or across is None:
        return False
    return not _torus.is_laid(
        torus, [own // outer for own, outer in zip(sizes, across, strict=True)]
    )


def _nodes(config: Config, instance: Instance, count: int | None) -> int | None:
    """The nodes of GPUs, each of which JAX takes for a slice; None where MaxText takes one slice.

    Raises `MeshError` for a `num_slices` at which MaxText fails.
    """
    each = instance.devices_per_host
    if each is None or count is None or count % each:
        return None
    nodes, given = count // each, config.get("num_slices")
    if given not in (None, -1, 1, nodes):
        text = f"num_slices is {given!r}, and JAX takes each of the {nodes:,} nodes for a slice"
        raise _mesh.MeshError(text)
    return None if given == 1 else nodes


def _with_slices(config: Config, instance: Instance) -> Instance:
    """The instance with the number of slices that the config gives, if its name gives none.

    The slices of GPUs are their nodes, which the name of the instance counts.
    """
    if instance.devices_per_host is not None:
        return instance
    for key in ("compile_topology_num_slices", "num_slices"):
        slices = config.get(key)
        if instance.slices == 1 and type(slices) is int and 1 < slices <= _instances.MOST_DEVICES:
            devices = None if instance.devices is None else instance.devices * slices
            return _instances.Instance(
                instance.name,
                f"{instance.why}, on each of {slices:,} slices ({key})",
                device=instance.device,
                devices=devices,
                slices=slices,
                devices_per_host=instance.devices_per_host,
                readings=instance.readings,
            )
    return instance


def _uneven(implied: Implied) -> list[tuple[str, str | None, str]]:
    """Weights that the mesh does not divide evenly, which JAX refuses."""
    found: dict[str, list[str]] = {}
    for parameter in implied.parts.parameters if implied.mesh else ():
        for size, axes in zip(parameter.shape, parameter.sharding, strict=True):
            if size % implied.shards(axes):
                cut = ",".join(axis for axis in axes if implied.mesh.get(axis, 1) > 1)
                text = f"{cut} = {implied.shards(axes)} does not divide {size:,}"
                found.setdefault(text, []).append(parameter.path)
    return [
        ("fails", paths[0], f"MaxText fails here: {text} of {names(paths, most=2)}")
        for text, paths in found.items()
    ]


def _batch(
    config: Config,
    run: Run | None,
    mesh: Mapping[str, int],
    steps: int | None,
    gaps: list[tuple[str, str]],
    fails: list[tuple[str, str]],
    refused: list[tuple[str, str]],
) -> Batch:
    """The tokens of a step on all devices of the mesh, and the axes that shard them."""
    length = config.get("max_target_length")
    if type(length) is not int or not 0 < length <= LARGEST_SIZE:
        gaps.append(("max_target_length", f"max_target_length is {length!r}"))
        length = None
    each: Any = config.get("per_device_batch_size")
    devices = 1
    for size in mesh.values():
        devices *= size
    sequences = None
    wrong = _refused.batch(config)
    if wrong:
        refused += [(key, why) for key, why, _ in wrong]
        gaps += refused
        fails += [(key, why) for key, why, is_failing in wrong if is_failing]
    elif not mesh:
        why = "the mesh is not known: give an instance whose devices the parallelism divides"
        gaps.append(("per_device_batch_size", why))
    else:
        sequences = int(devices * each) * (steps or 1)
        if not 0 < sequences <= _MOST_SEQUENCES:
            why = f"per_device_batch_size {each!r} makes {sequences:,} sequences"
            fails.append(("per_device_batch_size", str(FailsError("MaxText", why))))
            gaps.append(fails[-1])
            refused.append(fails[-1])
            sequences = None
    axes = ((), ()) if run is None else run.token_axes
    unplaced = {axis: why for axis, why in _UNPLACED.items() if mesh.get(axis, 1) > 1}
    if mesh.get("expert", 1) > 1 and config.get("expert_shard_attention_option") == "context":
        unplaced["expert"] = _TOKENS
    if run is not None and run.has_experts:
        # Rules of the run (`custom_mesh_and_rule`, or a model's) may place experts otherwise.
        for axis in dict.fromkeys((*run.expert_axes, *run.cut(("expert",)))):
            if axis in run.token_axes[1]:
                unplaced[axis] = _TOKENS
            elif run.expert_axes != (axis,) or axis != "expert":
                unplaced[axis] = _EXPERTS
    for axis, why in unplaced.items():
        text = f"activations along mesh axis {axis!r} ({why}) are not modelled"
        gaps.append(("mesh_axes", text))
    # A mesh that the run does not fill has no axis for tokens.
    named = tuple(tuple(axis for axis in part if not mesh or axis in mesh) for part in axes)
    return Batch(sequences, length, named[0], named[1], is_placed=not unplaced)


def _staged(
    run: Run | None, batch: Batch, gaps: list[tuple[str, str]], fails: list[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Adds the stages of a pipeline; returns why the step has no modelled time."""
    if run is None or run.parts.gaps:
        return []
    try:
        run.parts.pipeline = pipeline = _pipeline.of(run)
        if pipeline is not None and batch.sequences is not None:
            shards = run.shards(batch.axes) * pipeline.microbatches
            if batch.sequences % shards:
                why = f"{batch.sequences:,} sequences do not divide into {shards:,} parts"
                raise UnmodelledError(f"uneven micro-batches are not modelled: {why}")
    except UnmodelledError as fault:
        gaps.append(("mesh_axes", str(fault)))
        if isinstance(fault, FailsError):
            fails.append(gaps[-1])
        batch.is_placed = False
        return []
    return [] if pipeline is None else [("mesh_axes", _UNTIMED)]


def _learner(config: Config) -> Learner:
    """The state of the optimizer."""
    learner = Learner()
    kind = config.get("opt_type")
    if kind not in _MOMENTS:
        learner.gaps.append(("opt_type", f"the state of {kind!r} is not modelled"))
    learner.moments += _MOMENTS.get(str(kind), ())
    dtype = config.get("mu_dtype")
    if dtype and "mu" in learner.moments:
        try:
            item_size(dtype, "mu_dtype")
            learner.dtypes["mu"] = str(dtype)
        except UnmodelledError as error:
            learner.gaps.append(("mu_dtype", str(error)))
    for key in (*_HOST_STATE, "shard_optimizer_over_data"):
        if config.get(key):
            learner.gaps.append((key, f"{key} is not modelled"))
    return learner
