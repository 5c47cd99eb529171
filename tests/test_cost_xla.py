"""The XLA-compatible cost against XLA's own figures, kept beside the fixtures."""

from __future__ import annotations

import gzip
import importlib
import json
import math
import re
from collections import defaultdict
from pathlib import Path

import pytest

import hlofast

FIXTURES = Path(__file__).parent / "fixtures"
PROPERTIES = ("flops", "transcendentals", "bytes_accessed")
RELATIVE = 1e-4


def read(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in read(path).splitlines()]


def figures(cost) -> list[float]:
    return [float(getattr(cost, name)) for name in PROPERTIES]


def grouped(pairs) -> dict[str, list]:
    """Values by the first part of their name."""
    groups = defaultdict(list)
    for name, *rest in pairs:
        groups[name.split("/")[0].split("(")[0]].append((name, *rest))
    return dict(sorted(groups.items()))


def close(ours: list[float], theirs: list[float]) -> bool:
    # XLA counts half a matrix of triangular-solve, which may be half a byte.
    return ours == pytest.approx(theirs, rel=RELATIVE, abs=0.5)


def differences(texts, **options) -> list[str]:
    """The texts whose figures are not XLA's, with both."""
    differing = []
    equal = list.__eq__ if options.get("float32") else close
    for name, text, theirs in texts:
        ours = figures(hlofast.loads(text).cost(xla=True, backend="cpu", **options))
        if not equal(ours, theirs):
            differing.append(f"{name}: {ours}, XLA {theirs}")
    return differing


# Dumps.

DUMPS = lines(FIXTURES / "costs" / "dumps.jsonl.gz")


def dump_name(row: dict) -> str:
    return Path(row["text"]).name.partition(".txt")[0]


@pytest.fixture(scope="module", params=DUMPS, ids=dump_name)
def dump(request):
    return request.param, hlofast.loads(read(FIXTURES / request.param["text"]))


def test_modules_bit_for_bit(dump):
    row, module = dump
    assert figures(module.cost(xla=True, backend="cpu", float32=True)) == row["module"][:3]


def test_modules_in_exact_integers(dump):
    row, module = dump
    assert close(figures(module.cost(xla=True, backend="cpu")), row["module"][:3])


def of_computations(cost) -> dict[str, list[float]]:
    return {row["computation"]: [float(row[p]) for p in PROPERTIES] for row in cost.computations}


def test_computations_bit_for_bit(dump):
    row, module = dump
    ours = of_computations(module.cost(xla=True, backend="cpu", float32=True))
    theirs = {name: figures[:3] for name, figures in row["computations"].items()}
    assert {name: ours.get(name) for name in theirs} == theirs


def test_computations_in_exact_integers(dump):
    row, module = dump
    ours = of_computations(module.cost(xla=True, backend="cpu"))
    theirs = {name: figures[:3] for name, figures in row["computations"].items()}
    assert [name for name, figures in theirs.items() if not close(ours[name], figures)] == []


def test_there_are_dumps_of_both_stages_and_backends():
    names = [dump_name(row) for row in DUMPS]
    for backend in ("cpu", "tpu"):
        for stage in ("before", "after"):
            assert sum(n.startswith(backend) and f".{stage}" in n for n in names) >= 3
    assert len(names) >= 50
    assert sum(len(row["computations"]) for row in DUMPS) >= 4000


# Modules of one feature each.

CASE_ROWS = {row["name"]: row for row in lines(FIXTURES / "costs" / "cases.jsonl.gz")}
CASES = grouped(
    (row["name"], row["text"], [row[name] for name in PROPERTIES]) for row in CASE_ROWS.values()
)


def judged(costs: Path, texts: dict[str, str]) -> dict[str, list]:
    return grouped((row["id"], texts[row["id"]], row["figures"][:3]) for row in lines(costs))


