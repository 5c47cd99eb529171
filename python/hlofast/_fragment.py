"""Pieces of a program: what they lack, and figures that only a whole program has."""

from __future__ import annotations

from hlofast._result import Note
from hlofast.errors import FragmentError

TYPE_CHECKING = False  # Small dumps are read by the command line; importing typing would slow it.
if TYPE_CHECKING:
    from hlofast._module import Module

_LACKS = (
    ("gaps", "a place where lines were left out", "{} places where lines were left out"),
    ("operands", "one operand without its instruction", "{} operands without their instructions"),
    ("computations", "one missing computation", "{} missing computations"),
    ("cut", "one cut line", "{} cut lines"),
    ("unread", "one line that cannot be read", "{} lines that cannot be read"),
)
"""Counts of `Module._lacks`, in words."""


def lacks(module: Module) -> str | None:
    """Returns what the text lacks of a program, in words; None for a whole module."""
    if not module.is_fragment:
        return None
    counts = module._lacks or {}
    said = [
        one if counts[name] == 1 else several.format(f"{counts[name]:,}")
        for name, one, several in _LACKS
        if counts.get(name)
    ]
    return ", ".join(said) or "what comes before and after"


def notes(module: Module) -> tuple[Note, ...]:
    """Returns a note that figures are those of the lines seen; none for a whole module."""
    said = lacks(module)
    if said is None:
        return ()
    counts = {name: count for name, count in (module._lacks or {}).items() if name != "others"}
    text = f"fragment: figures are those of the lines in the text, which lacks {said}"
    return (Note("fragment", text, **counts),)


def refuse(module: Module, what: str) -> None:
    """Raises `FragmentError` if the module is a fragment; `what` is a figure of whole programs."""
    if (said := lacks(module)) is None:
        return
    raise FragmentError(
        f"{what} of a fragment is unknown: the text lacks {said}; summary, show, graph, "
        "collectives, matmuls and cost work on fragments"
    )
