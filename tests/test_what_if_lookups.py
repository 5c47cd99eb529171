"""`what-if`: lookups in a table, which XLA splits otherwise for other sizes.

The texts of `lookups/texts.tar.xz` are compiled by `tests/fixtures/make_lookups.py`; whether the
model splits lookups as XLA does is judged on random ones by `tests/oracle/judge_lookups.py`.
"""

from __future__ import annotations

import json
import lzma
import tarfile
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES
from hlofast._partition import made
from hlofast._partition.reshard import UnsureError

TEXTS = FIXTURES / "lookups" / "texts.tar.xz"


@pytest.fixture(scope="module")
def steps() -> dict[tuple[str, int], tuple[dict[str, Any], hlofast.Module]]:
    """By program and variant: its sizes and the compiled step."""
    lines = TEXTS.with_name("sizes.jsonl").read_text().splitlines()
    records = {f"{own['program']}.{own['variant']}.txt": own for own in map(json.loads, lines)}
    found = {}
    with lzma.open(TEXTS) as packed, tarfile.open(fileobj=packed) as archive:
        for entry in archive:
            own, file = records[entry.name], archive.extractfile(entry)
            assert file is not None
            module = hlofast.loads(file.read())
            module = module.with_context(mesh=own["mesh"], device=f"tpu-{own['chips'][:3]}")
            found[own["program"], own["variant"]] = own, module
    return found


MESH = {"data": 2, "fsdp": 2, "model": 2}


def changed(steps: Any, program: str, before: int, after: int) -> tuple[Any, hlofast.Module]:
    """One variant with the sizes of another, and the other."""
    own, module = steps[program, before]
    other, truth = steps[program, after]
    sizes = {name: other[name] for name in ("batch", "sequence") if own[name] != other[name]}
    mesh = other["mesh"] if own["mesh"] != other["mesh"] else None
    return module.what_if(**sizes, mesh=mesh), truth


def sent(module: hlofast.Module) -> dict[str, int]:
    """Wire bytes by mesh axes."""
    table = module.collectives().by("axes")
    return dict(zip(table.values("axes"), table.values("total_wire_bytes"), strict=True))


def codes(result: Any) -> list[str]:
    """The codes of the notes."""
    return [note.code for note in result.notes]


def figures(result: Any, column: str) -> dict[str, int]:
    """A column of wire bytes by mesh axes, without those along which nothing is sent."""
    return {row["axes"]: row[column] for row in result.wire_bytes if row[column]}


class TestSplitOtherwise:
    """The collectives are those that XLA makes of the new sizes."""

    @pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0), (0, 2), (2, 0)])
    def test_exact_where_others_are_made(self, steps: Any, before: int, after: int) -> None:
        result, truth = changed(steps, "whole", before, after)
        assert "other-lookup" in codes(result)
        assert not result.undecided
        assert figures(result, "after") == sent(truth)
        assert result.figures["wire_bytes"][1] == sum(sent(truth).values())
        # Without the model some axes would be missing, or have bytes that they no longer have.
        assert set(sent(result.changed)) != set(sent(truth))

    def test_a_note_says_so(self, steps: Any) -> None:
        assert "other-lookup" in codes(changed(steps, "whole", 0, 1)[0])
        assert "other-lookup" not in codes(changed(steps, "whole", 1, 2)[0])

    @pytest.mark.parametrize(("before", "after"), [(0, 3), (1, 3), (2, 3), (3, 0), (3, 1)])
    def test_on_another_mesh(self, steps: Any, before: int, after: int) -> None:
        """Lookups are decided; matmuls may be made otherwise on other meshes."""
        result, truth = changed(steps, "whole", before, after)
        assert "lookup" not in result.undecided.values()
        exact = sent(truth)
        known = {row["axes"]: row["after"] for row in result.wire_bytes if not row["undecided"]}
        assert any("×" in axes for axes in known)
        assert known == {axes: exact.get(axes, 0) for axes in known}

    @pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0)])
    def test_exchanged_tokens(self, steps: Any, before: int, after: int) -> None:
        result, truth = changed(steps, "exchanged", before, after)
        assert "other-lookup" not in codes(result)
        assert not result.undecided
        assert figures(result, "after") == sent(truth)

    @pytest.mark.parametrize(("before", "after"), [(0, 1), (2, 1)])
    def test_sums_behind_exchanged_tokens(self, steps: Any, before: int, after: int) -> None:
        """The sequence passes a bitcast to tiles, on whose two sides the width has other names."""
        result, truth = changed(steps, "exchanged", before, after)
        assert "other-lookup" in codes(result)
        assert not result.undecided
        assert figures(result, "after") == sent(truth)


