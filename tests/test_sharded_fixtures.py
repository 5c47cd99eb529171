"""The reader of device groups in `sharded_truth`, and the recorded truth against its texts.

Encoded messages here are written byte by byte, without XLA or hlofast.
"""

import gzip
import json
import pathlib
import sys

import pytest

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
sys.path.insert(0, str(FIXTURES))

import sharded_truth  # noqa: E402 - lies among the fixtures

MESH = {"data": 2, "fsdp": 2, "model": 4}


def field(number, value):
    """A field of a message, for values and sizes below 128."""
    if isinstance(value, int):
        return bytes([*key(number, 0), value])
    return bytes([*key(number, 2), len(value)]) + value


def key(number, kind):
    """The key in front of a field."""
    whole = number << 3 | kind
    return [whole] if whole < 128 else [whole & 127 | 128, whole >> 7]


def groups(encoded, participants=16):
    """The form and the groups of an instruction with these fields, as lists."""
    form, rows = sharded_truth.groups_of(sharded_truth.message(encoded), participants)
    return form, [[int(device) for device in row] for row in rows]


def test_listed_groups():
    rows = [bytes([1, 3]), bytes([0, 2])]
    listed = b"".join(field(1, field(1, row)) for row in rows)
    assert groups(field(87, listed)) == ("list", [[1, 3], [0, 2]])
    unpacked = b"".join(field(49, b"".join(field(1, device) for device in row)) for row in rows)
    assert groups(unpacked) == ("list", [[1, 3], [0, 2]])


@pytest.mark.parametrize("encoded", [b"", field(87, b"")])
def test_no_groups_are_one_group_of_all(encoded):
    assert groups(encoded, 4) == ("empty", [[0, 1, 2, 3]])


def test_groups_by_transposed_numbers():
    iota = field(1, 4) + field(2, 2) + field(3, bytes([2, 4])) + field(4, bytes([1, 0]))
    assert groups(field(92, iota)) == ("iota", [[0, 4], [1, 5], [2, 6], [3, 7]])


def test_groups_by_axes_of_a_mesh():
    axes = field(1, field(1, b"a") + field(2, 2)) + field(1, field(1, b"b") + field(2, 4))
    first, second = b"", field(1, 1)
    assert groups(field(93, field(1, axes) + field(2, first)))[1] == [
        [0, 4],
        [1, 5],
        [2, 6],
        [3, 7],
    ]
    assert groups(field(93, field(1, axes) + field(2, second)))[1] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    both = field(93, field(1, axes) + field(2, first) + field(2, second))
    assert groups(both) == ("mesh", [list(range(8))])
    minor = field(1, 1) + field(2, field(1, 2) + field(2, 2))
    pairs = groups(field(93, field(1, axes) + field(2, minor)))[1]
    assert pairs == [[0, 1], [2, 3], [4, 5], [6, 7]]
    ordered = axes + field(2, bytes([7, 6, 5, 4, 3, 2, 1, 0]))
    turned = groups(field(93, field(1, ordered) + field(2, second)))[1]
    assert turned == [[7, 6, 5, 4], [3, 2, 1, 0]]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[device, device + 8] for device in range(8)], [["data"]]),
        ([[4 * row + k for k in range(4)] for row in range(4)], [["model"]]),
        (
            [[device, device + 4, device + 8, device + 12] for device in range(4)],
            [["data", "fsdp"]],
        ),
        ([[device, device + 1] for device in range(0, 16, 2)], [["model:(2)2"]]),
        (
            [[8 * h + k + device for h in (0, 1) for k in (0, 2)] for device in (0, 1, 4, 5)],
            [["data", "model:(1)2"]],
        ),
        ([[device] for device in range(16)], [[]]),
        ([[0, 3], [1, 2], *[[device, device + 1] for device in range(4, 16, 2)]], []),
        ([[0, 1], [2, 3]], []),
    ],
)
def test_axes_of_groups(rows, expected):
    assert sharded_truth.axis_subsets(MESH, rows) == expected


def test_axes_of_permutes():
    ring = [(4 * row + k, 4 * row + (k + 3) % 4) for row in range(4) for k in range(4)]
    assert sharded_truth.permute_axes(MESH, ring) == (["model"], {"model": 3})
    line = [(device, device + 8) for device in range(8)]
    assert sharded_truth.permute_axes(MESH, line) == (["data"], {"data": 1})
    assert sharded_truth.permute_axes(MESH, [(0, 1), (1, 0), (2, 14)])[1] is None
    assert sharded_truth.permute_axes(MESH, [(0, 16)]) == ([], None)


def test_scopes_name_axes():
    assert sharded_truth.named_axes("jit(f)/over_data_model/psum") == ["data", "model"]
    assert sharded_truth.named_axes("jit(f)/transpose(jvp(over_fsdp))/x") == ["fsdp"]
    assert sharded_truth.named_axes("jit(f)/moreover/psum") is None


RECORDS = [
    json.loads(line)
    for line in gzip.decompress((FIXTURES / "sharded" / "truth.jsonl.gz").read_bytes()).splitlines()
]


@pytest.mark.parametrize(
    "record",
    [record for record in RECORDS if record["committed"]],
    ids=lambda record: record["name"],
)
def test_truth_belongs_to_its_text(record):
    text = gzip.decompress((FIXTURES / "sharded" / f"{record['name']}.txt.gz").read_bytes())
    assert len(text) == record["text_bytes"]
    for row in record["collectives"]:
        if not row["wrapped_by"]:
            assert f"{row['name']} = ".encode() in text, row


def test_scopes_and_groups_agree():
    compared = 0
    for record in RECORDS:
        for row in record["collectives"]:
            if row["named_axes"] is None or "groups" not in row:
                continue
            named = [
                axis
                for axis, size in record["mesh"].items()
                if size > 1 and axis in row["named_axes"]
            ]
            assert named in [row["axes"], *row.get("other_axes", [])], (record["name"], row["name"])
            compared += 1
    assert compared > 100


def test_every_group_set_has_axes():
    for record in RECORDS:
        for row in record["collectives"]:
            assert row.get("axes", []) is not None, (record["name"], row["name"])
