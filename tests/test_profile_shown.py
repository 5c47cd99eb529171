"""Measured beside modelled figures: verdicts, tables, pages, traces and differences."""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

import hlofast
from browser import Browser
from conftest import A100_STEP, A100_TRACE, FIXTURES, SHARDED
from hlofast import _text
from hlofast._report.data import Analyses
from hlofast._top.view import Overview, View
from shown import check_one_source, codes, document, figures
from test_cli import hlofast_command
from test_profile_compared import STEP
from xplane_writer import Event, Plane, space


def test_the_verdict_begins_with_what_was_measured(a100: hlofast.Module, run: Any) -> None:
    verdict, measured, time = a100.verdict(), a100.profile(), a100.time()
    facts = {fact.name: fact for fact in verdict.facts}
    assert facts["measured_step"].value == measured.step_seconds == pytest.approx(0.1275, rel=1e-3)
    assert facts["measured_step"].provenance == "measured"
    assert facts["step"].value == time.step_seconds
    assert facts["step"].provenance == "modelled"
    assert facts["measured_mfu"].value == pytest.approx(
        time.mfu * time.step_seconds / 0.12746, 1e-3
    )
    assert facts["measured_exposed"].value == pytest.approx(0.004074, rel=1e-3)
    code, out, _ = run(A100_STEP, "--profile", A100_TRACE, "--device", "a100")
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "step time 127.5 ms measured, 108.1 ms modelled" in lines
    assert "bound by memory measured, memory modelled" in lines
    assert "MFU 23.5 % measured, 27.7 % modelled" in lines
    assert "exposed by axis axis_0 4.074 ms measured, axis_0 918 us modelled" in lines
    assert sum("step time" in line for line in lines) == 1
    check_one_source(verdict, out)
    (result,) = document(run, "verdict", A100_STEP, "--profile", A100_TRACE, "--device", "a100")
    assert figures(result) == {name: fact.value for name, fact in facts.items()}


def test_what_to_change_does_not_depend_on_the_profile(a100: hlofast.Module) -> None:
    plain = a100.with_context(profile=None).verdict()
    ours, theirs = (
        [(row["code"], row["found"]) for row in verdict.tables["findings"]]
        for verdict in (a100.verdict(), plain)
    )
    assert ours == theirs
    assert "measured_step" not in {fact.name for fact in plain.facts}


def test_figures_of_another_kind_of_device_are_told_apart(sharded: hlofast.Module) -> None:
    module = sharded.with_context(device="tpu-v5p")
    verdict = module.verdict()
    facts = {fact.name: fact.value for fact in verdict.facts}
    assert "measured_mfu" not in facts
    assert facts["mfu"] is not None
    assert "other-device" in {note.code for note in verdict.notes}
    assert "measured_mfu" not in {fact.name for fact in module.time().facts}
    assert "mfu" not in {fact.name for fact in module.cost().facts}


VERBS = ("verdict", "summary", "cost", "matmuls", "collectives", "lint", "remat", "memory", "time")


