"""`Module.diff`: empty where only names and order differ; planted changes are found by name."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hlofast
from conftest import FIXTURES, Seeds
from renamed import renamed

DUMPS = sorted(
    path
    for pattern in (
        "*.txt",
        "dumps/*.txt.gz",
        "seedlike/*.txt.gz",
        "sharded/*.txt.gz",
        "rewrites/**/*.txt.gz",
        "live_ranges/*/after_optimizations.txt.gz",
    )
    for path in FIXTURES.glob(pattern)
)


def modules_of(path: Path) -> list[hlofast.Module]:
    content = path.read_bytes()
    if b"HloModule" not in (gzip.decompress(content) if path.suffix == ".gz" else content):
        return []
    parts = hlofast.find_modules(content, path=str(path))
    return [part.module for part in parts if part.module is not None]


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: str(path.relative_to(FIXTURES)))
def test_names_order_and_metadata_are_no_difference(path: Path) -> None:
    for module in modules_of(path):
        other = hlofast.loads(renamed(module))
        assert other.names() != module.names()
        for diff in (module.diff(other), other.diff(module), module.diff(module)):
            assert diff.is_empty, diff.changes
            assert len(diff.pairs) == len(module)
        diff = module.diff(other)
        for row in diff.pairs:
            before, after = module[row["instruction_before"]], other[row["instruction_after"]]
            assert before.opcode == after.opcode


@pytest.mark.seeds
@pytest.mark.parametrize("number", ["001", "002", "003"])
def test_seeds_are_equal_to_themselves_renamed(seeds: Seeds, number: str) -> None:
    (module,) = modules_of(seeds.path(number))
    other = hlofast.loads(renamed(module, seed=7))
    diff = module.diff(other)
    assert diff.is_empty, diff.changes
    assert len(diff.pairs) == len(module)


PROGRAM = """\
HloModule step, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }, num_partitions=4

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

scale {
  p = f32[64,32]{1,0} parameter(0)
  q = f32[64,32]{1,0} parameter(1)
  ROOT product = f32[64,32]{1,0} multiply(p, q)
}

condition {
  state = (s32[], f32[64,32]{1,0}) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  limit = s32[] constant(8)
  ROOT less = pred[] compare(i, limit), direction=LT
}

body {
  state = (s32[], f32[64,32]{1,0}) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[64,32]{1,0} get-tuple-element(state), index=1
  y = f32[64,32]{1,0} tanh(x)
  ROOT new_state = (s32[], f32[64,32]{1,0}) tuple(next, y)
}

