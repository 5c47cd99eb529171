"""Fields of every public table, unknown values, and sums."""

from pathlib import Path

import numpy
import pytest

import hlofast
from conftest import FIXTURES
from hlofast.table import Table

STEP = FIXTURES / "train_step.after_optimizations.txt"
PROGRAMS = (
    STEP,
    FIXTURES / "seedlike" / "gpu_train_step.txt.gz",
    FIXTURES / "seedlike" / "pipeline_stage.txt.gz",
    FIXTURES / "sharded" / "norm_v4_named_after.txt.gz",
    FIXTURES / "sharded" / "mlp_unrolled_plain.txt.gz",
)


def tables_of(path: object) -> dict[str, Table]:
    """Every table that a module has, by name."""
    module = hlofast.load(str(path))
    cost, memory, remat = module.cost(), module.memory(), module.remat()
    sent, stages = module.collectives(), module.stages()
    time = module.time("a100" if "gpu" in Path(str(path)).name else "tpu-v5p")
    tables: dict[str, Table] = {
        "instructions": module.table(),
        "cost.table": cost.table(),
        "cost.computations": cost.computations,
        "cost.loops": cost.loops,
        "cost.branches": cost.branches,
        "cost.unpriced": cost.unpriced,
        "cost.memory_spaces": cost.memory_spaces,
        "cost.explain": cost.explain(),
        "matmuls": module.matmuls(),
        "collectives": sent,
        "collectives.pieces": sent.pieces,
        "collectives.members": sent.members,
        "collectives.mismatches": sent.mismatches,
        "memory.live": memory.live,
        "memory.steps": memory.steps(),
        "remat.recomputed": remat.recomputed,
        "remat.residuals": remat.residuals,
        "remat.gathers": remat.gathers,
        "time.table": time.table(),
        "time.collectives": time.collectives,
        "lint": module.lint().table(),
        "diff.changes": module.diff(module).changes,
        "diff.totals": module.diff(module).totals(),
    }
    for key in ("phase", "scope", "source", "source_file", "opcode", "dtype", "computation"):
        tables[f"cost.by.{key}"] = cost.by(key)
    for name in ("markers", "sections", "stash", "cross_mesh", "divisions"):
        tables[f"stages.{name}"] = getattr(stages, "parts" if name == "sections" else name)
    return tables


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_fields_say_what_columns_are(path: object) -> None:
    for name, table in tables_of(path).items():
        assert table.columns == tuple(field.name for field in table.fields)
        for field in table.fields:
            place = f"{name}.{field.name}"
            assert field.doc.endswith("."), place
            assert field.label, place
            assert field.kind in hlofast._core.kinds
            values = table.values(field.name)
            if not field.nullable:
                assert None not in values, place
            known = [value for value in values if value is not None]
            if field.is_text:
                assert all(isinstance(value, str) for value in known), place
            elif field.kind == "flag":
                assert all(isinstance(value, bool) for value in known), place
                assert table[field.name].dtype == numpy.bool_
            else:
                assert all(isinstance(value, int | float) for value in known), place
                if not field.signed:
                    assert all(value >= 0 for value in known), place


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_unknown_values_are_masked_and_null(path: object) -> None:
    pytest.importorskip("pyarrow")
    for name, table in tables_of(path).items():
        read = table.to_arrow()
        assert read.to_pylist() == table.to_pylist(), name
        for field in table.fields:
            described = read.schema.field(field.name)
            assert described.metadata[b"doc"].decode() == field.doc
            assert described.metadata[b"unit"].decode() == field.unit
            array = table[field.name]
            assert array.tolist() == table.values(field.name), (name, field.name)
            is_masked = isinstance(array, numpy.ma.MaskedArray)
            assert is_masked == (field.nullable and not field.is_text), (name, field.name)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_sums_by_any_key_are_those_of_what_is_known(path: object) -> None:
    for name, table in tables_of(path).items():
        amounts = [own.name for own in table.fields if own.is_amount and own.kind != "flag"]
        keys = [field.name for field in table.fields if field.kind != "flag"]
        for key in keys:
            totals = [amount for amount in amounts if amount != key]
            grouped = Table.by(table, key, totals=totals)
            for total in totals:
                known = [value for value in table.values(total) if value is not None]
                sums = [value for value in grouped.values(total) if value is not None]
                assert sum(sums) == pytest.approx(min(sum(known), 2**63 - 1)), (name, key, total)
            if "unknown" in grouped:
                lacking = sum(None in row for row in zip(*map(table.values, totals), strict=True))
                assert sum(grouped.values("unknown")) == lacking, (name, key)


def test_what_is_no_amount_is_not_added_up() -> None:
    table = hlofast.load(STEP).collectives()
    for name in ("name", "channel_id", "instruction", "source_line", "axes"):
        with pytest.raises(TypeError, match="cannot be added up"):
            Table.by(table, "kind", totals=[name])


def test_flops_between_are_not_below_zero() -> None:
    """The sum of collectives that are not asynchronous is unknown, not -1 each."""
    grouped = hlofast.load(STEP).collectives().by("kind", totals=["flops_between"])
    (row,) = [row for row in grouped if row["kind"] == "all-reduce"]
    assert (row["flops_between"], row["unknown"]) == (None, 6)
