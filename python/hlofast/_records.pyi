"""Parts of attributes: a part of `hlofast._core`; a stub only, the code is in `_core`."""

from typing import Final, final

@final
class Alias:
    """A part of a result that shares memory with a part of a parameter (or operand)."""

    output_index: Final[tuple[int, ...]]
    """Path into the result."""
    number: Final[int]
    """Number of the parameter (in a module header) or operand (of an instruction)."""
    index: Final[tuple[int, ...]]
    """Path into the parameter or operand."""
    must_alias: Final[bool]
    """Whether sharing is required rather than allowed."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class DimensionLabels:
    """The roles of the dimensions of a convolution: for each dimension `batch`, `feature`,
    `input_feature`, `output_feature`, `unmapped` or the number of a spatial dimension.
    """

    lhs: Final[tuple[str | int, ...]]
    """Of the input."""
    rhs: Final[tuple[str | int, ...]]
    """Of the kernel."""
    output: Final[tuple[str | int, ...]]
    """Of the result."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class WindowDimension:
    """One dimension of `window={...}`."""

    size: Final[int]
    """Size."""
    stride: Final[int]
    """Distance between two positions."""
    padding_low: Final[int]
    """Padding before the data."""
    padding_high: Final[int]
    """Padding after the data."""
    base_dilation: Final[int]
    """Distance between two elements of the data."""
    window_dilation: Final[int]
    """Distance between two elements of the window."""
    reversal: Final[bool]
    """Whether the window is read backwards."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class PaddingDimension:
    """One dimension of `padding=`."""

    low: Final[int]
    """Before the data."""
    high: Final[int]
    """After the data."""
    interior: Final[int]
    """Between two elements."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class SliceDimension:
    """One dimension of `slice={...}`."""

    start: Final[int]
    """First element."""
    limit: Final[int]
    """One past the last element."""
    stride: Final[int]
    """Distance between two elements."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
