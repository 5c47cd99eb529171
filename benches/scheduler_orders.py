"""Which of its three orders XLA for TPUs takes, and whether it is the one with the lowest peak.

    python benches/scheduler_orders.py [PROGRAM.POLICY ...]     needs JAX and libtpu

Compiles programs of tests/fixtures/policies under a policy and keeps the texts before and after
XLA's memory scheduler. The first is put in the order of each of the three schedulers (list, DFS and
post-order, written after `hlo_memory_scheduler.cc`); the one whose order is nearest to the second
text is the one that XLA took. Printed are the peaks of all three by the rule `values`, by which XLA
compares them: an operand and the result that takes its place both count, and so do all memory
spaces.
"""

from __future__ import annotations

import bisect
import heapq
import importlib
import math
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import hlofast

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures"
sys.path.insert(0, str(FIXTURES))
import policy_texts  # noqa: E402  (in the folder that was added)

USUAL = [
    f"{program}.{policy}"
    for program, policies in {
        "dense_v5e_8": ("none", "nothing"),
        "dense_v5e_16": ("none", "nothing", "plain_dots", "attention_names", "mlp_names"),
        "dense_v6e_8": ("none", "nothing", "plain_dots", "attention_names", "mlp_names"),
        "dense_v5p_8": ("nothing",),
        "gelu_v6e_8": ("none", "nothing", "plain_dots", "attention_names", "mlp_names"),
        "long_v5e_16": ("none", "nothing", "plain_dots", "attention_names", "offload_mlp"),
        "long_v5p_8": ("nothing",),
        "long_v6e_8": ("none", "nothing", "plain_dots", "attention_names", "offload_mlp"),
        "moe_v5p_8": ("nothing", "plain_dots", "attention_names", "mlp_names"),
        "moe_v6e_8": ("none", "nothing", "plain_dots", "attention_names", "mlp_names"),
        "pair_v5p_8": ("nothing", "offload_mlp"),
        "pair_v6e_8": ("none", "nothing"),
        "scattered_v5e_8": ("none", "nothing"),
        "scattered_v6e_16": ("none", "nothing", "plain_dots", "attention_names", "mlp_names"),
        "vision_v5e_8": ("nothing",),
        "vision_v5p_8": ("nothing", "plain_dots", "attention_names", "offload_mlp"),
        "vision_v6e_8": ("nothing",),
        "vocabulary_v6e_8": ("nothing",),
        "exchanged_encoder_v5e_8": ("nothing", "plain_dots", "attention_names", "mlp_names"),
        "exchanged_groups_v5e_8": ("nothing", "plain_dots", "attention_names", "mlp_names"),
        "exchanged_groups_v6e_8": ("nothing", "mlp_names"),
        "exchanged_model_v5e_8": ("nothing", "plain_dots", "attention_names", "mlp_names"),
        "exchanged_model_v6e_8": ("nothing", "attention_names"),
        "exchanged_plain_v5e_8": ("nothing", "plain_dots", "attention_names", "mlp_names"),
        "exchanged_plain_v6e_8": ("nothing", "dots", "plain_dots", "attention_names"),
        "exchanged_plain_v6e_16": ("mlp_names",),
        "exchanged_v5e_8": ("nothing", "plain_dots", "mlp_names"),
        "exchanged_v6e_8": ("nothing", "dots", "plain_dots", "mlp_names"),
    }.items()
    for policy in policies
]
PASSES = ".*memory-scheduler.*"
FREE = ("parameter", "constant")
"""What no scheduler counts."""
PLAIN = (*FREE, "get-tuple-element", "bitcast", "tuple")
"""What takes no time; left out when orders are compared."""
BITS = re.compile(r"\d+")
Tree = Any
"""The number of a buffer, or a list: the tuple's own buffer, then the trees of its elements."""


def leaves(tree: Tree) -> list[int]:
    """The buffers of a value and of the elements inside it."""
    return [own for part in tree for own in leaves(part)] if isinstance(tree, list) else [tree]


