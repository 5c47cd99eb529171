"""`hlofast.check`: declared against compiled, on programs with known source."""

import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import check_programs
import hlofast
from conftest import FIXTURES
from test_cli import document, hlofast_command

SHARDED = FIXTURES / "sharded"
OFFLOADED = SHARDED / "offload_v6e_256.txt.gz"
SMALL = SHARDED / "decoder_cpu_2x4.txt.gz"


def program(name: str) -> hlofast.Module:
    return hlofast.load(SHARDED / f"{name}.txt.gz")


def checked(name: str, expected: Any = None, **changes: Any) -> hlofast.Check:
    declared = hlofast.Declaration.loads(check_programs.toml(name, **changes))
    return hlofast.check(declared, program(name), expected)


def grave(check: hlofast.Check) -> list[tuple[str, str]]:
    return [
        (finding.code, finding.subject) for finding in check.found() if finding.severity == "error"
    ]


class TestWhatAgrees:
    """Declarations that follow the source of the programs."""

    @pytest.mark.parametrize(
        "name", [name for name in check_programs.PROGRAMS if name != "decoder_v5p_2"]
    )
    def test_nothing_is_wrong_with_what_was_meant(self, name: str) -> None:
        check = checked(name)
        assert check.ok
        assert grave(check) == []
        codes = {row["code"] for row in check.comparisons if row["severity"] == "agrees"}
        assert {"device-count", "collective-axes", "parameter-sharding", "state-bytes"} <= codes
        # Embeddings are looked up across devices; no exchange of the layers is unexplained.
        for finding in check.found("unexplained-collective"):
            assert finding.severity == "note"
            assert "embedding" in finding.message

    def test_every_parameter_is_compared(self) -> None:
        check = checked("offload_v6e_256")
        compared = [row for row in check.comparisons if row["code"] == "parameter-sharding"]
        # 12 parameters, two moments of each, and the count of steps
        assert len(compared) == 3 * 12 + 1
        (state,) = (row for row in check.comparisons if row["code"] == "state-bytes")
        assert state["declared"] == state["compiled"] == "3,249,045,508 B"

    def test_what_the_policy_offloads(self) -> None:
        predicted = "[predicted]\noffloaded_bytes = 6_039_797_760\ngathered_bytes = 273_804_165_120"
        check = checked("offload_v6e_256", more=predicted)
        kept = [row for row in check.comparisons if row["code"] == "kept-values"]
        assert {row["subject"] for row in kept} == {*check_programs.NAMES, "input of the layer"}
        assert sum(row["bytes"] for row in kept[:4]) == 6_039_797_760
        assert check.found("offloaded-bytes", "gathered-bytes", "kept-values") == ()

    def test_iterations_outside_of_loops_count(self) -> None:
        rows = [
            row for row in checked("offload_v6e_256").comparisons if row["code"] == "layer-loops"
        ]
        assert [row["compiled"] for row in rows] == ["79 times and 1 outside"] * 2

    def test_micro_batches(self) -> None:
        (row,) = (
            row
            for row in checked("accumulated_v6e_8").comparisons
            if row["code"] == "accumulation-steps"
        )
        assert (row["severity"], row["compiled"]) == ("agrees", "4")

    def test_slices_of_a_larger_system(self) -> None:
        (row,) = (
            row for row in checked("slices_v5e_64").comparisons if row["code"] == "device-count"
        )
        assert (row["severity"], row["compiled"]) == ("agrees", "16 of each of 4 slices")

    def test_an_empty_declaration_compares_nothing(self) -> None:
        check = hlofast.check(hlofast.Declaration.loads(""), program("decoder_cpu_8"))
        assert (len(check), check.ok) == (0, True)


