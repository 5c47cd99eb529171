"""`Context`: facts about a run beyond the module's text, and their sources."""

from __future__ import annotations

from hlofast import _core
from hlofast._core import Mesh
from hlofast._names import meant
from hlofast._units import read_memory, read_seconds
from hlofast.errors import ContextError

TYPE_CHECKING = False  # The command line needs it; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from os import PathLike
    from typing import Any, Protocol, TypedDict

    from hlofast._cost import Rules
    from hlofast._module import Module
    from hlofast._profiles import Profile
    from hlofast.devices import Device

    class NamedMesh(Protocol):
        """Anything with the attributes of `jax.sharding.Mesh`."""

        @property
        def axis_names(self) -> tuple[Any, ...]: ...
        @property
        def shape(self) -> Mapping[Any, int]: ...

    MeshLike = Mesh | str | Mapping[str, int] | NamedMesh

    class Told(TypedDict, total=False):
        """The arguments of `Context`."""

        mesh: MeshLike | None
        device: str | Device | None
        hosts: int | None
        slices: int | None
        rules: Rules | None
        hbm: int | str | None
        step_seconds: float | str | None
        profile: str | PathLike[str] | Profile | None
        libraries: str | Iterable[str] | None
        frame: str | None
        merge_layers: bool | None


GIVEN = "given"
"""The source of values that the caller passed."""
FRAMES = ("user", "innermost", "stack")
"""The frames of a call stack that can stand for an instruction."""
_NAMES = (
    *("mesh", "device", "hosts", "slices", "rules", "hbm", "step_seconds", "profile"),
    *("libraries", "frame", "merge_layers"),
)
_SMALLEST = "HloModule m\nENTRY e { ROOT p = f32[] parameter(0) }"


