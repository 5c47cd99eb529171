"""`hlofast.check` of AXLearn configs against stand-in programs on their meshes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import check_programs
import hlofast
from conftest import FIXTURES, Seeds
from decoders import decoder_configs
from test_cli import document, hlofast_command

STAND_INS = FIXTURES / "stand_ins"
RECORDS: dict[str, dict[str, Any]] = json.loads((STAND_INS / "stand_ins.json").read_text())
COMPILED = {name: record for name, record in RECORDS.items() if "refused" not in record}
MEANT = [name for name, record in COMPILED.items() if record["mistake"] is None]


def config_of(name: str) -> Path:
    return FIXTURES / "configs" / f"{RECORDS[name]['config']}.txt"


def dump_of(name: str) -> Path:
    return STAND_INS / f"{name}.txt.xz"


@pytest.fixture(scope="module")
def checks() -> dict[str, hlofast.Check]:
    """All of them, each compared once."""
    return {
        name: hlofast.check(
            hlofast.config.load(config_of(name)).select(record["instance"]),
            hlofast.load(dump_of(name)),
        )
        for name, record in COMPILED.items()
    }


def rows(check: hlofast.Check, code: str) -> list[dict[str, Any]]:
    return [row for row in check.comparisons if row["code"] == code]


def errors(check: hlofast.Check) -> list[tuple[str, str]]:
    return [
        (finding.code, finding.subject) for finding in check.found() if finding.severity == "error"
    ]


@pytest.mark.parametrize("name", MEANT)
class TestWhatWasMeant:
    def test_nothing_is_wrong(self, checks: dict[str, hlofast.Check], name: str) -> None:
        assert errors(checks[name]) == []
        assert checks[name].ok

    def test_state_is_the_arguments_but_for_batch_and_padding(
        self, checks: dict[str, hlofast.Check], name: str
    ) -> None:
        (row,) = rows(checks[name], "state-bytes")
        assert row["severity"] == "agrees"
        assert row["declared"] == row["compiled"]
        state = int(row["compiled"].removesuffix(" B").replace(",", ""))
        arguments = RECORDS[name]["memory_analysis"]["argument_size_in_bytes"]
        batch = sum(
            finding.bytes
            for finding in checks[name].found("parameter-undeclared")
            if finding.bytes is not None
        )
        assert 0 <= arguments - state - batch <= 2048

    def test_offloaded_bytes_are_those_of_the_compiler(
        self, checks: dict[str, hlofast.Check], name: str
    ) -> None:
        (row,) = rows(checks[name], "offloaded-bytes")
        assert row["severity"] == "agrees"
        host = RECORDS[name]["memory_analysis"]["host_temp_size_in_bytes"]
        assert row["compiled"] == f"{host:,} B"

    def test_every_collective_goes_along_named_axes(
        self, checks: dict[str, hlofast.Check], name: str
    ) -> None:
        compared = rows(checks[name], "collective-axes")
        assert compared
        assert {row["severity"] for row in compared} <= {"agrees", "note"}
        axes = set(RECORDS[name]["mesh"])
        for row in compared:
            named = row["subject"].rpartition(" along ")[2].split("×")
            if not row["subject"].endswith(" within single devices"):
                assert {part.partition(":")[0] for part in named} <= axes

    def test_every_weight_is_split_as_declared(
        self, checks: dict[str, hlofast.Check], name: str
    ) -> None:
        compared = rows(checks[name], "parameter-sharding")
        # Ten weights, and two moments of each.
        assert len(compared) == 30
        assert {row["severity"] for row in compared} == {"agrees"}
        assert rows(checks[name], "parameter-missing") == []

    def test_what_the_policy_keeps_crosses(
        self, checks: dict[str, hlofast.Check], name: str
    ) -> None:
        compared = rows(checks[name], "kept-values")
        assert compared
        assert {row["severity"] for row in compared} == {"agrees"}

    def test_layers_and_micro_batches(self, checks: dict[str, hlofast.Check], name: str) -> None:
        for code in ("layer-loops", "accumulation-steps"):
            compared = rows(checks[name], code)
            assert compared
            assert {row["severity"] for row in compared} == {"agrees"}

    def test_no_exchange_of_the_layers_is_unexplained(
        self, checks: dict[str, hlofast.Check], name: str
    ) -> None:
        assert {finding.severity for finding in checks[name].found("unexplained-collective")} <= {
            "note"
        }


class TestPlantedMistakes:
    def test_a_name_that_the_policy_does_not_match(self, checks: dict[str, hlofast.Check]) -> None:
        check = checks["small_misnamed"]
        (finding,) = [
            finding for finding in check.found("kept-values") if finding.severity == "error"
        ]
        assert finding.subject == "FlashAttention.q_proj"
        assert "does the program use this checkpoint name?" in finding.message
        (host,) = check.found("offloaded-bytes")
        # Of eight layers the queries of four heads of 128, of four sequences of 1024 tokens.
        assert finding.bytes == host.bytes == 8 * 2 * 4 * 1024 * 4 * 128

    def test_a_replicated_table(self, checks: dict[str, hlofast.Check]) -> None:
        check = checks["small_replicated_table"]
        findings = check.found("parameter-sharding")
        assert [finding.subject.rpartition("decoder/")[2] for finding in findings] == [
            "emb/token_emb/weight"
        ] * 3
        assert {finding.compiled for finding in findings} == {"replicated"}
        whole = 4 * 8192 * 1024
        assert [finding.bytes for finding in findings] == [whole - whole // 8] * 3
        (state,) = check.found("state-bytes")
        assert state.bytes == 3 * (whole - whole // 8)

    def test_constraints_that_were_dropped(self, checks: dict[str, hlofast.Check]) -> None:
        """The batch is cut along data alone, so activations are split over the devices of fsdp."""
        check = checks["small_unconstrained"]
        findings = [
            finding
            for finding in check.found("unexplained-collective")
            if finding.severity == "warning"
        ]
        assert {finding.subject for finding in findings} == {"all-reduce along fsdp"}
        assert all("in every layer" in finding.message for finding in findings)
        assert findings[0].bytes is not None
        assert findings[0].bytes > 2**30
        codes = {code for code, _ in errors(check)}
        # Weights stay where they are, activations are summed; more is kept on every device.
        assert codes == {"kept-values", "offloaded-bytes", "gathered-bytes"}


class TestSizes:
    """One size of the config differs from the program's: one error says which."""

    def check(self, *replaced: tuple[str, str], **changes: Any) -> hlofast.Check:
        text = decoder_configs.text(**{**decoder_configs.SMALL, **changes})
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new)
        effective = hlofast.config.loads(text).select(RECORDS["small"]["instance"])
        return hlofast.check(effective, hlofast.load(dump_of("small")))

    @pytest.mark.parametrize(
        ("changes", "subject", "message"),
        [
            ({"batch": 16}, "batch", "batch 32 against 16: every activation takes 2 times"),
            ({"batch": 64}, "batch", "batch 32 against 64: every activation takes 0.5 times"),
            ({"sequence": 512}, "sequence", "sequence 1,024 against 512"),
            ({"dim": 2048}, "width", "30 of 30 parameters have dimensions of 1,024 instead of"),
            ({"vocabulary": 4096}, "width", "6 of 30 parameters have dimensions of 8,192 instead"),
            ({"layers": 16}, "layers", "21 of 30 parameters have dimensions of 8 instead of 16"),
        ],
    )
    def test_one_error_explains_all(
        self, changes: dict[str, int], subject: str, message: str
    ) -> None:
        check = self.check(**changes)
        assert errors(check) == [("sizes", subject)]
        assert check.counts()["warning"] == 0
        assert message in check.found("sizes")[0].message
        # Values, loops and shardings of these sizes are as declared.
        assert rows(check, "layer-loops") and rows(check, "parameter-sharding")

    def test_the_element_type(self) -> None:
        check = self.check(("jax.numpy.bfloat16", "jax.numpy.float32"))
        assert errors(check) == [("sizes", "element type")]
        (finding,) = check.found("sizes")
        assert (finding.declared, finding.compiled) == ("f32", "bf16")
        assert "take 0.5 times the declared bytes" in finding.message
        assert {row["severity"] for row in rows(check, "kept-values")} == {"agrees"}
        (gathered,) = rows(check, "gathered-bytes")
        assert gathered["severity"] == "agrees"

    def test_two_sizes(self) -> None:
        check = self.check(batch=16, sequence=512)
        assert errors(check) == [("sizes", "batch"), ("sizes", "sequence")]

    def test_a_factor_of_unknown_cause(self) -> None:
        """A file that gives bytes alone: all of them are half."""
        text = check_programs.toml("offload_v6e_256")
        for size in set(re.findall(r"bf16\[1,", text)):
            text = text.replace(size, size.replace("1,", "2,"))
        text = re.sub(r"(?<=carry_bytes = )\d+", lambda found: str(2 * int(found[0])), text)
        module = hlofast.load(FIXTURES / "sharded" / "offload_v6e_256.txt.gz")
        check = hlofast.check(hlofast.Declaration.loads(text), module)
        assert errors(check) == [("sizes", "kept values")]
        assert "takes 0.5 times the declared bytes" in check.found("sizes")[0].message


