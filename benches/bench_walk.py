"""Reading a module in Python: walking instructions, lists in bulk, one column."""

from collections.abc import Callable
from typing import Any

import numpy as np

import hlofast
from harness import Figure, Record, against, interleave
from texts import dumps, seed


def walk(module: Any) -> list[Any]:
    return [
        (i.name, i.opcode, [operand.name for operand in i.operands])
        for computation in module.computations
        for i in computation.instructions
    ]


def walk_xla(module: Any) -> list[Any]:
    return [
        (i.name, i.opcode, [operand.name for operand in i.operands()])
        for computation in module.computations()
        for i in computation.instructions()
    ]


def lists(module: Any) -> tuple[list[str], list[str], list[list[str]]]:
    """The same facts as Python lists."""
    return module.names(), module.opcodes(), module.operand_names()


def columns(module: Any) -> tuple[list[str], list[int], list[int], list[int]]:
    """The same facts as lists of names and of ids."""
    shown = module.columns
    return (
        module.names(),
        shown.opcode.tolist(),
        shown.operand_offsets.tolist(),
        shown.operands.tolist(),
    )


def bench_walk(
    benchmark: Any, record: Record, quick: bool, xla_parse: Callable[[str], Any]
) -> None:
    text = seed() or dumps()[0]
    data = text.read()
    module, peer = hlofast.loads(data), xla_parse(data.decode())
    assert sorted((name, operands) for name, _, operands in walk(module)) == sorted(
        (name, operands) for name, _, operands in walk_xla(peer)
    )
    assert walk(module) == list(zip(*lists(module), strict=True))
    names, opcodes, offsets, operands = columns(module)
    assert walk(module) == [
        (name, hlofast.opcodes[opcode], [names[row] for row in operands[start:end]])
        for name, opcode, start, end in zip(names, opcodes, offsets, offsets[1:], strict=False)
    ]

    others = {
        "xla": lambda: walk_xla(peer),
        "lists": lambda: lists(module),
        "columns": lambda: columns(module),
    }
    benchmark.group = f"walk {text.name}"
    times = against(benchmark, lambda: walk(module), others, 3 if quick else 20, turns=2)
    xla = times["xla"].best
    where = text.name.replace("_", " ")
    record.figures += [
        Figure(f"walking instructions in Python, {where}", xla / times["ours"].best, at_least=2),
        Figure(
            f"the same facts through columns and bulk name lists, {where}",
            xla / times["columns"].best, at_least=20,
        ),
        Figure(
            f"the same facts as lists of str alone, {where}", xla / times["lists"].best,
        ),
    ]  # fmt: skip
    record.details += [
        {"what": name, "text": text.name, "rows": len(names)} | measured.facts()
        for name, measured in times.items()
    ]


def bench_column(benchmark: Any, record: Record, quick: bool) -> None:
    """An array over a column's memory: the first access and a repeated one."""
    text = seed() or dumps()[0]
    module = hlofast.loads(text.read())
    column = module.columns.buffer("shape")
    array = module.columns.shape
    address = array.__array_interface__["data"]
    assert address == np.asarray(column).__array_interface__["data"]
    assert not array.flags.writeable

    rounds, repeats = (20, 100) if quick else (200, 1000)
    turn = range(repeats)

    def fresh() -> None:
        asarray = np.asarray
        for _ in turn:
            asarray(column)

    def kept() -> None:
        for _ in turn:
            module.columns.shape  # noqa: B018 - the access is timed

    benchmark.pedantic(lambda: np.asarray(column), rounds=rounds, iterations=repeats)
    times = interleave({"fresh": fresh, "kept": kept}, rounds)
    microseconds = {name: measured.best / repeats * 1e6 for name, measured in times.items()}
    record.figures.append(
        Figure("one zero-copy column as NumPy array", microseconds["fresh"], "µs", at_most=1)
    )
    record.details.append({"what": "column", "microseconds": microseconds})