class Context:
    """Facts about a run beyond the text of the module, all of them optional.

    `load`, `loads`, `find_modules`, `from_jax` and `Module.with_context` take the same arguments.
    `mesh` is a `hlofast.Mesh`, text such as `data=2,model=4`, a mapping of names to sizes or a
    `jax.sharding.Mesh`; `hosts` and `slices` say how many of each it spans. `device` is a name or a
    `hlofast.devices.Device`. `rules` are pairs of pattern and phase, or a TOML file of them. `hbm`
    is the memory budget of a device (bytes, or `"16GiB"`), `step_seconds` the measured step time
    (seconds, or `"300ms"`). `profile` is a profile of the run (see `hlofast.load_profile`) or its
    path: tables of modelled time then have the measured time beside it, and the step time is that
    of the profile unless it is given. Raises `ValueError` for invalid values.

    The other three select names in the text. `frame` is the frame of a call stack whose file and
    line tables show and sums by source use: `user` (default), the first frame outside libraries,
    from the innermost outwards; `innermost`; or the whole `stack`. A stack inside libraries alone
    is shown by its innermost frame. Libraries are installed packages, Python itself, flax, haiku,
    praxis, optax, equinox and jax; `libraries` adds packages or folders (`mylib`, `mylib/layers`,
    `/srv/mylib`). With `merge_layers` scopes have `*` for the numbers of layers (`layer_*`,
    `layers/*`, `block*`), so that sums by scope count unrolled layers as one.

    `Module.context` also has values found in the dump: the mesh of the text, with axis names from
    the module before optimisation if the text has none, and the device that the dump folder names.
    `sources` names the source of each value.
    """

    __slots__ = ("_measured", "_sources", "_unknown_chip", *_NAMES)

    mesh: Mesh | None
    """The devices as a mesh."""
    device: Device | None
    """The chip."""
    hosts: int | None
    """Number of hosts that the mesh spans."""
    slices: int | None
    """Number of slices that the mesh spans."""
    rules: tuple[tuple[str, str], ...] | None
    """Pairs of pattern and phase that are tried before the conventions of frameworks."""
    hbm: int | None
    """Memory budget of a device in bytes."""
    step_seconds: float | None
    """Measured step time in seconds."""
    profile: Profile | None
    """What ran on the devices, and when."""
    libraries: tuple[str, ...] | None
    """Packages and folders that are libraries, besides the usual libraries."""
    frame: str | None
    """The frame that stands for an instruction; None is `user`."""
    merge_layers: bool | None
    """Whether scopes leave out the numbers of layers; None is no."""
    _measured: _core.MeasuredData | None
    _sources: dict[str, str]
    _unknown_chip: str | None

    def __init__(
        self,
        mesh: MeshLike | None = None,
        device: str | Device | None = None,
        *,
        hosts: int | None = None,
        slices: int | None = None,
        rules: Rules | None = None,
        hbm: int | str | None = None,
        step_seconds: float | str | None = None,
        profile: str | PathLike[str] | Profile | None = None,
        libraries: str | Iterable[str] | None = None,
        frame: str | None = None,
        merge_layers: bool | None = None,
    ) -> None:
        read = None if mesh is None else _placed(read_mesh(mesh), hosts, slices)
        if device is not None:
            from hlofast import devices

            device = devices.get(device)
        values: dict[str, Any] = {
            "mesh": read,
            "device": device,
            "hosts": hosts if read is None else read.hosts,
            "slices": slices if read is None else read.slices,
            "rules": None if rules is None else _read_rules(rules),
            "hbm": None if hbm is None else read_memory(hbm),
            "step_seconds": None if step_seconds is None else read_seconds(step_seconds),
            "profile": None if profile is None else _read_profile(profile),
            "libraries": None if libraries is None else _read_libraries(libraries),
            "frame": None if frame is None else _read_frame(frame),
            "merge_layers": bool(merge_layers) or None,
        }
        sources = {name: GIVEN for name, value in values.items() if value is not None}
        self._fill(values, sources, None)

    def _fill(
        self, values: Mapping[str, Any], sources: Mapping[str, str], unknown_chip: str | None
    ) -> None:
        for name in _NAMES:
            object.__setattr__(self, name, values[name])
        object.__setattr__(self, "_sources", {n: sources[n] for n in _NAMES if n in sources})
        object.__setattr__(self, "_unknown_chip", unknown_chip)
        object.__setattr__(self, "_measured", None)

    @classmethod
    def _of(
        cls, values: Mapping[str, Any], sources: Mapping[str, str], unknown_chip: str | None = None
    ) -> Context:
        """Returns a context of values that are already checked."""
        made = object.__new__(cls)
        made._fill(values, sources, unknown_chip)
        return made

    @property
    def sources(self) -> dict[str, str]:
        """The source of each known value, by name.

        `given` for values that the caller passed. A mesh may also have `Mesh.source`, followed by
        the file name if another file names the axes, or `shardings` for a function that JAX
        compiled. For a device, it may be the file next to the dump that names it.
        """
        return dict(self._sources)

    def replace(self, **changes: Any) -> Context:
        """Returns the context with some arguments of `Context` replaced; None removes a value.

        A new mesh takes its hosts and slices from `changes` too. Raises `TypeError` for unknown
        names.
        """
        changed = Context(**changes)
        values, sources = self._values(), self.sources
        if "mesh" in changes:
            changes = {"hosts": None, "slices": None} | changes
        elif self.mesh is not None and changes.keys() & {"hosts", "slices"}:
            mesh = _placed(self.mesh, changes.get("hosts"), changes.get("slices"))
            values |= {"mesh": mesh, "hosts": mesh.hosts, "slices": mesh.slices}
        for name in changes:
            if name not in ("hosts", "slices") or values["mesh"] is None or "mesh" in changes:
                values[name] = getattr(changed, name)
            sources.pop(name, None)
            if values[name] is not None:
                sources[name] = GIVEN
        return Context._of(values, sources)

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _NAMES}

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a context is frozen; use Context.replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a context is frozen")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Context):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(tuple(self._values().values()))

    def __reduce__(self) -> tuple[object, ...]:
        return Context._of, (self._values(), self.sources, self._unknown_chip)

    def __repr__(self) -> str:
        shown = {name: value for name in _NAMES if (value := getattr(self, name)) is not None}
        if self.mesh is not None:
            shown["mesh"] = str(self.mesh)
        if self.device is not None:
            shown["device"] = self.device.name
        return f"Context({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def read_mesh(mesh: MeshLike) -> Mesh:
    """Reads a mesh in any accepted form; raises `TypeError` or `ValueError` for other values."""
    if isinstance(mesh, Mesh):
        return mesh
    if isinstance(mesh, str):
        return Mesh.parse(mesh)
    names, shape = getattr(mesh, "axis_names", None), getattr(mesh, "shape", None)
    if names is not None and hasattr(shape, "items"):
        # A JAX mesh, recognised by its attributes, because JAX is never imported.
        # HLO numbers the devices of a JAX mesh in row-major order.
        return Mesh([(str(name), int(size)) for name, size in shape.items()])  # type: ignore[union-attr]
    # `Mesh` refuses anything that is not a mapping.
    return Mesh(mesh)  # type: ignore[arg-type]


