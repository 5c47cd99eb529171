"""Trainer configs: what their mesh rules make of them, on one instance or on all; what differs."""

from __future__ import annotations

import sys

from hlofast import _text as output
from hlofast.cli import DONE, FINDINGS, UNREADABLE, USAGE, implied, inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any

    from hlofast.config import Config, EffectiveConfig

EXAMPLES = """\
examples:
  hlofast config fuji-70B.txt                             all mesh rules, with their meshes
  hlofast config fuji-70B.txt --instance tpu-v6e-256-4    what the rule for it changes, and why
  hlofast config fuji-70B.txt --instance neuron-trn2.48xlarge-64 --devices 4096
  hlofast config fuji-70B.txt --instance tpu-v5p-1024 --text > effective.txt
  hlofast config monday.txt --diff tuesday.txt            exit code 1 if there are differences
  hlofast config --json fuji-70B.txt | jq '.configs[].selections[] | [.instance, .mesh]'

FILE is a config as AXLearn's debug_string prints it (a golden config). A rule matches if its
regular expression matches the whole name of the instance; the first one that does is taken. In
tables "-" is a value that is not there. What AXLearn does is modelled for its own modifiers;
others are named. With --diff values that mean the same are equal, and the order of keys is none.
"""
VERSION = 1
NOTHING = "-"
KINDS = ("changed", "added", "removed")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument("files", nargs="+", metavar="FILE", help='config; "-" is standard input')
    parser.add_argument(
        "--instance",
        action="append",
        default=[],
        metavar="NAME",
        help="what the config is on this instance, tpu-v5litepod-256-4; may be repeated",
    )
    parser.add_argument(
        "--devices",
        type=inputs.count,
        metavar="N",
        help="how many devices, where names of instances do not say",
    )
    parser.add_argument("--diff", metavar="FILE", help="compare with this config")
    parser.add_argument("--text", action="store_true", help="print the config on the instance")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    output.add_top(parser)


def run(arguments: argparse.Namespace) -> int:
    """Describe every config."""
    problem = _misuse(arguments)
    if problem:
        inputs.complain(problem)
        return USAGE
    failures = inputs.Failures()
    if arguments.diff is not None:
        before, after = (_read(path, failures) for path in (arguments.files[0], arguments.diff))
        if before is None or after is None:
            if arguments.json:
                output.print_json("config", VERSION, {"configs": [], "errors": failures.errors})
            return UNREADABLE
        return compare(before, after, arguments)
    printer = None if arguments.json or arguments.text else output.Printer()
    documents = []
    for path in arguments.files:
        config = _read(path, failures)
        if config is None:
            continue
        if arguments.text:
            _write(_effective(config, arguments).to_text())
            continue
        document = _describe(config, arguments)
        if printer is None:
            documents.append(output.finite(document))
        else:
            _print(printer, document, arguments)
    if arguments.json:
        output.print_json("config", VERSION, {"configs": documents, "errors": failures.errors})
    return UNREADABLE if failures.errors else DONE


def compare(before: Config, after: Config, arguments: argparse.Namespace) -> int:
    """Say what is different between two configs, as `--json` and `--top` of `arguments` say."""
    rows = before.diff(after).to_pylist()
    difference = {"path": after.file, "rows": rows}
    document = _summary(before) | {"rules": [], "selections": [], "difference": difference}
    if arguments.json:
        output.print_json("config", VERSION, {"configs": [document], "errors": []})
    else:
        printer = output.Printer()
        printer.heading(f"{before.file} and {after.file}")
        kinds = [row["change"] for row in rows]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in KINDS if kind in kinds)
        printer.facts([("differences", counts or "none")])
        _print_changes(printer, "Differences", rows, "change", arguments.top)
    return FINDINGS if rows else DONE


def _misuse(arguments: argparse.Namespace) -> str | None:
    if arguments.diff is not None and (len(arguments.files) > 1 or arguments.instance):
        return "--diff compares one FILE with another, as they are written"
    if arguments.text and (arguments.json or len(arguments.instance) > 1):
        return "--text prints one config, and no JSON"
    if [*arguments.files, arguments.diff].count("-") > 1:
        return "standard input can be read only once"
    return None


def _read(path: str, failures: inputs.Failures) -> Config | None:
    """The config in a FILE argument; None, and said why, if there is none."""
    from hlofast import config

    name = "<stdin>" if path == "-" else path
    try:
        return config.loads(inputs.read(path), path=name)
    except (OSError, config.ConfigError) as error:
        failures.failed(name, error)
        return None


def _effective(config: Config, arguments: argparse.Namespace) -> Config:
    """The config that `--text` prints."""
    for name in arguments.instance:
        return config.select(name, arguments.devices).config
    return config


def _write(text: str) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "surrogatepass"))
    sys.stdout.buffer.flush()


def _summary(config: Config) -> dict[str, Any]:
    axes = config.get("mesh_axis_names")
    names = axes.to_python() if axes is not None and not isinstance(axes, (str, bytes)) else []
    return {
        "path": config.file,
        "klass": config.klass,
        "values": sum(1 for _ in config.leaves()),
        "parameters": config.parameter_count(),
        "mesh_axis_names": names if isinstance(names, list) else [],
    }


