"""`hlofast show`: calls, FLOPs and time of an instruction, and figures in signed per cent."""

from pathlib import Path

import pytest

import hlofast
from hlofast._text import signed_share


def facts(module: hlofast.Module, name: str) -> dict[str, tuple[object, str]]:
    return {one.name: (one.value, one.provenance) for one in module.show(name).facts}


def test_an_instruction_has_calls_flops_and_time(train_step: Path) -> None:
    module = hlofast.load(train_step, device="tpu-v5e")
    time, matmuls = module.time(), module.matmuls()
    for row in list(matmuls)[:4]:
        fusion = next(iter(module[row["instruction"]].computation.callers), None)
        shown = facts(module, row["name"])
        assert shown["flops"] == (row["flops"] // row["multiplicity"], "exact")
        assert shown["multiplicity"] == (row["multiplicity"], "exact")
        if fusion is not None and fusion.opcode == "fusion":
            outer = facts(module, fusion.name)
            assert outer["flops"][0] >= shown["flops"][0]
            assert outer["seconds"] == (
                pytest.approx(time.column("seconds")[fusion.row]),
                "modelled",
            )


def test_without_a_device_there_is_no_time(train_step: Path) -> None:
    module = hlofast.load(train_step)
    assert "seconds" not in facts(module, "all-gather.63")
    loop = next(one.name for one in module if one.opcode == "while")
    assert "flops" not in facts(module, loop)
    assert facts(module, loop)["multiplicity"] == (1, "exact")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.5, "+50.0 %"), (-0.00001, ">-0.1 %"), (0.0004, "<+0.1 %"), (0.0, "+0.0 %")],
)
def test_small_changes_are_not_rounded_away(value: float, shown: str) -> None:
    assert signed_share(value) == shown


def test_every_fact_has_a_label_of_its_own(train_step: Path) -> None:
    module = hlofast.load(train_step, device="tpu-v5e")
    name = next(own.name for own in module if own.opcode == "while")
    labels = [fact.field.label for fact in module.show(name).facts]
    assert len(labels) == len(set(labels))
    assert "calls" in labels
