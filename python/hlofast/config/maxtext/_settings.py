"""Effective values of a MaxText run, in the order that MaxText's pyconfig applies its sources.

A file may name the file that it inherits from (`base_config`); then come environment variables
(`M_KEY`) and arguments (`key=value`), which may not both set a key; then the keys of the model
(`model_name`), which may not set a key that an argument sets unless `override_model_config` is
true; then the mesh and rules that `custom_mesh_and_rule` names, which replace all others
(`_custom_rule.py`); then values that MaxText derives.
"""

from __future__ import annotations

import os.path

from hlofast._maxtext import DEFAULTS
from hlofast._names import meant
from hlofast.config.maxtext import _custom_rule, _tables, _unmodelled, _yaml
from hlofast.config.maxtext._custom_rule import Custom
from hlofast.config.maxtext._keys import Keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from hlofast.config._front import Sources
    from hlofast.errors import ConfigError

FILE, MODEL, OVERRIDE, ENVIRONMENT, DEFAULT, DERIVED = (
    "file", "model", "override", "environment", "default", "derived",
)  # fmt: skip
_INHERITS = "base_config"
_PREFIX = "M_"
_BASE = "base.yml"
"""The name of MaxText's file of defaults."""
_MOST_INHERITED = 10
_SUFFIXES = (".yml", ".yaml")
_RULES = "logical_axis_rules"
_REPLACES = "override_logical_axis_rules"
"""A key of the versions since 0.2, with which rules of a source replace all others."""
_COMPLETE = ("mesh_axes", _RULES)
"""Keys of a file that stands for itself: the only files with them are full lists of all keys."""
_KINDS = {
    list: "a list", dict: "a dictionary", bool: "true or false", int: "a whole number",
    float: "a number", str: "text",
}  # fmt: skip
"""What an argument must be, by the type of the value that it replaces."""
_LARGEST_SCALE = 1 << 40


class Origin:
    """Where an effective value comes from: its kind, and the place in words."""

    __slots__ = ("kind", "line", "place")

    def __init__(self, kind: str, place: str, line: int | None = None) -> None:
        self.kind = kind
        self.place = place
        self.line = line


class Settings:
    """The values of a run with their origins, before values are derived from them."""

    __slots__ = ("custom", "file", "known", "merges_all", "notes", "origins", "values")

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}
        self.file: str | None = None
        """The file that was read, or what stands for it; None for a text without a name."""
        self.notes: list[tuple[str, str | None, str]] = []
        """Kind, key and text of notes on the values."""
        self.known: frozenset[str] | None = None
        """All keys of the files; None if no `base.yml` tells all keys."""
        self.merges_all = True
        """Whether rules for axes without a rule are added, as since 0.2."""
        self.custom = Custom()
        """The files of `custom_mesh_and_rule`."""

    def put(self, key: str, value: Any, origin: Origin) -> None:
        """Sets a value."""
        self.values[key] = value
        self.origins[key] = origin

    def copy(self) -> Settings:
        """A copy whose values can be replaced."""
        made = Settings()
        made.values, made.origins = dict(self.values), dict(self.origins)
        made.file, made.notes = self.file, list(self.notes)
        made.known, made.custom, made.merges_all = self.known, self.custom, self.merges_all
        return made


