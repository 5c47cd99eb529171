"""Contents of a page about a dump directory: ranked programs, hosts, histories."""

from __future__ import annotations

import os

from hlofast import _text as output
from hlofast._files import named
from hlofast._history import FIGURES, KINDS, History
from hlofast._kinds import NO_DUMPS, NoDumpsError
from hlofast._memory import quiet
from hlofast._programs import fingerprints, programs, whole
from hlofast._report import chart as draw
from hlofast._report.chart import Axis, Chart, Mark
from hlofast._report.data import Contents, Section
from hlofast._report.sheet import Sheet, sheet_of
from hlofast._scan import scan
from hlofast._shares import TOGETHER
from hlofast._verdict_figures import Figure, seconds, short, short_bytes
from hlofast._verdict_statements import Statement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast import Mesh
    from hlofast._programs import Program
    from hlofast._report.pages import Pages
    from hlofast._scan import Scan
    from hlofast.devices import Device

_BARS = 24
_HISTORIES = 3
"""Number of programs whose passes are shown: those with the most FLOPs."""
_MOST_BYTES = 256 << 20
"""Maximum bytes of dumps of a program in a history; larger dumps would take too long for a page."""


_PEAKS = ("live_peak", "xla_peak", "hbm_peak", "fast_peak", "host_peak")
NOT_PARTITIONED = (
    "the programs are not partitioned yet: the step of one of several devices is unknown"
)


def contents(
    folder: str, device: str | Device | None, mesh: Mesh | None, pages: Pages
) -> tuple[Contents, list[str]]:
    """Returns the contents of the page about a dump directory, and the files of the directory.

    Makes `pages`. Raises `OSError` if the directory cannot be read.
    """
    scanned = scan(folder, tables=("modules",), device=device or "auto", mesh=mesh)
    rows = scanned.programs.to_pylist()
    if not rows and not scanned.counts["failed"]:
        raise NoDumpsError(f"{folder}: {NO_DUMPS}")
    known = "canonical" in scanned.programs and "flops" in scanned.programs
    sizes = {row["program"]: row["bytes"] for row in rows}
    rows = [row for row in rows if row.get("status")] if known else []
    rows.sort(key=lambda row: -(row["flops"] or 0))
    _of_one_device(rows, mesh)
    pages.make(rows)
    prints = fingerprints(folder).to_pylist()
    histories = [
        program
        for program in programs(folder)
        if any(file.step is not None for file in program.files)
    ]
    title = os.path.basename(os.path.abspath(folder)) or folder
    counts = scanned.counts
    facts = [
        ("directory", folder),
        ("files", ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)),
        ("timed for", ", ".join(sorted({row["device"] for row in rows if row["device"]}))),
    ]
    sections = [_programs(rows, bool(device), pages), _hosts(prints)]
    flops = {row["program"]: row["flops"] for row in rows}
    sections += _histories(histories, mesh, sizes, flops)
    if counts["failed"]:
        sections.append(_failures(scanned))
    statements = [*sections[1].statements, *_largest(rows)]
    files = [] if scanned._survey is None else list(map(named, scanned._survey.paths()))
    figures = _verdict(scanned, rows, prints)
    return Contents(title, "directory", facts, figures, statements, sections), files


def _of_one_device(rows: list[dict[str, Any]], mesh: Mesh | None) -> None:
    """Adds the modelled peak, and removes figures of all devices that are taken for those of one.

    They are the times, peaks and wire bytes of programs before partitioning.
    """
    for place, row in enumerate(rows):
        row["modelled_peak"] = _modelled_peak(row, mesh) if place < _BARS else None
        if row["devices_together"] > 1:
            row |= dict.fromkeys((*_PEAKS, "step_seconds", "wire_bytes"))
        elif row["modelled_peak"] is not None:
            row |= dict.fromkeys(_PEAKS)


def _modelled_peak(row: dict[str, Any], mesh: Mesh | None) -> int | None:
    """The peak of one device (`Memory.peak_before`) of a program that is not scheduled."""
    if row["status"] == "scheduled" or not row["canonical"]:
        return None
    try:
        module = whole(named(row["canonical"]))
        before = quiet(module.with_context(module.context.replace(mesh=mesh))).peak_before
    except (OSError, ValueError):
        return None  # Its page says why.
    return None if before is None else before.peak


