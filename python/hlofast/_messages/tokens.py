"""The phrases of messages, each as one pattern; all of them are searched in one pass.

Sources: libtpu's messages as they stand in public logs since 2019 and in openxla.org/xla/errors
(E0100, E0101, E1000, E1001, E3000, E3001: the codes of `error_codes.h` that are about memory);
`BufferAssignment::ToVerboseString` and `Stats::ToString` in XLA's
`buffer_assignment.cc`; `bfc_allocator.cc` and `allocator.cc` of tsl; `spmd_partitioner.cc`.
"""

from __future__ import annotations

import re

from hlofast._messages.amounts import SIZE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_S = rf"({SIZE})"
_U = rf"({SIZE}|unknown size|unknown)"
_W = r"(\w{1,16})"
_DOT = r"\.? "
PATTERNS: dict[str, str] = {
    # Compile time on TPU.
    "ran_space": rf"[Rr]an out of memory in memory space {_W}"
    r"(?: while allocating on stack(?: for (%?[^\s=]{1,300}))?)?",
    "ran_on": rf"[Rr]an out of memory on {_W}(?=[,.\s])",
    "used": rf"Used {_S} of {_S}(?: (hbm|vmem|smem|cmem|sflag|host|\w{{0,3}}mem))?",
    "exceeded": rf"Exceeded {_W} capacity by {_S}",
    "temporaries": rf"HLO temporaries \({_S}\) exceeds (?:the )?available {_W} \({_S}\)",
    "sparse": rf"TensorCore Hbm usage:? {_S}, SparseCore Hbm usage:? {_S},"
    rf" exceeding available bytes:? {_S}",
    "scoped": rf"[Ss]coped allocation with size {_S} and limit {_S}"
    rf"(?: exceeded scoped {_W} limit by {_S})?",
    "mosaic": rf"[Ss]coped allocation with size {_S} exceeds the scoped vmem limit"
    rf" of {_S}",
    "insufficient": rf"Insufficient scoped {_W}: {_S}\s*>\s*{_S}",
    "would_exceed": rf"Allocation \(size=({SIZE})\) would exceed memory \(size=({SIZE})\)"
    r"(?: :: #?(\w{1,40}) \[([^\n]{0,2000}?)\](?= ::|\s*\n|\s*$|\s*\"))?",
    "early": rf"unlikely to have enough device memory\. Requires {_S}, has {_S} available",
    "embedding": rf"HBM capacity available per TPU core \({_S}\) is smaller than the HBM "
    rf"requirement after padding \({_S}\)",
    "alloca": r"current allocation offset upper bound \((\d{1,16}) words\)(?: exceeds the legit"
    r"(?:imate user allocatable offset upper bound)?(?: \((\d{1,16}) words\))?)?"
    r"(?: in memory space (\d{1,4}))?(?: when allocating (\d{1,16}) words)?",
    "replicas": r"No viable logical replica count for",
    "replica_part": r"(fixed_size_allocation_bytes|row_dependent_size_allocation_bytes|"
    r"total_spmem_size_bytes) = (\d{1,18})",
    "total": rf"Total {_W} usage >= {_U}",
    "output": rf"Output size {_U}(?:; shares {_S} with arguments)?",
    "requirement": rf"Program {_W} requirement {_U}",
    "part": rf"(?<=\s)(reserved|program|arguments|global|scoped|HLO temp|overlays|constants?|stack|"
    rf"host|spilled|parameters) {_U}(?=[\s.,;)A-Z]|$)",
    "utilization": rf"\((\d{{1,4}}(?:\.\d{{1,4}})?)% utilization(?:: Unpadded \({_S}\) Padded "
    rf"\({_S}\))?(?:, (\d{{1,4}}(?:\.\d{{1,4}})?)% fragmentation \({_S}\))?",
    "heap_account": r"(Heap allocator status|Persistent allocations include some or all of):",
    "capacity": rf"HBM capacity {_S}:",
    "state": rf"(Top-of-Memory reserved|Currently allocated|Program requirement|"
    rf"Available after request): {_S}(?: \(\s{{0,40}}(-?[\d,]{{1,26}}) bytes\))?",
    "largest": rf"Largest program allocations in {_W}",
    "item": rf"(\d{{1,6}})\\?\. Size: {_S}",
    # An entry of a list of allocations.
    "buffer": r"(?<=\s)Buffer (\d{1,6}):",
    "size": rf"(?<=\s)Size: {_S}",
    "operator": r"(?<=\s)Operator:\s",
    "shape": r"(?<=\s)(?:Shape|Entry Parameter Subshape):\s",
    "unpadded": rf"(?<=\s)Unpadded size: {_S}",
    "extra": rf"Extra memory due to padding: {_S}(?: \((\d{{1,12}}(?:\.\d{{1,4}})?)x expansion)?",
    "tag": r"(?<=\s)Tag:\s",
    "label": r"(?<=\s)XLA [Ll]abel:\s",
    "type": r"Allocation type: ([A-Za-z][A-Za-z\x20_-]{0,30})",
    "end": r"={12,}",
    # Run time on TPU.
    "attempt": rf"Attempting to (allocate|reserve) {_S}(?: at the bottom of memory)?"
    rf"(?:{_DOT}That was not possible)?(?:{_DOT}There are {_S} free(?:, {_S} reserved,"
    rf" and {_S} reservable)?(?:{_DOT}The largest contiguous region of free memory"
    rf" is {_S})?)?",
    "loading": r"Error loading program(?: '([^'\n]{1,300})')?",
    "device_buffer": r"Error allocating device buffer",
    "place": r"\(0x\w{1,8}_(HBM|VMEM|SMEM|CMEM)\d{0,3}\)",
    # GPU.
    "trying": rf"[Oo]ut of memory while trying to allocate {_S}",
    "request": rf"Failed to allocate request for {_S}(?: \((\d{{1,19}})B\))?",
    "driver": rf"[Ff]ailed to alloc(?:ate)? {_S}(?: \((\d{{1,19}}) bytes\))?"
    r"(?:(?: bytes)?(?: (?:from|on|of) (device|host|pinned host|unified)(?: memory)?)?(?:: | )"
    r"(?:RESOURCE_EXHAUSTED:?[\x20:]{1,4})?((?:CUDA|HIP)_ERROR_\w{1,40}))?",
    "allocator": rf"Allocator \(([\w:./-]{{1,60}})\) ran out of memory trying to allocate"
    rf" {_S}(?: \(rounded to (\d{{1,19}})\))?(?:\s?with freed_by_count=\d{{1,19}}"
    r"(?:\. The caller indicates that this is not a failure)?)?",
    "old_trying": rf"Ran out of memory trying to allocate {_S}",
    "tensor": r"OOM when allocating tensor (?:with|of) shape\s*\[([\d,\s]{0,200})\]"
    r"(?: and type (\w{1,20}))?",
    "cuda": r"(?:CUDA_ERROR_OUT_OF_MEMORY|HIP_ERROR_OutOfMemory|hipErrorOutOfMemory|"
    r"cudaErrorMemoryAllocation)",
    "free_total": r"Free memory/Total memory: (\d{1,19})/(\d{1,19})",
    "stat": rf"(parameter|constant|maybe_live_out|preallocated temp|total) "
    rf"(allocation|fragmentation): {_S}(?: \((-?\d{{1,6}}(?:\.\d{{1,4}})?)%\))?",
    "debugging": r"BufferAssignment OOM Debugging",
    # BFC allocator.
    "bin": rf"Bin \((\d{{1,19}})\): Total Chunks: (\d{{1,12}}), Chunks in use: (\d{{1,12}})\."
    rf" {_S} allocated for chunks\. {_S} in use in bin\."
    rf"(?: {_S} client-requested)?",
    "chunks": r"(\d{1,12}) Chunks of size (\d{1,19}) totalling",
    "sum": rf"Sum Total of in-use chunks: {_S}",
    "pool": r"(?:total_region_allocated_bytes_|Total bytes in pool): (\d{1,19}) "
    r"memory_limit_: (\d{1,19}) available bytes: (-?\d{1,19})",
    "bfc": r"\b(Limit|InUse|MaxInUse|NumAllocs|MaxAllocSize|Reserved|PeakReserved|"
    r"LargestFreeBlock):\s{1,60}(\d{1,19})",
    # The host.
    "host": rf"[Oo]ut of memory allocating {_S}",
    "pinned": r"OOM in pinned host allocator",
    "numpy": rf"Unable to allocate {_S} for an array with shape \(([\d,\x20]{{0,200}})\)"
    r"(?: and data type (\w{1,20}))?",
    "killed": r"Out of memory: Killed process (\d{1,10}) \(([^)\n]{1,60})\)"
    r"(?:[^\n]{0,200}?anon-rss:(\d{1,15})kB)?",
    # What the rest belongs to.
    "code": r"\bE(\d{4}): (\w{1,60})",
    "link": r"openxla\.org/xla/errors/error_(\d{4})",
    "exhausted": r"RESOURCE_EXHAUSTED|Resource exhausted|ResourceExhaustedError",
    "remat": rf"Can't reduce memory use below {_S}(?: \((-?\d{{1,19}}) bytes\))? by "
    rf"rematerialization; only reduced to {_S}(?: \((\d{{1,19}}) bytes\))?"
    rf"(?:, down from {_S}(?: \((\d{{1,19}}) bytes\))?)?",
    "partitioner": r"\[(?:SPMD|spmd)\]\s",
}  # fmt: skip
"""Patterns by name. Every repetition is bounded, so that no text takes quadratic time."""
# A space stands for any white space: pages and terminals break lines anywhere.
_COMPILED = {
    name: re.compile(pattern.replace(" ", r"\s{1,400}")) for name, pattern in PATTERNS.items()
}
_ANCHORS = {
    "Ran": ("ran_space", "ran_on", "old_trying"), "ran out": ("ran_space", "ran_on"),
    "Used": ("used",), "Exceeded": ("exceeded",), "HLO": ("temporaries", "part"),
    "TensorCore": ("sparse",), "Scoped": ("scoped", "mosaic"),
    "scoped": ("scoped", "mosaic", "part"), "Insufficient": ("insufficient",),
    "Allocation": ("would_exceed", "type"), "Total": ("total", "pool"), "Output": ("output",),
    "Program": ("requirement", "state"),
    "current allocation": ("alloca",), "No viable": ("replicas",),
    "fixed_size_alloc": ("replica_part",), "row_dependent_size": ("replica_part",),
    "total_spmem": ("replica_part",), "Heap allocator": ("heap_account",),
    "Persistent": ("heap_account",), "Top-of-Memory": ("state",),
    "Currently": ("state",), "Available after": ("state",),
    "reserved": ("part",), "program": ("part",),
    "arguments": ("part",), "global": ("part",), "overlays": ("part",),
    "constant": ("stat", "part"),
    "stack": ("part",), "host": ("part",), "spilled": ("part",), "parameters": ("part",),
    "utilization": ("utilization",), "Largest": ("largest",), "Buffer": ("buffer",),
    "BufferAssignment": ("debugging",), "Size:": ("item", "size"), "Operator:": ("operator",),
    "Shape:": ("shape",), "Entry Parameter": ("shape",), "Unpadded": ("unpadded",),
    "Extra": ("extra",), "Tag:": ("tag",),
    "XLA Label:": ("label",), "XLA label:": ("label",),
    "============": ("end",), "Attempting": ("attempt",), "Error": ("loading", "device_buffer"),
    "(0x": ("place",), "Out": ("killed", "trying", "host"), "out": ("trying", "host"),
    "Failed": ("request", "driver"), "failed": ("driver",), "Allocator": ("allocator",),
    "OOM": ("tensor", "pinned"), "unlikely": ("early",), "HBM capacity": ("embedding", "capacity"),
    "CUDA_ERROR": ("cuda",), "HIP_ERROR": ("cuda",), "hipError": ("cuda",),
    "cudaError": ("cuda",), "Free": ("free_total",), "parameter": ("stat",),
    "maybe_live_out": ("stat",), "preallocated": ("stat",), "total": ("stat", "pool"),
    "Bin": ("bin",), "Chunks of": ("chunks",), "Sum": ("sum",), "Limit:": ("bfc",),
    "InUse:": ("bfc",), "MaxInUse:": ("bfc",), "NumAllocs:": ("bfc",), "MaxAllocSize:": ("bfc",),
    "Reserved:": ("bfc",), "PeakReserved:": ("bfc",), "LargestFreeBlock:": ("bfc",),
    "Unable": ("numpy",), "openxla.org": ("link",), "RESOURCE_EXHAUSTED": ("exhausted",),
    "Resource exhausted": ("exhausted",), "ResourceExhaustedError": ("exhausted",),
    "Can't reduce": ("remat",), "Can\u2019t reduce": ("remat",), "[SPMD]": ("partitioner",),
    "[spmd]": ("partitioner",),
}  # fmt: skip
"""The literal text at which the patterns are tried; a search for texts alone is a hundred times as
fast as one for all patterns."""
_ANY = re.compile(
    "|".join(map(re.escape, sorted(_ANCHORS, key=len, reverse=True))) + r"|E(?=\d{4}:)"
)
_NUMBER_BEFORE = re.compile(r"(?:^|\s)(\d{1,6})\\?\.\s$")
_COUNT_BEFORE = re.compile(r"(?:^|\s)(\d{1,12})\s$")


