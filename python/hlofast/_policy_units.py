"""What one `jax.checkpoint` has to be around in layers that a program repeats without a loop.

The figures of a policy hold for one way to apply it. Where the loop of a program calls several
functions for a layer, the text does not tell whether one `jax.checkpoint` will be around all of
them or one around each, which keeps what they leave to each other as well.
"""

from __future__ import annotations

from hlofast._text import printable
from hlofast.table import Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hlofast._policies import Policies
    from hlofast._policy import Policy

    Unit = tuple[int, str, str, int, str]

_NOTHING = "nothing_saveable"


def lines(policies: Policies, *, library: bool) -> list[str]:
    """Lines for the code of a policy: the functions that one `jax.checkpoint` is around.

    `library` tells whether the layers are classes of Flax.
    """
    if policies.is_scanned:
        return []
    units, is_ambiguous = policies._data.units()
    if is_ambiguous and not library and len({unit[0] for unit in units}) == 1:
        return [
            "def layer(x, weights):  # one jax.checkpoint around all of a layer together",
            *(f"    x = ...  # {printable(own)}" for own in _told(units)),
            "    return x",
        ]
    if is_ambiguous:
        own = _named(units)
        return [f"# one jax.checkpoint around all functions of a layer together, of these: {own}"]
    if len(set(_told(units))) > 1:
        return [f"# a jax.checkpoint around each by itself: {_named(units)}"]
    return [f"# one jax.checkpoint around all of a layer: {_named(units)}"] if units else []


def note_of(policies: Policies) -> tuple[str, dict[str, int]] | None:
    """That one `jax.checkpoint` is around several functions, and the peaks with one around each.

    None if the text shows what a layer is.
    """
    units, is_ambiguous = policies._data.units()
    if policies.is_scanned or not is_ambiguous:
        return None
    shown = [policies.policy(_NOTHING)]
    if policies.chosen is not None and policies.chosen._keeps != shown[0]._keeps:
        shown.append(policies.chosen)
    apart = peaks_apart(policies, shown)
    text = (
        f"the program computes a layer in several functions, {_named(units)}: the figures hold for "
        "one jax.checkpoint around all of them together"
    )
    told = [
        f"`{name}` {own:,} B instead of {together:,} B" for name, (own, together) in apart.items()
    ]
    if told:
        text += "; with one around each the modelled peaks are: " + ", ".join(told)
    return text, {name: own for name, (own, _) in apart.items()}


def shared_names(policies: Policies) -> tuple[str, Policy] | None:
    """A sentence that names must differ by stack, and the policy with the same names in all.

    Where several stacks of layers, such as the towers of images and of words, call one function,
    a name in it applies to the values of all. None if the chosen policy keeps the same values of
    each stack.
    """
    chosen = policies.chosen
    if policies.is_scanned or chosen is None or chosen.built_in is not None:
        return None
    kinds: dict[tuple[str, str], set[int]] = {}
    for kind, name, file, line, _ in policies._data.units()[0]:
        if file:
            kinds.setdefault((f"{file}:{line}", name), set()).add(kind)
    shared = {place: name for (place, name), own in kinds.items() if len(own) > 1}
    fates = list(chosen.fates)
    split: set[int] = set()
    functions = set()
    for function, values in _called_alike(policies, shared):
        if len({fates[at] for at in values}) > 1:
            split.update(at for at in values if chosen.fates[at])
            functions.add(function)
            most = max(fates[at] for at in values)
            for at in values:
                fates[at] = most
    if not split:
        return None
    from hlofast._policy import OFFLOADED, SAVED

    kept, moved = ([at for at, own in enumerate(fates) if own == f] for f in (SAVED, OFFLOADED))
    other = policies.policy(save=kept, offload=moved)
    count = f"{len(split)} values" if len(split) > 1 else "a value"
    verb, place = ("computes", "it") if len(functions) == 1 else ("compute", "them")
    text = (
        f"{printable(' and '.join(sorted(functions)))} {verb} layers of several stacks, so a name "
        f"in {place} applies to all of these stacks: the chosen policy keeps {count} in only some "
        "of them, so names have to differ by stack, for example by an argument of the function; "
        f"if all stacks have the same names, the modelled peak is {other.peak:,} B instead of "
        f"{chosen.peak:,} B"
    )
    if policies.hbm is not None and other.peak > policies.hbm:
        text += ", which does not fit"
    return text, other


def _called_alike(policies: Policies, shared: dict[str, str]) -> Iterator[tuple[str, list[int]]]:
    """The values that one name in a function reaches in several stacks, with the function.

    `shared` are the functions of several stacks by the line that calls them.
    """
    from hlofast._policy_code import frames_of

    weights = policies._data.weights()
    found: dict[tuple[str, ...], dict[int, list[int]]] = {}
    for at, row in enumerate(policies.savable.to_pylist()) if shared else ():
        frames = frames_of(policies.module, row)
        depth = next((depth for depth, own in enumerate(frames) if own in shared), 0)
        if depth and row["kind"] != "other":
            stacks = found.setdefault(tuple(frames[: depth + 1]), {})
            stacks.setdefault(row["scan"], []).append(at)
    for own, stacks in found.items():
        if len(stacks) < 2:
            continue
        function = shared[own[-1]].rpartition("<locals>.")[2]
        if len({len(values) for values in stacks.values()}) > 1:
            yield function, [at for values in stacks.values() for at in values]
            continue
        # The weight of a product tells which of several products of one line it is.
        ordered = [
            sorted(values, key=lambda at: (weights[at] is None, weights[at], at))
            for values in stacks.values()
        ]
        yield from ((function, list(values)) for values in zip(*ordered, strict=True))


def peaks_apart(policies: Policies, shown: Sequence[Policy]) -> dict[str, tuple[int, int]]:
    """The peaks of the `shown` policies, by name.

    First if each function of a layer is checkpointed by itself, then if all are together.
    """
    from hlofast._policies import device_of
    from hlofast._policy import BUILT_IN, RECOMPUTED

    try:
        apart = policies._remat._data.policies(None, None, True, device_of(policies._remat))
    except ValueError:
        return {}
    rows = Table(apart.savable()).to_pylist()
    found: dict[str, tuple[int, int]] = {}
    known = policies.savable.values("instruction")
    for policy in shown:
        if policy.built_in is not None:
            kinds = BUILT_IN[policy.built_in]
            fates = [int(row["kind"] in kinds) for row in rows]
        else:
            # What is between the functions is kept in any case.
            of = dict(zip(known, policy.fates, strict=True))
            fates = [of.get(row["instruction"], RECOMPUTED) for row in rows]
        found[policy.name] = apart.outcome(fates)["peak"], policy.peak
    return found


def _named(units: list[Unit]) -> str:
    """The functions and the lines that call them."""
    # Several towers may call one function.
    return printable(" and ".join(dict.fromkeys(_told(units))))


def _told(units: list[Unit]) -> Iterator[str]:
    for _, name, file, line, own_file in units:
        place = f"called at {file}:{line}" if file else f"in {own_file}"
        yield f"{name.rpartition('<locals>.')[2]} ({place})"