def resolve(text: str | bytes, path: str | None, sources: Sources) -> Settings:
    """The settings of a run; raises `ConfigError`."""
    settings = Settings()
    # Without a text, the run is the file of defaults under its overrides.
    settings.file = path if path is not None or text else sources.base or DEFAULTS
    files = _inherited(settings, text, path, sources)
    base = _base(files[-1], sources)
    # Keys that an older base.yml lacks are off by default.
    unset = Origin(DEFAULT, f"MaxText {_tables.version()}")
    for key, value in _tables.defaults().items():
        settings.put(key, value, unset)
    if base is not None:
        files.append(base)
    folders = [os.path.dirname(name) for name, _ in files if name is not None]
    root = files[-1][1]
    settings.merges_all = not _is_complete(root) or _REPLACES in root
    for depth, (name, entries) in enumerate(reversed(files)):
        is_partial = depth > 0 or (base is None and not _is_complete(entries))
        kind = FILE if is_partial else DEFAULT
        for key, entry in entries.items():
            if key == _INHERITS:
                continue
            origin = Origin(kind, f"{name or '<text>'}:{entry.line}", entry.line)
            # Files that inherit replace all rules; files of a model merge theirs.
            is_model = key == _RULES and is_partial and _INHERITS not in entries
            value = entry.value
            if is_model and key in settings.values:
                value = _merged(settings, value, replaces=entries.get(_REPLACES))
            settings.put(key, value, origin)
    keys: Keys | None = None
    if _is_complete(files[-1][1]):
        keys = _keys_of(files, sources)
        settings.known = keys.base
    else:
        _note_misspelt(settings)
    given = _given(settings, sources, keys)
    _apply_model(settings, folders, given, sources, keys)
    settings.custom = _custom_rule.found(settings, folders, sources)
    if all(origin.kind == DEFAULT for origin in settings.origins.values()):
        text = f"nothing is set: this is the model of {DEFAULTS}"
        settings.notes.append(("not-checked", None, text))
    _refuse_nested(settings)
    return settings


def _refuse_nested(settings: Settings) -> None:
    """Raises `ConfigError` for lists and dictionaries in place of single values."""
    known = dict.fromkeys(_tables.other_versions(), "") | _tables.defaults()
    for key in known.keys() & settings.values.keys():
        value, place = settings.values[key], settings.origins[key].place
        is_nested = isinstance(value, (list, dict))
        is_list = isinstance(value, list) and isinstance(known[key], list)
        if is_nested and not is_list:
            what = "a list" if isinstance(known[key], list) else "a single value"
            raise _yaml.fault("invalid-value", f"{key} must be {what}", place)
        if is_list and key != _RULES and any(isinstance(own, (list, dict)) for own in value):
            raise _yaml.fault("invalid-value", f"{key} must be a list of single values", place)


def _keys_of(files: list[tuple[str | None, dict[str, _yaml.Entry]]], sources: Sources) -> Keys:
    """The keys that MaxText has; raises `ConfigError` for another key of a file, with its line."""
    name, entries = files[-1]
    folder = None if name is None else os.path.dirname(name)
    keys = Keys(frozenset((*entries, _INHERITS)), folder, sources)
    for place, own in files[:-1]:
        _refuse_unknown(own, place or "<text>", keys)
    return keys


def _refuse_unknown(entries: dict[str, _yaml.Entry], place: str, keys: Keys) -> None:
    """Raises `ConfigError` for a key that MaxText lacks."""
    for key, entry in entries.items():
        # Tables of models have no lines; their keys are those of an earlier version.
        if entry.line and key not in keys:
            message = f"no key {key!r}{meant(key, sorted(keys.base))}"
            raise _yaml.fault("unknown-key", message, f"{place}:{entry.line}")


def _note_misspelt(settings: Settings) -> None:
    """Notes keys of files that resemble a known key, where no base.yml tells all keys."""
    known = (*_tables.defaults(), *_tables.other_versions())
    for key, origin in settings.origins.items():
        if key not in known:
            near = meant(key, [own for own in known if own[:1] == key[:1]])
            if near:
                text = f"{origin.place}: {key} is not a key that hlofast knows{near}"
                settings.notes.append(("not-checked", key, text))


