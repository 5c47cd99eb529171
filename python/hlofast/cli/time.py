"""How long a step takes on a device: computing, moving data, waiting for collectives by axis."""

from __future__ import annotations

from hlofast import _text as output
from hlofast.cli import USAGE, inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from hlofast._time import Time

EXAMPLES = """\
examples:
  hlofast time --device tpu-v5e module_0042.jit_train_step.after_optimizations.txt
  hlofast time --device tpu-v5p --mesh data=2,model=4 --by phase step.txt
  hlofast time --device h100 --mesh data=2,model=8 --hosts 2 step.txt
  hlofast time --device mine --devices mine.toml --estimates roofline step.txt
  hlofast time --device v6e --json step.txt | jq '.modules[].step'

The step is the schedule of the dump played on one device: asynchronous collectives and copies run
beside what is scheduled until their end, and what is left then is exposed. --estimates says whose
seconds of instructions count: the model (on TPU windows, tiles and systolic arrays as the compiler
reckons; else the roofline), the roofline alone, or the compiler's estimated_cycles where the dump
has them. --collectives says whose formulas: the topology's latencies and bandwidths, XLA's
speed-of-light for hosts of GPUs, Alpa's costs, or a file of measurements (.csv, .json, .pkl).
`--devices FILE.toml` adds to the built-in devices or changes them.
"""
VERSION = 1
KEYS = ("bound", "opcode", "computation", "phase", "scope", "source")
MODELS = ("topology", "speed-of-light", "alpa")