def padded(shape: hlofast.Shape) -> int:
    """Bytes of an array in whole tiles."""
    if not shape.is_array or shape.element_type is None:
        return 0
    sizes = [size or 0 for size in shape.dimensions or ()]
    layout = re.search(r"\{([\d,]+):T\(([\d,]+)\)", str(shape))
    if layout:
        order, tile = ([int(own) for own in part.split(",")] for part in layout.groups())
        for axis, length in zip(order, reversed(tile), strict=False):
            sizes[axis] = -(-sizes[axis] // length) * length
    bits = BITS.search(str(shape.element_type))
    return math.prod(sizes) * (int(bits[0]) if bits else 8) // 8


class Rows:
    """The instructions of one computation as XLA's schedulers see them, by their position."""

    def __init__(self, computation: hlofast.Computation, sizes: dict[int, int]) -> None:
        self.all = list(computation.instructions)
        at = {own.row: place for place, own in enumerate(self.all)}
        self.names = [own.name for own in self.all]
        self.opcodes = [str(own.opcode) for own in self.all]
        self.operands = [[at[other.row] for other in own.operands] for own in self.all]
        self.before = [[at[other.row] for other in own.control_predecessors] for own in self.all]
        self.users: list[list[int]] = [[] for _ in self.all]
        self.after: list[list[int]] = [[] for _ in self.all]
        for place, own in enumerate(self.operands):
            for other in dict.fromkeys(own):
                self.users[other].append(place)
        for place, own in enumerate(self.before):
            for other in own:
                self.after[other].append(place)
        root = computation.root
        assert root is not None
        self.root = at[root.row]
        self.bytes: list[int] = []
        self.defines = [0] * len(self.all)
        trees: list[Tree] = [None] * len(self.all)
        for place in self.post_order():
            trees[place] = self.tree(place, trees, sizes)
        self.reads = [sorted({b for o in own for b in leaves(trees[o])}) for own in self.operands]
        for place, opcode in enumerate(self.opcodes):
            if opcode == "get-tuple-element":
                self.reads[place] = sorted(set(leaves(trees[place])))
        self.results = set(leaves(trees[self.root]))

    def tree(self, place: int, trees: list[Tree], sizes: dict[int, int]) -> Tree:
        """The buffers of an instruction's result; new ones where it defines them."""
        own, opcode = self.all[place], self.opcodes[place]
        inputs = [trees[other] for other in self.operands[place]]

        def new(shape: hlofast.Shape) -> Tree:
            is_tuple = shape.is_tuple
            bytes_ = 0 if is_tuple or opcode in FREE else sizes[shape.id]
            self.bytes.append(bytes_)
            self.defines[place] += bytes_
            number = len(self.bytes) - 1
            return [number, *(new(part) for part in shape.elements)] if is_tuple else number

        if opcode in ("bitcast", "opt-barrier"):
            return inputs[0]
        if opcode == "tuple":
            self.bytes.append(0)
            return [len(self.bytes) - 1, *inputs]
        if opcode == "get-tuple-element":
            index = re.search(r"index=(\d+)", own.text or "")
            assert index is not None
            return inputs[0][1 + int(index[1])]
        if opcode.endswith("-done") and isinstance(inputs[0], list) and len(inputs[0]) > 2:
            return inputs[0][2]
        if opcode.endswith("-start") and own.shape.is_tuple and opcode != "all-reduce-start":
            first, *rest = own.shape.elements
            whole = new(first) if first.is_tuple else inputs[0]
            self.bytes.append(0)
            return [len(self.bytes) - 1, whole, *(new(part) for part in rest)]
        return new(own.shape)

    def walk(self, roots: list[int], children: Any) -> list[int]:
        """All positions, each after its children, which are visited in their order."""
        state: dict[int, int] = {}
        order = []
        for root in roots:
            stack = [root]
            while stack:
                place = stack[-1]
                if place in state:
                    stack.pop()
                    if state[place] == 1:
                        state[place] = 2
                        order.append(place)
                    continue
                state[place] = 1
                own = [other for other in children(place) if state.get(other) != 2]
                stack.extend(reversed(own))
        return order

    def post_order(self) -> list[int]:
        """XLA's post-order: from what nothing reads, control predecessors before operands."""
        roots = [place for place, users in enumerate(self.users) if not users]
        return self.walk(roots, lambda own: self.before[own][::-1] + self.operands[own])

    def depth_first(self) -> list[int]:
        """The operands with most further users below them first, then those with most bytes."""
        further, total, every = [0] * len(self.all), [0] * len(self.all), 0
        for place in self.post_order():
            if self.opcodes[place] in FREE:
                continue
            every += self.defines[place]
            own = set(self.operands[place])
            further[place] = max(0, len(self.users[place]) - 1) + sum(further[o] for o in own)
            total[place] = self.defines[place] + sum(total[other] for other in own)
            further[place] = min(further[place], len(self.all))
            total[place] = min(total[place], every)
        ends = [p for p, own in enumerate(self.users) if not own and not self.after[p]]
        roots = [place for place in ends if place != self.root] + [self.root]

        def children(place: int) -> list[int]:
            own = self.operands[place] + self.before[place]
            return sorted(own, key=lambda at: (-further[at], -total[at], self.names[at]))

        return self.walk(roots, children)

    def listed(self) -> list[int]:
        """Always what frees most; of equals what has more users, then what was ready last."""
        unread = [0] * len(self.bytes)
        for own in [*self.reads, self.results]:
            for buffer in own:
                unread[buffer] += 1
        missing = [len(set(o)) + len(b) for o, b in zip(self.operands, self.before, strict=True)]
        queued: list[tuple[tuple[float, int], int] | None] = [None] * len(self.all)
        heap: list[tuple[float, int, int, int]] = []
        is_done = [False] * len(self.all)
        pushed = 0

        def priority(place: int) -> tuple[float, int]:
            shape = self.all[place].shape
            if shape.is_array and shape.element_count == 1:
                return float("inf"), sys.maxsize
            freed = sum(self.bytes[own] for own in self.reads[place] if unread[own] == 1)
            return freed - self.defines[place], len(self.users[place])

        def push(place: int) -> None:
            nonlocal pushed
            most, users = priority(place)
            queued[place] = ((most, users), pushed)
            heapq.heappush(heap, (-most, -users, -pushed, place))
            pushed += 1

        for place, count in enumerate(missing):
            if not count:
                push(place)
        order = []
        while heap:
            *_, number, place = heapq.heappop(heap)
            known = queued[place]
            if is_done[place] or known is None or known[1] != -number:
                continue
            is_done[place] = True
            order.append(place)
            changes = False
            for buffer in self.reads[place]:
                unread[buffer] -= 1
                changes |= unread[buffer] == 1
            for user in self.users[place] + self.after[place]:
                missing[user] -= 1
                if not missing[user]:
                    push(user)
            # XLA looks only at the users of the operands.
            near = (u for o in self.operands[place] for u in self.users[o]) if changes else ()
            for user in near:
                known = queued[user]
                if known is not None and not is_done[user] and priority(user) != known[0]:
                    push(user)
        return order


SCHEDULERS = {"list": Rows.listed, "dfs": Rows.depth_first, "post": Rows.post_order}


def agreement(rows: Rows, one: list[int], other: list[int]) -> float:
    """The share of pairs of instructions that both orders have in the same order."""
    place = {own: number for number, own in enumerate(one)}
    kept = [place[own] for own in other if rows.opcodes[own] not in PLAIN]
    inverted = 0
    seen: list[int] = []
    for own in kept:
        inverted += len(seen) - bisect.bisect(seen, own)
        bisect.insort(seen, own)
    pairs = len(kept) * (len(kept) - 1) / 2
    return 1 - inverted / pairs if pairs else 1.0


def reordered(text: str, module: hlofast.Module, orders: list[tuple[Rows, list[int]]]) -> str:
    """The text, scheduled, with the lines of computations in these orders."""
    lines = text.split("\n")
    out = list(lines)
    for rows, order in orders:
        places = [(own.text_line or 0) - 1 for own in rows.all]
        known = set(order)
        every = [own for own in range(len(rows.all)) if own not in known] + order
        for place, own in zip(places, every, strict=True):
            out[place] = lines[places[own]]
    out[0] = out[0].replace(", ", ", is_scheduled=true, ", 1)
    return "\n".join(out)


def lowered(program: str, policy: str) -> Any:
    """The lowered step of a program."""
    kind = policy_texts.kind_of(program)
    if kind in policy_texts.LOWERED:
        return importlib.import_module(f"policy_{kind}").lower(program, policy)
    jitted, arguments = importlib.import_module("make_policies").build(program, policy)
    return jitted.lower(*arguments)


def compiled(name: str) -> tuple[str, str]:
    """The texts of a program before and after the memory scheduler."""
    import compile_apart

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)

        def compile_it() -> None:
            options = compile_apart.options(folder) | {"xla_dump_hlo_pass_re": PASSES}
            lowered(*name.split(".")).compile(options)

        compile_apart.compile_apart(compile_it, folder)
        (before,) = folder.glob("*.before_hlo-memory-scheduler*")
        (after,) = folder.glob("*.after_hlo-memory-scheduler*")
        return before.read_text(), after.read_text()