def _inherited(
    settings: Settings, text: str | bytes, path: str | None, sources: Sources
) -> list[tuple[str | None, dict[str, _yaml.Entry]]]:
    """The file and those that it inherits from, nearest first; no base.yml if it is not there."""
    files: list[tuple[str | None, dict[str, _yaml.Entry]]] = [(path, _yaml.read(text, path))]
    while _INHERITS in files[-1][1]:
        name, entries = files[-1]
        parent = entries[_INHERITS].value
        line = entries[_INHERITS].line
        where = f"{name or '<text>'}:{line}"
        if not isinstance(parent, str) or not parent.endswith(_SUFFIXES):
            raise _yaml.fault(
                "invalid-base", f"{_INHERITS} must name a .yml file, not {parent!r}", where
            )
        found = _parent(parent, name, sources)
        if any(other is not None and _same(other, found) for other, _ in files):
            raise _yaml.fault("cyclic-base", f"{_INHERITS} {parent} inherits from itself", where)
        if len(files) > _MOST_INHERITED:
            message = f"more than {_MOST_INHERITED} files inherit from each other"
            raise _yaml.fault("too-deep", message, where)
        try:
            content = _content(found, sources)
        except (OSError, ValueError) as error:
            is_gone = isinstance(error, FileNotFoundError) and sources.base is None
            if is_gone and os.path.basename(parent) == _BASE:
                own = f"the defaults are those of MaxText {_tables.version()}"
                text = f"{where}: {_BASE} was not found, so {own}; give yours with --base"
                settings.notes.append(("not-checked", _INHERITS, text))
                return files
            # A path with a null character is a ValueError.
            message = f"{_INHERITS} {parent}: {getattr(error, 'strerror', None) or error}"
            if is_gone:
                message += "; give MaxText's base.yml (--base); hlofast also looks next to it"
            raise _yaml.fault("missing-base", message, where) from None
        files.append((found, _yaml.read(content, found)))
    return files


def _parent(parent: str, name: str | None, sources: Sources) -> str:
    """The path of the file that a file inherits from.

    MaxText looks beside the file, then in its folder of configs: that of the given base.
    """
    beside = os.path.join(os.path.dirname(name or ""), parent)
    if sources.base is None or os.path.lexists(beside):
        return beside
    if os.path.basename(parent) == _BASE:
        return sources.base
    return os.path.join(os.path.dirname(sources.base), parent)


def _same(first: str, second: str) -> bool:
    return os.path.normpath(first) == os.path.normpath(second)


def _content(path: str, sources: Sources) -> bytes:
    with sources.opened(path) as file:
        return file.read(_yaml.MOST_BYTES + 1)


def _is_complete(entries: dict[str, _yaml.Entry]) -> bool:
    return all(key in entries for key in _COMPLETE)


def _base(
    root: tuple[str | None, dict[str, _yaml.Entry]], sources: Sources
) -> tuple[str | None, dict[str, _yaml.Entry]] | None:
    """The file of defaults below the root of a run's files, if it needs one and there is one."""
    given = sources.base
    name, entries = root
    if given is not None and (name is None or not _same(name, given)):
        return given, _yaml.read(_content(given, sources), given)
    if _is_complete(entries) or name is None:
        return None
    folder = os.path.dirname(name)
    # Beside the file, or above a folder of models.
    for place in ("", os.pardir, os.path.join(os.pardir, os.pardir)):
        found = os.path.join(folder, place, _BASE)
        if os.path.isfile(found) and not _same(found, name):
            read = _yaml.read(_content(found, sources), found)
            if _is_complete(read):
                return os.path.normpath(found), read
    return None