ENTRY main {
  weights = f32[64,32]{1,0} parameter(0), sharding={devices=[4,1]<=[4]}
  momentum = f32[64,32]{1,0} parameter(1), sharding={devices=[4,1]<=[4]}
  batch = f32[16,64]{1,0} parameter(2)
  logits = f32[16,32]{1,0} dot(batch, weights), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  activated = f32[16,32]{1,0} exponential(logits)
  gradient = f32[64,32]{1,0} dot(batch, activated), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  reduced = f32[64,32]{1,0} all-reduce(gradient), channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=sum
  rate = f32[] constant(0.125)
  rates = f32[64,32]{1,0} broadcast(rate), dimensions={}
  scaled = f32[64,32]{1,0} fusion(reduced, rates), kind=kLoop, calls=scale
  updated = f32[64,32]{1,0} subtract(weights, scaled)
  zero = s32[] constant(0)
  start = (s32[], f32[64,32]{1,0}) tuple(zero, momentum)
  loop = (s32[], f32[64,32]{1,0}) while(start), condition=condition, body=body
  smoothed = f32[64,32]{1,0} get-tuple-element(loop), index=1
  half = f32[32,32]{1,0} slice(smoothed), slice={[0:32],[0:32]}
  call = f32[64,32]{1,0} custom-call(half, reduced), custom_call_target="widen", backend_config="{\\"block\\":128}"
  negated = f32[64,32]{1,0} negate(call)
  turned = f32[64,32]{0,1} copy(negated)
  back = f32[64,32]{1,0} copy(turned)
  ROOT out = (f32[64,32]{1,0}, f32[64,32]{1,0}) tuple(updated, back)
}
"""

REPLACED = {
    "removed instruction": (
        [("  negated = f32[64,32]{1,0} negate(call)\n", ""), ("copy(negated)", "copy(call)")],
        ["vanished negated"],
    ),
    "added instruction": (
        [("  turned =", "  sine = f32[64,32]{1,0} sine(negated)\n  turned ="), ("copy(negated)", "copy(sine)")],
        ["appeared sine"],
    ),
    "changed dimension": (
        [("f32[16,", "f32[24,")],
        ["changed dimensions batch"],
    ),
    "changed layout": (
        [("turned = f32[64,32]{0,1}", "turned = f32[64,32]{1,0}")],
        ["changed layout turned"],
    ),
    "changed tiling": (
        [("turned = f32[64,32]{0,1}", "turned = f32[64,32]{0,1:T(8,128)}")],
        ["changed layout turned"],
    ),
    "changed memory space": (
        [("turned = f32[64,32]{0,1}", "turned = f32[64,32]{0,1:S(5)}")],
        ["changed memory_space turned"],
    ),
    "replaced opcode": ([("tanh(x)", "logistic(x)")], ["changed opcode y"]),
    "replaced opcode at the root": (
        [("ROOT product = f32[64,32]{1,0} multiply", "ROOT product = f32[64,32]{1,0} maximum")],
        ["changed opcode product"],
    ),
    "replaced reduction": ([("ROOT s = f32[] add", "ROOT s = f32[] maximum")], ["changed opcode s"]),
    "swapped operands": (
        [("subtract(weights, scaled)", "subtract(scaled, weights)")],
        ["changed operands updated"],
    ),
    "swapped results": ([("tuple(updated, back)", "tuple(back, updated)")], ["changed operands out"]),
    "other operand": ([("copy(turned)", "copy(call)")], ["changed operands back"]),
    "other replica groups": (
        [("{{0,1},{2,3}}", "{{0,2},{1,3}}")],
        ["changed replica_groups reduced"],
    ),
    "added collective": (
        [
            ("  zero =", "  synced = f32[64,32]{1,0} all-reduce(updated), channel_id=2, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=sum\n  zero ="),
            ("tuple(updated, back)", "tuple(synced, back)"),
        ],
        ["appeared synced"],
    ),
    "removed collective": (
        [
            ("  reduced = f32[64,32]{1,0} all-reduce(gradient), channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=sum\n", ""),
            ("reduced", "gradient"),
        ],
        ["vanished reduced"],
    ),
    "dropped donation": (
        [(", {1}: (1, {}, may-alias)", "")],
        ["changed input_output_alias"],
    ),
    "other donation": (
        [("{1}: (1, {}, may-alias)", "{1}: (1, {}, must-alias)")],
        ["changed input_output_alias"],
    ),
    "changed constant": ([("constant(0.125)", "constant(0.25)")], ["changed constant rate"]),
    "changed sharding": (
        [("momentum = f32[64,32]{1,0} parameter(1), sharding={devices=[4,1]<=[4]}", "momentum = f32[64,32]{1,0} parameter(1), sharding={devices=[1,4]<=[4]}")],
        ["changed sharding momentum"],
    ),
    "dropped sharding": (
        [("parameter(1), sharding={devices=[4,1]<=[4]}", "parameter(1)")],
        ["changed sharding momentum"],
    ),
    "changed trip count": ([("limit = s32[] constant(8)", "limit = s32[] constant(9)")], ["changed constant limit"]),
    "changed comparison": ([("direction=LT", "direction=LE")], ["changed direction less"]),
    "renamed custom-call target": ([('"widen"', '"spread"')], ["changed custom_call_target call"]),
    "changed backend config": ([("128}", "256}")], ["changed backend_config call"]),
    "changed precision": (
        [("lhs_contracting_dims={1}, rhs_contracting_dims={0}", "lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={highest,highest}")],
        ["changed operand_precision logits"],
    ),
    "changed element type": (
        [
            ("activated = f32[16,32]{1,0} exponential(logits)", "narrow = bf16[16,32]{1,0} convert(logits)\n  activated = bf16[16,32]{1,0} exponential(narrow)\n  wide = f32[16,32]{1,0} convert(activated)"),
            ("dot(batch, activated)", "dot(batch, wide)"),
        ],
        ["appeared narrow", "appeared wide", "changed element_type activated"],
    ),
    "changed dimension numbers": (
        [
            ("logits = f32[16,32]{1,0} dot(batch, weights), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
             "turned_batch = f32[64,16]{1,0} transpose(batch), dimensions={1,0}\n  logits = f32[16,32]{1,0} dot(turned_batch, weights), lhs_contracting_dims={0}, rhs_contracting_dims={0}"),
        ],
        ["appeared turned_batch", "changed lhs_contracting_dims logits"],
    ),
    "other part": ([("slice={[0:32],[0:32]}", "slice={[32:64],[0:32]}")], ["changed slice half"]),
    "changed fusion kind": ([("kind=kLoop", "kind=kInput")], ["changed kind scaled"]),
    "moved into fusion": (
        [
            ("  q = f32[64,32]{1,0} parameter(1)\n", "  q = f32[] parameter(1)\n  wide_q = f32[64,32]{1,0} broadcast(q), dimensions={}\n"),
            ("multiply(p, q)", "multiply(p, wide_q)"),
            ("  rates = f32[64,32]{1,0} broadcast(rate), dimensions={}\n", ""),
            ("fusion(reduced, rates)", "fusion(reduced, rate)"),
        ],
        ["moved wide_q"],
    ),
    "moved into a fusion of its own": (
        [
            ("condition {", "negation {\n  n = f32[64,32]{1,0} parameter(0)\n  ROOT less = f32[64,32]{1,0} negate(n)\n}\n\ncondition {"),
            ("negated = f32[64,32]{1,0} negate(call)", "negated = f32[64,32]{1,0} fusion(call), kind=kLoop, calls=negation"),
        ],
        ["appeared negated", "moved less"],
    ),
    "added parameter": (
        [("  batch =", "  unused = f32[8]{0} parameter(3)\n  batch =")],
        ["appeared unused"],
    ),
    "added control edge": (
        [("negate(call)", "negate(call), control-predecessors={%updated}")],
        ["changed control-predecessors negated"],
    ),
    "other partitions": ([("num_partitions=4", "num_partitions=8")], ["changed num_partitions"]),
    "two far changes": (
        [("exponential(logits)", "exponential-minus-one(logits)"), ("negate(call)", "abs(call)")],
        ["changed opcode activated", "changed opcode negated"],
    ),
}  # fmt: skip


def changed(replacements: list[tuple[str, str]]) -> str:
    text = PROGRAM
    for old, new in replacements:
        assert old in text, old
        text = text.replace(old, new)
    return text


def named(diff: hlofast.Diff) -> list[str]:
    """The causes as `kind aspect name`, with the names of the second module where it has them."""
    rows = (
        " ".join(part for part in (row["kind"], row["aspect"], row["name_after"] or row["name_before"]) if part)
        for row in diff.causes
    )  # fmt: skip
    return sorted(rows)


@pytest.mark.parametrize("what", REPLACED)
def test_planted_change_is_named_and_nothing_else(what: str) -> None:
    replacements, expected = REPLACED[what]
    before = hlofast.loads(PROGRAM, strict=True)
    after = hlofast.loads(changed(replacements), strict=True)
    assert named(before.diff(after)) == sorted(expected)


@pytest.mark.parametrize("what", REPLACED)
@pytest.mark.parametrize("seed", range(3))
def test_planted_change_is_found_under_other_names(what: str, seed: int) -> None:
    replacements, expected = REPLACED[what]
    before = hlofast.loads(PROGRAM)
    plain = before.diff(hlofast.loads(changed(replacements)))
    other = hlofast.loads(renamed(hlofast.loads(changed(replacements)), seed))
    hidden = before.diff(other)
    assert hidden.counts() == plain.counts()
    assert len(hidden.changes) == len(plain.changes)


def test_planted_changes_are_found_in_a_large_program(train_step: Path) -> None:
    text = train_step.read_text()
    before = hlofast.loads(text)
    constants = [
        row for row in before.instructions if row.opcode == "constant" and row.shape.rank == 0
    ]
    assert constants
    tried = 0
    for constant in constants:
        line = constant.text
        payload = line[line.index("constant(") + 9 : line.index(")", line.index("constant("))]
        if not payload.replace(".", "").replace("-", "").isdigit():
            continue
        new = line.replace(f"constant({payload})", "constant(77)")
        after = hlofast.loads(renamed(hlofast.loads(text.replace(line, new, 1)), tried))
        diff = before.diff(after)
        assert diff.counts() == {"changed constant": 1}, constant.name
        (cause,) = diff.causes
        assert cause["name_before"] == constant.name
        assert (cause["before"], cause["after"]) == (payload, "77")
        tried += 1
    assert tried >= 3


def test_consequences_are_marked() -> None:
    diff = hlofast.loads(PROGRAM).diff(hlofast.loads(changed(REPLACED["changed dimension"][0])))
    marked = {(row["aspect"], row["name_after"]) for row in diff.changes if row["is_consequence"]}
    assert marked == {("dimensions", "logits"), ("dimensions", "activated")}
    diff = hlofast.loads(PROGRAM).diff(hlofast.loads(changed(REPLACED["changed trip count"][0])))
    (trip_count,) = (row for row in diff.changes if row["aspect"] == "trip_count")
    assert (trip_count["name_after"], trip_count["before"], trip_count["after"]) == (
        "loop",
        "8",
        "9",
    )
    assert trip_count["is_consequence"] == 1


def test_values_of_both_sides_are_told() -> None:
    diff = hlofast.loads(PROGRAM).diff(hlofast.loads(changed(REPLACED["dropped donation"][0])))
    (cause,) = diff.causes
    assert (cause["before"], cause["after"]) == ("{1}: (1, {}, may-alias)", None)
    assert cause["instruction_before"] is cause["instruction_after"] is None
    diff = hlofast.loads(PROGRAM).diff(hlofast.loads(changed(REPLACED["other replica groups"][0])))
    (cause,) = diff.causes
    assert (cause["before"], cause["after"]) == ("{{0,1},{2,3}}", "{{0,2},{1,3}}")
    assert cause["opcode"] == "all-reduce"
    assert diff.before[cause["instruction_before"]].name == "reduced"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{{0,1},{2,3}}", "[2,2]<=[4]"),
        ("sharding={devices=[4,1]<=[4]}", "sharding={devices=[4,1]0,1,2,3}"),
        ("channel_id=1", "channel_id=77"),
        ("num_partitions=4", "replica_count=1, num_partitions=4"),
        ("dimensions={}", "dimensions={ }"),
    ],
)
def test_other_words_are_no_difference(old: str, new: str) -> None:
    diff = hlofast.loads(PROGRAM).diff(hlofast.loads(changed([(old, new)])))
    assert diff.is_empty, diff.changes


def test_copies_of_equal_computations_are_no_difference() -> None:
    twice = PROGRAM.replace(
        "  zero =",
        "  second = f32[64,32]{1,0} all-reduce(updated), replica_groups={}, to_apply=sum\n  zero =",
    )
    copied = twice.replace("replica_groups={}, to_apply=sum", "replica_groups={}, to_apply=sum.2").replace(
        "scale {", "sum.2 {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n\nscale {"
    )  # fmt: skip
    a, b = hlofast.loads(twice), hlofast.loads(copied)
    assert len(b.computations) == len(a.computations) + 1
    assert a.diff(b).is_empty
    assert b.diff(a).is_empty


def test_layouts_are_not_compared_with_a_text_that_has_none() -> None:
    with_layouts = hlofast.loads(PROGRAM)
    without = hlofast.loads(with_layouts.to_text(layouts=False))
    diff = with_layouts.diff(without)
    assert diff.is_empty, diff.changes
    assert not diff.compares_layouts
    other = hlofast.loads(changed(REPLACED["changed layout"][0]))
    assert with_layouts.diff(other).compares_layouts
    assert with_layouts.diff(other, layouts=False).is_empty


def test_backend_config_can_be_left_out() -> None:
    other = hlofast.loads(changed(REPLACED["changed backend config"][0]))
    assert hlofast.loads(PROGRAM).diff(other, backend_config=False).is_empty


def test_the_order_counts_where_it_is_asked_for(train_step: Path) -> None:
    module = hlofast.load(train_step)
    assert module.is_scheduled
    other = hlofast.loads(renamed(module, seed=3))
    assert module.diff(other).same_schedule is False
    assert module.diff(module).same_schedule is True
    assert hlofast.loads(PROGRAM).diff(hlofast.loads(PROGRAM)).same_schedule is None
    diff = module.diff(other, schedule=True)
    assert set(diff.counts()) == {"changed schedule"}


def test_totals_are_those_of_the_modules() -> None:
    before = hlofast.loads(PROGRAM)
    after = hlofast.loads(changed(REPLACED["added collective"][0]))
    totals = {row["measure"]: row for row in before.diff(after).totals()}
    assert totals["instructions"]["change"] == 1
    assert totals["flops"]["before"] == before.cost().flops
    assert totals["flops"]["after"] == after.cost().flops
    assert totals["live_peak"]["before"] == before.memory().live_peak
    assert totals["collectives"]["change"] == 1
    assert totals["wire_bytes"]["change"] == 64 * 32 * 4
    assert totals["payload"]["provenance"] == "exact"
    known = {fact.name: fact.provenance for fact in before.cost().facts}
    assert totals["flops"]["provenance"] == known["flops"]
    assert totals["wire_bytes"]["provenance"] == "modelled"
    assert totals["instructions"]["provenance"] == "exact"
    assert all(row["change"] == row["after"] - row["before"] for row in totals.values())


def test_collectives_are_compared_by_axes_and_scope() -> None:
    before = hlofast.loads(PROGRAM)
    after = hlofast.loads(changed(REPLACED["other replica groups"][0]))
    mesh = hlofast.Mesh({"data": 2, "model": 2})
    rows = before.diff(after, mesh=mesh).collectives().to_pylist()
    assert {(row["axes"], row["executions_before"], row["executions_after"]) for row in rows} == {
        ("model", 1, 0),
        ("data", 0, 1),
    }
    by_scope = before.diff(after, mesh=mesh).collectives(by="scope").to_pylist()
    assert [
        (row["kind"], row["executions_before"], row["executions_after"]) for row in by_scope
    ] == [("all-reduce", 1, 1)]


def test_costs_and_opcodes_are_compared_by_key() -> None:
    before = hlofast.loads(PROGRAM)
    after = hlofast.loads(changed(REPLACED["replaced opcode"][0]))
    rows = {row["opcode"]: row for row in before.diff(after).by("opcode")}
    assert rows["tanh"]["transcendentals_after"] == 0
    assert rows["logistic"]["transcendentals_before"] == 0
    assert rows["dot"]["flops_before"] == rows["dot"]["flops_after"] > 0
    opcodes = {row["opcode"]: row for row in before.diff(after).opcodes()}
    assert (opcodes["tanh"]["instructions_before"], opcodes["tanh"]["instructions_after"]) == (1, 0)


def test_function_and_pickle() -> None:
    before = hlofast.loads(PROGRAM)
    after = hlofast.loads(changed(REPLACED["changed constant"][0]))
    diff = hlofast.diff(before, after)
    assert named(diff) == ["changed constant rate"]
    assert "1 changed constant" in repr(diff)
    again = pickle.loads(pickle.dumps(diff))
    assert again.changes == diff.changes
    assert isinstance(diff, hlofast.Diff)


# Programs without sense.


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Small instructions, each of which uses earlier ones; others than the result may be dead."""
    count = draw(st.integers(1, 40))
    lines = ["  v0 = f32[4] parameter(0)"]
    unused = {0}
    for number in range(1, count + 1):
        opcode = draw(st.sampled_from(["add", "multiply", "subtract", "negate", "sine"]))
        operands = 1 if opcode in {"negate", "sine"} else 2
        used = [draw(st.integers(0, number - 1)) for _ in range(operands)]
        lines.append(
            f"  v{number} = f32[4] {opcode}({', '.join(f'v{operand}' for operand in used)})"
        )
        unused = (unused | {number}) - set(used)
    if draw(st.booleans()):
        unused = {count}
    shape = ", ".join(["f32[4]"] * len(unused))
    results = ", ".join(f"v{operand}" for operand in sorted(unused))
    lines.append(f"  ROOT r = ({shape}) tuple({results})")
    return "HloModule m\n\nENTRY e {\n" + "\n".join(lines) + "\n}\n"