class TestProgram:
    def test_golden_configs_take_an_instance(self) -> None:
        config, dump = config_of("small"), dump_of("small")
        instance = ("--instance", RECORDS["small"]["instance"])
        (result,) = document("check", config, dump, *instance)["results"]
        mesh = ",".join(f"{name}={size}" for name, size in RECORDS["small"]["mesh"].items())
        assert result["facts"]["mesh"]["value"] == mesh
        assert result["facts"]["error"]["value"] == 0
        assert hlofast_command("check", config, dump, *instance).returncode == 0
        wrong = hlofast_command("check", config, dump_of("small_misnamed"), *instance)
        assert wrong.returncode == 1
        assert "subject: FlashAttention.q_proj" in wrong.stdout

    def test_wrong_usage(self, tmp_path: Path) -> None:
        config, dump = config_of("small"), dump_of("small")
        without = hlofast_command("check", config, dump)
        assert (without.returncode, "--instance" in without.stderr) == (2, True)
        mesh = tmp_path / "mesh.toml"
        mesh.write_text("[mesh]\naxes = { data = 2 }")
        other = hlofast_command("check", mesh, dump, "--instance", "tpu-v5litepod-16")
        assert other.returncode == 2

    def test_an_instance_that_does_not_exist_is_refused(self) -> None:
        """A misspelt name would otherwise switch off the checks that need a mesh."""
        config, dump = config_of("small"), dump_of("small")
        done = hlofast_command("check", config, dump, "--instance", "abacus-7")
        assert done.returncode == 2
        assert "--instance abacus-7: not a known kind of instance" in done.stderr
        told = hlofast_command(
            "check", config, dump, "--instance", "abacus-7", "--device-count", "8"
        )
        assert "no rule matches 'abacus-7'" in told.stdout


def test_the_seed_against_a_program_of_its_shapes(seeds: Seeds) -> None:
    """The golden config of the reference and the program that stands in for it."""
    effective = hlofast.config.load(seeds.path("004")).select("tpu-v6e-256-4")
    check = hlofast.check(effective, hlofast.load(dump_of("v6e_256_4")))
    assert errors(check) == []
    figures = {
        row["code"]: row["compiled"] for row in check.comparisons if row["severity"] == "agrees"
    }
    assert figures["state-bytes"] == "9,666,920,448 B"
    assert figures["offloaded-bytes"] == "12,079,595,520 B"
    assert figures["gathered-bytes"] == "273,804,165,120 B"