def _placed(mesh: Mesh, hosts: int | None, slices: int | None) -> Mesh:
    return mesh if hosts is None and slices is None else mesh.placed(hosts=hosts, slices=slices)


def _read_rules(rules: Rules) -> tuple[tuple[str, str], ...]:
    from hlofast._cost import read_rules

    read = read_rules(rules)
    # The core checks patterns and phases when it counts the cost of a module.
    _core._cost(_core._loads(_SMALLEST), rules=read)
    return tuple(read)


def _read_libraries(libraries: str | Iterable[str]) -> tuple[str, ...] | None:
    names = (libraries,) if isinstance(libraries, str) else tuple(libraries)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a library is a str, not {type(name).__name__}")
        if not name.strip("/\\. "):
            raise ValueError(
                "a library is the name of a package or folder, such as mylib or "
                f"mylib/layers, not {name!r}"
            )
    return names or None


def _read_profile(profile: str | PathLike[str] | Profile) -> Profile:
    from hlofast._profiles import Profile, load_profile

    return profile if isinstance(profile, Profile) else load_profile(profile)


def _read_frame(frame: str) -> str:
    if frame not in FRAMES:
        hint = meant(frame, FRAMES)
        raise ValueError(f"frame must be one of {', '.join(FRAMES)}, not {frame!r}{hint}")
    return frame


_NOTHING = Context()


def told_in(module: Module) -> Context | None:
    """Returns the context that the caller passed, without values found in the dump."""
    return module._told


def resolved(module: Module) -> Context:
    """Returns the passed context, completed by values found in the dump, for `Module.context`.

    Raises `ContextError` if the passed context does not fit the module.
    """
    told = told_in(module) or _NOTHING
    values, sources = told._values(), told.sources
    beside = _Beside(module.path)
    if told.mesh is not None:
        refuse_misfit(module, told.mesh)
    elif (mesh := module.mesh()) is not None:
        sources["mesh"] = mesh.source or GIVEN
        if mesh.invented_names and (named := beside.named_mesh(module)) is not None:
            mesh, sources["mesh"] = named
        try:
            values["mesh"] = _placed(mesh, told.hosts, told.slices)
        except ValueError as error:
            raise ContextError(f"mesh {mesh}: {error}") from None
    if told.device is not None:
        refuse_backend(module, told.device)
    elif beside.chip is not None:
        from hlofast import devices

        chip, file = beside.chip
        try:
            chip_device = devices.get(chip)
        except devices.UnknownDeviceError:
            described = beside.described()
            if described is None:
                return _timed(module, Context._of(values, sources, chip))
            chip_device = described
        if backend_misfit(module, chip_device) is None:
            values["device"], sources["device"] = chip_device, file
    return _timed(module, Context._of(values, sources))


def _timed(module: Module, known: Context) -> Context:
    """Returns the context with the step time of its profile, unless a step time is given."""
    if known.profile is None:
        return known
    measured = _core._measure(module, known.profile._data)
    if measured is not None and _joined(measured) < _RELATED:
        measured = None
    if measured is not None and known.step_seconds is None:
        values = known._values() | {"step_seconds": measured.step()[0]}
        known = Context._of(values, known.sources | {"step_seconds": "profile"})
    object.__setattr__(known, "_measured", measured)
    return known


