"""Reading a profile of 100 MB, compared with ProfileData iterated in Python."""

import lzma
import time

import hlofast
from harness import CHECKOUT, Figure, Record, interleave

SOURCE = CHECKOUT / "tests" / "fixtures" / "profiles" / "sharded.xplane.pb.xz"
"""Recorded by `jax.profiler` of three steps on 8 CPU devices."""
SIZE = 100_000_000
LEAST_SPEED = 50
LEAST_RATIO = 19


def grown(size: int) -> bytes:
    """A profile of `size` bytes: the planes of a real one, repeated, as protobufs concatenate."""
    own = lzma.decompress(SOURCE.read_bytes())
    return own * max(size // len(own), 1)


def theirs(content: bytes) -> int:
    """Reads name, times and stats of every event through ProfileData.

    The tables of hlofast have the stats of events: instruction, program, device, run.
    """
    from jax.profiler import ProfileData

    count = 0
    for plane in ProfileData.from_serialized_xspace(content).planes:
        for line in plane.lines:
            for event in line.events:
                event.name, event.start_ns, event.duration_ns  # noqa: B018 - each is decoded here.
                dict(event.stats)
                count += 1
    return count


def bench_profile(record: Record, quick: bool) -> None:
    content = grown(SIZE // 20 if quick else SIZE)
    # Both work in the calling thread, whose processor time does not depend on other load.
    times = interleave(
        {
            "profile_data": lambda: theirs(content),
            "ours": lambda: hlofast.load_profile(content).events,
        },
        1 if quick else 3,
        turns={"ours": 3},
        clock=time.thread_time,
    )
    profile = hlofast.load_profile(content)
    events = sum(profile.lines.values("events"))
    assert events == theirs(content)
    record.details.append({
        "bytes": len(content),
        "events": events,
        "events_of_devices": len(profile.events),
        "ours": times["ours"].facts(),
        "profile_data": times["profile_data"].facts(),
        "ratio": times["profile_data"].best / times["ours"].best,
    })  # fmt: skip


def bench_figures(record: Record) -> None:
    """Computes the figures of the table from the run above; measures nothing."""
    for row in record.details:
        speed = row["bytes"] / 1e6 / row["ours"]["best"]
        title = "read a profile, processor time of one thread"
        record.figures.append(Figure(title, speed, unit="MB/s", at_least=LEAST_SPEED))
        title = "read a profile, compared with ProfileData iterated in Python"
        record.figures.append(Figure(title, row["ratio"], at_least=LEAST_RATIO))
