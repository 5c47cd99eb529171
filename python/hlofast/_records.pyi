"""Parts of attributes: a part of `hlofast._core`; a stub only, the code is in `_core`."""

from typing import Final, final

@final
class Alias:
    output_index: Final[tuple[int, ...]]
    number: Final[int]
    index: Final[tuple[int, ...]]
    must_alias: Final[bool]
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class DimensionLabels:
    lhs: Final[tuple[str | int, ...]]
    rhs: Final[tuple[str | int, ...]]
    output: Final[tuple[str | int, ...]]
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class WindowDimension:
    size: Final[int]
    stride: Final[int]
    padding_low: Final[int]
    padding_high: Final[int]
    base_dilation: Final[int]
    window_dilation: Final[int]
    reversal: Final[bool]
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class PaddingDimension:
    low: Final[int]
    high: Final[int]
    interior: Final[int]
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class SliceDimension:
    start: Final[int]
    limit: Final[int]
    stride: Final[int]
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