def measured_for(module: Module, mesh: Mesh | None = None) -> _core.MeasuredData | None:
    """Returns what the context's profile measured of the module, with the axes of `mesh`.

    None without a profile, or if no event of it names an instruction of the module.
    """
    told = told_in(module)
    if told is None or told.profile is None:
        return None
    known = module.context._measured
    if known is not None and mesh is not None and mesh != module.context.mesh:
        return _core._measure(module, told.profile._data, mesh=mesh)
    return known


_RELATED, _TRUSTED = 0.05, 0.5
"""Shares of a program's device time in events that name instructions of a module: below the first
the profile is of another program, below the second a note says that much is missing. Modules of one
framework share some names of instructions, and kernels of CUDA graphs may name none."""


def _joined(measured: _core.MeasuredData) -> float:
    """Returns the share of the device time in events that name instructions of the module."""
    joined, whole, _ = measured.joined()
    return joined / whole if whole else 0.0


def unmeasured(module: Module) -> str | None:
    """Returns why the context's profile says nothing, or little, of the module; None if it does.

    None also without a profile.
    """
    told = told_in(module)
    if told is None or told.profile is None:
        return None
    from hlofast import _text

    known = module.context._measured
    measured = known or _core._measure(module, told.profile._data)
    if measured is None:
        programs = told.profile.programs.sort_by("busy", descending=True)
        ran = _text.names(list(dict.fromkeys(programs.values("program"))), most=3)
        return (
            f"no measured times: no event of the profile names an instruction of {module.name}; "
            f"programs in the profile: {ran or 'none'}"
        )
    if (share := _joined(measured)) >= _TRUSTED:
        return None
    start = "" if known is not None else "no measured times: "
    return (
        f"{start}{_text.share(share, 1)} of the device time of {measured.program[0]} in the "
        f"profile is in events that name instructions of {module.name}; the profile is of another "
        "program or version"
    )


def ran_on(module: Module, device: Device) -> bool:
    """Whether the context's profile was recorded on devices of the same backend as `device`.

    False without a profile.
    """
    told = told_in(module)
    if told is None or told.profile is None:
        return False
    kinds = set(told.profile.devices.values("kind"))
    return kinds <= {device.backend, "other"} or device.backend == "other"


class _Beside:
    """Files beside a dump on disk, read on demand."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._facts: tuple[tuple[str, str] | None, str | None] | None = None

    def _neighbours(self) -> tuple[tuple[str, str] | None, str | None]:
        if self._facts is None:
            is_local = self._path is not None and "://" not in self._path
            self._facts = _core._neighbours(self._path) if is_local and self._path else (None, None)
        return self._facts

    @property
    def chip(self) -> tuple[str, str] | None:
        """The chip, and the name of the file that names it."""
        chip, _ = self._neighbours()
        return None if chip is None else (chip[0], _name(chip[1]))

    def described(self) -> Device | None:
        """Returns the device in XLA's description next to the dump; None without one."""
        from hlofast import devices

        chip, _ = self._neighbours()
        if chip is None or "gpu_target_config" not in _name(chip[1]):
            return None
        try:
            return devices.read_target_config(chip[1])
        except (OSError, ValueError):
            return None

    def named_mesh(self, module: Module) -> tuple[Mesh, str] | None:
        """Returns the mesh of the module before optimisation if it names axes, and its source."""
        _, path = self._neighbours()
        mesh = None if path is None else module._mesh_named_in(path)
        return None if path is None or mesh is None else (mesh, f"{mesh.source} of {_name(path)}")


def _name(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]


def devices_of(module: Module) -> int:
    """Returns the number of devices of a module: partitions times replicas."""
    return module._device_count()


def misfit(module: Module, mesh: Mesh) -> str | None:
    """Returns an error message if mesh and module differ in their number of devices.

    A module that is not partitioned yet fits any mesh.
    """
    compiled, given = devices_of(module), mesh.device_count
    if module._fits(compiled, mesh):
        return None
    text = f"mesh {mesh} has {given:,} devices, the module is for {compiled:,}"
    slices, rest = divmod(given, compiled) if compiled > 0 else (0, given)
    if slices > 1 and not rest and mesh.slices is None:
        text += f"; for the program of one slice, give slices={slices} (--slices {slices})"
    return text


