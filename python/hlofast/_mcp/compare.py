"""The tools that read more than a program: `diff`, `plan`, `check` and `oom`."""

from __future__ import annotations

import os

import hlofast
from hlofast._mcp import schema
from hlofast._mcp.files import RefusedError
from hlofast._mcp.tools import MODULE, Session, tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast._context import Told
    from hlofast._mcp.answer import Answer
    from hlofast._module import Module
    from hlofast._programs import Program
    from hlofast.config import Config

_INSTANCE = schema.text("Instance, such as v5p-128 or tpu-v6e-256-4.")


@tool(
    "diff",
    "What changed between two dumps: files, or folders program by program. Names are ignored.",
    {
        "before": schema.text("First file or dump folder, relative to the root."),
        "after": schema.text("Second file or dump folder."),
        **{name: MODULE[name] for name in ("module", "mesh", "device")},
    },
    "before",
    "after",
    top=5,
)
def _diff(session: Session, answer: Answer, arguments: dict[str, Any]) -> None:
    from hlofast._comparison import Comparison

    before, after = (session.path(arguments[side]) for side in ("before", "after"))
    folders = [os.path.isdir(path) for path in (before, after)]
    if any(folders) and not all(folders):
        raise RefusedError("give two files, or two dump folders")
    shown = [session.root.shown(path) for path in (before, after)]
    if not any(folders):
        sides = [
            session.module({**arguments, "path": arguments[side]})[0]
            for side in ("before", "after")
        ]
        compared = hlofast.diff(*sides)
        answer.facts([("equal", "yes" if compared.is_empty else "no")])
        answer.show(compared, compared.sections())
        return
    whole = Comparison(*shown)
    pairs = _compared(session, whole, (before, after), arguments)
    answer.show(whole, whole.changes())
    if len(pairs) == 1 and not pairs[0].is_empty:
        answer.show(pairs[0], pairs[0].sections()[:2])


def _compared(
    session: Session, whole: Any, paths: tuple[str, str], arguments: dict[str, Any]
) -> list[Any]:
    """Adds the programs of two folders to a comparison; returns the differences of each pair."""
    from hlofast._comparison import Folders
    from hlofast._programs import is_same_source

    for path in paths:
        session.programs(path)  # Refuses links before any file is read.
    folders = Folders(paths, arguments.get("module"))
    for faults in folders.faults:
        for path, error in faults:
            raise RefusedError(f"{session.root.shown(path)}: {error}")
    if folders.is_empty:
        raise RefusedError(f"neither folder has a program {arguments.get('module')!r}")
    diffs = []
    for pair in folders.pairs:
        compared = hlofast.diff(*(_whole(session, each, arguments) for each in pair))
        places = [_place(session, each) for each in pair]
        is_same = None if compared.is_empty else is_same_source(*pair)
        whole.add(pair[1].key, compared, *places, is_same)
        diffs.append(compared)
    for side, rest in zip(("before", "after"), folders.unmatched, strict=True):
        for program in rest:
            whole.lacks(side, program.name, _place(session, program))
    whole.hosts = folders.missing_hosts
    return diffs


def _whole(session: Session, program: Program, arguments: dict[str, Any]) -> Module:
    path = program.files[0].path
    module = session.modules.of_file(path)[0]
    if (fault := module.missing_entry) is not None:
        raise fault
    return session.told(module, arguments)


def _place(session: Session, program: Program) -> dict[str, Any]:
    path = session.root.shown(program.files[0].path)
    return {"path": path, "line": 1, "label": program.key, "host": program.host or None}