def _verdict(
    scanned: Scan, rows: list[dict[str, Any]], prints: list[dict[str, Any]]
) -> list[Figure]:
    counts = scanned.counts
    files = sum(counts.values())
    note = f"in {output.counted(files, 'file')}, {counts['failed']:,} could not be read"
    figures = [Figure("programs", "Programs", len(rows), f"{len(rows):,}", note)]
    timed = [row for row in rows if row["step_seconds"]]
    others = [note.text for note in scanned.notes if note.code == "other-backend"]
    if timed:
        row = max(timed, key=lambda program: program["step_seconds"])
        text = seconds(row["step_seconds"])
        note = "; ".join([f"{row['module_name']}, on {row['device']}; modelled", *others])
        figures.append(Figure("step", "Longest program", row["step_seconds"], text, note))
    else:
        is_whole = any(row["device"] for row in rows)
        why = NOT_PARTITIONED if is_whole else "device unknown: hlofast report --device NAME DIR"
        note = "; ".join(others) or why
        figures.append(Figure("step", "Longest program", None, "unknown", note))
    for key, label, words in (
        ("flops", "Most FLOPs", lambda count: short(count, "FLOP")),
        ("live_peak", "Largest live peak", short_bytes),
        ("modelled_peak", "Largest modelled peak of one device", short_bytes),
        ("wire_bytes", "Most wire bytes", short_bytes),
    ):
        known = [row for row in rows if row[key] is not None]
        if known:
            row = max(known, key=lambda program: program[key])
            if key == "flops" and row["devices_together"] > 1:
                label += TOGETHER
            note = row["module_name"]
            if key == "modelled_peak" and len(rows) > _BARS:
                note += f", of the {_BARS} programs with the most FLOPs"
            figures.append(Figure(key, label, row[key], words(row[key]), note))
    hosts = {row["host"] for row in prints}
    different = sorted(
        {row["program"] for row in prints if row["fingerprint"] and not row["is_common"]}
    )
    text = f"{len(different):,}" if len(hosts) > 1 else "none"
    note = f"of {output.counted(len(hosts), 'host')}" if len(hosts) > 1 else "all from one host"
    figures.append(Figure("differing", "Programs that differ", len(different), text, note))
    return figures


def _largest(rows: list[dict[str, Any]]) -> list[Statement]:
    """A statement about the program with the most FLOPs, if there are several programs."""
    whole = sum(row["flops"] or 0 for row in rows)
    if len(rows) < 2 or not whole:
        return []
    row = max(rows, key=lambda program: program["flops"] or 0)
    text = (
        f"{row['program']} has {output.share(row['flops'], whole)} of the FLOPs of "
        f"{output.counted(len(rows), 'program')}"
    )
    return [Statement("largest-program", text, stake=short(row["flops"], "FLOP"))]


def _programs(rows: list[dict[str, Any]], is_given: bool, pages: Pages) -> Section:
    """Every program, the most FLOPs first, with a link to its page."""
    timed = any(row["step_seconds"] for row in rows)
    columns = (
        ("program", "program", "name"),
        ("step_seconds", "step time", "seconds"),
        ("flops", "FLOPs", "flops"),
        ("devices_together", "devices together", "count"),
        ("live_peak", "live peak", "bytes"),
        ("modelled_peak", "modelled peak", "bytes"),
        ("host", "host", "text"),
        ("status", "status", "text"),
        ("hbm_peak", "HBM peak", "bytes"),
        ("fast_peak", "fast memory peak", "bytes"),
        ("host_peak", "host memory peak", "bytes"),
        ("xla_peak", "XLA peak", "bytes"),
        ("wire_bytes", "wire bytes", "bytes"),
        ("bytes_read", "HBM read", "bytes"),
        ("bytes_written", "HBM written", "bytes"),
        ("instructions", "instructions", "count"),
        ("collectives", "collectives", "count"),
        ("device", "timed for", "text"),
        ("files", "files", "count"),
        ("canonical", "file", "name"),
    )
    table = sheet_of("programs", "Programs", rows, columns, sort="flops", links=pages.links)
    shown = [row | {"place": place} for place, row in enumerate(rows[:_BARS])]
    charts = []
    if shown:
        largest = max(row["flops"] or 0 for row in shown)
        scale, unit = draw.decimal(largest, "FLOP")
        bars = sheet_of("bars", "bars", shown, [*columns, ("place", "place", "count")])
        mark = Mark(
            "hbar",
            {"y": "place", "right": "flops"},
            bars,
            hover=[
                "program",
                "host",
                "step_seconds",
                "flops",
                "devices_together",
                "live_peak",
                "modelled_peak",
                "wire_bytes",
            ],
            height=0.7,
        )
        names = [row["module_name"] or row["program"] for row in shown]
        if len(set(names)) < len(names):
            names = [row["program"] for row in shown]
        note = f"The first {_BARS} of {len(rows):,}." if len(rows) > _BARS else ""
        charts.append(
            Chart(
                "programs",
                "Programs by FLOPs",
                Axis(unit, scale=scale),
                Axis("", kind="factors", factors=names),
                [mark],
                table,
                height=90 + 26 * len(shown),
                note=note,
                shows_figures=True,
            )
        )
    unknown = ""
    if not timed and not is_given:
        unknown = "Times are unknown without a device: hlofast report --device NAME DIR."
    notes = list(pages.refusals)
    if together := sum(row["devices_together"] > 1 for row in rows):
        programs_are = output.counted(together, "program is", "programs are")
        notes.append(
            f"{programs_are} not partitioned yet: FLOPs and HBM traffic cover all devices "
            "together, and the modelled peak one device; times and wire bytes are unknown."
        )
    return Section("programs", "Programs", charts=charts, notes=notes, unknown=unknown)