class Token:
    """A phrase of a message: its pattern, place and the texts in it."""

    __slots__ = ("end", "groups", "kind", "start")

    def __init__(self, kind: str, start: int, end: int, groups: tuple[str | None, ...]) -> None:
        self.kind = kind
        self.start = start
        self.end = end
        self.groups = groups

    def __repr__(self) -> str:
        return f"<Token {self.kind} {self.groups}>"


def tokens(text: str) -> Iterator[Token]:
    """Yields the phrases in a text, in their order."""
    at = 0
    while (found := _ANY.search(text, at)) is not None:
        start = found.start()
        token = _token(text, found[0], start, at)
        at = start + 1 if token is None else max(token.end, start + 1)
        if token is not None:
            yield token


def _token(text: str, anchor: str, start: int, floor: int) -> Token | None:
    for kind in _ANCHORS.get(anchor, ("code",)):
        begin = start
        if kind == "item":  # `12. Size: 2.00G`: the number stands before the anchor.
            before = _NUMBER_BEFORE.search(text, max(start - 10, floor), start)
            if before is None:
                continue
            begin = before.start(1)
        elif kind == "chunks":
            before = _COUNT_BEFORE.search(text, max(start - 15, floor), start)
            if before is None:
                continue
            begin = before.start(1)
        elif kind == "utilization":
            begin = text.rfind("(", max(start - 14, floor), start)
            if begin < 0:
                continue
        found = _COMPILED[kind].match(text, begin)
        if found is not None:
            return Token(kind, begin, found.end(), found.groups())
    return None