class TestUndecided:
    """What the text does not say stays open."""

    def test_sizes_that_follow_nothing(self, steps: Any) -> None:
        """Behind an operation of unknown meaning no dimension is known to be the sequence."""
        own, module = steps["exchanged", 0]
        text = module.to_text()
        hidden = text.replace("bitcast(%copy.6)", 'custom-call(%copy.6), custom_call_target="Rows"')
        assert hidden != text
        module = hlofast.loads(hidden).with_context(mesh=own["mesh"], device="tpu-v5p")
        result = module.what_if(sequence=4096)
        assert result.undecided == {"all-reduce.1": "size"}
        assert "undecided-size" in codes(result)
        known = {row["axes"]: row["after"] for row in result.wire_bytes if not row["undecided"]}
        exact = sent(steps["exchanged", 1][1])
        assert known == {axes: exact.get(axes, 0) for axes in known}
        assert "model" not in known

    @pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0)])
    def test_a_sum_of_which_devices_take_parts(self, steps: Any, before: int, after: int) -> None:
        """The gradient of rows is the sum of a matmul: XLA scatters it in one of the texts."""
        result, truth = changed(steps, "summed", before, after)
        assert "other-lookup" in codes(result)
        assert set(result.undecided.values()) == {"lookup"}
        assert result.figures["wire_bytes"][1] is None
        assert all(row["after"] is None for row in result.wire_bytes)
        assert figures(result, "decided") != sent(truth)

    def test_padded_shards(self, steps: Any) -> None:
        """The sum of gradients becomes a reduce-scatter, whose padding no text says."""
        result, truth = changed(steps, "exchanged", 1, 2)
        assert "padded-lookup" in codes(result)
        assert result.figures["wire_bytes"][1] is None
        after = {row["axes"]: (row["after"], row["undecided"]) for row in result.wire_bytes}
        assert after.pop("model") == (None, "padding")
        exact = sent(truth)
        assert {axes: size for axes, (size, _) in after.items() if size} == {
            axes: size for axes, size in exact.items() if axes != "model"
        }

    def test_a_text_that_the_model_does_not_make(self, steps: Any) -> None:
        result, _ = changed(steps, "scattered", 0, 1)
        assert "lookup" in result.undecided.values()


class TestModel:
    """The model of the partitioner by itself."""

    def kinds(self, batch: int) -> list[str]:
        table = made.Table(32_000, 2048, (("model",), ("fsdp",)), 2)
        tokens = made.Input(batch, 2048, (("data", "fsdp"), ()), 4)
        split = made.split(MESH, table, [tokens], is_training=True)
        return [own.value.op for own in split.collectives]

    def test_the_cheaper_way(self) -> None:
        """With many tokens the gradient of the whole table is summed, with few rows are gathered."""
        assert self.kinds(32)[-2:] == ["all-reduce", "collective-permute"]
        assert self.kinds(16)[-1] == "all-reduce"
        assert self.kinds(32) != self.kinds(16)

    def test_nothing_to_exchange(self) -> None:
        table = made.Table(1000, 64, ((), ()), 2)
        tokens = made.Input(8, 16, ((), ()), 4)
        assert not made.split({"data": 2}, table, [tokens], is_training=True).collectives

    def test_uneven_tiles(self) -> None:
        table = made.Table(1001, 64, (("model",), ()), 2)
        tokens = made.Input(8, 16, ((), ()), 4)
        with pytest.raises(UnsureError):
            made.split(MESH, table, [tokens], is_training=True)

    def test_the_text_has_all_collectives(self) -> None:
        table = made.Table(32_000, 2048, (("model",), ("fsdp",)), 2)
        tokens = made.Input(32, 2048, (("data", "fsdp"), ()), 4)
        split = made.split(MESH, table, [tokens], is_training=True)
        module = hlofast.loads(made.as_text(split.collectives)).with_context(mesh=MESH)
        rows = list(module.collectives().tables["collectives"])
        assert len(rows) == len(split.collectives)
        assert all(row["axes"] and "?" not in row["axes"] for row in rows)