def taken(before: str, after: str) -> tuple[str, float, dict[str, int]]:
    """The order that XLA took, how near it is, and the peak of each order in bytes."""
    module, final = hlofast.loads(before), hlofast.loads(after)
    sizes = {own.id: padded(own) for own in module.shapes}
    every = [Rows(own, sizes) for own in module.computations]
    (entry,) = (own for own, c in zip(every, module.computations, strict=True) if c.is_entry)
    place = {name: number for number, name in enumerate(entry.names)}
    real = [place[own.name] for own in final.entry.instructions if own.name in place]
    near, peaks = {}, {}
    for name, scheduler in SCHEDULERS.items():
        orders = [(own, scheduler(own)) for own in every]
        near[name] = agreement(entry, next(o for own, o in orders if own is entry), real)
        text = reordered(before, module, orders)
        memory = hlofast.loads(text).memory(rule="values", space="all")
        peaks[name] = int(memory.timeline.max())
    found = max(near, key=lambda name: near[name])
    return found, near[found], peaks


def main() -> None:
    """Prints the order of each program, and how often it is the one with the lowest peak."""
    warnings.simplefilter("ignore")
    names = sys.argv[1:] or USUAL
    lowest = 0
    for name in names:
        found, near, peaks = taken(*compiled(name))
        beyond = peaks[found] / min(peaks.values()) - 1
        lowest += beyond < 1e-3
        sums = ", ".join(f"{own} {size / 1e9:.3f} GB" for own, size in peaks.items())
        print(f"{name:30} {found:5} {near:.3f}  {beyond:+6.1%} of the lowest: {sums}", flush=True)
    print(f"the order with the lowest peak: {lowest} of {len(names)}")


if __name__ == "__main__":
    main()
