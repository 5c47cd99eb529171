"""Readers and checkers of trace files, written from the formats' specifications."""

import gzip
import json
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any


@dataclass
class TraceFile:
    """What a trace file holds, in the order of the file; times in nanoseconds."""

    tracks: list[str] = field(default_factory=list)
    slices: list[tuple[str, int, int, str, str, dict[str, Any]]] = field(default_factory=list)
    """Track, begin, end, name, category, arguments."""
    samples: list[tuple[int, int]] = field(default_factory=list)

    def seconds(self, track: str) -> float:
        """Exact lengths of the outermost slices of a track."""
        total, end = 0.0, -1
        for _, begin, stop, _, _, arguments in self.on(track):
            if begin >= end:
                total += arguments["seconds"]
                end = stop
        return total

    def on(self, track: str) -> list[tuple[str, int, int, str, str, dict[str, Any]]]:
        return [piece for piece in self.slices if piece[0] == track]


def read(path: Path) -> TraceFile:
    """The trace in a file of either format, checked."""
    data = path.read_bytes()
    if path.name.endswith(".gz"):
        data = gzip.decompress(data)
    trace = read_pftrace(data) if ".pftrace" in path.name else read_json(data)
    for track in trace.tracks:
        check_nesting([(begin, end) for _, begin, end, *_ in trace.on(track)])
    moments = [moment for moment, _ in trace.samples]
    assert moments == sorted(moments)
    return trace


def check_nesting(slices: list[tuple[int, int]]) -> None:
    """Slices in the order in which they begin contain one another or do not touch."""
    open_until: list[int] = []
    last = 0
    for begin, end in slices:
        assert last <= begin <= end
        last = begin
        while open_until and open_until[-1] <= begin:
            open_until.pop()
        assert not open_until or end <= open_until[-1]
        open_until.append(end)


def read_json(data: bytes) -> TraceFile:
    """Trace Event Format, object form: complete (X), counter (C) and metadata (M) events."""
    document = json.loads(data, parse_float=Decimal)
    assert set(document) <= {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    trace = TraceFile()
    names: dict[int, str] = {}
    for event in document["traceEvents"]:
        assert event["pid"] == 1
        assert isinstance(event["name"], str)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                assert not trace.slices
                names[event["tid"]] = event["args"]["name"]
                trace.tracks.append(event["args"]["name"])
            else:
                assert event["name"] in ("process_name", "thread_sort_index")
            continue
        begin = nanoseconds(event["ts"])
        if event["ph"] == "C":
            assert event["name"] == "live bytes"
            trace.samples.append((begin, event["args"]["bytes"]))
            continue
        assert event["ph"] == "X"
        arguments = {key: as_float(value) for key, value in event["args"].items()}
        end = begin + nanoseconds(event["dur"])
        track = names[event["tid"]]
        trace.slices.append((track, begin, end, event["name"], event["cat"], arguments))
    assert len(set(names.values())) == len(names)
    return trace


def nanoseconds(microseconds: Any) -> int:
    exact = microseconds * 1000
    assert exact >= 0 and exact == int(exact)
    return int(exact)


def as_float(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value


def read_pftrace(data: bytes) -> TraceFile:
    """Perfetto's protobuf, read with its own message classes."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as Message
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackEvent

    message = Message.FromString(data)
    # Nothing is written that the messages do not know.
    length = message.ByteSize()
    message.DiscardUnknownFields()
    assert message.ByteSize() == length
    trace = TraceFile()
    tracks: dict[int, str] = {}
    counters: set[int] = set()
    interned: dict[str, dict[int, str]] = {}
    process = None
    # By track: numbers of the slices that are open.
    running: dict[int, list[int]] = {}
    last = 0
    for number, packet in enumerate(message.packet):
        assert packet.trusted_packet_sequence_id == 1
        cleared = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        needed = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        assert packet.sequence_flags == (needed if number else cleared)
        if packet.HasField("track_descriptor"):
            descriptor = packet.track_descriptor
            if descriptor.HasField("process"):
                process = descriptor.uuid
                continue
            assert descriptor.parent_uuid == process
            assert descriptor.uuid not in tracks
            tracks[descriptor.uuid] = descriptor.name
            if descriptor.HasField("counter"):
                counters.add(descriptor.uuid)
                assert descriptor.counter.unit == descriptor.counter.UNIT_SIZE_BYTES
            else:
                trace.tracks.append(descriptor.name)
            continue
        for kind in (
            "event_categories",
            "event_names",
            "debug_annotation_names",
            "debug_annotation_string_values",
        ):
            for entry in getattr(packet.interned_data, kind):
                known = interned.setdefault(kind, {})
                assert entry.iid > 0 and entry.iid not in known
                text = entry.str.decode() if hasattr(entry, "str") else entry.name
                known[entry.iid] = text
        event, at = packet.track_event, packet.timestamp
        assert at >= last
        last = at
        track = tracks[event.track_uuid]
        if event.type == TrackEvent.TYPE_COUNTER:
            assert event.track_uuid in counters
            trace.samples.append((at, event.counter_value))
        elif event.type == TrackEvent.TYPE_SLICE_BEGIN:
            (category,) = event.category_iids
            arguments: dict[str, Any] = {}
            for argument in event.debug_annotations:
                name = interned["debug_annotation_names"][argument.name_iid]
                kind = argument.WhichOneof("value")
                value = getattr(argument, kind)
                if kind == "string_value_iid":
                    value = interned["debug_annotation_string_values"][value]
                arguments[name] = value
            name = interned["event_names"][event.name_iid]
            category = interned["event_categories"][category]
            running.setdefault(event.track_uuid, []).append(len(trace.slices))
            trace.slices.append((track, at, -1, name, category, arguments))
        else:
            assert event.type == TrackEvent.TYPE_SLICE_END
            number = running[event.track_uuid].pop()
            begun = trace.slices[number]
            trace.slices[number] = (*begun[:2], at, *begun[3:])
    assert not any(running.values())
    return trace
