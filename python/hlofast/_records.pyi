"""Parts of attributes: a part of `hlofast._core`; a stub only, the code is in `_core`."""

from typing import Final, final

@final
class Alias:
    """A part of a result that shares memory with a part of a parameter or operand."""

    output_index: Final[tuple[int, ...]]
    """Shape index (tuple path) of the part of the result."""
    number: Final[int]
    """Number of the parameter (in a module header) or operand (of an instruction)."""
    index: Final[tuple[int, ...]]
    """Shape index (tuple path) of the part of the parameter or operand."""
    must_alias: Final[bool]
    """Whether sharing is required, not merely allowed."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class DimensionLabels:
    """The roles of a convolution's dimensions.

    Each dimension is `batch`, `feature`, `input_feature`, `output_feature`, `unmapped` or the
    number of a spatial dimension.
    """

    lhs: Final[tuple[str | int, ...]]
    """The roles of the input's dimensions."""
    rhs: Final[tuple[str | int, ...]]
    """The roles of the kernel's dimensions."""
    output: Final[tuple[str | int, ...]]
    """The roles of the result's dimensions."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class WindowDimension:
    """One dimension of `window={...}`."""

    size: Final[int]
    """Size of the window in this dimension."""
    stride: Final[int]
    """Step between two positions of the window."""
    padding_low: Final[int]
    """Padding before the data."""
    padding_high: Final[int]
    """Padding after the data."""
    base_dilation: Final[int]
    """Spacing of the data's elements: 1 for no dilation."""
    window_dilation: Final[int]
    """Spacing of the window's elements: 1 for no dilation."""
    reversal: Final[bool]
    """Whether the window is reversed in this dimension."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class PaddingDimension:
    """One dimension of `padding=`."""

    low: Final[int]
    """Padding before the data."""
    high: Final[int]
    """Padding after the data."""
    interior: Final[int]
    """Padding between two elements."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class SliceDimension:
    """One dimension of `slice={...}`."""

    start: Final[int]
    """Index of the first element."""
    limit: Final[int]
    """Index after the last element."""
    stride: Final[int]
    """Step between two elements."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
