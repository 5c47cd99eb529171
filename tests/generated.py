"""Generated files: JSON Schemas and the reference of tables, from the fields of results; the table of
findings, from the lint rules; parts of the pages in docs/ (`pages.py`).

`python tests/generated.py` writes `python/hlofast/schemas/`, `docs/reference/tables.md` and these
parts; `test_generated.py` fails if the committed files differ. A verb with a new kind of result
needs one line in `SAMPLES`.
"""

import json
from collections.abc import Callable
from pathlib import Path

import hlofast
import pages
from hlofast._comparison import Comparison, HostComparison
from hlofast._core import Field
from hlofast._fmt import Formatted
from hlofast._kinds import Contents
from hlofast._profile_verdict import ProfileVerdict
from hlofast._report.data import Analyses
from hlofast._result import Result, schema
from hlofast._scan.query import Answer
from hlofast._top.view import Overview
from hlofast.cli.guide import Guide
from hlofast.config._plan_machines import Machines
from hlofast.config._plan_results import Plan
from hlofast.config._results import Compared, Described, Selected

TOP = Path(__file__).parents[1]
SCHEMAS = TOP / "python" / "hlofast" / "schemas"
TABLES = TOP / "docs" / "reference" / "tables.md"
LINT = pages.verb_page("lint")
PROFILE = TOP / "tests" / "fixtures" / "profiles" / "sharded.xplane.pb.xz"
DUMP = TOP / "tests" / "fixtures" / "dump_folders" / "cpu"
SMALLEST = "HloModule m\n\nENTRY e {\n  ROOT p = f32[] parameter(0)\n}\n"


def module() -> hlofast.Module:
    """The smallest module: fields do not depend on what is in it."""
    return hlofast.loads(SMALLEST)


def plan() -> Plan:
    """The plan of a small run."""
    small = ["base_num_decoder_layers=1", "per_device_batch_size=1"]
    return hlofast.config.loads("", path="run.yml", overrides=small).plan("v5e-4")


def messages() -> hlofast.Messages:
    """The messages of the shortest text."""
    return hlofast.oom("Ran out of memory in memory space hbm. Used 2.00G of 1.00G hbm.\n")


def measured(device: str = "tpu-v5e") -> hlofast.Module:
    """A module with a profile."""
    return hlofast.load(PROFILE, module="jit_train_step", device=device, profile=PROFILE)


def scanned() -> hlofast.Module:
    """A step with a scan over layers that is not checkpointed."""
    return hlofast.load(TOP / "tests" / "fixtures" / "sharded" / "mlp_scan_plain.txt.gz")


def calibration() -> hlofast.Calibration:
    """The figures of CPUs, which are those of no table."""
    cpu = hlofast.devices.Device("cpu", {}, {}, backend="cpu")
    given = cpu.replace(hbm_bandwidth=1e10, jax_devices=1, flops={"f32": 1e11, "bf16": 1e11})
    return measured().profile().calibrate(given)


def measured_program() -> Result:
    """What `hlofast PROFILE` shows."""
    profile = hlofast.load_profile(PROFILE)
    return ProfileVerdict(profile, measured().profile())


def config() -> hlofast.config.Config:
    """The smallest config."""
    return hlofast.config.loads("name: 'trainer'")


def profile() -> hlofast.Profile:
    """The smallest profile: a plane with a name."""
    return hlofast.load_profile(b"\x0a\x03\x12\x01x")


