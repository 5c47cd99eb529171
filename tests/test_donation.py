"""Donation: state that a step replaces and does not donate, in `memory`, `lint` and `check`."""

import lzma

import pytest

import hlofast
from conftest import FIXTURES
from shown import codes, figures

SMALL = FIXTURES / "stand_ins" / "small.txt.xz"


@pytest.fixture(scope="module")
def steps() -> tuple[hlofast.Module, hlofast.Module]:
    """A training step as compiled, and the same without `input_output_alias`."""
    text = lzma.decompress(SMALL.read_bytes()).decode()
    start = text.index(" input_output_alias={")
    end = text.index(" }, ", start) + len(" },")
    return hlofast.loads(text), hlofast.loads(text[:start] + text[end:])


@pytest.mark.filterwarnings("ignore:some arrays have no layout")
def test_a_step_that_lost_its_donation(steps: tuple[hlofast.Module, hlofast.Module]) -> None:
    donated, undonated = (step.memory() for step in steps)
    assert donated.undonated == {}
    assert "undonated" not in figures(donated.to_dict()) and "undonated" not in codes(
        donated.to_dict()
    )
    size = sum(undonated.undonated.values())
    # All that was donated except the step counter and the random key, which is returned as it is:
    # each is in a tile of its own.
    assert (
        size
        == donated.xla["alias_size_in_bytes"] - 1024
        == figures(undonated.to_dict())["undonated"]
    )
    assert undonated.xla["alias_size_in_bytes"] == 0
    assert 0.8 * size < undonated.xla_peak - donated.xla_peak <= size + 1024
    (note,) = (note for note in undonated.notes if note.code == "undonated")
    assert f"save up to {size:,} B" in str(note)
    assert "undonated-state" not in steps[0].lint().counts()
    (finding,) = (each for each in steps[1].lint() if each.code == "undonated-state")
    assert finding.bytes == size


UNDONATED = """HloModule m, is_scheduled=true, num_partitions=2HEADER

ENTRY e {
  w = f32[512,512] parameter(0), sharding={replicated}, metadata={op_name="state['w']"}
  m = f32[512,512] parameter(1), sharding={replicated}, metadata={op_name="state['m']"}
  n = s32[2] parameter(2), sharding={replicated}, metadata={op_name="state['count']"}
  g = f32[512,512] parameter(3), sharding={replicated}, metadata={op_name="batch"}
  h = f32[512,512] multiply(g, g), metadata={op_name="jit(step)/transpose(jvp(M))/mul"}
  nm = f32[512,512] add(m, h)
  nw = f32[512,512] subtract(w, nm)
  nn = s32[2] add(n, n)
  ROOT r = (f32[512,512], f32[512,512], s32[2]) tuple(nw, nm, nn)
}
"""


@pytest.mark.parametrize(
    ("aliases", "donates", "severity", "undonated"),
    [
        ("", "true", "error", (2 << 20) + 8),
        ("{0}: (0, {}, may-alias)", "true", "error", (1 << 20) + 8),
        # A counter matters little.
        ("{0}: (0, {}, may-alias), {1}: (1, {}, may-alias)", "true", "note", 8),
        ("{0}: (0, {}), {1}: (1, {}), {2}: (2, {})", "true", "agrees", 0),
        ("", "false", None, 0),
    ],
)
def test_donation(aliases: str, donates: str, severity: str | None, undonated: int) -> None:
    header = f", input_output_alias={{ {aliases} }}" if aliases else ""
    module = hlofast.loads(UNDONATED.replace("HEADER", header))
    declared = hlofast.Declaration.loads(
        "[mesh]\naxes = { data = 2 }\n[[parameters]]\nname = 'state/.*'\nspec = []\n"
        f"[model]\ndonates = {donates}"
    )
    rows = [row for row in hlofast.check(declared, module).comparisons if row["code"] == "donation"]
    assert [row["severity"] for row in rows] == ([] if severity is None else [severity])
    if severity == "error":
        assert rows[0]["bytes"] == undonated
        assert "was donate_argnums lost?" in rows[0]["message"]


def test_state_that_is_not_donated_is_state_all_the_same() -> None:
    declared = hlofast.Declaration.loads("[predicted]\nstate_bytes = 2_097_160")
    for header in ("", ", input_output_alias={ {0}: (0, {}), {1}: (1, {}), {2}: (2, {}) }"):
        module = hlofast.loads(UNDONATED.replace("HEADER", header))
        (row,) = hlofast.check(declared, module).comparisons
        assert (row["code"], row["severity"]) == ("state-bytes", "agrees")