class TestPlantedMistakes:
    """One thing is declared otherwise, and named."""

    def test_a_replicated_table(self) -> None:
        """The head is split over `model` only, though `data` was to split it too."""
        text = check_programs.toml("decoder_cpu_2x4").replace(
            "name = '.*/head'\nspec = ['', 'model']", "name = '.*/head'\nspec = ['data', 'model']"
        )
        check = hlofast.check(hlofast.Declaration.loads(text), program("decoder_cpu_2x4"))
        findings = [
            finding for finding in check.found("parameter-sharding") if finding.severity == "error"
        ]
        heads = {"parameters/head", "state/first/head", "state/second/head"}
        assert {finding.subject for finding in findings} == heads
        # f32[256,1024] in quarters instead of eighths
        assert [finding.bytes for finding in findings] == [4 * 256 * 1024 // 8] * 3
        assert findings[0].declared == "P('data', 'model')"
        assert findings[0].compiled == "P(None, 'model')"
        (state,) = check.found("state-bytes")
        assert state.bytes == 3 * 4 * 256 * 1024 // 8

    def test_a_wrong_name_in_the_policy(self) -> None:
        """The policy keeps `gate`, which the program never names."""
        more = '[[kept]]\nname = "gate"\nshape = "bf16[1,2048,28672]"\nplace = "host"'
        check = checked("offload_v6e_256", more=more)
        assert grave(check) == [("kept-values", "gate")]
        (finding,) = check.found("kept-values")
        assert finding.bytes == 80 * 2 * 2048 * 28672

    def test_a_name_that_the_policy_lacks(self) -> None:
        text = check_programs.toml("offload_v6e_256")
        start = text.index('[[kept]]\nname = "mixed"')
        end = text.index("]", text.index("shape", start)) + 2
        check = hlofast.check(
            hlofast.Declaration.loads(text[:start] + text[end:]), program("offload_v6e_256")
        )
        (finding,) = check.found("kept-undeclared")
        assert finding.severity == "warning"
        assert finding.bytes == 80 * 33_554_432

    def test_kept_in_the_other_memory(self) -> None:
        text = check_programs.toml("offload_v6e_256").replace('place = "host"', 'place = "device"')
        check = hlofast.check(hlofast.Declaration.loads(text), program("offload_v6e_256"))
        messages = [finding.message for finding in check.found("kept-values")]
        assert messages == ["it is kept in host memory instead"] * 4

    def test_another_policy_than_was_declared(self) -> None:
        """All products are kept where nothing was to be."""
        findings = checked("decoder_v5p_2").found("kept-undeclared")
        assert len(findings) == 7
        assert all("policy names no value" in finding.message for finding in findings)

    def test_another_number_of_layers(self) -> None:
        assert ("layer-loops", "loop over layers") in grave(checked("decoder_v5e_256", layers=40))
        assert ("layer-loops", "loop over layers") in grave(checked("decoder_v5e_256", layers=96))
        (first, _) = checked("decoder_v5e_256", layers=81).found("layer-loops")
        assert first.severity == "warning"

    def test_another_number_of_micro_batches(self) -> None:
        (finding,) = checked("accumulated_v6e_8", accumulate=8).found("accumulation-steps")
        assert (finding.severity, finding.declared, finding.compiled) == ("error", "8", "4")

    def test_axes_in_another_order(self) -> None:
        check = checked("decoder_cpu_2x4", axes={"model": 4, "data": 2})
        assert {code for code, _ in grave(check)} == {"parameter-sharding"}
        (first, *_) = check.found("collective-axes")
        assert "along a part of an axis" in first.message
        assert first.instruction is not None
        assert check.module[first.instruction].opcode.startswith(("all-", "reduce", "coll"))

    def test_groups_along_no_axes(self) -> None:
        """The program is that of one slice, which the declaration does not say."""
        check = checked("slices_v5e_64", slices=1)
        codes = {code for code, _ in grave(check)}
        assert codes == {"device-count"}
        message = check.found("device-count")[0].message
        assert "is it compiled for one slice of 4? Then declare slices = 4" in message

    @pytest.mark.parametrize(("sizes", "severity"), [((2, 4), None), ((4, 4), "error")])
    def test_devices_that_only_groups_tell(
        self, sizes: tuple[int, int], severity: str | None
    ) -> None:
        """Programs of older versions do not say how many partitions there are."""
        module = hlofast.loads(
            "HloModule m, is_scheduled=true\n"
            "sum { x = f32[] parameter(0)\n y = f32[] parameter(1)\n ROOT z = f32[] add(x, y) }\n"
            "ENTRY e { p = f32[8] parameter(0)\n q = f32[8] all-reduce(p), channel_id=1, "
            "replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true, to_apply=sum\n"
            "ROOT r = f32[8] all-reduce(q), channel_id=2, replica_groups={{0,4},{1,5},{2,6},{3,7}},"
            " use_global_device_ids=true, to_apply=sum }\n"
        )
        mesh = hlofast.Mesh(dict(zip(("data", "model"), sizes, strict=True)))
        findings = hlofast.check(hlofast.Declaration(mesh=mesh), module).found("device-count")
        assert [finding.severity for finding in findings] == ([severity] if severity else [])

    def test_another_number_of_devices(self) -> None:
        check = checked("decoder_cpu_2x4", axes={"data": 4, "model": 4})
        (finding,) = check.found("device-count")
        assert finding.severity == "error"
        assert (
            "16 devices, but the program has 8; is it compiled for one slice of 2?"
            in finding.message
        )
        assert finding.message.endswith("; nothing else is compared")
        assert [code for code, _ in grave(check)] == ["device-count"]

    def test_an_exchange_that_no_split_asks_for(self) -> None:
        """Activations gathered in every layer over an axis that is said to split the batch only."""
        text = check_programs.toml("decoder_cpu_2x4").replace(
            "batch_axes = ['data']", "batch_axes = ['data', 'model']"
        )
        findings = hlofast.check(hlofast.Declaration.loads(text), program("decoder_cpu_2x4")).found(
            "unexplained-collective"
        )
        assert {finding.severity for finding in findings} == {"warning", "note"}
        assert "in every layer" in findings[0].message
        assert findings[0].bytes is not None
        assert findings[0].bytes > 0

    @pytest.mark.parametrize(
        ("figure", "value", "severity"),
        [
            ("state_bytes", 13_396_996, None),
            # As much as the step counter takes.
            ("state_bytes", 13_396_992, "note"),
            ("state_bytes", 13_397_096, "error"),
            ("offloaded_bytes", 0, None),
            ("offloaded_bytes", 4096, "error"),
            ("gathered_bytes", 1, "error"),
            ("peak_bytes", 0, None),
            ("peak_bytes", 2**40, "warning"),
            ("expected_peak_bytes", 2**40, "note"),
            ("flops", 1000, "error"),
            ("flops", 10**15, "warning"),
        ],
    )
    def test_predicted_figures(self, figure: str, value: int, severity: str | None) -> None:
        check = checked("decoder_cpu_2x4", more=f"[predicted]\n{figure} = {value}")
        code = figure.removeprefix("expected_").replace("_", "-")
        assert [finding.severity for finding in check.found(code)] == (
            [severity] if severity else []
        )
        assert code in {row["code"] for row in check.comparisons}

    def test_flops_near_those_predicted_agree(self) -> None:
        flops = sum(row["flops"] for row in program("decoder_cpu_2x4").matmuls())
        for value in (flops, flops * 1.009, flops * 0.992):
            check = checked("decoder_cpu_2x4", more=f"[predicted]\nflops = {value}")
            assert check.found("flops") == ()

    def test_memory_of_a_device(self) -> None:
        assert checked("offload_v6e_256", more='[limits]\nhbm = "31.25GiB"').ok
        (finding,) = checked("offload_v6e_256", more='[limits]\nhbm = "8GiB"').found("peak-bytes")
        peak = int(finding.compiled.removesuffix(" B").replace(",", ""))
        assert finding.bytes == peak - 8 * 2**30
        assert 10 * 2**30 < peak < 11 * 2**30

    def test_specs_of_more_dimensions(self) -> None:
        """Entries for dimensions that do not exist are errors."""
        text = (
            "[mesh]\naxes = { data = 2, model = 4 }\n"
            '[[parameters]]\nname = ".*"\nspec = ["", "", "", "", "model"]\n'
        )
        check = hlofast.check(hlofast.Declaration.loads(text), program("decoder_cpu_2x4"))
        findings = check.found("parameter-sharding")
        assert findings and {finding.severity for finding in findings} == {"error"}
        assert findings[0].message == "the declared spec has 5 entries"

    def test_patterns_that_match_nothing(self) -> None:
        more = "[[parameters]]\nname = 'router'\nspec = []\n[[parameters]]\nname = '.*/head'\nspec = []"
        findings = checked("decoder_cpu_2x4", more=more).found("parameter-missing")
        assert [finding.subject for finding in findings] == ["router", ".*/head"]
        assert "has no such parameter" in findings[0].message
        assert "an earlier pattern matches" in findings[1].message


STATE = "(s32[], f32[8,4,16], f32[16,16])"
GATHER = (
    "all-gather(part), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, "
    'dimensions={0}, metadata={op_name="jit(step)/PHASE/while/body/gather"}'
)
LOOP = """
body_NAME {
  s = STATE parameter(0)
  i = s32[] get-tuple-element(s), index=0
  w = f32[8,4,16] get-tuple-element(s), index=1
  x = f32[16,16] get-tuple-element(s), index=2
  zero = s32[] constant(0)
  slice = f32[1,4,16] dynamic-slice(w, i, zero, zero), dynamic_slice_sizes={1,4,16}
  part = f32[4,16] bitcast(slice)
  all = f32[16,16] GATHER
  y = f32[16,16] dot(x, all), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  one = s32[] constant(1)
  next = s32[] add(i, one)
  ROOT r = STATE tuple(next, w, y)
}
condition_NAME {
  s = STATE parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(COUNT)
  ROOT more = pred[] compare(i, n), direction=LT
}
"""
ENTRY = """
ENTRY e {
  p = f32[8,4,16] parameter(0), sharding={devices=[1,4,1]<=[4]}, metadata={op_name="w"}
  a = f32[16,16] parameter(1), sharding={replicated}, metadata={op_name="x"}
  zero = s32[] constant(0)
  begin = STATE tuple(zero, p, a)
  forward = STATE while(begin), condition=condition_forward, body=body_forward
  out = f32[16,16] get-tuple-element(forward), index=2
  slice = f32[1,4,16] slice(p), slice={[7:8],[0:4],[0:16]}
  part = f32[4,16] bitcast(slice)
  all = f32[16,16] GATHER
  first = f32[16,16] dot(out, all), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  again = STATE tuple(zero, p, first)
  backward = STATE while(again), condition=condition_backward, body=body_backward
  ROOT r = f32[16,16] get-tuple-element(backward), index=2
}
"""


@pytest.mark.parametrize(("count", "gathered"), [(7, 16), (6, 15)])
def test_loops_of_which_one_is_peeled(count: int, gathered: int) -> None:
    """The forward loop runs 8 times, the backward loop 7 times after a peeled iteration."""

    def loop(name: str, phase: str, count: int) -> str:
        text = LOOP.replace("GATHER", GATHER.replace("PHASE", phase))
        return text.replace("NAME", name).replace("COUNT", str(count))

    text = "HloModule m, is_scheduled=true, num_partitions=4\n"
    text += loop("forward", "jvp(M)", 8) + loop("backward", "transpose(jvp(M))", count)
    text += ENTRY.replace("GATHER", GATHER.replace("PHASE", "transpose(jvp(M))"))
    declared = hlofast.Declaration.loads(
        "[mesh]\naxes = { fsdp = 4 }\n[model]\nlayers = 8\n"
        "[[parameters]]\nname = 'w'\nspec = ['', 'fsdp', '']\n"
        f"[predicted]\ngathered_bytes = {gathered * 4 * 16 * 16}\n"
    )
    check = hlofast.check(declared, hlofast.loads(text.replace("STATE", STATE)))
    rows = [row for row in check.comparisons if row["code"] == "layer-loops"]
    assert [row["declared"] for row in rows] == ["8 times"] * 2
    if count == 7:
        assert [row["compiled"] for row in rows] == ["8 times", "7 times and 1 outside"]
        assert {row["severity"] for row in rows} == {"agrees"}
    else:
        # One iteration is missing.
        assert [row["severity"] for row in rows] == ["agrees", "warning"]
    assert [row["severity"] for row in check.comparisons if row["code"] == "gathered-bytes"] == [
        "agrees"
    ]
    assert check.ok


def test_before_the_partitioner() -> None:
    """Shapes are those of all devices then: what one will have follows from the shardings."""
    text = """
[mesh]
axes = { a = 2, b = 4 }
[[parameters]]
name = "left"
spec = ["a", "b"]
[predicted]
flops = {flops}
offloaded_bytes = 7
gathered_bytes = 7
peak_bytes = 7
"""
    hlo = """HloModule m

ENTRY e {
  x = f32[64,32] parameter(0), sharding={devices=[2,4]<=[8]}, metadata={op_name="left"}
  y = f32[32,16] parameter(1), sharding={replicated}, metadata={op_name="right"}
  ROOT d = f32[64,16] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}, sharding={devices=[2,1,4]<=[8] last_tile_dim_replicate}
}
"""
    flops = 2 * 64 * 32 * 16 // 8
    module = hlofast.loads(hlo)
    assert module.summary().status == "annotated"
    check = hlofast.check(hlofast.Declaration.loads(text.replace("{flops}", str(flops))), module)
    rows = {row["code"]: row for row in check.comparisons}
    assert rows["parameter-sharding"]["severity"] == "agrees"
    assert rows["state-bytes"]["compiled"] == f"{64 * 32 * 4 // 8:,} B"
    assert rows["flops"]["severity"] == rows["state-bytes"]["severity"] == "agrees"
    assert not {"offloaded-bytes", "gathered-bytes", "peak-bytes"} & set(rows)
    assert check.ok


def test_paths_of_parameters() -> None:
    path_of = hlofast._check.path_of
    assert path_of("state['layers']['w'][0]") == "state/layers/w/0"
    assert path_of("args[0].params['a.b/c'].kernel") == "args/0/params/a.b/c/kernel"
    assert path_of('p["q"]') == "p/q"
    assert path_of("Arg_3.4") == "Arg_3/4"


def test_results_are_values() -> None:
    check = checked("decoder_cpu_2x4", layers=5)
    again = pickle.loads(pickle.dumps(check))
    assert again.comparisons == check.comparisons
    assert len(check) == len(check.comparisons) == sum(check.counts().values())
    assert [row["message"] for row in check.findings] == [
        finding.message for finding in check.found()
    ]
    with pytest.raises(ValueError, match="no comparison"):
        check.found("colour")


class TestDeclarations:
    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("mesh = 3", "mesh must be a table"),
            ("[mesh]\naxes = 3", "mesh.axes must map axis names"),
            ("[mesh]\naxes = { a = 0 }", "mesh.axes must map axis names"),
            ("[mesh]\naxes = { a = true }", "mesh.axes must map axis names"),
            ("[mesh]\naxes = { a = 9223372036854775807, b = 9223372036854775807 }", "mesh"),
            ("[mesh]\naxes = { a = 2 }\nslices = 3", "slices"),
            ("[mesh]\naxes = { a = 2 }\nbatch_axes = ['b']", "no axis 'b'"),
            ("[model]\nlayers = 0", "model.layers must be a positive integer"),
            ("[model]\nwidth = 3", "model: unknown key 'width'"),
            ("[model]\nbatch = 0", "model.batch must be a positive integer"),
            ("[model]\ndtype = 'float'", "model.dtype: unknown element type 'float'"),
            ("[model]\ndonates = 1", "model.donates must be true or false"),
            ("[[parameters]]\nspec = []", "has no name"),
            ("[[parameters]]\nname = '('\nspec = []", "not a regular expression"),
            ("[[parameters]]\nname = 'a'", "parameters[0].spec must be a list"),
            ("[[parameters]]\nname = 'a'\nspec = ['x']", "the mesh has no axis 'x'"),
            ("[[parameters]]\nname = 'a'\nspec = [3]", "entries must be an axis"),
            (
                "[[parameters]]\nname = 'a'\nspec = []\nshape = [0]",
                "shape must be a list of sizes",
            ),
            ("[[kept]]\nname = 'a'", "either shape or bytes"),
            ("[[kept]]\nname = 'a'\nbytes = 1\nshape = 'f32[1]'", "either shape or bytes"),
            ("[[kept]]\nname = 'a'\nshape = 'f32'", "an array such as"),
            ("[[kept]]\nname = 'a'\nshape = 'x9[1]'", "unknown element type 'x9'"),
            ("[[kept]]\nname = 'a'\nbytes = 1\nplace = 'disk'", "one of device, host"),
            ("[[kept]]\nname = 'a'\nbytes = 'much'", "kept[0].bytes"),
            ("[predicted]\ncolour = 3", "predicted: unknown key 'colour'"),
            ("[predicted]\nflops = -1", "a non-negative number"),
            ("[limits]\nhbm = -1", "limits.hbm"),
            ("colour = 3", "the file: unknown key 'colour'"),
            ("[mesh", "end of document"),
            ("[mesh]\naxes = 3 4", "line 2"),
        ],
    )
    def test_faults_are_named(self, text: str, reason: str) -> None:
        with pytest.raises(ValueError, match=r"mesh\.toml: ") as error:
            hlofast.Declaration.loads(text, source="mesh.toml")
        assert reason in str(error.value)

    def test_forms_of_a_spec(self) -> None:
        text = "[mesh]\naxes = { a = 2, b = 2 }\n[[parameters]]\nname = 'w'\nspec = ['', ['a', 'b'], [], 'a']"
        (parameter,) = hlofast.Declaration.loads(text).parameters
        assert parameter.spec == ((), ("a", "b"), (), ("a",))

    def test_sizes_of_values(self) -> None:
        text = "[[kept]]\nname = 'a'\nshape = 's4[3,3]'\n[[kept]]\nname = 'b'\nbytes = '1KiB'\n[[kept]]\nname = 'c'\nshape = 'pred[]'"
        kept = hlofast.Declaration.loads(text).kept
        assert kept is not None
        assert [value.layer_bytes for value in kept] == [9, 1024, 1]

    @given(st.text(max_size=200))
    def test_no_text_is_more_than_a_fault(self, text: str) -> None:
        for read in (hlofast.Declaration.loads, hlofast.Expectations.loads):
            with suppress(ValueError):
                read(text)