@pytest.mark.parametrize("verb", VERBS)
def test_a_profile_of_another_program_is_said(train_step: Path, run: Any, verb: str) -> None:
    options = ("--device", "tpu-v5e", "--profile", A100_TRACE)
    (result,) = document(run, verb, train_step, *options)
    (note,) = [note for note in result["notes"] if note["code"] == "not-in-profile"]
    assert note["text"].startswith(
        "no measured times: no event of the profile names an instruction of jit_train_step; "
        "programs in the profile: pjit__wrapped_step_fn"
    )
    _, out, _ = run(verb, train_step, *options)
    assert out.count("no measured times") == 1
    (result,) = document(run, verb, train_step, "--device", "tpu-v5e")
    assert "not-in-profile" not in codes(result)


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("fmt", ()), ("graph", ()), ("show", ("main",)), ("stages", ()), ("top", ()),
        ("trace", ("-o", "t.json")), ("report", ("--no-charts", "-o", "r.html")),
        ("history", ()), ("check", ("d.toml",)),
    ],
)  # fmt: skip
def test_other_verbs_say_so_too(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, options: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "dump"
    folder.mkdir()
    path = folder / "module_0001.step.cpu_after_optimizations.txt"
    path.write_text(STEP)
    (tmp_path / "d.toml").write_text("[mesh]\naxes = { data = 2 }\n")
    file = [folder] if verb == "history" else [path]
    words = [*options, *file] if verb == "check" else [*file, *options]
    given = ["--device", "tpu-v5e"] if verb in ("trace", "report", "top") else []
    _, out, error = run(verb, *words, *given, "--profile", A100_TRACE)
    text = "no measured times: no event of the profile names an instruction of step; programs"
    assert (out + error).count(text) == 1, out + error


def test_a_profile_with_a_few_equal_names_measures_nothing(train_step: Path) -> None:
    # Both programs are called jit_train_step and share some names of instructions.
    module = hlofast.load(train_step, profile=SHARDED)
    verdict = module.verdict()
    (note,) = [note for note in verdict.every_note if note.code == "not-in-profile"]
    assert "<0.1 % of the device time of jit_train_step in the profile" in note.text
    assert "measured_step" not in {fact.name for fact in verdict.facts}
    with pytest.raises(ValueError, match="no measured times"):
        module.profile()


def test_a_profile_as_the_file_gives_the_measured_verdict(run: Any) -> None:
    code, out, _ = run(A100_TRACE, "--device", "a100")
    assert code == 0
    assert len(out.splitlines()) <= 40
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "step time 127.5 ms measured, 108.1 ms modelled" in lines
    assert "MFU 23.5 % measured, 27.7 % modelled" in lines
    assert "idle share 2.5 %" in lines
    assert "profile 1 host, 1 device, 1 program, 5 launches, 13,050 events, 692 ms" in lines
    assert (
        f"measured and modelled figures, and what to change: hlofast --profile {A100_TRACE}"
    ) in out
    assert f"contents of the profile: hlofast summary {A100_TRACE}" in out
    (result,) = document(run, "verdict", A100_TRACE)
    facts = figures(result)
    assert facts["measured_step"] == pytest.approx(0.12746, rel=1e-3)
    assert (facts["kind"], facts["devices"], facts["events"]) == ("profile", 1, 13_050)
    (first, *_) = result["tables"]["instructions"]
    assert first["instruction"] == "custom-call.219.0"


def test_the_modules_in_a_profile_are_measured_by_it(sharded: hlofast.Module, run: Any) -> None:
    step = _text.seconds(sharded.profile().step_seconds)
    _, out, _ = run(SHARDED)
    (command,) = [line for line in out.splitlines() if "measured and modelled figures" in line]
    assert command.endswith(f"hlofast {SHARDED} --module jit_train_step")
    _, out, _ = run(SHARDED, "--module", "jit_train_step")
    assert f"step time              {step} measured\n" in out
    assert f"hlofast profile {SHARDED} {SHARDED} --module jit_train_step" in out
    assert "unknown: modelled step time, MFU, modelled exposed communication; no device" in out


def test_a_profile_without_a_module_says_what_ran(run: Any) -> None:
    code, out, _ = run(SHARDED.with_name("sharded.trace.json.gz"))
    assert code == 0
    assert "Programs by busy time" in out
    assert "a module is needed of one of the programs in the profile: jit_train_step" in out
    assert "give its dump too: hlofast profile PROFILE DUMP" in out
    # The command for more is one that can run.
    (command,) = [line for line in out.splitlines() if "all measured figures" in line]
    assert command.endswith("sharded.trace.json.gz DUMP")


def test_the_page_opens_with_what_was_measured(
    a100: hlofast.Module, run: Any, tmp_path: Path
) -> None:
    report = a100.report(plots=False)
    facts = {fact.name: fact.value for fact in a100.verdict().facts}
    assert report.verdict == {name: facts[name] for name in report.verdict}
    first = report.html.index('id="figure-measured_step"')
    assert first < report.html.index('id="figure-step"')
    # The modelled figure stands in the note of the measured one.
    assert '<br>modelled <data id="figure-step"' in report.html
    assert report.html.count('<div class="figure ') == len(report.verdict) - 3
    assert report.html.index('<a href="#measured">') < report.html.index('<a href="#memory">')
    page = tmp_path / "page.html"
    (result,) = document(
        run,
        "report",
        A100_STEP,
        "--device",
        "a100",
        "--profile",
        A100_TRACE,
        "--no-charts",
        "-o",
        page,
    )
    assert figures(result)["measured_step"] == facts["measured_step"]
    _, out, _ = run("report", A100_STEP, "--device", "a100", "--profile", A100_TRACE, "--no-charts",
                    "-o", page)  # fmt: skip
    assert "Step time              127.5 ms measured, 108.1 ms modelled\n" in out
    plain = a100.with_context(profile=None).report(plots=False)
    assert 'id="measured"' not in plain.html
    assert "figure-measured" not in plain.html


def test_the_section_of_the_page_says_what_is_missing(train_step: Path) -> None:
    html = hlofast.load(train_step, profile=A100_TRACE).report(plots=False).html
    assert '<h2 id="measured-title">Measured</h2>' in html
    assert "no measured times: no event of the profile names an instruction" in html


def test_rates_and_measured_times_in_a_browser(
    a100: hlofast.Module, browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    a100.report(path, plots=False)
    opened = browser.open(path, until="body[data-state]")
    assert opened.errors == []
    page = opened.page
    text = page.locator("#measured").inner_text()
    assert "257.47 TFLOP/s" in text
    assert "371.80 GB/s" in text
    assert "120.2 ms" in text
    table = page.locator("#instructions-table")
    table.locator("input[type=search]").first.fill("custom-call.219.0")
    table.locator("tbody a", has_text="custom-call.219.0").first.wait_for()
    assert "2.458 ms" in table.inner_text()


def test_the_terminal_view_sorts_by_measured_time(a100: hlofast.Module, run: Any) -> None:
    overview = Overview(Analyses(a100))
    table = overview.tables["instructions"]
    times = [own for own in table.values("measured_seconds") if own is not None]
    assert times == sorted(times, reverse=True)
    assert sum(times) == pytest.approx(sum(a100.profile().table().values("measured_seconds")))
    assert "257.5 TFLOP/s" in str(overview)
    (result,) = document(run, "top", A100_STEP, "--device", "a100", "--profile", A100_TRACE)
    assert result["tables"]["measured_parts"][0]["part"] == "compute"
    by_phase = next(
        sheet
        for section in overview.contents.sections
        for sheet in section.sheets
        if sheet.key == "measured-by-phase"
    )
    assert View(by_phase, a100).group(0) == ("phase", "backward")


def test_the_parts_of_the_step_are_measured_too(a100: hlofast.Module) -> None:
    rows = {(row["part"], row["axes"]): row for row in a100.time().tables["parts"]}
    measured = a100.profile()
    assert sum(row["measured_seconds"] or 0 for row in rows.values()) == pytest.approx(
        measured.step_seconds
    )
    assert rows["compute", None]["measured_seconds"] == pytest.approx(0.12016, rel=1e-3)
    assert rows["memory", None]["measured_seconds"] is None
    assert rows["exposed", "axis_0"]["measured_seconds"] == pytest.approx(0.004074, rel=1e-3)
    idle = rows["idle", None]
    assert (idle["seconds"], idle["share"]) == (None, None)
    assert idle["measured_seconds"] == pytest.approx(0.003234, rel=1e-3)
    plain = a100.with_context(profile=None).time().tables["parts"]
    assert {row["part"] for row in plain} == {"compute", "memory", "other", "exposed"}
    assert set(plain.values("measured_seconds")) == {None}


@pytest.mark.parametrize(
    "key", ["phase", "scope", "source", "source_file", "opcode", "computation"]
)
def test_cost_has_the_measured_time_of_every_group(a100: hlofast.Module, key: str) -> None:
    table = a100.cost().sections(key, depth=4)[0].table
    whole = sum(a100.profile().table().values("measured_seconds"))
    times = table.values("measured_seconds")
    assert sum(own for own in times if own is not None) == pytest.approx(whole)
    if key in ("phase", "source", "opcode", "computation"):
        by = a100.profile().by(key)
        expected = dict(zip(by.values(key), by.values("measured_seconds"), strict=True))
        found = dict(zip(table.values("key"), times, strict=True))
        assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_cost_without_measured_time(a100: hlofast.Module) -> None:
    for sections in (
        a100.with_context(profile=None).cost().sections(),
        a100.cost(xla=True).sections(),
        a100.cost().sections("dtype"),
    ):
        assert "measured_seconds" not in sections[0].table


def test_matmuls_have_measured_time_and_achieved_flops(
    a100: hlofast.Module, sharded: hlofast.Module
) -> None:
    measured = {a100[row["instruction"]].name: row for row in a100.profile().table()}
    rows = a100.matmuls().to_pylist()
    assert len(rows) == 223
    known = [row for row in rows if row["measured_seconds"] is not None]
    assert len(known) > 170
    for row in known:
        own = measured.get(row["name"])
        if own is not None:
            assert row["measured_seconds"] == own["measured_seconds"]
            assert row["flops_per_second"] == pytest.approx(row["flops"] / own["measured_seconds"])
    # One row of the profile's own table, of the library's kernel with most time.
    (longest,) = [row for row in rows if row["name"] == "custom-call.219.0"]
    assert longest["flops_per_second"] == pytest.approx(257.47e12, rel=1e-4)
    # Dots inside fusions have the time of the fusion that holds no other matmul.
    times = {sharded[row["instruction"]].name: row["measured_seconds"]
             for row in sharded.profile().table()}  # fmt: skip
    found = {row["name"]: row["measured_seconds"] for row in sharded.matmuls()}
    assert found == {
        "dot.12": times["dot.12"],
        "dot.13": times["ynn_fusion"],
        "dot.14": times["ynn_fusion.1"],
    }
    by_phase = a100.matmuls().sections("phase")[0].table
    assert sum(by_phase.values("measured_seconds")) == pytest.approx(
        sum(row["measured_seconds"] for row in known)
    )


def test_two_matmuls_of_one_fusion_have_no_time_of_their_own() -> None:
    text = """HloModule m, is_scheduled=true
f {
  p = f32[8,8] parameter(0)
  d = f32[8,8] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT e = f32[8,8] dot(d, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
ENTRY main {
  q = f32[8,8] parameter(0)
  ROOT both = f32[8,8] fusion(q), kind=kOutput, calls=f
}
"""
    plane = Plane("/device:TPU:0")
    plane.line("XLA Modules", [Event("m(1)", 0, 2_000_000)])
    plane.line("XLA Ops", [Event("%both = f32[8,8] fusion(%q)", 0, 2_000_000, {}, {}, "both")])
    profile = hlofast.load_profile(space([plane]))
    module = hlofast.loads(text, profile=profile)
    assert module.profile().table().values("measured_seconds") == [2e-6]
    assert module.matmuls().values("measured_seconds") == [None, None]
    assert module.matmuls().values("flops_per_second") == [None, None]


def test_collectives_have_measured_time(a100: hlofast.Module, run: Any) -> None:
    expected = {row["instruction"]: row for row in a100.profile().collectives}
    rows = a100.collectives().to_pylist()
    assert len(rows) == len(expected) == 23
    for row in rows:
        own = expected[row["scheduled_as"]]
        assert row["measured_seconds"] == own["measured_seconds"]
        assert row["measured_exposed_seconds"] == own["measured_exposed_seconds"]
    (result,) = document(run, "collectives", A100_STEP, "--profile", A100_TRACE)
    (group,) = result["tables"]["groups"]
    assert group["measured_exposed_seconds"] == pytest.approx(
        sum(row["measured_exposed_seconds"] or 0 for row in rows)
    )
    # Instructions without an event are no gap of the totals of bytes.
    plain = a100.with_context(profile=None).collectives()
    assert a100.collectives().by("axes").to_pylist() == plain.by("axes").to_pylist()


@pytest.mark.parametrize("verb", ["cost", "matmuls", "collectives", "time"])
def test_tables_with_measured_columns_keep_to_the_schema(run: Any, verb: str) -> None:
    (result,) = document(run, verb, A100_STEP, "--device", "a100", "--profile", A100_TRACE)
    name = {"matmuls": "matmuls"}.get(verb, "groups")
    assert "measured_seconds" in result["tables"][name][0]
    (plain,) = document(run, verb, A100_STEP, "--device", "a100")
    assert plain["tables"][name][0].get("measured_seconds") is None


def test_the_main_program_of_a_profile_is_shown(tmp_path: Path) -> None:
    profile = FIXTURES / "profiles" / "several.xplane.pb.xz"
    path = tmp_path / "several.xplane.pb"
    path.write_bytes(lzma.decompress(profile.read_bytes()))
    done = hlofast_command("time", "--device", "tpu-v5p", "--json", path)
    assert done.returncode == 0, done.stderr
    (shown,) = json.loads(done.stdout)["results"]
    labels = hlofast.load_profile(path).module_table.values("label")
    others = [label for label in labels if label != shown["label"]]
    assert f"{len(others)} further program" in done.stderr
    assert "--module" in done.stderr
    # The profile is of CPUs.
    (said,) = [note for note in shown["notes"] if note["code"] == "other-device"]
    assert "tpu-v5p" in said["text"]
    chosen = hlofast_command("time", "--device", "tpu-v5p", "--module", others[0], path)
    assert (chosen.returncode, chosen.stderr) == (0, "")


def test_collectives_are_modelled_beside_their_measured_time() -> None:
    module = hlofast.load(A100_STEP, device="a100-40gb", profile=A100_TRACE, mesh="data=4")
    time, measured = module.time(), module.profile()
    sent = {"all-gather-start", "all-reduce-start"}
    of_rows: dict[str, float] = {}
    for row in time.collectives:
        opcode = module[row["instruction"]].opcode
        of_rows[opcode] = of_rows.get(opcode, 0.0) + row["seconds"] * row["multiplicity"]
    groups = {row["opcode"]: row for row in measured.by("opcode")}
    for opcode in sent:
        assert groups[opcode]["measured_seconds"] > 0
        assert groups[opcode]["modelled_seconds"] == pytest.approx(of_rows[opcode])
    table = {row["instruction"]: row["modelled_seconds"] for row in measured.table()}
    for row in time.collectives:
        if row["instruction"] in table and row["multiplicity"]:
            own = row["seconds"] * row["multiplicity"]
            assert table[row["instruction"]] == pytest.approx(own)
