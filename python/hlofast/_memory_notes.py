"""Notes of `Memory`."""

from __future__ import annotations

from hlofast import _text
from hlofast._device_notes import about_backend, assumed_device
from hlofast._memory import ORDERS
from hlofast._memory_account import table_bytes
from hlofast._result import Note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hlofast._memory import Memory
    from hlofast._policies import Policies


LEAST_UNDONATED = 1 << 20
"""Limit below which undonated state does not give a note."""
_WITHOUT_NAMES = {
    "training": (
        "no instruction has an operation name; phases follow the data flow: the loss depends on "
        "forward work, optimizer work computes new weights from old weights, the rest is backward"
    ),
    "inference": (
        "no instruction has an operation name; no result can be a gradient or a new weight, so all "
        "work is forward"
    ),
    "unknown": (
        "phases are unknown: no instruction has an operation name that gives one, and the data "
        "flow does not separate forward from backward work"
    ),
}


def contradictions(memory: Memory) -> Iterator[Note]:
    """Contradictions in the module that make figures doubtful."""
    doubts = memory._data.doubts()
    aliases, parts = doubts["contradictory_aliases"], doubts["mismatched"]
    if aliases:
        yield Note(
            "contradictory-aliases",
            f"{aliases} {'entry' if aliases == 1 else 'entries'} of input_output_alias ignored: a "
            "missing array or one of another size",
            entries=aliases,
        )
    if doubts["has_unreadable_aliases"]:
        yield Note(
            "unreadable-aliases",
            "input_output_alias cannot be read; no parameter counts as donated",
        )
    if parts:
        yield Note(
            "mismatched-parts",
            f"{parts} parts of results differ in shape from their source; they count as new values",
            parts=parts,
        )
    if doubts["disordered"]:
        yield Note(
            "disordered",
            f"{doubts['disordered']} instructions come before one of their operands: the module "
            "cannot run in this order",
            instructions=doubts["disordered"],
        )
    if doubts["lacks_layouts"]:
        yield Note("no-layouts", "some arrays have no layout; their padding is not counted")


def notes(memory: Memory) -> Iterator[Note]:
    """The notes, in order."""
    from hlofast import _shares

    doubts = memory._data.doubts()
    together = _shares.note(memory.module)
    if together is not None:
        yield together
    yield from contradictions(memory)
    yield from assumed_device(memory.module.context)
    yield from about_backend(memory.module, memory.device or memory.module.context.device)
    if memory.peak_before is not None:
        yield _before(memory, memory.peak_before)
    order = ORDERS[memory.schedule]
    if doubts["is_unscheduled"]:
        text = f"the module is not marked as scheduled; steps follow {order}"
        yield Note("unscheduled", text)
    elif memory.schedule != "text":
        yield Note("other-order", f"steps do not follow the module's own schedule but {order}")
    basis: Any = memory._data.phases_are_by
    if basis in _WITHOUT_NAMES:
        yield Note("phases-by-structure", _WITHOUT_NAMES[basis], basis=basis)
    unknown = [memory.module[row].name for row in doubts["unknown_sizes"]]
    if unknown:
        results = _text.counted(len(unknown), "result")
        yield Note(
            "unknown-sizes",
            f"{results} of unknown size, counted as 0 B: {_text.names(unknown)}",
            results=len(unknown),
        )
    repeated = len(doubts["repeated_calls"])
    if repeated:
        yield Note(
            "repeated-calls",
            f"{repeated} repeated calls: the values inside a computation count at its first call "
            "only",
            calls=repeated,
        )
    highest, row = memory._data.highest
    if highest > memory.live_peak and row is not None:
        yield Note(
            "higher-step",
            "XLA's live-range file puts the peak here, by its own weights; the maximum of live "
            f"bytes is {highest:,} B, at {memory.module[row].name}",
            bytes=highest,
        )
    undonated = memory.undonated
    if (size := sum(undonated.values())) >= LEAST_UNDONATED:
        parameters = _text.counted(len(undonated), "parameter")
        shown = _text.names([memory.module[row].name for row in undonated])
        yield Note(
            "undonated",
            f"donating {parameters} that results replace would save up to {size:,} B: {shown}",
            bytes=size,
        )
    less = _less_on_v6e(memory)
    if less:
        from hlofast import devices

        chips = [(table_bytes(name), name) for name in devices.names()]
        large = [name for size, name in chips if size == _LARGE_TABLE]
        small = [name for size, name in chips if size == _SMALL_TABLE]
        yield Note(
            "v5e-or-v6e",
            f"the text does not say which TPU it is for; the XLA peak is that of "
            f"{', '.join(large)}, and {less:,} B lower on {', '.join(small)} (give --device)",
            bytes=less,
        )
    yield from _memories(memory)


def _before(memory: Memory, policies: Policies) -> Note:
    """What each peak of a module that is not scheduled is, and which to trust."""
    from hlofast._policy_fields import error_of

    what = "XLA fuses, moves and shares them"
    if not memory.module.summary().is_unfused:
        what = "XLA's schedule will order them differently"
    together = "" if memory._shares() is None else ", of all devices together"
    return Note(
        "modelled-peak",
        f"use the modelled peak, {policies.peak:,} B, which one device needs once XLA has compiled "
        "the step; the live peak and the XLA peak count the values of this text in text "
        f"order{together}, but {what}; {error_of(policies)}",
        bytes=policies.peak,
    )


_HEAPS = {1: "fast memory", 3: "fast memory", 5: "the host's memory"}


def _memories(memory: Memory) -> Iterator[Note]:
    """Notes on the source of the allocated bytes, and on the memory that XLA's peak counts."""
    heap = memory._account().get("heap_memory_space", 0)
    if heap and memory.backend == "tpu":
        where = _HEAPS.get(heap, f"memory space {heap}")
        yield Note(
            "other-heap",
            f"the XLA peak counts the heap of {where}, the largest heap; compare HBM with the "
            "bytes allocated in HBM",
            memory_space=heap,
        )
    if memory.unusable_file is not None:
        yield Note("unusable-file", f"allocation file ignored: {memory.unusable_file}")
    file = memory.allocated
    if file is not None and file.default_bytes is not None:
        return
    if memory.allocated_in_hbm is None:
        yield Note("fragmentation", "fragmentation is not modelled")
        return
    yield Note(
        "fragmentation",
        "fragmentation is modelled as libtpu 0.0.42 packs heaps: on 77 TPU programs the bytes "
        "allocated in HBM are within 0.2 % of XLA's; libtpu before 2025 packs programs that leave "
        "memory free more tightly",
    )


_LARGE_TABLE, _SMALL_TABLE = 512, 32
"""Bytes to which TPUs round pointer tables up: `tuple_table_bytes` in devices.toml."""


def _less_on_v6e(memory: Memory) -> int:
    """Bytes that the result tuple's pointer table saves on v6e, if the program may be for v6e."""
    is_told = memory.device is not None or memory.backend != "tpu"
    if is_told or memory.schedule != "text" or "megacore" in memory.module.text:
        return 0
    root = memory.module.entry.root
    if root is None or not root.shape.is_tuple:
        return 0
    table = 4 * len(root.shape.elements)
    return -table // _SMALL_TABLE * _SMALL_TABLE - -table // _LARGE_TABLE * _LARGE_TABLE