class TestProgram:
    @pytest.fixture
    def declared(self, tmp_path: Path) -> Path:
        path = tmp_path / "mesh.toml"
        path.write_text(check_programs.toml("decoder_cpu_2x4"))
        return path

    def test_document_is_the_python_object(self, declared: Path) -> None:
        (result,) = document("check", declared, SMALL)["results"]
        check = hlofast.check(declared, hlofast.load(SMALL))
        values = {name: fact["value"] for name, fact in result["facts"].items()}
        assert {name: values[name] for name in check.counts()} == check.counts()
        assert (values["mesh"], values["ok"]) == ("data=2,model=4", True)
        tables = result["tables"]
        assert [finding["message"] for finding in tables["findings"]] == [
            finding.message for finding in check.found()
        ]
        agreeing = [comparison.message for comparison in check if comparison.severity == "agrees"]
        assert [row["message"] for row in tables["agreeing"]] == agreeing
        done = hlofast_command("check", declared, SMALL)
        lines = [line for line in done.stdout.splitlines() if not line.startswith("file ")]
        assert "\n".join(lines) == f"{check}\n"

    def test_a_notebook_shows_it(self) -> None:
        html = hlofast.check(
            hlofast.Declaration(), hlofast.load(SMALL), {"peak.max": "1KiB"}
        )._repr_html_()
        assert "<p><b>error: expectation: " in html
        assert "<br>subject: peak<br>declared: at most 1,024<br>" in html
        name = hlofast.loads("HloModule m\nENTRY e { ROOT p = f32[] parameter(0) }")
        declared = hlofast.Declaration.loads('[mesh]\naxes = { "<i>" = 2 }')
        html = hlofast.check(declared, name)._repr_html_()
        assert "<i>" not in html
        assert "<br>declared: &lt;i&gt;=2<br>" in html

    def test_findings_that_are_left_out_are_counted(self) -> None:
        limits = {f"collectives.axis{number}.all-reduce.max_count": 0 for number in range(12)}
        check = hlofast.check(hlofast.Declaration(), hlofast.load(SMALL), limits)
        for shown in (str(check), check._repr_html_()):
            assert "Findings (10 of 12)" in shown
            assert (shown.count("no such axis"), shown.count("error: expectation")) == (10, 10)

    def test_what_cannot_be_read_stands_in_the_document(self, tmp_path: Path) -> None:
        bad = tmp_path / "bad.toml"
        bad.write_text("[mesh\n")
        program_path = FIXTURES / "dumps" / "any.txt"
        for arguments in ((bad, program_path), ("--expect", bad, program_path)):
            (error,) = document("check", *arguments)["errors"]
            assert error["path"] == str(bad)
            done = hlofast_command("check", *arguments)
            assert done.returncode == 3 and done.stderr.count(str(bad)) == 1

    def test_exit_codes(self, declared: Path, tmp_path: Path) -> None:
        assert hlofast_command("check", declared, SMALL).returncode == 0
        noted = hlofast_command("check", declared, SMALL, "--fail-on", "note")
        assert noted.returncode == 1
        declared.write_text(check_programs.toml("decoder_cpu_2x4", layers=7))
        assert hlofast_command("check", declared, SMALL).returncode == 1
        (result,) = document("check", declared, SMALL)["results"]
        assert result["facts"]["ok"]["value"] is False
        declared.write_text("[mesh")
        broken = hlofast_command("check", declared, SMALL)
        assert (broken.returncode, "end of document" in broken.stderr) == (3, True)
        assert hlofast_command("check", tmp_path / "none.toml", SMALL).returncode == 3
        assert hlofast_command("check", SMALL).returncode == 2

    def test_for_people(self, declared: Path) -> None:
        declared.write_text(check_programs.toml("decoder_cpu_2x4", layers=7))
        done = hlofast_command("check", declared, SMALL)
        assert "error: layer-loops" in done.stdout
        assert "parameters are stacked, but no loop over them runs 7 times" in done.stdout
        assert "all-reduce along model" in done.stdout
        everything = hlofast_command("check", declared, SMALL, "--all")
        assert "parameters/layers/query" in everything.stdout

    def test_expectations_alone(self, tmp_path: Path) -> None:
        limits = tmp_path / "limits.toml"
        limits.write_text('peak.max = "1GiB"\nlint.forbid = ["one-hot-matmul"]\n')
        assert hlofast_command("check", "--expect", limits, SMALL).returncode == 0
        limits.write_text('peak.max = "1KiB"\n')
        done = hlofast_command("check", "--expect", limits, SMALL)
        assert done.returncode == 1
        assert "error: expectation" in done.stdout
