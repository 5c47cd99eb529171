"""`Config`: the immutable tree of a config."""

from __future__ import annotations

from _collections_abc import Mapping
from itertools import pairwise

from hlofast._core import Field
from hlofast._names import meant
from hlofast.config import _paths, _values
from hlofast.config._paths import Attribute
from hlofast.config._values import PartitionSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeAlias

    from hlofast.config._flops import StepFlops
    from hlofast.config._front import Front
    from hlofast.config._implied import Implied
    from hlofast.config._paths import Key
    from hlofast.config._plan_results import Plan
    from hlofast.config._select import EffectiveConfig
    from hlofast.config._values import Value
    from hlofast.devices import Device
    from hlofast.table import Table

    Children: TypeAlias = "dict[Key, Children | Leaf]"

SETTINGS = (
    Field("path", "path", "The path of the value."),
    Field("text", "value", "The value, as the trainer's files write it."),
    Field("word", "origin",
          "Where it comes from: file, model, override, environment, default or derived."),
    Field("text", "place", "The file and line, the argument, the variable or the version."),
)  # fmt: skip


class Leaf:
    """A value and its text; if read from a file, also its line and a path written unusually."""

    __slots__ = ("line", "text", "value", "written")

    def __init__(
        self, value: Value, text: str, line: int | None = None, written: str | None = None
    ) -> None:
        self.value = value
        self.text = text
        self.line = line
        self.written = written


class Modelled:
    """The implications of a config, for the classes that are modelled: see `Config.unmodelled`."""

    __slots__ = ()

    def _implied(self) -> Implied:
        """Returns the implications; every subclass defines this method."""
        raise NotImplementedError

    def parameters(self) -> Table:
        """The parameters of the model, one row each.

        Columns: `path` (in the model's state, as the trainer names it; `*` stands for a layer's
        number), `module` (its path in the config), `class`, `shape` (including stacked layers),
        `dtype`, `partition_spec`, `layers` (whose weights it holds), `copies` (equal arrays),
        `elements` and `bytes` (of all copies), `elements_per_device` and `bytes_per_device`
        (including the padding of uneven shards; None without a mesh, which only `EffectiveConfig`
        has).
        """
        from hlofast.config._parameters import parameter_table

        return parameter_table(self._implied())

    def flops(self) -> StepFlops:
        """Floating-point operations of a training step, summed over all devices."""
        from hlofast.config._flops import StepFlops

        return StepFlops(self._implied())

    def unmodelled(self) -> Table:
        """The parts of model and learner that are not modelled or do not fit the mesh.

        Columns: `path` and `why`.
        """
        from hlofast.config._parameters import gap_table

        return gap_table(self._implied())