@tool(
    "plan",
    "The fastest mesh, batch and checkpoint policy of a trainer config that fit on a machine.",
    {
        "path": schema.text("AXLearn or MaxText config; without it, MaxText's defaults."),
        "overrides": schema.texts("MaxText values, such as model_name=llama3.1-8b."),
        "instance": _INSTANCE,
        "device": schema.text("Chip, such as v5p, with chips, instead of instance."),
        "chips": schema.number("Number of chips, with device.", 1, 10_000_000),
        "batch": schema.number("Global batch in sequences; 0: the plan chooses.", 0, 2**31),
        "like": schema.text("Compare this choice with the best: own, or fsdp=64,policy=full."),
    },
    top=3,
)
def _plan(session: Session, answer: Answer, arguments: dict[str, Any]) -> None:
    from hlofast import devices
    from hlofast.config import _instances, _torus

    config = _config(session, arguments.get("path"), arguments.get("overrides", []))
    device, count, name = None, None, arguments.get("instance")
    if (name is None) == ("device" not in arguments):
        raise RefusedError("give instance, or device with chips")
    if name is None:
        if "chips" not in arguments:
            raise RefusedError("device needs chips, the number of chips in all")
        device = devices.get(arguments["device"])
        _torus.check_slices(device.name, arguments["chips"])
        count = int(arguments["chips"] * int(device.value("jax_devices") or 1))
        name = _instances.named(device.name, count, 1)
    plan = config.plan(name, count, device=device, sequences=arguments.get("batch"))
    if "like" not in arguments:
        answer.show(plan, plan.sections())
        return
    liked = plan.like(arguments["like"])
    answer.show(liked, liked.sections())


def _config(session: Session, name: str | None, overrides: list[str]) -> Config:
    """Reads a config, and the files that it needs."""
    from hlofast.config import _load

    if name is not None:
        return session.config(session.path(name), overrides)
    if not overrides:
        raise RefusedError("give path, or overrides such as model_name=llama3.1-8b")
    return _load.defaults(session.sources(overrides))


@tool(
    "check",
    "A declaration (mesh, shardings, limits) or a config compared with a program; limits for CI.",
    {
        **MODULE,
        "config": schema.text("TOML declaration, or AXLearn or MaxText config with instance."),
        "instance": _INSTANCE,
        "expect": schema.text("Limits as TOML text or .toml file: peak.max = '15.5GiB'."),
    },
    "path",
    top=5,
)
def _check(session: Session, answer: Answer, arguments: dict[str, Any]) -> None:
    if "config" not in arguments and "expect" not in arguments:
        raise RefusedError("give config, expect, or both")
    expected = None
    if "expect" in arguments:
        text = arguments["expect"]
        if text.strip().endswith(".toml") and "\n" not in text and "=" not in text:
            expected = hlofast.Expectations.load(session.path(text.strip()))
        else:
            expected = hlofast.Expectations.loads(text)
    declared: Any = hlofast.Declaration()
    if "config" in arguments:
        path = session.path(arguments["config"])
        if path.endswith(".toml"):
            declared = hlofast.Declaration.load(path)
        elif "instance" not in arguments:
            raise RefusedError("a trainer config needs instance, which gives its mesh")
        else:
            declared = _config(session, arguments["config"], []).select(arguments["instance"])
    module, shown = session.module(arguments)
    check = hlofast.check(declared, module, expected)
    answer.show(check, check.sections(), path=shown)


@tool(
    "oom",
    "Out-of-memory messages and partitioner warnings of a log: what holds the memory, what helps.",
    {
        "path": schema.text("The log, or a memory file of XLA, below the root."),
        "dump": schema.text("Dump of the program, to join its live values."),
        "mesh": MODULE["mesh"],
    },
    "path",
    top=5,
)
def _oom(session: Session, answer: Answer, arguments: dict[str, Any]) -> None:
    from hlofast._messages.api import read_stream

    path = session.path(arguments["path"])
    module = None
    if "dump" in arguments:
        module, _ = session.module({"path": arguments["dump"]})
    told: Told = {"mesh": arguments["mesh"]} if "mesh" in arguments else {}
    context = None
    if told:
        from hlofast._context import Context

        context = Context(**told)
        module = None if module is None else module.with_context(context)
    with session.root.open(path) as file:
        messages = read_stream(file, module=module, context=context)
    answer.show(messages, messages.sections(), path=session.root.shown(path))
