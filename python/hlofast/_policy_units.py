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
    if len(units) > 1:
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


def peaks_apart(policies: Policies, shown: Sequence[Policy]) -> dict[str, tuple[int, int]]:
    """The peaks of the `shown` policies, by name.

    First if each function of a layer is checkpointed by itself, then if all are together.
    """
    from hlofast._policy import BUILT_IN, RECOMPUTED

    try:
        apart = policies._remat._data.policies(None, None, True)
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
    return printable(" and ".join(_told(units)))


def _told(units: list[Unit]) -> Iterator[str]:
    for _, name, file, line, own_file in units:
        place = f"called at {file}:{line}" if file else f"in {own_file}"
        yield f"{name.rpartition('<locals>.')[2]} ({place})"