class Config(Modelled, Mapping["Any", "Any"]):
    """A config as AXLearn's `debug_string` prints it, or a part of one: a tree of typed values.

    The effective values of a MaxText run are a subclass, `MaxTextConfig`.

    A config maps keys to values and to further configs, in the order of the file. A key is an
    attribute's name (`"decoder"`), or a key in brackets: an index (`0`) or the key of a dictionary
    (`"policy"`, `(None, 2)`). In `[ ]`, `in`, `get` and every other place that takes a path, a
    string is a key if the config has this key, otherwise a path relative to this config:
    `cfg["model.decoder.dim"]`, `cfg["evalers['train'].klass"]`.

    Values are None, bool, int, float, str (also for classes and functions, which AXLearn prints as
    strings), tuples and other plain containers, `PartitionSpec`, `Enumeration`, and `Opaque` for
    the `repr` of other objects. The format leaves out empty containers and unset fields that are
    required or default to None. Lists and tuples look the same; both are configs with the keys 0,
    1, ….

    Configs are immutable; `with_value`, `replace` and `without` return new configs.
    """

    __slots__ = ("_children", "_ending", "_keys", "_newline", "_path")

    _FRONT = "axlearn"
    """The folder of the trainer's front."""
    _children: Children

    def __init__(
        self,
        children: Children,
        keys: tuple[Key, ...] = (),
        *,
        path: str | None = None,
        newline: str = "\n",
        ending: str = "\n",
    ) -> None:
        """Internal: use `loads`, `load` or `Config.of`."""
        self._children = children
        self._keys = keys
        self._path = path
        self._newline = newline
        self._ending = ending

    @classmethod
    def of(cls, /, **attributes: Value | Config) -> Config:
        """A config with these attributes, in alphabetical order.

        Lists, tuples and dictionaries become configs, as AXLearn prints them. Raises `TypeError`
        for values that a config cannot show.
        """
        children: Children = {}
        for name in sorted(attributes):
            node = _node(attributes[name])
            if node is not None:
                children[Attribute(name)] = node
        return cls(children)

    @property
    def front(self) -> Front:
        """The trainer's front: how its configs are read and what they describe."""
        from hlofast.config._front import front

        return front(self._FRONT)

    @property
    def path(self) -> str:
        """The path of this part in the whole config; empty for the whole config."""
        return _paths.write(self._keys)

    @property
    def file(self) -> str | None:
        """The file the config was read from."""
        return self._path

    @property
    def klass(self) -> str | None:
        """The class of the config, such as `"axlearn.common.layers.Linear"`, or None."""
        leaf = self._children.get("klass")
        if isinstance(leaf, Leaf) and isinstance(leaf.value, str):
            return leaf.value
        return None

    @property
    def class_name(self) -> str | None:
        """The last part of `klass`: `"Linear"`."""
        return None if self.klass is None else self.klass.rpartition(".")[2]

    @property
    def is_sequence(self) -> bool:
        """Whether the keys are 0, 1, … in order, as in a list or a tuple."""
        return _is_sequence(self._children)

    def __getitem__(self, path: object) -> Any:
        node = self._find(path)
        return _values.copied(node.value) if isinstance(node, Leaf) else node

    def get(self, path: object, default: Any = None) -> Any:
        """The value or the part at `path`; `default` if there is none."""
        node = self._find_or_none(path)
        if node is None:
            return default
        return _values.copied(node.value) if isinstance(node, Leaf) else node

    def __contains__(self, path: object) -> bool:
        return self._find_or_none(path) is not None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._children)

    def __len__(self) -> int:
        return len(self._children)

    def __eq__(self, other: object) -> bool:
        """Whether the same paths have values that mean the same."""
        if not isinstance(other, Config):
            return NotImplemented
        from hlofast.config._difference import differences

        return next(differences(self, other), None) is None

    # Not hashable, because it compares by value and may hold lists; `object` declares a method.
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        count = sum(1 for _ in self.leaves())
        where = f" {self.path}" if self._keys else ""
        klass = f" of {self.klass}" if self.klass else ""
        return f"<Config{where}{klass}, {count} value{'' if count == 1 else 's'}>"

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """All values with their paths from here, in the order of the file."""
        for keys, leaf in self._entries():
            yield _paths.write(keys), _values.copied(leaf.value)

    def settings(self) -> Table:
        """All values, with the place that each comes from.

        Columns: `path`, `value` (as written), `origin` (`file`; for MaxText also `model`,
        `override`, `environment`, `default` and `derived`), `place` (such as `run.yml:12`).
        """
        from hlofast.table import of_rows

        rows = []
        for keys, leaf in self._entries():
            place = self._path or "<text>"
            where = place if leaf.line is None else f"{place}:{leaf.line}"
            rows.append((_paths.write(keys), leaf.text, "file", where))
        return of_rows(SETTINGS, rows)

    def configs(self) -> Iterator[Config]:
        """The config and all its parts that are not single values, outer parts first."""
        waiting: list[tuple[tuple[Key, ...], Children]] = [(self._keys, self._children)]
        while waiting:
            keys, children = waiting.pop()
            yield self._part(keys, children)
            inner = [
                ((*keys, key), child)
                for key, child in children.items()
                if not isinstance(child, Leaf)
            ]
            waiting.extend(reversed(inner))

    def line(self, path: object) -> int | None:
        """The line of a value, or the first line of a part, in the file, counted from 1."""
        node = self._find(path)
        if isinstance(node, Leaf):
            return node.line
        return next((leaf.line for _, leaf in node._entries()), None)

    def partition_spec(self, path: object) -> PartitionSpec | None:
        """The `PartitionSpec` at `path`, whether it is printed as a spec or as a tuple.

        None if there is none. Raises `TypeError` for any other value.
        """
        node = self._find_or_none(path)
        if node is None:
            return None
        value = node.to_python() if isinstance(node, Config) else node.value
        if value is None or isinstance(value, PartitionSpec):
            return value
        if isinstance(value, list):
            return PartitionSpec(*value)
        raise TypeError(f"{path} is not a partition spec: {value!r}")

    def to_python(self) -> Any:
        """Plain lists (keys 0, 1, …) and dictionaries of the values."""
        return _plain(self._children)

    def to_text(self) -> str:
        """The text form: the original text, byte for byte, with edits; paths start at this part."""
        lines = [
            f"{(not self._keys and leaf.written) or _paths.write(keys)}: {leaf.text}"
            for keys, leaf in self._entries()
        ]
        if self._newline != "\n":
            lines = [line.replace("\n", self._newline) for line in lines]
        return self._newline.join(lines) + (self._ending if lines else "")

    def with_value(self, path: object, value: Value | Config) -> Config:
        """The config with another value, or another part, at `path`.

        The last key of the path may be new (AXLearn does not print fields at their default of
        None); a new attribute is inserted where AXLearn would print it. Lists, tuples and
        dictionaries become parts, as AXLearn prints them; an empty container removes the key.
        `Config.of` and `loads` create parts with attributes. Raises `KeyError` if the path has no
        parent, and `TypeError` for values that a config cannot show.
        """
        return self._with(self._resolve(path), value)

    def replace(self, changes: Mapping[Any, Value | Config]) -> Config:
        """The config with several values replaced, in the order given: see `with_value`."""
        changed = self
        for path, value in changes.items():
            changed = changed.with_value(path, value)
        return changed

    def without(self, *paths: object) -> Config:
        """The config without these values or parts; raises `KeyError` if one is absent."""
        changed = self
        for path in paths:
            changed._find(path)
            children = _edited(changed._children, changed._resolve(path), None, changed)
            changed = changed._part(changed._keys, children)
        return changed

    def diff(self, other: Config) -> Table:
        """The values that differ in `other`, by path.

        Columns: `path`, `change` (`changed`, `added`, `removed`), `before` and `after` (values as
        printed; None if absent). A short tuple of values counts as one value. Values that mean the
        same are equal: `1` and `1.0`, sets in another order, partition specs with or without
        trailing unsharded dimensions or printed as tuples. The order of keys is ignored. A renamed
        key counts as a removed key and an added key.
        """
        from hlofast.config._difference import difference_table

        if not isinstance(other, Config):
            raise TypeError(f"a config differs from another Config, not from {other!r}")
        return difference_table(self, other)

    def rules(self) -> Table:
        """The mesh rules, one row each.

        Columns: `rule` (its number), `selector` (the regular expression), `mesh_shape` (under the
        rule, such as `data=-1,fsdp=256`), `modifiers` (class names, in order), `instances` (the
        names that match, reading `.` as a dot; None if there are too many to list).
        """
        return self.front.rules(self)

    def select(self, instance: str, devices: int | None = None) -> EffectiveConfig:
        """The config that a trainer uses on an instance, after the first matching mesh rule.

        `instance` is a name that AXLearn's mesh selectors match, such as `tpu-v5litepod-256-4`, or
        a topology of MaxText, such as `v5p-128`. A rule matches if its regular expression matches
        the whole name; MaxText has no rules. `devices` is the number of devices, if the name does
        not give a number or gives another one. The result's `notes` list unmodelled parts and the
        places where the trainer would fail. Raises `ValueError` if `devices` is out of range.
        """
        from hlofast.config._select import check_devices, check_instance

        check_instance(instance)
        return self.front.select(self, instance, check_devices(devices))

    def select_all(self, devices: int | None = None) -> list[EffectiveConfig]:
        """The config under every mesh rule; the config without a rule comes last.

        Each rule occurs once for every instance that its selector matches, or once with the
        selector as the name if they cannot be listed. `devices` applies to names that do not give
        the number of devices; without it, an ambiguous name occurs once for each reading.
        """
        from hlofast.config._select import check_devices

        return self.front.select_all(self, check_devices(devices))

    def plan(
        self,
        instance: str,
        devices: int | None = None,
        *,
        device: str | Device | None = None,
        sequences: int | None = None,
        tokens: float | None = None,
        margin: float | None = None,
        offloads: bool = True,
        state_dtype: str | None = None,
    ) -> Plan:
        """The fastest choices of mesh, batch on a device, accumulation and checkpoint policy.

        `instance` and `devices` are those of `select`; `device` is a name or a `Device` and
        defaults to the instance's kind. `sequences` is the batch of a step on all devices, which
        defaults to the config's; 0 lets the plan choose it, without accumulation. `tokens` is the
        budget of `chip_hours`. `margin` is the share of the memory that stays free; it defaults to
        the error of modelled peaks. Without `offloads`, nothing is kept in host memory. With a
        `state_dtype` such as `bfloat16`, first moments, or weights and moments, of that type are
        choices too, as far as the trainer has them. The figures are those of
        `EffectiveConfig.verdict`. Raises `ValueError` if an argument is out of range, the number of
        devices or the batch is not known, or the device has no memory or rate, and
        `UnknownDeviceError` for an unknown name.
        """
        from hlofast.config._plan_results import planned

        return planned(
            self.select(instance, devices),
            device,
            sequences=sequences,
            tokens=tokens,
            margin=margin,
            offloads=offloads,
            state_dtype=state_dtype,
        )

    def parameter_count(self) -> int | None:
        """Number of parameters of the model in a trainer's or a model's config.

        None if a part has a class that is not modelled: see `unmodelled`. AXLearn's decoders are
        modelled; `hlofast.config.register_module` adds more classes.
        """
        from hlofast.config._parameters import parameter_count

        return parameter_count(self._implied())

    def _implied(self) -> Implied:
        from hlofast.config._implied import Implied

        return Implied(self.front.model(self, {}, steps=1))

    def _entries(self) -> list[tuple[tuple[Key, ...], Leaf]]:
        """All leaves with their keys from here, in the order of the file."""
        leaves: list[tuple[tuple[Key, ...], Leaf]] = []
        _collect(self._children, (), leaves)
        places: list[int] = []
        for _, leaf in leaves:
            # A new leaf belongs after the leaf that precedes it in the tree.
            places.append(leaf.line if leaf.line is not None else places[-1] if places else 0)
        if any(later < earlier for earlier, later in pairwise(places)):
            # The lines of a part are scattered over the file.
            order = sorted(range(len(leaves)), key=places.__getitem__)
            leaves = [leaves[index] for index in order]
        return leaves

    def _part(self, keys: tuple[Key, ...], children: Children) -> Config:
        return Config(children, keys, path=self._path, newline=self._newline, ending=self._ending)

    def _with(self, keys: tuple[Key, ...], value: Value | Config) -> Config:
        return self._part(self._keys, _edited(self._children, keys, _node(value), self))

    def _resolve(self, path: object) -> tuple[Key, ...]:
        """The keys of `path`: a key of this config, or a path to parse."""
        if isinstance(path, str) and path not in self._children:
            try:
                return _paths.read(path)
            except _values.Fault as fault:
                message = f"{fault.message} at character {fault.start + 1} of the path {path!r}"
                raise KeyError(message) from None
        return (path,)

    def _reached(self, keys: tuple[Key, ...]) -> tuple[Children | Leaf, int]:
        """The node at the longest existing prefix of `keys`, and the length of that prefix."""
        at: Children | Leaf = self._children
        for depth, key in enumerate(keys):
            try:
                inner = None if isinstance(at, Leaf) else at.get(key)
            except TypeError:
                inner = None
            if inner is None:
                return at, depth
            at = inner
        return at, len(keys)

    def _held(self, keys: tuple[Key, ...], at: Children | Leaf) -> Leaf | Config:
        if isinstance(at, Leaf):
            return at
        return self._part((*self._keys, *_as_held(self._children, keys)), at)

    def _find(self, path: object) -> Leaf | Config:
        keys = self._resolve(path)
        at, depth = self._reached(keys)
        if depth < len(keys):
            raise KeyError(self._missing(keys[:depth], keys[depth], at))
        return self._held(keys, at)

    def _find_or_none(self, path: object) -> Leaf | Config | None:
        try:
            keys = self._resolve(path)
        except (KeyError, TypeError):
            return None
        at, depth = self._reached(keys)
        return self._held(keys, at) if depth == len(keys) else None

    def _missing(self, before: tuple[Key, ...], key: Key, at: Children | Leaf) -> str:
        where = _paths.write((*self._keys, *before)) or "the config"
        if isinstance(at, Leaf):
            return f"{where} is a value, not a config: it has no {key!r}"
        hint = meant(str(key), map(str, at))
        return f"{where} has no {str(key) if isinstance(key, Attribute) else key!r}{hint}"


