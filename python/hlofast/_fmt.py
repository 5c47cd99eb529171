"""`Formatted`: a module's text in one of XLA's forms, for `hlofast fmt --json`."""

from __future__ import annotations

from hlofast._core import Field
from hlofast._result import Fact, Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast._module import Module


class Formatted(Result):
    """A module as text, and its fingerprint."""

    __slots__ = ("module", "text")

    VERB = "fmt"
    FACTS = (
        Field("text", "fingerprint", "A digest of the program without names and metadata."),
        Field("text", "text", "The module in the requested form."),
    )

    def __init__(self, module: Module, text: str) -> None:
        self.module = module
        """The module."""
        self.text = text
        """Its text."""

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The fingerprint and the text."""
        return tuple(map(Fact, self.FACTS, (self.module.fingerprint(), self.text)))