def add_timing(parser: argparse.ArgumentParser) -> None:
    """The arguments that say on what a module runs and whose figures count."""
    inputs.add_device(parser)
    inputs.add_mesh(parser)
    parser.add_argument(
        "--estimates",
        choices=("model", "roofline", "compiler"),
        default="model",
        help="whose seconds of instructions (default model)",
    )
    parser.add_argument(
        "--collectives",
        metavar="MODEL",
        default="topology",
        help=f"{', '.join(MODELS)} or a file of measurements (default topology)",
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    inputs.add_files(parser)
    add_timing(parser)
    parser.add_argument("--by", choices=KEYS, default="bound", help="rows (default bound)")
    output.add_top(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def read_timing(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """The arguments of `Module.time`; None, and said why, if they make no sense."""
    from hlofast import devices

    try:
        known = devices.load(arguments.devices) if arguments.devices else devices.built_in()
        if arguments.device is None:
            inputs.complain(f"which --device? known are: {', '.join(known)}")
            return None
        device = known[arguments.device]
        models = arguments.collectives in MODELS
        collectives = (
            arguments.collectives if models else devices.read_measurements(arguments.collectives)
        )
    except (OSError, ValueError) as error:
        inputs.complain(str(error))
        return None
    is_mesh, mesh = inputs.read_mesh(arguments)
    if not is_mesh:
        return None
    return {
        "device": device,
        "mesh": mesh,
        "estimates": arguments.estimates,
        "collectives": collectives,
    }


def run(arguments: argparse.Namespace) -> int:
    """Time the modules of every file."""
    timing = read_timing(arguments)
    if timing is None:
        return USAGE
    reader = inputs.Reader(arguments)
    printer = None if arguments.json else output.Printer()
    documents = []
    for found in reader:
        inputs.note_misfit(found.module, found.path, timing["mesh"])
        time = found.module.time(**timing)
        document = found.describe() | _describe(time, arguments)
        if printer is None:
            documents.append(output.finite(document))
        else:
            _print(printer, document, arguments)
    if printer is None:
        contents = {
            "by": arguments.by,
            "device": _device(timing["device"]),
            "modules": documents,
            "errors": reader.errors,
        }
        output.print_json("time", VERSION, contents)
    return reader.exit_code()


def _device(device: Any) -> dict[str, Any]:
    """The device with all its figures and their sources."""
    cells = {f"flops.{key}": peak for key, peak in device.flops.items()} | dict(device)
    return {
        "name": device.name,
        "label": device.label,
        "figures": {
            key: {"value": figure.value, "source": figure.source} for key, figure in cells.items()
        },
    }


def _describe(time: Time, arguments: argparse.Namespace) -> dict[str, Any]:
    """The JSON form of one module's time."""
    groups = time.by(arguments.by).to_pylist()
    for row in groups:
        row["key"] = row.pop(arguments.by) or None
    collectives = time.collectives.to_pylist()
    for row in collectives:
        for name in ("payload", "group_size", "multiplicity"):
            row[name] = None if row[name] < 0 else row[name]
        row["unknown"] = row["unknown"] or None
    return {
        "device": time.device.name,
        "estimates": time.estimates,
        "collective_model": arguments.collectives,
        "mesh": time.mesh,
        "mesh_source": time.mesh_source,
        "step": describe_step(time),
        "utilization": _utilization(time),
        "compiler": _compiler(time),
        "groups": groups,
        "collectives": collectives,
        "unknown_figures": list(time.unknown),
        "loops_of_unknown_trip_count": list(time.open_loops),
        "notes": notes(time, has_levels(arguments)),
    }


def describe_step(time: Time) -> dict[str, Any]:
    """Seconds of a step by what they go to."""
    return {
        "seconds": time.step_seconds,
        "compute_seconds": time.compute_seconds,
        "memory_seconds": time.memory_seconds,
        "other_seconds": time.other_seconds,
        "exposed_seconds": time.exposed,
        "bound": time.bound,
        "is_lower_bound": bool(time.unknown or time.open_loops),
    }


def _utilization(time: Time) -> dict[str, float] | None:
    if not time.step_seconds > 0 or time.device.value("flops.bf16") is None:
        return None
    if time.device.value("jax_devices") is None:
        return None
    return time.utilization.as_dict()


def _compiler(time: Time) -> dict[str, Any] | None:
    """What the compiler expects beside what the model does, over instructions that have both."""
    cycles = time._data.column("compiler_seconds").tolist()
    seconds = time._data.column("seconds").tolist()
    times = time._data.column("multiplicity").tolist()
    rows = [row for row, value in enumerate(cycles) if value == value and times[row] > 0]
    if not rows:
        return None
    return {
        "instructions": len(rows),
        "compiler_seconds": sum(cycles[row] * times[row] for row in rows),
        "seconds": sum(seconds[row] * times[row] for row in rows),
    }


def has_levels(arguments: argparse.Namespace) -> bool:
    """Whether hosts or slices are given."""
    return arguments.hosts is not None or arguments.slices is not None


def notes(time: Time, has_levels: bool) -> list[dict[str, Any]]:
    """What to keep in mind about a time, whose mesh was given with or without hosts and slices."""
    noted: list[dict[str, Any]] = []

    def note(kind: str, text: str) -> None:
        noted.append({"kind": kind, "text": text})

    from hlofast._time import NO_AXES

    collectives = time.collectives
    if not time.module.is_scheduled:
        note("unscheduled", "the module is not scheduled: its instructions ran in text order")
    if (summary := time.module.summary()).is_unfused:
        note(
            "unfused",
            f"the module is {summary.status}: instructions are not fused yet and move several "
            f"times the bytes that run",
        )
    if len(collectives) and time.mesh is None:
        note("no-mesh", "no mesh is known: all collectives share one set of links")
    elif len(collectives) and time.mesh_source != "given":
        words = time.mesh_source.replace("_", " ")
        note("derived-mesh", f"mesh {time.mesh}, derived from {words}")
    misfits = sum(row["axes"] == NO_AXES for row in collectives)
    if misfits:
        note(
            "no-axes",
            f"the devices of {output.counted(misfits, 'collective')} differ along no axes of mesh "
            f"{time.mesh}: `hlofast collectives` says why",
        )
    if len(collectives) and not has_levels:
        note("one-level", "neither hosts nor slices are given: all devices are one network level")
    if time.device.backend == "tpu" and time.estimates != "roofline":
        note(
            "compiler-scale",
            "seconds of instructions follow the TPU compiler's own estimates, which are slower "
            "than hardware where HBM limits; --estimates roofline gives the other end",
        )
    return noted


def seconds(value: float) -> str:
    """A duration for people."""
    if value != value:
        return "unknown"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value * 1e9:.4g} ns" if value else "0 s"


def _print(
    printer: output.Printer, document: dict[str, Any], arguments: argparse.Namespace
) -> None:
    step = document["step"]
    whole = step["seconds"]
    least = "at least " if step["is_lower_bound"] else ""
    line = f", line {document['line']:,}" if document["line"] > 1 else ""
    mesh = document["mesh"] or "unknown"
    printer.heading(document["name"])
    facts = [
        ("file", f"{document['path']}{line}"),
        ("device", f"{document['device']}, estimates {document['estimates']}"),
        ("mesh", mesh),
        ("step", f"{least}{seconds(whole)}, bound by {step['bound']}"),
    ]
    for name, part in (
        ("compute", step["compute_seconds"]),
        ("memory", step["memory_seconds"]),
        ("other", step["other_seconds"]),
        *((f"exposed, {axes}", part) for axes, part in step["exposed_seconds"].items()),
    ):
        if part:
            facts.append((name, f"{seconds(part)} ({output.share(part, whole)})"))
    if document["utilization"] is not None:
        found = document["utilization"]
        facts.append(("MFU", f"{found['mfu']:.1%}, HFU {found['hfu']:.1%}"))
    if document["compiler"] is not None:
        beside = document["compiler"]
        facts.append(
            (
                "compiler",
                f"{seconds(beside['compiler_seconds'])} in "
                f"{output.counted(beside['instructions'], 'instruction')}, "
                f"here {seconds(beside['seconds'])}",
            )
        )
    printer.facts(facts)
    limit = arguments.top or None
    total = sum(row["seconds"] for row in document["groups"])
    rows = [
        [
            row["key"] or "(none)",
            row["instructions"],
            output.Figure(seconds(row["seconds"])),
            output.share(row["seconds"], total),
        ]
        for row in document["groups"][:limit]
    ]
    title = f"By {arguments.by}, each instruction by itself"
    printer.table(
        title, [arguments.by, "instructions", "time", "share"], rows, len(document["groups"])
    )
    if document["collectives"]:
        _print_collectives(printer, document, arguments)
    missing = document["unknown_figures"]
    if missing:
        printer.line()
        words = ", ".join(missing)
        printer.paragraph("unknown: ", f"{words}; what needs them counts as 0 s")
    if document["loops_of_unknown_trip_count"]:
        printer.line()
        names = output.names(document["loops_of_unknown_trip_count"])
        printer.paragraph("unknown: ", f"trip counts of {names}, counted once")
    printer.notes(document["notes"])


def _print_collectives(
    printer: output.Printer, document: dict[str, Any], arguments: argparse.Namespace
) -> None:
    found = sorted(
        document["collectives"],
        key=lambda row: -row["seconds"] * (row["multiplicity"] or 1),
    )
    limit = arguments.top or None
    # Inside of fusions and calls, that of the schedule is another name than `collectives` prints.
    has_inner = any(row["collective"] != row["name"] for row in found[:limit])
    rows = [
        [
            row["name"],
            *([row["collective"]] if has_inner else []),
            row["kind"],
            row["axes"],
            output.size(row["payload"]),
            row["group_size"],
            output.Figure("unknown" if row["unknown"] else seconds(row["seconds"])),
            output.Figure(seconds(row["alpha_seconds"])),
            output.Figure(seconds(row["exposed_seconds"])),
            row["multiplicity"],
        ]
        for row in found[:limit]
    ]
    columns = ["scheduled as", "collective"] if has_inner else ["name"]
    columns += "kind|axes|payload|devices|time|of it latency|exposed|times".split("|")
    printer.table("Collectives, one execution each", columns, rows, len(found))