def _collect(
    children: Children, keys: tuple[Key, ...], leaves: list[tuple[tuple[Key, ...], Leaf]]
) -> None:
    for key, child in children.items():
        if isinstance(child, Leaf):
            leaves.append(((*keys, key), child))
        else:
            _collect(child, (*keys, key), leaves)


def _is_sequence(children: Children) -> bool:
    numbered = enumerate(children)
    return bool(children) and all(type(key) is int and key == at for at, key in numbered)


def _plain(node: Children | Leaf) -> Any:
    """The lists and dictionaries of `Config.to_python`."""
    if isinstance(node, Leaf):
        return _values.copied(node.value)
    if _is_sequence(node):
        return [_plain(child) for child in node.values()]
    return {
        str(key) if isinstance(key, Attribute) else key: _plain(child)
        for key, child in node.items()
    }


def _has_attributes(children: Children) -> bool:
    return isinstance(next(iter(children), None), Attribute)


def _as_held(children: Children, keys: tuple[Key, ...]) -> tuple[Key, ...]:
    """Converts existing `keys` to the form the tree holds: attributes or strings in brackets."""
    held: list[Key] = []
    for key in keys:
        if isinstance(key, str):
            key = Attribute(key) if _has_attributes(children) else str(key)
        held.append(key)
        inner = children[key]
        children = {} if isinstance(inner, Leaf) else inner
    return tuple(held)