PROBES = judged(
    FIXTURES / "costs" / "probes.jsonl.gz",
    {
        row["id"]: row["text"]
        for row in lines(FIXTURES.parent / "probes" / "verdicts.jsonl.gz")
        if row["verdict"] == "accept"
    },
)
INFERRED = judged(
    FIXTURES / "costs" / "inferred.jsonl.gz",
    {row["case"]: row["text"] for row in lines(FIXTURES / "inferred_shapes.jsonl")},
)
SNIPPETS = {
    **{f"cases/{name}": case for name, case in CASES.items()},
    **{f"probes/{name}": case for name, case in PROBES.items()},
    **{f"inferred/{name}": case for name, case in INFERRED.items()},
}


# Texts that XLA's parser lets pass although they mean nothing, or completes in its own way.
OTHERWISE = {
    "XLA makes the shape of send, recv and their ends anew, whatever the text says": {
        "async/name/send-done",
        "async/name/send-done-start",
        "dropped/opcode-word/defined-other-shape",
        "opcodes/send/unverified-result-shape",
        "opcodes/send-done/unverified-result-shape",
        "opcodes/recv-done/unverified-result-shape",
        "semantics/send-array",
    },
    "XLA drops operands beyond those that an opcode takes": {
        "dot(f32[2,3]; f32[3,4]; f32[2]), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "dropped/of-tuple/f32[2] slice(p0), p0",
        "dropped/of-tuple/s32[4] iota(), p0",
        "opcodes/dot/inferred-one-operand-more",
        "opcodes/dot/one-operand-more",
        "opcodes/rng-bit-generator/one-operand-more",
        "semantics/dot-of-three",
    },
    "operands and shape of an asynchronous start contradict each other": {
        "async/operands/add-start(p0, p0, p0)",
        "async/operands/all-to-all-start()",
        "async/operands/iota-start(p0), iota_dimension=0",
        "async/sugar/shape-first-empty",
        "async/sugar/shape-first-other-count",
        "async/sugar/shape-first-other-type",
    },
    "labels, groups, lengths or dimensions that the shapes do not have": {
        "dim-labels/0f_0io->b0f",
        "dim-labels/b0_0io->b0f",
        "dim-labels/b0f?_0io?->b0f?",
        "dim-labels/b0f_0i->b0f",
        "dim-labels/b0f_0io->b0",
        "dim-labels/b0f_0io->b1f",
        "dim-labels/b0f_1io->b0f",
        "dim-labels/b1f_0io->b0f",
        "dim-labels/bf_io->bf",
        "int/convolution.batch_group_count/-1",
        "int/convolution.batch_group_count/18446744073709551615",
        "int/convolution.feature_group_count/-1",
        "int/convolution.feature_group_count/18446744073709551615",
        "list/dot.lhs_contracting_dims/{-1}",
        "list/dot.lhs_contracting_dims/{18446744073709551615}",
        "list/fft.fft_length/{-1}",
        "list/scaled-dot.lhs_contracting_dims/{-1}",
    },
}
NAMED = set().union(*OTHERWISE.values())
UNBOUNDED = re.compile(r"\[[^]]*\?")


def comparable(family: str) -> list:
    return [row for row in SNIPPETS[family] if row[0] not in NAMED and not UNBOUNDED.search(row[1])]


@pytest.mark.parametrize("family", SNIPPETS)
def test_snippets_bit_for_bit(family):
    assert differences(comparable(family), float32=True) == []


@pytest.mark.parametrize("family", SNIPPETS)
def test_snippets_in_exact_integers(family):
    assert differences(comparable(family)) == []


def test_there_are_enough_snippets():
    assert sum(map(len, CASES.values())) >= 2500
    assert sum(len(comparable(family)) for family in SNIPPETS) >= 6600


def test_exceptions_are_exceptions():
    # An entry that agrees with XLA has to go.
    texts = {name: row for rows in SNIPPETS.values() for name, *row in rows}
    agree = [name for name in NAMED if not differences([(name, *texts[name])], float32=True)]
    assert agree == []


