"""What configs imply, as `hlofast config` shows it: the JSON form, columns, a section."""

from __future__ import annotations

from hlofast import _text as output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast.config import EffectiveConfig

HEADINGS = ("state", "bound", "peak", "of", "host", "verdict", "most for", "step", "MFU")


def document(effective: EffectiveConfig) -> dict[str, Any]:
    """The JSON form of what a config implies on an instance; None for what is not known."""
    verdict = effective.verdict()
    memory, flops, traffic = verdict.memory, verdict.flops, verdict.traffic
    return {
        "parameters": flops.parameters,
        "status": verdict.status,
        "binding_term": verdict.binding_term,
        "capacity_bytes": verdict.capacity_bytes,
        "state_bytes": memory.state_bytes,
        "hbm_lower_bound": memory.hbm_lower_bound,
        "expected_peak_bytes": memory.expected_peak_bytes,
        "relaxed_peak_bytes": memory.relaxed_peak_bytes,
        "excess_bytes": verdict.excess_bytes,
        "host_bytes": memory.host_bytes,
        "memory": memory.table.to_pylist(),
        "expected_terms": memory.expected_terms.to_pylist(),
        "replicated": memory.replicated.to_pylist(),
        "sequences_per_device": verdict.sequences_per_device,
        "flops": {
            "six_n_t": flops.six_n_t,
            "model": flops.model,
            "attention": flops.attention,
            "recomputed": flops.recomputed,
            "executed": flops.executed,
        },
        "gathered_bytes": traffic.gathered_bytes,
        "traffic": traffic.table.to_pylist(),
        "compute_seconds": verdict.compute_seconds,
        "communication_seconds": verdict.communication_seconds,
        "step_seconds": verdict.step_seconds,
        "mfu": verdict.mfu,
        "statements": list(verdict.statements),
        "unmodelled": effective.unmodelled().to_pylist(),
    }


def cells(selection: dict[str, Any]) -> list[object]:
    """Cells below `HEADINGS`."""
    implied = selection["implied"]
    return [
        _gibibytes(implied["state_bytes"]),
        _gibibytes(implied["hbm_lower_bound"]),
        _gibibytes(implied["expected_peak_bytes"]),
        _gibibytes(implied["capacity_bytes"]),
        _gibibytes(implied["host_bytes"]),
        implied["status"],
        implied["binding_term"],
        _seconds(implied["step_seconds"]),
        _percent(implied["mfu"]),
    ]


def tell(printer: output.Printer, selections: list[dict[str, Any]]) -> None:
    """Print what is worth knowing about several instances, each sentence once."""
    told: dict[str, dict[str, None]] = {}
    for selection in selections:
        for text in selection["implied"]["statements"]:
            # A name that may mean several numbers of devices stands there several times.
            told.setdefault(text, {})[selection["instance"]] = None
    if told:
        printer.line()
    for text, names in told.items():
        printer.paragraph("note: ", f"{text} ({output.names(list(names))})")


def show(printer: output.Printer, implied: dict[str, Any], limit: int | None) -> None:
    """Print the section about one instance."""
    verdict = implied["status"]
    if implied["excess_bytes"]:
        verdict += f", by {output.size(implied['excess_bytes'])}"
    if implied["binding_term"]:
        verdict += f"; most for {implied['binding_term']}"
    flops = implied["flops"]
    step = _seconds(implied["step_seconds"])
    printer.line()
    printer.heading("What it implies")
    printer.facts(
        [
            ("verdict", verdict),
            ("state", _bytes(implied["state_bytes"])),
            ("bound", _bytes(implied["hbm_lower_bound"])),
            ("expected peak", _peak(implied)),
            ("memory", _bytes(implied["capacity_bytes"])),
            ("host memory", _bytes(implied["host_bytes"])),
            ("sequences", _sequences(implied["sequences_per_device"])),
            ("operations", _operations(flops)),
            ("gathered", _bytes(implied["gathered_bytes"])),
            ("ideal step", f"{step}, MFU {_percent(implied['mfu'])}" if step else ""),
        ]
    )
    memory = [
        [row["term"], row["place"], row["bytes"], row["provenance"], row["text"]]
        for row in implied["memory"]
        if row["bytes"] != 0
    ]
    columns = ["term", "place", "bytes", "provenance", "what"]
    printer.table("Memory of one device", columns, memory, len(memory))
    traffic = sorted(implied["traffic"], key=lambda row: -row["total_payload"])
    columns = ["moved", "kind", "axes", "phase", "payload", "count", "total_payload", "tensor"]
    rows = [[row[column] for column in columns] for row in traffic[:limit]]
    headings = [column.replace("_payload", "") for column in columns]
    printer.table("What one device exchanges in a step (bytes)", headings, rows, len(traffic))
    if implied["statements"]:
        printer.line()
    for text in implied["statements"]:
        printer.paragraph("note: ", text)


def _bytes(size: int | None) -> str:
    return "" if size is None else output.size(size)


def _peak(implied: dict[str, Any]) -> str:
    least, most = implied["expected_peak_bytes"], implied["relaxed_peak_bytes"]
    return "" if least is None else f"{output.size(least)}, {output.size(most)} if there is room"


def _gibibytes(size: int | None) -> str | None:
    return None if size is None else f"{size / 2**30:,.2f} GiB"


def _seconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.3g} s"


def _percent(part: float | None) -> str | None:
    return None if part is None else f"{100 * part:.1f} %"


def _sequences(count: float | None) -> str:
    return "" if count is None else f"{count:g} on a device at a time"


def _operations(flops: dict[str, int | None]) -> str:
    executed, again = flops["executed"], flops["recomputed"]
    if not executed or again is None:
        return ""
    return f"{executed:.4g} in a step, {_percent(again / executed)} of them computed again"
