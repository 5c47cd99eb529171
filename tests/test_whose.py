"""Class, phase and source of the values alive at the peak, of rows without a name in particular."""

import re

import pytest

import hlofast
from conftest import FIXTURES

SHARDED = sorted(
    path for path in (FIXTURES / "sharded").glob("*.txt.gz") if re.search("_v[456]|mlp_", path.name)
)
NAMES = re.compile(rb', metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')


def alive(module: hlofast.Module) -> list[dict[str, object]]:
    return [row for row in module.memory().live.to_pylist() if row["bytes"]]


def share(rows: list[dict[str, object]], key: str, value: str) -> float:
    total = sum(row["bytes"] for row in rows)
    return sum(row["bytes"] for row in rows if row[key] == value) / total


@pytest.mark.parametrize("path", SHARDED, ids=lambda path: path.name.split(".")[0])
@pytest.mark.filterwarnings("ignore:some arrays have no layout")
def test_almost_nothing_at_the_peak_is_unknown(path) -> None:
    rows = alive(hlofast.load(path))
    assert share(rows, "class", "unknown") <= 0.01
    # Inputs that no work reads have no phase.
    made = [row for row in rows if row["opcode"] != "parameter"]
    unattributed = sum(row["bytes"] for row in made if row["phase"] == "unattributed")
    assert unattributed <= 0.03 * sum(row["bytes"] for row in rows)


def stripped(name: str) -> hlofast.Module:
    import gzip

    text = gzip.decompress((FIXTURES / "sharded" / f"{name}.txt.gz").read_bytes())
    return hlofast.loads(NAMES.sub(b"", text))


def classes(module: hlofast.Module) -> dict[str, int]:
    found = {"state": 0}
    for row in alive(module):
        # Names alone tell the optimizer's state from weights.
        own = row["class"].replace("optimizer_state", "state").replace("parameter", "state")
        found[own] = found.get(own, 0) + row["bytes"]
    return found


def test_a_training_step_without_names_has_the_classes_of_the_one_with_names() -> None:
    module = stripped("decoder_v5e_256")
    named = classes(hlofast.load(FIXTURES / "sharded" / "decoder_v5e_256.txt.gz"))
    bare = classes(module)
    assert bare.keys() == named.keys()
    assert bare == pytest.approx(named, rel=1e-3)
    assert named["residual"] > named["temporary"] > 0
    assert [note.code for note in module.memory().notes].count("phases-by-structure") == 1


def test_what_the_data_flow_does_not_tell_stays_unknown() -> None:
    module = stripped("mlp_scan_plain")
    rows = alive(module)
    assert share(rows, "class", "unknown") > 0.5
    (note,) = [note for note in module.memory().notes if note.code == "phases-by-structure"]
    assert "phases are unknown" in str(note)


STEP = """\
HloModule step, is_scheduled=true, num_partitions=2, input_output_alias={ {0}: (0, {}, may-alias) }

ENTRY e {
  w = f32[8,8]{1,0} parameter(0), metadata={op_name="state['w']"}
  x = f32[8,16]{1,0} parameter(1), metadata={op_name="batch['x']"}
  gathered = f32[16,8]{1,0} all-gather(w), replica_groups={{0,1}}, dimensions={0}, metadata={op_name="jit(step)/jvp(m)/dot_general"}
  turned = f32[8,16]{0,1} bitcast(gathered)
  copied = f32[8,16]{1,0} copy(turned)
  h = f32[8,8]{1,0:S(1)} dot(x, copied), lhs_contracting_dims={1}, rhs_contracting_dims={1}, metadata={op_name="jit(step)/jvp(m)/dot_general" source_file="model.py" source_line=7}
  out = (f32[8,8]{1,0}, f32[8,8]{1,0:S(1)}, u32[]) copy-start(h)
  kept = f32[8,8]{1,0} copy-done(out)
  d = f32[8,8]{1,0} cosine(h), metadata={op_name="jit(step)/transpose(jvp(m))/cos"}
  g = f32[8,8]{1,0} dot(kept, d), lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/transpose(jvp(m))/dot_general"}
  c = f32[8,16]{1,0} add(copied, copied), metadata={op_name="jit(step)/transpose(jvp(m))/add"}
  n = f32[8,8]{1,0} subtract(w, g), metadata={op_name="jit(step)/sub"}
  ROOT r = (f32[8,8]{1,0}, f32[8,16]{1,0}) tuple(n, c)
}
"""


def test_what_is_moved_keeps_class_phase_and_source() -> None:
    rows = hlofast.loads(STEP).memory().values().to_pylist()
    of = {(row["name"], row["index"]): row for row in rows}
    evicted = of["out", "{0}"]
    assert (evicted["class"], evicted["phase"]) == ("residual", "forward")
    assert (evicted["source_file"], evicted["source_line"]) == ("model.py", 7)
    assert of["gathered", "{}"]["class"] == of["copied", "{}"]["class"] == "gathered_weight"
    assert of["w", "{}"]["phase"] == "forward"