@settings(max_examples=200, deadline=None)
@given(programs(), st.integers(0, 1000))
def test_any_program_is_equal_to_itself_renamed(text: str, seed: int) -> None:
    module = hlofast.loads(text)
    diff = module.diff(hlofast.loads(renamed(module, seed)))
    assert diff.is_empty, diff.changes


@settings(max_examples=200, deadline=None)
@given(programs(), programs())
def test_any_two_programs_are_compared_in_full(first: str, second: str) -> None:
    a, b = hlofast.loads(first), hlofast.loads(second)
    diff = a.diff(b)
    befores = [row["instruction_before"] for row in diff.pairs]
    afters = [row["instruction_after"] for row in diff.pairs]
    assert len(set(befores)) == len(befores)
    assert len(set(afters)) == len(afters)
    vanished = [row["instruction_before"] for row in diff.changes if row["kind"] == "vanished"]
    appeared = [row["instruction_after"] for row in diff.changes if row["kind"] == "appeared"]
    assert sorted(befores + vanished) == list(range(len(a)))
    assert sorted(afters + appeared) == list(range(len(b)))
    # Of values that are computed twice in the same way, instructions may use the one or the other.
    if diff.is_empty:
        assert a.fingerprint() == b.fingerprint()


def nested(depth: int) -> str:
    lines = ["  p = f32[4] parameter(0)", "  t0 = (f32[4]) tuple(p)"]
    shape = "(f32[4])"
    for number in range(1, depth):
        shape = f"({shape})"
        lines.append(f"  t{number} = {shape} tuple(t{number - 1})")
    lines[-1] = lines[-1].replace("  t", "  ROOT t", 1)
    return "HloModule m\n\nENTRY e {\n" + "\n".join(lines) + "\n}\n"


def test_hostile_programs_are_compared_without_trouble() -> None:
    # Deep tuples, one value with very many users, one instruction with very many operands.
    deep = nested(60)
    assert hlofast.loads(deep).diff(hlofast.loads(deep.replace("f32[4]", "f32[5]"))).counts() == {
        "changed dimensions": 1
    }
    users = "".join(f"  n{i} = f32[4] negate(p)\n" for i in range(20_000))
    operands = ", ".join(f"n{i}" for i in range(20_000))
    shape = ", ".join(["f32[4]"] * 20_000)
    wide = f"HloModule m\n\nENTRY e {{\n  p = f32[4] parameter(0)\n{users}  ROOT t = ({shape}) tuple({operands})\n}}\n"
    module = hlofast.loads(wide)
    other = hlofast.loads(wide.replace("n7 = f32[4] negate", "n7 = f32[4] sine"))
    assert module.diff(module).is_empty
    assert module.diff(other).counts() == {"changed opcode": 1}
    everything = hlofast.loads(wide.replace("negate", "sine"))
    assert module.diff(everything).counts() == {"changed opcode": 20_000}