def _node(value: Value | Config, depth: int = 0) -> Children | Leaf | None:
    """The node of a tree for a value; None for an empty container."""
    if depth > _values.MOST_NESTED:
        raise TypeError(f"more than {_values.MOST_NESTED} nested containers")
    if isinstance(value, Config):
        return _detached(value._children) or None
    if isinstance(value, Mapping):
        value = dict(value)
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        nodes = ((key, _node(item, depth + 1)) for key, item in value.items())
        return {_key(key): node for key, node in nodes if node is not None} or None
    return Leaf(value, _values.write(value))


def _key(key: Any) -> Any:
    """A key of a dictionary, as a tree holds it."""
    if isinstance(key, Attribute):
        return str(key)
    if not _values.is_value(key):
        raise TypeError(f"a config cannot show the key {key!r}")
    return key


def _detached(children: Children) -> Children:
    """A copy without line numbers."""
    return {
        key: Leaf(child.value, child.text) if isinstance(child, Leaf) else _detached(child)
        for key, child in children.items()
    }


def _edited(
    children: Children, keys: tuple[Key, ...], node: Children | Leaf | None, config: Config
) -> Children:
    """A copy of `children` with `node` at `keys`, or with `keys` removed if `node` is None."""
    key, *rest = keys
    if rest:
        inner = children.get(key)
        if inner is None or isinstance(inner, Leaf):
            raise KeyError(config._missing((), key, children if inner is None else inner))
        node = _edited(inner, tuple(rest), node, config) or None
    if node is None:
        return {name: child for name, child in children.items() if name != key}
    if key in children:
        old = children[key]
        if isinstance(old, Leaf) and isinstance(node, Leaf) and node.line is None:
            node = Leaf(node.value, node.text, old.line, old.written)
        return {name: node if name == key else child for name, child in children.items()}
    if isinstance(key, str) and children:
        is_name = _has_attributes(children) and key.isidentifier()
        key = Attribute(key) if is_name else str(key)
    if children and _has_attributes(children) != isinstance(key, Attribute):
        raise KeyError(f"{config.path or 'the config'} has names, not keys in brackets: {key!r}")
    if isinstance(key, Attribute):
        before = {name: child for name, child in children.items() if name < key}
        if list(before) == list(children)[: len(before)]:
            # AXLearn prints attributes in alphabetical order.
            return before | {key: node} | children
    return children | {key: node}