def _given(settings: Settings, sources: Sources, known: Keys | None) -> list[str]:
    """Applies environment variables and arguments; returns the keys that they set.

    `known` are all keys that MaxText has, or None if the files are not complete.
    """
    arguments: dict[str, tuple[Any, str]] = {}
    for argument in sources.overrides:
        key, equals, text = argument.partition("=")
        if not equals or not key:
            message = f"{argument!r} is not an override: write key=value"
            raise _yaml.fault("invalid-override", message, None)
        if key.count(".") > _yaml.MOST_NESTED:
            message = f"an override has more than {_yaml.MOST_NESTED} nested keys"
            raise _yaml.fault("invalid-override", message, None)
        if key == _INHERITS:
            message = (
                f"{argument}: MaxText takes {_INHERITS} only from files; write it in a file, and "
                "give that file as the config"
            )
            raise _yaml.fault("invalid-override", message, None)
        value = _yaml.argument(text, argument)
        for part in reversed(key.split(".")[1:]):
            value = {part: value}
        arguments[key.partition(".")[0]] = (value, argument)
    variables = _variables(sources.environment)
    for key, (_, source) in (*arguments.items(), *variables.items()):
        if known is not None and key not in known:
            raise _unknown(key, source, sorted(known.base))
        if key in arguments and key in variables:
            message = f"{key} is set by an argument and by {variables[key][1]}: MaxText fails here"
            raise _yaml.fault("set-twice", message, None)
    for kind, chosen in ((ENVIRONMENT, variables), (OVERRIDE, arguments)):
        for key, (value, source) in chosen.items():
            if key in settings.values:
                before = settings.values[key]
                if isinstance(_tables.defaults().get(key), float) and type(before) is int:
                    # A file may write a number without a point.
                    before = float(before)
                value = _typed(value, before, source)
                if key == _RULES and kind == OVERRIDE and settings.merges_all:
                    own = arguments.get(_REPLACES)
                    replaces = None if own is None else _yaml.Entry(own[0], 0)
                    value = _merged(settings, value, replaces=replaces)
            elif key not in _tables.other_versions():
                # Other versions may have a key of a similar name, but none that differs by
                # underscores alone.
                plain = key.replace("_", "").lower()
                same = [own for own in settings.values if own.replace("_", "") == plain]
                if same:
                    raise _unknown(key, source, same)
                _note_unknown(settings, key, key if kind == OVERRIDE else source, source, known)
            settings.put(key, value, Origin(kind, source))
    return [*variables, *arguments]


def _note_unknown(settings: Settings, key: str, name: str, source: str, known: Keys | None) -> None:
    """Notes a given key that hlofast does not know; the table without a model tells its own."""
    if key in _unmodelled.KEYS:
        return
    if known is None:
        text = f"{name} is not a key that hlofast knows, and no base.yml is available"
        text += meant(name, [_like(source, own) for own in settings.values])
    else:
        text = f"{name}: base.yml lacks this key, which the types.py beside it has; what it changes"
        text += " is not modelled, and figures leave it out"
    settings.notes.append(("not-checked", key, text))


