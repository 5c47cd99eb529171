"""Files written by users, with values of any type under every known key, raise only `ValueError`."""

import csv
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hlofast
from conftest import LONG
from hlofast import devices
from hlofast._check.declaration import PREDICTIONS
from hlofast._check.expectations import BYTES, COUNTS, LIMITS, OF_COLLECTIVES

TEXTS = st.sampled_from(
    [
        "",
        "data",
        "any",
        "all-gather",
        "bf16[2,3]",
        "1GiB",
        "(",
        "torus-2d",
        "tpu",
        "tpu-v5p",
        "\x1b",
    ]
) | st.text(max_size=4)
NUMBERS = (
    st.integers(-3, 9)
    | st.sampled_from([2**31, 2**63, 2**64, 10**400, 1e308, 1e-308, -0.0])
    | st.floats()
)
LEAVES = st.booleans() | NUMBERS | TEXTS
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def table(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A table with some of these keys, whose values may be others; or none at all."""
    mixed = {key: st.one_of(value, value, value, ANYTHING) for key, value in values.items()}
    return st.fixed_dictionaries({}, optional=mixed)


def toml(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(letter):08x}" for letter in value) + '"'
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(key)} = {toml(item)}" for key, item in value.items()) + "}"
    return str(value)


def document(tables: dict[str, Any]) -> str:
    """Tables as a TOML file has them."""
    return "".join(f"{toml(key)} = {toml(value)}\n" for key, value in tables.items())


def reads_or_says_why(read: Callable[[], object]) -> None:
    """Call it; a `ValueError` says in words what is wrong, and nothing else comes out."""
    refused: ValueError | None = None
    try:
        read()
    except ValueError as error:
        refused = error
    # Others are those of functions inside, which know no file.
    assert type(refused) in (type(None), ValueError, devices.UnknownDeviceError)
    assert refused is None or str(refused)


NAMES = st.lists(TEXTS, max_size=3) | st.lists(st.lists(TEXTS, max_size=2), max_size=2)
SIZES = st.lists(st.integers(-1, 2**40), max_size=3)
AXES = st.dictionaries(st.sampled_from(["data", "model", ""]), st.integers(1, 8), max_size=2)
DECLARATIONS = table(
    mesh=table(axes=AXES, slices=NUMBERS, hosts=NUMBERS, batch_axes=NAMES)
    | st.fixed_dictionaries({"axes": AXES, "batch_axes": NAMES | ANYTHING}),
    model=table(layers=NUMBERS, accumulation_steps=NUMBERS, carry_bytes=NUMBERS | TEXTS),
    parameters=st.lists(
        table(name=TEXTS, spec=NAMES | st.lists(NAMES, max_size=2), shape=SIZES), max_size=2
    ),
    kept=st.lists(
        table(name=TEXTS, shape=TEXTS, bytes=NUMBERS, place=st.sampled_from(["device", "host"])),
        max_size=2,
    ),
    predicted=table(**dict.fromkeys(PREDICTIONS, NUMBERS | TEXTS)),
    limits=table(hbm=NUMBERS | TEXTS),
)
LIMIT = table(**dict.fromkeys(LIMITS, NUMBERS | TEXTS))
COLLECTIVES = table(
    **{f"{limit}_{name}": NUMBERS | TEXTS for limit in LIMITS for name in OF_COLLECTIVES}
)
EXPECTATIONS = table(
    **dict.fromkeys((*BYTES, *COUNTS), LIMIT),
    lint=table(forbid=NAMES),
    collectives=table(any=table(**{"all-gather": COLLECTIVES, "any": COLLECTIVES})),
)
CELL = NUMBERS | TEXTS | table(value=NUMBERS | TEXTS, source=TEXTS)
DEVICE = table(
    base=TEXTS,
    label=TEXTS,
    backend=st.sampled_from(["tpu", "gpu", "other"]),
    aliases=NAMES,
    flops=st.dictionaries(st.sampled_from(["bf16", "f32"]), CELL),
    **dict.fromkeys(devices.FIGURES, CELL),
)
DEVICES = table(sources=st.dictionaries(TEXTS, TEXTS, max_size=2), mine=DEVICE, other=DEVICE)
RULES = table(rule=st.lists(table(pattern=TEXTS, phase=TEXTS), max_size=2))
ROW = table(
    kind=st.sampled_from(["all-gather", "all-reduce", "x"]),
    group_size=NUMBERS,
    bytes=NUMBERS,
    seconds=NUMBERS,
)
MEASUREMENTS = st.lists(ROW, max_size=3) | ANYTHING
POINTS = st.lists(st.tuples(NUMBERS | ANYTHING, NUMBERS | ANYTHING) | ANYTHING, max_size=2)
KEYS = st.sampled_from([(((0, 1),), "f32"), (((0, 1),), 3), ((), "f32"), "f32", 3, (3, "f32")])
ALPA = table(
    all_gather_cost_dict=st.dictionaries(KEYS, POINTS, max_size=2),
    all_reduce_cost_dict=st.dictionaries(KEYS, POINTS, max_size=2),
    inner=table(all_to_all_cost_dict=st.dictionaries(KEYS, POINTS, max_size=2)),
)

fuzzed = settings(
    max_examples=5000 if LONG else 150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzzed") / "file"


def used(device: devices.Device) -> None:
    """Whatever a table was read as can be shown and passed on."""
    assert repr(device)
    device._parts()
    device.replace(hbm_bytes=1)


@fuzzed
@given(tables=DECLARATIONS)
def test_declarations(tables: dict[str, Any]) -> None:
    reads_or_says_why(lambda: repr(hlofast.Declaration.loads(document(tables))))


@fuzzed
@given(tables=EXPECTATIONS)
def test_expectations(tables: dict[str, Any]) -> None:
    reads_or_says_why(lambda: repr(hlofast.Expectations.loads(document(tables))))
    reads_or_says_why(lambda: repr(hlofast.Expectations(tables)))


@fuzzed
@given(tables=DEVICES)
def test_devices(path: Path, tables: dict[str, Any]) -> None:
    def read() -> None:
        path.write_text(document(tables), encoding="utf-8")
        known = devices.load(path)
        for name in known:
            used(known[name])
        assert len(devices.table(known)) > 0

    reads_or_says_why(read)


@fuzzed
@given(tables=RULES)
def test_rules(path: Path, tables: dict[str, Any]) -> None:
    module = hlofast.loads("ENTRY e { ROOT p = f32[] parameter(0) }")

    def read() -> None:
        path.write_text(document(tables), encoding="utf-8")
        module.cost(rules=path)

    reads_or_says_why(read)


@fuzzed
@given(rows=MEASUREMENTS)
def test_measurements_in_json(path: Path, rows: Any) -> None:
    file = path.with_suffix(".json")
    file.write_text(json.dumps(rows))

    def read() -> None:
        measurements = devices.read_measurements(file)
        for kind, group_size in measurements.keys:
            measurements.seconds(kind, 100.0, group_size)

    reads_or_says_why(read)


@fuzzed
@given(tables=ALPA)
def test_measurements_in_pickles(path: Path, tables: Any) -> None:
    file = path.with_suffix(".pkl")
    file.write_bytes(pickle.dumps(tables))
    reads_or_says_why(lambda: devices.read_measurements(file))


@fuzzed
@given(content=st.binary(max_size=40) | st.text(alphabet='kindgroup_szebyt,\n"1', max_size=40))
def test_measurements_in_csv(path: Path, content: bytes | str) -> None:
    file = path.with_suffix(".csv")
    head = "kind,group_size,bytes,seconds\n"
    file.write_bytes(content if isinstance(content, bytes) else (head + content).encode())
    reads_or_says_why(lambda: devices.read_measurements(file))


DEEP = "[" * 100_000
DOTTED = ".".join("a" * 3_000)


@pytest.mark.parametrize(
    "text",
    [
        f"a = {DEEP}",
        f"[{DOTTED}]",
        f"{DOTTED} = 1",
        f"peak = {{{DOTTED} = 1}}",
        f"a = {'9' * 5000}",
    ],
)
def test_nesting_and_numbers_without_end(path: Path, text: str) -> None:
    path.write_text(text)
    for read in (
        hlofast.Declaration.load,
        hlofast.Expectations.load,
        devices.load,
        hlofast.loads("ENTRY e { ROOT p = f32[] parameter(0) }").cost,
    ):
        with pytest.raises(ValueError, match=str(path)):
            read(rules=path) if read.__name__ == "cost" else read(path)


@pytest.mark.parametrize(
    "content",
    ['[{"kind": "all-gather", "group_size": Infinity, "bytes": 1, "seconds": 1}]', "9" * 5000],
)
def test_numbers_of_measurements_without_end(path: Path, content: str) -> None:
    file = path.with_suffix(".json")
    file.write_text(content)
    with pytest.raises(ValueError, match=str(file)):
        devices.read_measurements(file)
    file = path.with_suffix(".csv")
    file.write_text("kind\n" + "x" * 200_000)
    limit = csv.field_size_limit(131_072)  # As Python has it; other packages change it.
    try:
        with pytest.raises(ValueError, match="field larger than field limit"):
            devices.read_measurements(file)
    finally:
        csv.field_size_limit(limit)