def _hosts(prints: list[dict[str, Any]]) -> Section:
    """Programs by host and fingerprint."""
    statements = []
    names: dict[str, dict[str, list[str]]] = {}
    for row in prints:
        if row["fingerprint"]:
            of_name = names.setdefault(row["program"], {})
            of_name.setdefault(row["fingerprint"], []).append(row["host"] or "(no host)")
    differing = {row["program"] for row in prints if row["fingerprint"] and not row["is_common"]}
    for name in sorted(differing):
        parts = [
            f"{output.names(sorted(set(hosts)))} ({fingerprint[:8]})"
            for fingerprint, hosts in sorted(names[name].items(), key=lambda item: -len(item[1]))
        ]
        text = f"{len(parts):,} different programs of this name: {'; '.join(parts)}"
        statements.append(
            Statement(
                f"hosts-differ: {name}",
                text,
                remedy="compare two of the files with hlofast diff",
            )
        )
    columns = (
        ("program", "program", "name"),
        ("host", "host", "text"),
        ("fingerprint", "fingerprint", "name"),
        ("hosts", "hosts", "count"),
        ("key", "key in the directory", "name"),
        ("file", "file", "name"),
        ("error", "read error", "text"),
    )
    table = sheet_of("fingerprints", "Programs by host", prints, columns)
    hosts = {row["host"] for row in prints}
    said = output.counted(len(hosts), "host") if hosts - {None} else "unknown: not in folder names"
    facts = [("hosts", said)]
    return Section("hosts", "Hosts", facts=facts, statements=statements, sheets=[table])


def _histories(
    histories: list[Program],
    mesh: Mesh | None,
    sizes: dict[str, int],
    flops: dict[str, int | None],
) -> list[Section]:
    """Histories of the programs with the most FLOPs that have dumps between passes."""
    if not histories:
        why = "No dumps between passes: XLA writes them with --xla_dump_hlo_pass_re=.*"
        return [Section("history", "History", unknown=why)]
    histories.sort(key=lambda program: (-(flops.get(program.key) or 0), -len(program.files)))
    charts, notes = [], []
    for number, program in enumerate(histories[:_HISTORIES]):
        size = sizes.get(program.key, 0)
        if size > _MOST_BYTES:
            notes.append(f"{program.key}: {size:,} B of dumps, not shown; see hlofast history")
            continue
        charts.append(_history(History(program, mesh), number))
    if len(histories) > _HISTORIES:
        left = output.counted(len(histories) - _HISTORIES, "more program")
        notes.append(f"{left} with dumps between passes, not shown; see hlofast history")
    return [Section("history", "History", charts=charts, notes=notes)]


def _history(history: History, number: int) -> Chart:
    rows = history.to_pylist()
    for place, row in enumerate(rows):
        row["number"] = place
        row["after"] = row["pass"] or row["stage"]
    numbers = [(name, name.replace("_", " "), _kind(name)) for name in FIGURES]
    columns = [
        ("number", "dump", "count"),
        ("after", "after", "text"),
        *numbers,
        ("pipeline", "pipeline", "text"),
        *((name, name, "count") for name in KINDS),
        ("error", "read error", "text"),
    ]
    key = history.program.key
    table = sheet_of(f"history-{number}", f"Passes of {key}", rows, columns)
    counts = [
        _line(rows, name, draw.PALETTE[place])
        for place, name in enumerate(("instructions", "fusions", "collectives"))
    ]
    return Chart(
        f"history-{number}",
        f"Effect of passes on {key}",
        Axis("dump, in the order of compilation", kind="whole", limits=(0, len(rows))),
        Axis("number"),
        counts,
        table,
        shows_figures=True,
    )


def _failures(scanned: Scan) -> Section:
    """Files that could not be read."""
    columns = [("path", "file", "name"), ("reason", "reason", "text"), ("line", "line", "count")]
    table = sheet_of("failures", "Unreadable files", scanned.failures, columns)
    return Section("failures", "Unreadable files", sheets=[table])


def _kind(name: str) -> str:
    if name == "flops":
        return "flops"
    return "bytes" if name in ("bytes_accessed", "live_peak", "wire_bytes") else "count"


def _line(rows: list[dict[str, Any]], name: str, color: str) -> Mark:
    known = [row for row in rows if row[name] is not None]
    if known:  # Each dump is as wide as one number, also the last.
        known.append(known[-1] | {"number": known[-1]["number"] + 1})
    sheet: Sheet = sheet_of(
        name, name, known, [("number", "dump", "count"), (name, name, _kind(name))]
    )
    fields = {"x": "number", "y": name}
    return Mark("step", fields, sheet, color=color, legend=name, mode="after", line_width=2)