def _variables(environment: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The keys that environment variables set, with their texts and the variables' names.

    MaxText stops at a name that is not upper case (`_validate_env_variables` of its pyconfig), and
    versions since 0.2 ignore it.
    """
    found = {}
    for name, text in environment.items():
        if not name.startswith(_PREFIX):
            continue
        if not name.isupper():
            message = f"{name}: MaxText takes variables only in upper case: {name.upper()}"
            raise _yaml.fault("unknown-key", message, None)
        found[name[len(_PREFIX) :].lower()] = (text, name)
    return found


def _like(source: str, key: str) -> str:
    """A key as the source of another one spells it: an argument, or a variable."""
    return key if "=" in source else f"{_PREFIX}{key.upper()}"


def _unknown(key: str, source: str, known: Iterable[str]) -> ConfigError:
    """The error for a key that MaxText does not have."""
    spelt = _like(source, key)
    hint = meant(spelt, [_like(source, own) for own in known])
    return _yaml.fault("unknown-key", f"{source}: no key {key!r}{hint}", None)


def _typed(value: Any, before: Any, source: str) -> Any:
    """A given value in the type of the value that it replaces, as MaxText converts it."""
    kind = type(before)
    if value is None or isinstance(value, kind):
        return value
    try:
        if kind is bool:
            words = {"true": True, "false": False}
            if str(value).lower() in words:
                return words[str(value).lower()]
        elif kind in (int, float) and isinstance(value, (int, float, str)):
            number = kind(value)
            if not isinstance(value, float) or number == value or kind is float:
                return number
        elif kind is str and not isinstance(value, (list, dict)):
            return str(value)
    except (ValueError, OverflowError):
        pass
    if before is None:
        return value
    shown = _KINDS.get(kind, kind.__name__)
    raise _yaml.fault("invalid-override", f"{source}: the value must be {shown}", None)


def _apply_model(
    settings: Settings, folders: list[str], given: list[str], sources: Sources, keys: Keys | None
) -> None:
    """Applies the keys of `model_name`."""
    name = settings.values.get("model_name", "default")
    if name == "default":
        return
    entries, place = _model(name, folders, sources)
    if keys is not None and any(key not in keys.base for key in entries) and keys.is_whole:
        # Without the fields, keys of MaxText's own models that base.yml lacks would be refused.
        _refuse_unknown(entries, place, keys)
    is_overridden = settings.values.get("override_model_config") is True
    twice = [key for key in entries if key in given]
    if twice and not is_overridden:
        message = (
            f"{', '.join(twice)}: the model {name} sets what an argument or the environment sets, "
            "and MaxText fails here; override_model_config=true lets the argument win"
        )
        raise _yaml.fault("set-twice", message, None)
    for key, entry in entries.items():
        if key in twice:
            continue
        value = entry.value
        if key == _RULES and key in settings.values:
            value = _merged(settings, value, replaces=entries.get(_REPLACES))
        where = f"{place}:{entry.line}" if entry.line else place
        settings.put(key, value, Origin(MODEL, where, None))


def _model(name: Any, folders: list[str], sources: Sources) -> tuple[dict[str, _yaml.Entry], str]:
    """The keys of a model and their place: its file beside the run's files, or the table."""
    if not isinstance(name, str) or "/" in name or os.sep in name or name.startswith("."):
        raise _yaml.fault("unknown-model", f"model_name {name!r} is not the name of a model", None)
    for folder in folders:
        for suffix in _SUFFIXES:
            path = os.path.join(folder, "models", f"{name}{suffix}")
            if os.path.isfile(path):
                return _yaml.read(_content(path, sources), path), path
    entries = _tables.model(name)
    if entries is None:
        message = (
            f"no models/{name}.yml next to the config, and hlofast has no table for this "
            f"model{meant(name, _tables.models())}"
        )
        raise _yaml.fault("unknown-model", message, None)
    return {key: _yaml.Entry(value, 0) for key, value in entries.items()}, f"model {name}"


def _merged(settings: Settings, after: Any, *, replaces: _yaml.Entry | None) -> Any:
    """The run's rules with those of a further source: rules for the same logical axes are replaced.

    Versions before 0.2 drop rules for other axes. A source that sets `override_logical_axis_rules`
    replaces all rules (`_apply_rules` of MaxText's `pyconfig.py`).
    """
    before = settings.values[_RULES]
    is_whole = settings.merges_all and replaces is not None and replaces.value is True
    if is_whole or not _is_rules(before) or not _is_rules(after):
        return after
    known = {rule[0] for rule in before}
    added = [rule for rule in after if settings.merges_all or rule[0] in known]
    replaced = {rule[0] for rule in added}
    return [rule for rule in before if rule[0] not in replaced] + added


def _is_rules(rules: Any) -> bool:
    return isinstance(rules, list) and all(
        isinstance(rule, list) and len(rule) == 2 and isinstance(rule[0], str) for rule in rules
    )


def derived(settings: Settings) -> Settings:
    """The settings with the values that MaxText derives: sizes under `global_parameter_scale`.

    The scale doubles, in turn, heads and inner width, width, and layers. Raises `ConfigError` for a
    `custom_mesh_and_rule` whose file is not known.
    """
    made = settings.copy()
    _custom_rule.apply(made)
    scale = made.values.get("global_parameter_scale")
    steps = 0
    if type(scale) is int and 0 < scale <= _LARGEST_SCALE and scale & (scale - 1) == 0:
        steps = scale.bit_length() - 1
    elif scale is not None:
        text = f"global_parameter_scale {scale!r} is not a power of two: MaxText fails here"
        made.notes.append(("fails", "global_parameter_scale", text))
    base, rest = divmod(steps, 3)
    heads, width = base + (rest > 0), base + (rest > 1)
    for key, doublings in (
        ("emb_dim", width),
        ("num_query_heads", heads),
        ("num_kv_heads", heads),
        ("mlp_dim", heads),
        ("moe_mlp_dim", heads),
        ("num_decoder_layers", base),
    ):
        value = made.values.get(f"base_{key}")
        if type(value) is int:
            place = f"base_{key}" + (f" × {1 << doublings}" if doublings else "")
            made.put(key, value << doublings, Origin(DERIVED, place))
    return made