def _describe(config: Config, arguments: argparse.Namespace) -> dict[str, Any]:
    """The JSON form of a config."""
    rules = [
        row
        | {
            "modifiers": [name for name in row["modifiers"].split(",") if name],
            "instances": None if row["instances"] is None else row["instances"].split(","),
        }
        for row in config.rules()
    ]
    if arguments.instance:
        chosen = [config.select(name, arguments.devices) for name in arguments.instance]
    else:
        chosen = config.select_all(arguments.devices)
    selections = [_selection(effective) for effective in chosen]
    return _summary(config) | {"rules": rules, "selections": selections, "difference": None}


def _selection(effective: EffectiveConfig) -> dict[str, Any]:
    """The JSON form of a config on an instance."""
    mesh = effective.mesh
    return {
        "instance": effective.instance.name,
        "device": effective.instance.device,
        "devices": effective.devices,
        "slices": effective.instance.slices,
        "rule": effective.rule,
        "selector": effective.selector,
        "mesh": None if mesh is None else dict(mesh.shape),
        "accumulation_steps": effective.accumulation_steps,
        "changes": effective.changes.to_pylist(),
        "notes": effective.notes.to_pylist(),
        "implied": implied.document(effective),
    }


def _mesh(selection: dict[str, Any]) -> str:
    if selection["mesh"] is None:
        return "unknown"
    cut = [f"{name}={size}" for name, size in selection["mesh"].items() if size > 1]
    return ",".join(cut) or "one device"


def _noted(selection: dict[str, Any]) -> str:
    """The kinds of the notes, those that say something about the figures first."""
    kinds = [note["kind"] for note in selection["notes"]]
    return ", ".join(dict.fromkeys(kind for kind in kinds if kind != "dead-values")) or "-"


COLUMNS: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    ("rule", lambda row: row["rule"]),
    ("instance", lambda row: row["instance"]),
    ("devices", lambda row: row["devices"]),
    ("mesh", _mesh),
    ("accumulation", lambda row: row["accumulation_steps"]),
    ("changes", lambda row: len(row["changes"])),
    ("noted", _noted),
]
"""What the table of all rules shows of a selection: headings and cells."""


def _print(
    printer: output.Printer, document: dict[str, Any], arguments: argparse.Namespace
) -> None:
    printer.heading(document["klass"] or document["path"])
    names = ", ".join(map(str, document["mesh_axis_names"]))
    facts = [("file", document["path"]), ("values", f"{document['values']:,}"), ("axes", names)]
    if document["parameters"] is not None:
        facts.append(("parameters", f"{document['parameters']:,}"))
    facts.append(("mesh rules", f"{len(document['rules'])}"))
    printer.facts(facts)
    if arguments.instance:
        for selection in document["selections"]:
            _print_selection(printer, selection, arguments)
    else:
        _print_rules(printer, document, arguments.top or None)
    printer.line()


def _print_rules(printer: output.Printer, document: dict[str, Any], limit: int | None) -> None:
    selections = document["selections"]
    rows = [[cell(selection) for _, cell in COLUMNS] for selection in selections]
    printer.table("All rules", [heading for heading, _ in COLUMNS], rows, len(rows))
    rows = [[row["rule"], row["instance"], *implied.cells(row)] for row in selections]
    headings = ["rule", "instance", *implied.HEADINGS]
    printer.table("What they imply, on one device", headings, rows, len(rows))
    rules = [
        [
            row["rule"],
            row["selector"],
            row["mesh_shape"],
            ", ".join(name.removesuffix("Modifier") for name in row["modifiers"]) or None,
        ]
        for row in document["rules"]
    ]
    headings = ["rule", "selector", "mesh shape", "modifiers"]
    printer.table("As written", headings, rules[:limit], len(rules))
    told: dict[str, dict[str, None]] = {}
    for selection in selections:
        for note in selection["notes"]:
            # A name that may mean several numbers of devices stands there several times.
            told.setdefault(note["text"], {})[selection["instance"]] = None
    if told:
        printer.line()
    for text, names in told.items():
        printer.paragraph("note: ", f"{text} ({output.names(list(names))})")
    implied.tell(printer, selections)


def _print_selection(
    printer: output.Printer, selection: dict[str, Any], arguments: argparse.Namespace
) -> None:
    printer.line()
    printer.heading(selection["instance"])
    rule = "none" if selection["rule"] is None else f"{selection['rule']}, {selection['selector']}"
    devices = "unknown" if selection["devices"] is None else f"{selection['devices']:,}"
    if selection["slices"] > 1:
        devices += f" on {selection['slices']:,} slices"
    if selection["device"]:
        devices += f" ({selection['device']})"
    facts = [("rule", rule), ("devices", devices), ("mesh", _mesh(selection))]
    if selection["accumulation_steps"] is None:
        facts.append(("accumulation", "unknown"))
    elif selection["accumulation_steps"] > 1:
        steps = f"{selection['accumulation_steps']} parts of a batch, one after the other"
        facts.append(("accumulation", steps))
    printer.facts(facts)
    title = "What the rule changes"
    _print_changes(printer, title, selection["changes"], "why", arguments.top)
    if selection["notes"]:
        printer.line()
    for note in selection["notes"]:
        printer.paragraph("note: ", note["text"])
    implied.show(printer, selection["implied"], arguments.top or None)


def _print_changes(
    printer: output.Printer, title: str, rows: list[dict[str, Any]], last: str, limit: int
) -> None:
    shown = [
        [
            output.label(row["path"]),
            _value(row["before"]),
            _value(row["after"]),
            row[last],
        ]
        for row in rows[: limit or None]
    ]
    printer.table(title, ["path", "before", "after", last], shown, len(rows))


def _value(text: str | None) -> str:
    return NOTHING if text is None else output.label(text)
