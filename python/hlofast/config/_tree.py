"""`Config`: the tree of a config, which never changes."""

from __future__ import annotations

from _collections_abc import Mapping
from itertools import pairwise

from hlofast._names import meant
from hlofast.config import _paths, _values
from hlofast.config._paths import Attribute
from hlofast.config._values import PartitionSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeAlias

    from hlofast.config._flops import StepFlops
    from hlofast.config._implied import Implied
    from hlofast.config._paths import Key
    from hlofast.config._select import EffectiveConfig
    from hlofast.config._values import Value
    from hlofast.table import Table

    Children: TypeAlias = "dict[Key, Children | Leaf]"


class Leaf:
    """A value and how it is written; of one read from a file the line and an unusual path."""

    __slots__ = ("line", "text", "value", "written")

    def __init__(
        self, value: Value, text: str, line: int | None = None, written: str | None = None
    ) -> None:
        self.value = value
        self.text = text
        self.line = line
        self.written = written


class Modelled:
    """What a config implies, as far as its classes are modelled: see `Config.unmodelled`."""

    __slots__ = ()

    def _implied(self) -> Implied:
        raise NotImplementedError

    def parameters(self) -> Table:
        """The parameters of the model, one row each.

        Columns: `path` (in the model's state, as AXLearn names it; `*` is the number of a layer),
        `module` (where its config stands), `class`, `shape` (with layers that are stacked),
        `dtype`, `partition_spec`, `layers` (that it holds weights of), `copies` (arrays of this
        kind), `elements` and `bytes` (of all copies), `elements_per_device` and `bytes_per_device`
        (with the padding of uneven parts; None without a mesh, which `EffectiveConfig` has).
        """
        from hlofast.config._parameters import parameter_table

        return parameter_table(self._implied())

    def flops(self) -> StepFlops:
        """Floating-point operations of a training step, on all devices together."""
        from hlofast.config._flops import StepFlops

        return StepFlops(self._implied())

    def unmodelled(self) -> Table:
        """What of model and learner is not modelled, or does not go with the mesh.

        Columns: `path` and `why`.
        """
        from hlofast.config._parameters import gap_table

        return gap_table(self._implied())