class MeshMisfitError(ContextError):
    """The mesh of the run has another number of devices than the module."""


def refuse_misfit(module: Module, mesh: Mesh) -> None:
    """Raises `ContextError` if mesh and module differ in their number of devices."""
    if (text := misfit(module, mesh)) is not None:
        raise MeshMisfitError(text)


def backend_misfit(module: Module, device: Device) -> str | None:
    """Returns an error message if device and module have different backends, otherwise None."""
    compiled = module._misfit(device.backend)
    if compiled is None:
        return None
    return backend_differs(device, compiled)


def backend_differs(device: Device, compiled: str, count: int = 1) -> str:
    """Returns a message that the backend of a device differs from that of `count` modules."""
    modules = "the module is" if count == 1 else f"{count:,} modules are"
    return f"{device.label} ({device.name}) is a {device.backend}, {modules} for {compiled}"


_EXAMPLES = 3
"""Devices that an error names."""


def refuse_backend(module: Module, device: Device) -> None:
    """Raises `ContextError` if device and module have different backends."""
    if (text := backend_misfit(module, device)) is not None:
        from hlofast import devices

        known = devices.built_in()
        others = [name for name in known if module._misfit(known[name].backend) is None]
        # One name per chip: `a100-40gb` is a variant of `a100`.
        others = [own for own in others if not any(own.startswith(f"{chip}-") for chip in others)]
        others = others[:_EXAMPLES]
        advice = f"give one such as {', '.join(others)}" if others else "leave the device out"
        raise ContextError(f"{text}; {advice}")


def mesh_for(module: Module, mesh: MeshLike | None) -> Mesh | None:
    """Returns the mesh for analyses: the given mesh, otherwise the context's mesh.

    None for the mesh of the text.
    """
    if mesh is not None:
        read = read_mesh(mesh)
        refuse_misfit(module, read)
        return read
    known = module.context.mesh
    return None if known == module.mesh() else known


def device_for(module: Module, device: str | Device | None) -> Device | None:
    """Returns the device for analyses: the given device, otherwise the context's device."""
    if device is None:
        return module.context.device
    from hlofast import devices

    known = devices.get(device)
    refuse_backend(module, known)
    return known


def required_device(module: Module, device: str | Device | None) -> Device:
    """Returns the device for analyses; raises `ContextError` if it is unknown."""
    known = device_for(module, device)
    if known is not None:
        return known
    chip = module.context._unknown_chip
    reason = (
        "the dump folder does not name one"
        if chip is None
        else f"{chip!r}, which the dump folder names, is unknown"
    )
    raise ContextError(f"no device given, and {reason}; use --device NAME (device=NAME in Python)")


def rules_for(module: Module, rules: Rules | None) -> Rules | None:
    """Returns the given rules, otherwise the context's rules."""
    if rules is not None:
        return rules
    told = told_in(module)
    return None if told is None else told.rules


def hbm_for(module: Module, hbm: int | str | None) -> int | str | None:
    """Returns the given memory budget, otherwise the context's budget."""
    if hbm is not None:
        return hbm
    told = told_in(module)
    return None if told is None else told.hbm


def context_of(told: Told) -> Context | None:
    """Returns the context in keyword arguments; None if all of them are None."""
    return Context(**told) if any(value is not None for value in told.values()) else None


def other_backend(module: Module, device: str | Device) -> str | None:
    """Returns a note that the module was compiled for another backend than the device's."""
    from hlofast import devices

    own, compiled = devices.get(device), module.summary().backend
    if compiled is None or own.backend not in ("tpu", "gpu", "cpu") or compiled == own.backend:
        return None
    return (
        f"the module was compiled for {compiled.upper()}, the device is {own.name}: XLA for "
        f"{own.backend.upper()} fuses, lays out and schedules differently, so peaks and times do "
        "not describe a program on that device"
    )