SAMPLES: dict[str, Callable[[], Result]] = {
    "check": lambda: hlofast.check(hlofast.Declaration(), module()),
    "collectives": lambda: module().collectives(),
    "guide": lambda: Guide(()),
    "report": lambda: module().report(plots=False),
    "top": lambda: Overview(Analyses(module().with_context(device="tpu-v5p"))),
    "query": lambda: Answer("", [], [], is_cut=False),
    "scan": lambda: hlofast.scan([]),
    "memory": lambda: module().memory(),
    "oom": lambda: messages(),
    "cost": lambda: module().cost(),
    "lint": lambda: module().lint(),
    "matmuls": lambda: module().matmuls(),
    "remat": lambda: module().remat(),
    "show": lambda: module().show("e"),
    "stages": lambda: module().stages(),
    "summary": lambda: module().summary(),
    "config": lambda: Described(config()),
    "plan": plan,
    "what-if": lambda: module().what_if(),
    "diff": lambda: module().diff(module()),
    "profile": lambda: measured().profile(),
    "calibrate": calibration,
    "time": lambda: module().time("tpu-v5e"),
    "verdict": lambda: module().verdict("tpu-v5e"),
    "trace": lambda: module().trace(device="tpu-v5e"),
    "fmt": lambda: Formatted(module(), ""),
    "graph": lambda: module().graph(),
    "history": lambda: hlofast.history(DUMP),
}
"""A result of each verb."""
OTHERS: dict[str, Callable[[], tuple[Result, ...]]] = {
    "remat": lambda: (scanned().remat(),),
    "time": lambda: (measured().time(),),
    "summary": lambda: (profile().summary(), messages()),
    "trace": lambda: (measured().trace(),),
    "cost": lambda: (measured().cost(),),
    "matmuls": lambda: (measured().matmuls(),),
    "collectives": lambda: (measured().collectives(),),
    "top": lambda: (Overview(Analyses(measured())),),
    "verdict": lambda: (
        Contents("dump", "XLA dump directory"),
        profile().summary(),
        measured_program(),
        messages(),
    ),
    "memory": lambda: (messages(),),
    "config": lambda: (Selected(config().select("none", 1)), Compared(config(), config())),
    "plan": lambda: (plan().like({"own": 1}), Machines((plan(),))),
    "history": lambda: (hlofast.history(DUMP).find("parameter"),),
    "diff": lambda: (
        Comparison("a", "b"),
        HostComparison("a", []),
        measured().diff(measured()),
    ),
}
"""Results of other kinds that a verb shows too."""


def generated() -> dict[Path, str]:
    """The generated files and their texts."""
    kinds = {verb: results(verb) for verb in sorted(SAMPLES)}
    files = {
        SCHEMAS / f"{verb}.json": json.dumps(schema(*shown), indent=1) + "\n"
        for verb, shown in kinds.items()
    }
    parts = pages.generated()
    parts[LINT] = findings(parts[LINT])
    return files | {TABLES: "\n".join(reference(kinds))} | parts


def findings(text: str) -> str:
    """`text` of docs/commands/lint.md with the table of findings as the rules have it now."""
    before, heading, after = text.partition("| code | what is found |\n|---|---|\n")
    rows = (f"| `{code}` | {what} |\n" for code, what in hlofast.Findings.RULES.items())
    return before + heading + "".join(rows) + after[after.index("\n\n") + 1 :]


def results(verb: str) -> tuple[Result, ...]:
    """A result of each kind that the verb shows."""
    return (SAMPLES[verb](), *(OTHERS[verb]() if verb in OTHERS else ()))


def _cell(field: Field) -> str:
    return field.doc.replace("|", "\\|")


def reference(kinds: dict[str, tuple[Result, ...]]) -> list[str]:
    """The reference of facts and tables, by verb."""
    lines = ["# Facts and tables", "", "Generated from the fields; see `tests/generated.py`.", ""]
    for verb, samples in kinds.items():
        lines += [f"## {verb}", ""]
        for sample in samples:
            if sample.FACTS:
                lines += ["| fact | kind | what it is |", "|---|---|---|"]
                lines += [f"| `{own.name}` | {own.kind} | {_cell(own)} |" for own in sample.FACTS]
                lines.append("")
        sections: dict[str, dict[str, Field]] = {}
        for section in (own for sample in samples for own in sample.every_section()):
            columns = sections.setdefault(section.name, {})
            columns |= {own.name: own for own in section.table.fields if own.name not in columns}
        for name, columns in sections.items():
            lines += [f"### {verb}: {name}", ""]
            lines += ["| column | kind | may be unknown | adds up | what it is |"]
            lines += ["|---|---|---|---|---|"]
            for field in columns.values():
                null, sums = ("yes" if holds else "" for holds in (field.nullable, field.adds_up))
                lines.append(
                    f"| `{field.name}` | {field.kind} | {null} | {sums} | {_cell(field)} |"
                )
            lines.append("")
    return lines


if __name__ == "__main__":
    for path, text in generated().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
