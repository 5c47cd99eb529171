"""Whether a protobuf and the text of the same module give the same.

Run in an environment that has hlofast::

    python tests/oracle/check_proto.py FOLDER...

Every ``NAME.hlo.pb`` (or ``.gz``) below the folders is compared with its ``NAME.txt``, as XLA dumps
them side by side with ``--xla_dump_hlo_as_text --xla_dump_hlo_as_proto``: header, names, opcodes,
shapes with layouts, operands, attributes, literals that the text does not elide, then cost,
matrix products, collectives, findings and, of scheduled modules, memory.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import hlofast

ONLY_TEXT = {
    "allow_spmd_sharding_propagation_to_parameters",
    "allow_spmd_sharding_propagation_to_output",
    "alias_passthrough_params",
}


def pairs(folders):
    """Each proto below ``folders`` with its text."""
    for folder in folders:
        for proto in sorted([*folder.rglob("*.hlo.pb"), *folder.rglob("*.hlo.pb.gz")]):
            text = proto.with_name(proto.name.replace(".hlo.pb", ".txt"))
            if text.is_file():
                yield proto, text


def rows(module):
    """What the columns and attributes of each instruction say."""
    for instruction in module.instructions:
        yield (
            instruction.name,
            instruction.opcode,
            str(instruction.shape),
            tuple(operand.name for operand in instruction.operands),
            instruction.is_root,
            instruction.attributes.texts(),
        )


def literals(module):
    """The literal of each constant."""
    constants = ((i.name, i.literal) for i in module.instructions if i.opcode == "constant")
    return {name: literal and (literal.is_elided, literal.text) for name, literal in constants}


def analyses(module):
    """The figures that must agree."""
    cost = module.cost()
    results = {
        "cost": (cost.flops, cost.transcendentals, cost.bytes_accessed),
        "cost_analysis": module.cost(xla=True).cost_analysis(),
        "matmuls": module.matmuls().to_pylist(),
        "collectives": module.collectives().to_pylist(),
        "lint": [str(finding) for finding in module.lint()],
    }
    if module.is_scheduled:
        memory = module.memory()
        results["memory"] = (memory.live_peak, memory.xla_peak, memory.live.to_pylist())
    return results


def differences(proto, text):
    """The names of what differs."""
    own, other = hlofast.load(proto), hlofast.load(text)
    if own.name != other.name or own.is_scheduled != other.is_scheduled:
        yield "header"
    if (own.num_partitions, own.replica_count) != (other.num_partitions, other.replica_count):
        yield "partitions"
    if list(rows(own)) != list(rows(other)):
        yield "rows"
    mine, theirs = literals(own), literals(other)
    if any(mine[name] != literal for name, literal in theirs.items() if literal and not literal[0]):
        yield "literals"
    mine, theirs = analyses(own), analyses(other)
    yield from (name for name in theirs if mine[name] != theirs[name])


def main():
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--most", type=int, help="stop after this many pairs")
    arguments = parser.parse_args()
    counts = Counter()
    for proto, text in pairs(arguments.folders):
        if counts["pairs"] == arguments.most:
            break
        counts["pairs"] += 1
        differing = list(differences(proto, text))
        counts["equal"] += not differing
        if differing:
            print(f"{proto}: {', '.join(differing)}")
    print(f"{counts['equal']} of {counts['pairs']} pairs are equal")
    return 0 if counts["equal"] == counts["pairs"] else 1


if __name__ == "__main__":
    sys.exit(main())