def test_sizes_without_bound_are_not_numbers_to_compare():
    # XLA counts such a dimension as the least 64-bit integer.
    rows = [row for texts in SNIPPETS.values() for row in texts if UNBOUNDED.search(row[1])]
    assert len(rows) >= 20
    for _, text, _ in rows:
        cost = hlofast.loads(text).cost(xla=True, backend="cpu")
        assert cost.flops >= -1
        assert cost.bytes_accessed >= -1


# The whole dictionary, sums by operand and result included.

FOUR_FIGURES = ("flops", "transcendentals", "bytes accessed", "optimal_seconds")
DICTIONARIES = {
    path.name.removesuffix(".xla.json.gz"): path
    for path in sorted((FIXTURES / "dumps").glob("*.xla.json.gz"))
}


def same(ours: dict[str, float], theirs: dict[str, float]) -> bool:
    """Equality, where nan is nan: a part of an array without elements."""
    return ours.keys() == theirs.keys() and all(
        ours[name] == value or (math.isnan(ours[name]) and math.isnan(value))
        for name, value in theirs.items()
    )


@pytest.mark.parametrize("name", DICTIONARIES)
def test_whole_dictionaries_of_dumps(name):
    path = DICTIONARIES[name]
    module = hlofast.loads(read(path.with_name(f"{name}.txt.gz")))
    theirs = json.loads(read(path))["cost_analysis"]
    assert len(theirs) > 5
    assert module.cost(xla=True, backend="cpu", float32=True).cost_analysis() == theirs
    exact = module.cost(xla=True, backend="cpu").cost_analysis()
    assert exact == pytest.approx(theirs, rel=RELATIVE)


@pytest.mark.parametrize("family", CASES)
def test_whole_dictionaries_of_snippets(family):
    texts = [(name, text) for name, text, _ in comparable(f"cases/{family}")]
    wrong = []
    for name, text in texts:
        row = CASE_ROWS[name]
        figures = {key: row[key.replace(" ", "_")] for key in FOUR_FIGURES}
        theirs = {key: figure for key, figure in figures.items() if figure} | row["by_operand"]
        module = hlofast.loads(text)
        ours = module.cost(xla=True, backend="cpu", float32=True).cost_analysis()
        exact = module.cost(xla=True, backend="cpu").cost_analysis()
        near = pytest.approx(theirs, rel=RELATIVE, abs=0.5, nan_ok=True)
        if not same(ours, theirs) or exact != near:
            wrong.append(f"{name}: {ours}, exact {exact}, XLA {theirs}")
    assert wrong == []


def test_there_are_enough_sums_by_operand():
    keys = {re.sub(r"\d+", "0", key) for row in CASE_ROWS.values() for key in row["by_operand"]}
    assert keys == {
        *("utilization0{}", "bytes accessed0{}", "bytes accessed0{0}", "bytes accessed0{0,0}"),
        *("bytes accessedout{}", "bytes accessedout{0}", "bytes accessedout{0,0}"),
        "bytes accessedout{0,0,0}",
    }


def test_executed_costs_have_no_sums_by_operand():
    module = hlofast.loads(read(FIXTURES / "dumps" / "cpu_train_step.after.txt.gz"))
    assert set(module.cost().cost_analysis()) == {"flops", "transcendentals", "bytes accessed"}


def test_sums_by_operand_are_left_out_where_calls_of_calls_make_too_many():
    # Every computation calls the one before it many times, whose tuple has many operands.
    many = 3000
    names = ", ".join(["x"] * many)
    shapes = ", ".join(["f32[]"] * many)
    text = f"HloModule m\n\nc0 {{\n  x = f32[] parameter(0)\n  t = ({shapes}) tuple({names})\n"
    text += "  ROOT n = f32[] negate(x)\n}\n\n"
    calls = "".join(f"  y{n} = f32[] call(x), to_apply=c0\n" for n in range(many))
    text += f"ENTRY e {{\n  x = f32[] parameter(0)\n{calls}  ROOT n = f32[] negate(x)\n}}\n"
    cost = hlofast.loads(text).cost(xla=True)
    assert cost.flops == many + 1
    assert set(cost.cost_analysis()) == {"flops", "bytes accessed"}


