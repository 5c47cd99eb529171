"""`Context`: what is known of a run besides the module's text, and where that comes from."""

from __future__ import annotations

from hlofast import _core
from hlofast._core import Mesh
from hlofast._units import read_bytes, read_seconds
from hlofast.errors import ContextError

TYPE_CHECKING = False  # The command line needs it; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Protocol, TypedDict

    from hlofast._cost import Rules
    from hlofast._module import Module
    from hlofast.devices import Device

    class NamedMesh(Protocol):
        """What is shaped like `jax.sharding.Mesh`."""

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


GIVEN = "given"
"""The source of what the caller said."""
_NAMES = ("mesh", "device", "hosts", "slices", "rules", "hbm", "step_seconds")
_MOST_HEADER = 1 << 20
"""Bytes of a module's first line, which has Shardy's meshes; those of 500 axes take 20 kB."""
_BODY = "ENTRY e { ROOT p = f32[] parameter(0) }"
"""What makes a header a module, one that costs nothing."""


class Context:
    """What is known of a run besides the text of the module. Nothing of it is needed.

    `load`, `loads`, `find_modules`, `from_jax` and `Module.with_context` take its arguments.
    `mesh` is a `hlofast.Mesh`, text like `data=2,model=4`, a mapping of names to sizes or a
    `jax.sharding.Mesh`; it lies on so many `hosts` and `slices`. `device` is a name or a
    `hlofast.devices.Device`. `rules` are pairs of pattern and phase or a TOML file of them, `hbm`
    is the memory budget of a device (bytes, or `"16GiB"`), `step_seconds` how long a step took
    (seconds, or `"300ms"`). A `ValueError` for what makes no sense.

    `Module.context` also has what nobody gave: the mesh that the text speaks of, with the names of
    the module before optimisation where the text has none, and the device that the dump folder
    names. `sources` says for each where it comes from.
    """

    __slots__ = ("_sources", "_unknown_chip", *_NAMES)

    mesh: Mesh | None
    """The devices as a mesh."""
    device: Device | None
    """The chip."""
    hosts: int | None
    """Hosts that the mesh lies on."""
    slices: int | None
    """Slices that the mesh lies on."""
    rules: tuple[tuple[str, str], ...] | None
    """Pairs of pattern and phase that are tried before the conventions of frameworks."""
    hbm: int | None
    """Bytes of memory that a device may use."""
    step_seconds: float | None
    """How long a step took."""
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
            "hbm": None if hbm is None else read_bytes(hbm),
            "step_seconds": None if step_seconds is None else read_seconds(step_seconds),
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

    @classmethod
    def _of(
        cls, values: Mapping[str, Any], sources: Mapping[str, str], unknown_chip: str | None = None
    ) -> Context:
        """A context of values that have been read."""
        made = object.__new__(cls)
        made._fill(values, sources, unknown_chip)
        return made

    @property
    def sources(self) -> dict[str, str]:
        """Where each value that is known comes from, by its name.

        `given`; of a mesh also `Mesh.source`, of one whose names another file has with that file's
        name, or the `shardings` of what JAX compiled; of a device the name of the file beside the
        dump that says it.
        """
        return dict(self._sources)

    def replace(self, **changes: Any) -> Context:
        """The same context with these arguments of `Context` instead; None takes one away.

        Another mesh lies on the hosts and slices that are given with it. A `TypeError` for other
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
        raise AttributeError(f"a context is frozen; Context.replace({name}=...) makes another")

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
    """A mesh, whatever it is given as. A `TypeError` or a `ValueError` for what is none."""
    if isinstance(mesh, Mesh):
        return mesh
    if isinstance(mesh, str):
        return Mesh.parse(mesh)
    names, shape = getattr(mesh, "axis_names", None), getattr(mesh, "shape", None)
    if names is not None and hasattr(shape, "items"):
        # HLO numbers the devices of a JAX mesh in its row-major order.
        # A JAX mesh, known by its attributes alone, since JAX is never imported.
        return Mesh([(str(name), int(size)) for name, size in shape.items()])  # type: ignore[union-attr]
    # What is no mapping is refused by `Mesh` itself.
    return Mesh(mesh)  # type: ignore[arg-type]


def _placed(mesh: Mesh, hosts: int | None, slices: int | None) -> Mesh:
    return mesh if hosts is None and slices is None else mesh.placed(hosts=hosts, slices=slices)


def _read_rules(rules: Rules) -> tuple[tuple[str, str], ...]:
    from hlofast._cost import read_rules

    read = read_rules(rules)
    # The core checks patterns and phases when it counts.
    _core._cost(_core._loads(f"HloModule m\n{_BODY}"), rules=read)
    return tuple(read)


def told_in(module: Module) -> Context | None:
    """What was told, without a look at anything else."""
    return module._told


def resolved(module: Module) -> Context:
    """What was told of a module, and what can be found of the rest; `Module.context` keeps it.

    A `ContextError` if what was told is not of this module.
    """
    told = told_in(module) or Context()
    values, sources = told._values(), told.sources
    beside = _Beside(module.path)
    if told.mesh is not None:
        refuse_misfit(module, told.mesh)
    elif (mesh := module.mesh()) is not None:
        sources["mesh"] = mesh.source or GIVEN
        named = beside.named_mesh() if mesh.invented_names else None
        if named is not None and misfit(module, named[0]) is None:
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
            found = devices.get(chip)
        except devices.UnknownDeviceError:
            return Context._of(values, sources, chip)
        if backend_misfit(module, found) is None:
            values["device"], sources["device"] = found, file
    return Context._of(values, sources)


class _Beside:
    """What lies beside a dump on the disk, looked at when it is asked for."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._found: tuple[tuple[str, str] | None, str | None] | None = None

    def _neighbours(self) -> tuple[tuple[str, str] | None, str | None]:
        if self._found is None:
            is_local = self._path is not None and "://" not in self._path
            self._found = _core._neighbours(self._path) if is_local and self._path else (None, None)
        return self._found

    @property
    def chip(self) -> tuple[str, str] | None:
        """The chip, and the name of the file that says so."""
        chip, _ = self._neighbours()
        return None if chip is None else (chip[0], _name(chip[1]))

    def named_mesh(self) -> tuple[Mesh, str] | None:
        """The mesh in the header of the same module before optimisation, and its source."""
        _, path = self._neighbours()
        if path is None:
            return None
        try:
            mesh = _core._loads(f"{_first_line(path)}\n{_BODY}").mesh()
        except (OSError, ValueError):
            return None
        if mesh is None or mesh.invented_names:
            return None
        return mesh, f"{mesh.source} of {_name(path)}"