class Config(Modelled, Mapping["Any", "Any"]):
    """A config as AXLearn's `debug_string` prints it, or a part of one: a tree of typed values.

    It is a mapping from keys to values and to further configs, in the order of the file. A key is
    an attribute's name (`"decoder"`), or what stands in brackets: an index (`0`), or the key of a
    dictionary (`"policy"`, `(None, 2)`). In `[ ]`, `in`, `get` and wherever a path is asked for,
    a text is a key if the config has that key, else a path from here:
    `cfg["model.decoder.dim"]`, `cfg["evalers['train'].klass"]`.

    Values are None, bool, int, float, str (classes and functions too, which AXLearn prints as
    texts), tuples and other plain containers, `PartitionSpec`, `Enumeration`, and `Opaque` for
    the `repr` of anything else. What the format leaves out is not there: empty containers, and
    fields whose default is None or required and that were not set. Lists and tuples look the
    same; both are configs with the keys 0, 1, ….

    Configs never change; `with_value`, `replace` and `without` give new ones.
    """

    __slots__ = ("_children", "_ending", "_keys", "_newline", "_path")

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
        """Configs come from `loads`, `load` and `Config.of`."""
        self._children = children
        self._keys = keys
        self._path = path
        self._newline = newline
        self._ending = ending

    @classmethod
    def of(cls, /, **attributes: Value | Config) -> Config:
        """A config with these attributes, in alphabetical order.

        Lists, tuples and dictionaries become configs, as AXLearn prints them. A `TypeError` for
        values that no config can show.
        """
        children: Children = {}
        for name in sorted(attributes):
            node = _node(attributes[name])
            if node is not None:
                children[Attribute(name)] = node
        return cls(children)

    @property
    def path(self) -> str:
        """Where in the whole config this part stands; empty for the whole."""
        return _paths.write(self._keys)

    @property
    def file(self) -> str | None:
        """The file the config was read from."""
        return self._path

    @property
    def klass(self) -> str | None:
        """The class that the config is of, `"axlearn.common.layers.Linear"`, or None."""
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
        """Whether the keys are 0, 1, … in order, as those of a list or a tuple."""
        return _is_sequence(self._children)

    def __getitem__(self, path: object) -> Any:
        found = self._find(path)
        return _values.copied(found.value) if isinstance(found, Leaf) else found

    def get(self, path: object, default: Any = None) -> Any:
        """The value or the part at `path`; `default` if there is none."""
        found = self._find_or_none(path)
        if found is None:
            return default
        return _values.copied(found.value) if isinstance(found, Leaf) else found

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

    # What compares by value and may hold lists is not hashable; object's type says otherwise.
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

    def configs(self) -> Iterator[Config]:
        """The config and all parts of it that are not single values, outer ones first."""
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
        """The line of the file where a value stands, or the first one of a part; from 1."""
        found = self._find(path)
        if isinstance(found, Leaf):
            return found.line
        return next((leaf.line for _, leaf in found._entries()), None)

    def partition_spec(self, path: object) -> PartitionSpec | None:
        """The `PartitionSpec` at `path`, printed as one or as a tuple; None if there is none.

        A `TypeError` for what is no partition spec.
        """
        found = self._find_or_none(path)
        if found is None:
            return None
        value = found.to_python() if isinstance(found, Config) else found.value
        if value is None or isinstance(value, PartitionSpec):
            return value
        if isinstance(value, list):
            return PartitionSpec(*value)
        raise TypeError(f"{path} is no partition spec: {value!r}")

    def to_python(self) -> Any:
        """Plain lists (keys 0, 1, …) and dictionaries of the values."""
        return _plain(self._children)

    def to_text(self) -> str:
        """The text form: what was read, byte for byte, with the edits; paths are from here."""
        lines = [
            f"{(not self._keys and leaf.written) or _paths.write(keys)}: {leaf.text}"
            for keys, leaf in self._entries()
        ]
        if self._newline != "\n":
            lines = [line.replace("\n", self._newline) for line in lines]
        return self._newline.join(lines) + (self._ending if lines else "")

    def with_value(self, path: object, value: Value | Config) -> Config:
        """The config with another value, or another part, at `path`.

        The last key of the path may be new (AXLearn prints no fields that have their default of
        None); a new attribute is put where AXLearn would print it. Lists, tuples and dictionaries
        become parts, as AXLearn prints them, empty ones leave nothing; `Config.of` and `loads` make
        parts with attributes. A `KeyError` where there is nothing to hold the key, a `TypeError`
        for values that no config can show.
        """
        return self._with(self._resolve(path), value)

    def replace(self, changes: Mapping[Any, Value | Config]) -> Config:
        """The config with several values replaced, in the order given: see `with_value`."""
        changed = self
        for path, value in changes.items():
            changed = changed.with_value(path, value)
        return changed

    def without(self, *paths: object) -> Config:
        """The config without some values or parts. A `KeyError` for what is not there."""
        changed = self
        for path in paths:
            changed._find(path)
            children = _edited(changed._children, changed._resolve(path), None, changed)
            changed = changed._part(changed._keys, children)
        return changed

    def diff(self, other: Config) -> Table:
        """What is different in `other`, path by path.

        Columns: `path`, `change` (`changed`, `added`, `removed`), `before` and `after` (values as
        printed; None where there is none). Short tuples of values are one value. Values that mean
        the same are no difference: `1` and `1.0`, sets in another order, partition specs with or
        without undivided dimensions at the end, or printed as tuples. Neither is the order of
        keys. A key that was renamed is one removed and one added.
        """
        from hlofast.config._difference import difference_table

        return difference_table(self, other)

    def rules(self) -> Table:
        """The mesh rules, one row each.

        Columns: `rule` (its number), `selector` (the regular expression), `mesh_shape` (with the
        rule, `data=-1,fsdp=256`), `modifiers` (their classes, in order), `instances` (the names
        that match, `.` read as a dot; None if there are too many to list).
        """
        from hlofast.config._select import rule_table

        return rule_table(self)

    def select(self, instance: str, devices: int | None = None) -> EffectiveConfig:
        """The config that a trainer has on an instance: what the first matching mesh rule makes.

        `instance` is a name as AXLearn's mesh selectors have it, `tpu-v5litepod-256-4`. `devices`
        says how many devices it has, where the name does not, or says something else. A rule
        matches if its regular expression matches the whole name. Where AXLearn would fail, or what
        is asked for is not modelled, the result says so in `notes`. A `ValueError` for a number of
        devices that is none.
        """
        from hlofast.config._select import select

        return select(self, instance, devices)

    def select_all(self, devices: int | None = None) -> list[EffectiveConfig]:
        """What every mesh rule makes, and what the config is without one, which comes last.

        Of each rule every instance that its selector names, if they can be listed; else the rule
        once, with the selector as the name. `devices` is for those whose name does not say how
        many devices there are; without it a name that may mean several numbers stands with each.
        """
        from hlofast.config._select import select_all

        return select_all(self, devices)

    def parameter_count(self) -> int | None:
        """Parameters of the model that a trainer's, or a model's, config describes.

        None if a part of it is of a class that is not modelled: see `unmodelled`, and
        `hlofast.config.register_module` for more classes. Modelled are the decoders of AXLearn.
        """
        from hlofast.config._parameters import parameter_count

        return parameter_count(self._implied())

    def _implied(self) -> Implied:
        from hlofast.config._implied import Implied

        return Implied(self)

    def _entries(self) -> list[tuple[tuple[Key, ...], Leaf]]:
        """All leaves with their keys from here, in the order of the file."""
        found: list[tuple[tuple[Key, ...], Leaf]] = []
        _collect(self._children, (), found)
        places: list[int] = []
        for _, leaf in found:
            # What is new belongs behind what it was put behind.
            places.append(leaf.line if leaf.line is not None else places[-1] if places else 0)
        if any(later < earlier for earlier, later in pairwise(places)):
            # The lines of a part are scattered over the file.
            order = sorted(range(len(found)), key=places.__getitem__)
            found = [found[index] for index in order]
        return found

    def _part(self, keys: tuple[Key, ...], children: Children) -> Config:
        return Config(children, keys, path=self._path, newline=self._newline, ending=self._ending)

    def _with(self, keys: tuple[Key, ...], value: Value | Config) -> Config:
        return self._part(self._keys, _edited(self._children, keys, _node(value), self))

    def _resolve(self, path: object) -> tuple[Key, ...]:
        """The keys that `path` means."""
        if isinstance(path, str) and path not in self._children:
            try:
                return _paths.read(path)
            except _values.Fault as fault:
                message = f"{fault.message} at character {fault.start + 1} of the path {path!r}"
                raise KeyError(message) from None
        return (path,)

    def _reached(self, keys: tuple[Key, ...]) -> tuple[Children | Leaf, int]:
        """What stands at `keys`, or at as many of them as there are; how many that is."""
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
    children: Children, keys: tuple[Key, ...], found: list[tuple[tuple[Key, ...], Leaf]]
) -> None:
    for key, child in children.items():
        if isinstance(child, Leaf):
            found.append(((*keys, key), child))
        else:
            _collect(child, (*keys, key), found)


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
    """`keys`, all of them there, as the tree holds them: attributes or texts in brackets."""
    held: list[Key] = []
    for key in keys:
        if isinstance(key, str):
            key = Attribute(key) if _has_attributes(children) else str(key)
        held.append(key)
        inner = children[key]
        children = {} if isinstance(inner, Leaf) else inner
    return tuple(held)


def _node(value: Value | Config, depth: int = 0) -> Children | Leaf | None:
    """What a tree holds for a value; None for an empty container."""
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
        raise TypeError(f"no config can show the key {key!r}")
    return key


def _detached(children: Children) -> Children:
    """A copy that belongs to no lines."""
    return {
        key: Leaf(child.value, child.text) if isinstance(child, Leaf) else _detached(child)
        for key, child in children.items()
    }


def _edited(
    children: Children, keys: tuple[Key, ...], node: Children | Leaf | None, config: Config
) -> Children:
    """A copy of `children` with `node` at `keys`; without anything there if it is None."""
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
        raise KeyError(f"{config.path or 'the config'} has names, no keys in brackets: {key!r}")
    if isinstance(key, Attribute):
        before = {name: child for name, child in children.items() if name < key}
        if list(before) == list(children)[: len(before)]:
            # AXLearn prints attributes in alphabetical order.
            return before | {key: node} | children
    return children | {key: node}