# Loops against the same program without them.

LOOPS = {
    "/".join((row["name"], row["backend"], row["stage"])): row
    for row in lines(FIXTURES / "costs" / "loops.jsonl.gz")
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_count_once_as_xla_counts_them(name):
    row = LOOPS[name]
    for form in ("looped", "unrolled"):
        cost = hlofast.loads(row[form]).cost(xla=True, backend="cpu", float32=True)
        assert figures(cost) == row[f"{form}_figures"][:3]


@pytest.mark.parametrize("name", LOOPS)
def test_loops_count_as_often_as_they_run(name):
    row = LOOPS[name]
    cost = hlofast.loads(row["looped"]).cost()
    assert (cost.flops, cost.transcendentals) == (row["true_flops"], row["true_transcendentals"])


# A scan accumulates gradients otherwise than repetition does.
SAME_WORK = [name for name in LOOPS if "/cpu/" in name and not name.startswith("gradient")]


@pytest.mark.parametrize("name", SAME_WORK)
def test_looped_and_unrolled_differ_by_counters_only(name):
    row = LOOPS[name]
    looped = hlofast.loads(row["looped"]).cost()
    flops = {group["dtype"]: group["flops"] for group in looped.by("dtype")}
    floating = sum(count for dtype, count in flops.items() if dtype.startswith(("f", "bf")))
    unrolled = hlofast.loads(row["unrolled"]).cost()
    apart = {group["dtype"]: group["flops"] for group in unrolled.by("dtype")}
    assert floating == sum(count for dtype, count in apart.items() if dtype.startswith(("f", "bf")))
    assert unrolled.flops == row["unrolled_figures"][0]
    assert looped.transcendentals == unrolled.transcendentals == row["unrolled_figures"][1]


@pytest.mark.parametrize("form", ["looped", "unrolled"])
@pytest.mark.parametrize("name", LOOPS)
def test_dots_of_loops(name, form):
    row = LOOPS[name]
    total = sum(matmul["flops"] for matmul in hlofast.loads(row[form]).matmuls())
    assert total == row["dot_flops"]


def test_there_are_enough_pairs():
    assert len({row["name"] for row in LOOPS.values()}) >= 10


# The figures themselves.


@pytest.mark.oracle
def test_figures_of_dumps_are_what_xla_says_today(monkeypatch):
    monkeypatch.syspath_prepend(str(FIXTURES))
    make_costs = importlib.import_module("make_costs")
    xla_cost = importlib.import_module("xla_cost")
    with xla_cost.Oracle() as oracle:
        for row in DUMPS:
            fresh = make_costs.costs(oracle, read(FIXTURES / row["text"]))
            assert {name: row[name] for name in fresh} == fresh, row["text"]


@pytest.mark.oracle
def test_figures_of_snippets_are_what_xla_says_today(monkeypatch):
    monkeypatch.syspath_prepend(str(FIXTURES))
    xla_cost = importlib.import_module("xla_cost")
    cost_cases = importlib.import_module("cost_cases")
    kept = {name: text for texts in CASES.values() for name, text, _ in texts}
    assert dict(cost_cases.cases()) == kept
    with xla_cost.Oracle() as oracle:
        for name, row in CASE_ROWS.items():
            fresh = oracle.properties(row["text"])
            by_operand = {key: fresh[key] for key in fresh if key not in FOUR_FIGURES}
            assert same(by_operand, row["by_operand"]), name
        for name, text, theirs in (row for texts in SNIPPETS.values() for row in texts):
            assert oracle.figures(text)[:3] == theirs, name