def _name(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]


def _first_line(path: str) -> str:
    """The first line of a module's text, which may be compressed or a protobuf's."""
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not loaded, for a quick start.
        start = file.read(_MOST_HEADER)
    if not start.startswith(b"HloModule"):
        return _core._load(path).text.partition("\n")[0]
    return start.partition(b"\n")[0].decode("utf-8", "surrogateescape")


def devices_of(module: Module) -> int:
    """How many devices a module is written for, each of its partitions and replicas one."""
    compiled = module.num_partitions * module.replica_count
    if "num_partitions" not in module.header:
        # Older programs say it by the groups of their collectives alone.
        groups = module.mesh()
        if groups is not None:
            return max(compiled, groups.device_count)
    return compiled


def misfit(module: Module, mesh: Mesh) -> str | None:
    """That a mesh has other devices than the module, in words; None if it has as many.

    A module that is not partitioned yet may be meant for any mesh.
    """
    compiled, given = devices_of(module), mesh.device_count
    # A program for several slices is that of one, and says nothing of the others.
    if compiled == 1 or given in (compiled, compiled * (mesh.slices or 1)):
        return None
    text = f"mesh {mesh} has {given:,} devices, the module is for {compiled:,}"
    slices, rest = divmod(given, compiled)
    if slices > 1 and not rest and mesh.slices is None:
        text += f"; if the program is for one slice of several, the mesh lies on {slices} slices"
    return text


def refuse_misfit(module: Module, mesh: Mesh) -> None:
    """A `ContextError` if a mesh has other devices than the module."""
    if (text := misfit(module, mesh)) is not None:
        raise ContextError(text)


def backend_misfit(module: Module, device: Device) -> str | None:
    """That a device is of another backend than the module, in words; None if that is not known.

    A program for CPUs stands for that of any device: it is what one compiles without the others.
    """
    compiled = module.summary().backend
    if compiled in (None, "cpu") or device.backend in ("other", compiled):
        return None
    return f"{device.label} ({device.name}) is a {device.backend}, the module is for {compiled}"


def refuse_backend(module: Module, device: Device) -> None:
    """A `ContextError` if a device is of another backend than the module."""
    if (text := backend_misfit(module, device)) is not None:
        raise ContextError(text)


def mesh_for(module: Module, mesh: MeshLike | None) -> Mesh | None:
    """The mesh to see `module` on: the given one or the context's; None for the text's own."""
    if mesh is not None:
        read = read_mesh(mesh)
        refuse_misfit(module, read)
        return read
    known = module.context.mesh
    return None if known == module.mesh() else known


def device_for(module: Module, device: str | Device | None) -> Device | None:
    """The device to see `module` on: the given one or the context's."""
    if device is None:
        return module.context.device
    from hlofast import devices

    found = devices.get(device)
    refuse_backend(module, found)
    return found


def required_device(module: Module, device: str | Device | None) -> Device:
    """The device to see `module` on; a `ContextError` if nothing says which."""
    found = device_for(module, device)
    if found is not None:
        return found
    chip = module.context._unknown_chip
    reason = "nothing beside the dump names one" if chip is None else f"{chip!r} is not known"
    raise ContextError(f"no device is given, and {reason}")


def rules_for(module: Module, rules: Rules | None) -> Rules | None:
    """The rules given, or those of the context."""
    if rules is not None:
        return rules
    told = told_in(module)
    return None if told is None else told.rules


def hbm_for(module: Module, hbm: int | str | None) -> int | str | None:
    """The memory budget given, or that of the context."""
    if hbm is not None:
        return hbm
    told = told_in(module)
    return None if told is None else told.hbm


def context_of(told: Told) -> Context | None:
    """The context in keyword arguments; None if they say nothing."""
    return Context(**told) if any(value is not None for value in told.values()) else None
