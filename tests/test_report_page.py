"""Reports in a real browser: content, interaction, and what the page must never do."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import hlofast
from browser import Browser
from hlofast._text import figure

FIXTURES = Path(__file__).parent / "fixtures"
MESH = "data=2,model=4"

AXE = {
    "light": {"resultTypes": ["violations"]},
    "dark": {"resultTypes": ["violations"], "runOnly": ["color-contrast"]},
}
"""What passes is not listed, which takes time; themes differ in nothing but colours."""
USABLE = "body[data-state]"
"""Tables and search are there, charts not yet."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, train_step: Path) -> Path:
    """The example's report with everything known."""
    pytest.importorskip("bokeh")
    path = tmp_path_factory.mktemp("report") / "report.html"
    hlofast.load(train_step).report(path, device="tpu-v5e", mesh=MESH)
    return path


def number(text: str) -> int:
    return int(re.sub(r"[^0-9]", "", text))


def test_loads_without_error_and_without_network(browser: Browser, report: Path) -> None:
    opened = browser.open(report)
    assert opened.requests == [report.as_uri()]
    assert opened.errors == []
    assert not opened.page.locator("#trouble").is_visible()


def test_the_verdict_is_the_api_s(browser: Browser, report: Path, train_step: Path) -> None:
    module = hlofast.load(train_step)
    mesh = hlofast.Mesh.parse(MESH)
    time = module.time("tpu-v5e", mesh=mesh)
    cost = module.cost()
    expected = {
        "step": time.step_seconds,
        "mfu": time.mfu,
        "peak": module.memory(device="tpu-v5e").allocated_in_hbm,
        "exposed": sum(time.exposed.values()),
        "flops": cost.flops,
        "bytes": cost.bytes_read + cost.bytes_written,
    }
    page = browser.open(report, until=USABLE).page
    for key, value in expected.items():
        assert float(page.locator(f"#figure-{key}").get_attribute("value")) == value
    share = f"{100 * expected['exposed'] / time.step_seconds:.1f} %"
    assert share in page.locator("#verdict").inner_text()
    assert not module.lint(mesh)
    assert page.get_by_text("No findings; whether a checkpoint policy would help").is_visible()


class Facts(HTMLParser):
    """The facts of each section of a page: labels and texts."""

    def __init__(self) -> None:
        super().__init__()
        self.section = ""
        self.place = ""
        self.found: dict[str, list[list[str]]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "section":
            self.section = dict(attrs)["id"] or ""
        elif tag in ("dt", "dd"):
            self.place = tag
            if tag == "dt":
                self.found.setdefault(self.section, []).append(["", ""])

    def handle_endtag(self, tag: str) -> None:
        if tag in ("dt", "dd"):
            self.place = ""

    def handle_data(self, data: str) -> None:
        if self.place:
            self.found[self.section][-1][self.place == "dd"] += data


@pytest.mark.parametrize("name", ["decoder_v5e_256", "mlp_scan_plain", "decoder_cpu_8"])
def test_facts_are_the_api_s(name: str) -> None:
    module = hlofast.load(FIXTURES / "sharded" / f"{name}.txt.gz")
    if "cpu" not in name:
        module = module.with_context(device="tpu-v5e")
    page = Facts()
    page.feed(module.report(plots=False).html)
    results: dict[str, hlofast.Result] = {
        "memory": module.memory(),
        "collectives": module.collectives(),
        "matmuls": module.matmuls(),
        "scopes": module.cost(),
        "remat": module.remat(),
    }
    if module.context.device is not None:
        results["time"] = module.time()
    for section, result in results.items():
        known = dict(page.found[section])
        for fact in result.facts:
            if fact.value is not None:
                text = str(figure(fact.field, fact.value))
                assert known[fact.field.label].startswith(text), (section, fact.field.label)


@pytest.mark.parametrize("name", ["decoder_v5e_256", "mlp_scan_plain", "decoder_cpu_8"])
def test_policies_are_those_of_the_terminal(name: str) -> None:
    module = hlofast.load(FIXTURES / "sharded" / f"{name}.txt.gz")
    policies = module.remat().policies
    assert policies is not None
    html = module.report(plots=False).html
    start = html.index(f">Checkpoint policies of the {policies.iteration}s<")
    shown = html[start : html.index("</table>", start)]
    names, peaks = policies.table.values("policy"), policies.table.values("peak")
    assert "nothing_saveable" in names
    for policy, peak in zip(names, peaks, strict=True):
        assert f">{policy}<" in shown
        assert f">{peak:,}<" in shown


def test_findings_are_those_of_lint(browser: Browser, tmp_path: Path) -> None:
    pytest.importorskip("bokeh")
    module = hlofast.load(FIXTURES / "sharded" / "accumulated_v6e_8.txt.gz")
    module.report(tmp_path / "page.html")
    shown = browser.open(tmp_path / "page.html", until=USABLE).page.locator(".findings")
    findings = module.lint()
    assert len(findings) > 3
    for finding in findings:
        assert finding.message in shown.inner_text()


def test_search_finds_an_instruction_and_its_neighbours(
    browser: Browser, report: Path, train_step: Path
) -> None:
    module = hlofast.load(train_step)
    wanted = next(
        instruction
        for instruction in module.entry.instructions
        if instruction.opcode == "fusion" and instruction.users
    )
    page = browser.open(report, until=USABLE).page
    page.keyboard.press("/")
    page.keyboard.type(wanted.name)
    whole = re.compile(f"^{re.escape(wanted.name)}$")
    page.locator("#found li:first-child b", has_text=whole).wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    panel = page.locator("#instruction")
    panel.locator("h3", has_text=wanted.name).wait_for()
    lists = {
        edge_list.locator("h4").inner_text().split(" (")[0]: edge_list.locator(
            "a"
        ).all_inner_texts()
        for edge_list in panel.locator(".edge-list").all()
    }
    assert lists["Operands"] == [instruction.name for instruction in wanted.operands]
    assert sorted(lists["Users"]) == sorted({instruction.name for instruction in wanted.users})
    assert f"{wanted.name} = " in panel.locator("pre").inner_text()
    following = lists["Operands"][0]
    panel.locator(".edge-list a").first.click()
    panel.locator("h3", has_text=following).wait_for()
    assert page.url.endswith(f"#i-{wanted.operands[0].row}")
    page.go_back()
    panel.locator("h3", has_text=wanted.name).wait_for()


def test_only_rows_in_sight_are_in_the_document(browser: Browser, report: Path) -> None:
    page = browser.open(report, until=USABLE).page
    grid = page.locator("#instructions-table")
    rows = grid.locator("tbody tr[aria-rowindex]")
    assert number(grid.locator(".count").inner_text()) > 500
    assert rows.count() < 40
    before = rows.last.get_attribute("aria-rowindex")
    grid.locator(".grid-scroll").focus()
    page.keyboard.press("End")
    assert int(rows.last.get_attribute("aria-rowindex")) > int(before) + 400
    page.keyboard.press("Home")
    assert rows.first.get_attribute("aria-rowindex") == "2"


def test_tables_sort_and_filter(browser: Browser, report: Path, train_step: Path) -> None:
    table = hlofast.load(train_step).matmuls().sort_by("flops", descending=True)
    grid = browser.open(report, until=USABLE).page.locator("#matmuls .grid")
    names = grid.locator("tbody tr[aria-rowindex] td:first-child")
    assert names.all_inner_texts() == table["name"].tolist()
    grid.get_by_role("button", name="k", exact=True).click()
    header = grid.get_by_role("columnheader", name="k", exact=True)
    assert header.get_attribute("aria-sort") == "descending"
    largest = grid.locator("tbody tr[aria-rowindex]").first.locator("td").nth(5).inner_text()
    assert number(largest) == max(table["k"])


HOSTILE = """\
HloModule evil, num_partitions=2

ENTRY main.1 {
  a = f32[64,64]{1,0} parameter(0), metadata={op_name="</script><script>window.hit=2</script>"}
  b = f32[64,64]{1,0} dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/<img src=x onerror=window.hit=3>/$$\\\\unicode{x}$$/<!--" source_file="javascript:window.hit=4//\\" onmouseover=\\"window.hit=5" source_line=7}
  c = f32[64,64]{1,0} custom-call(b), custom_call_target="<svg onload=window.hit=6>", metadata={op_name="]]><iframe srcdoc='<script>top.hit=7</script>'>\u2028\u202e{{constructor}}@{x}{safe}"}
  d = f32[64,64]{1,0} all-reduce(c), channel_id=1, replica_groups={{0,1}}, to_apply=add.1, metadata={op_name="<base href=https://hit.invalid/><meta http-equiv=refresh content='0;url=https://hit.invalid'>"}
  ROOT e = (f32[64,64]{1,0}, f32[64,64]{1,0}) tuple(d, b)
}
"""
ADD = """
add.1 {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}
"""


CHAIN = "\n".join(f"  c{n} = f32[64,64]{{1,0}} negate(c{n - 1})" for n in range(1, 41))
SMALL = f"""\
HloModule small, num_partitions=2
{ADD}
ENTRY main.1 {{
  a = f32[64,64]{{1,0}} parameter(0), sharding={{devices=[2,1]<=[2]}}
  b = f32[64,64]{{1,0}} dot(a, a), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, metadata={{op_name="jit(f)/dot"}}
  c0 = f32[64,64]{{1,0}} all-reduce(b), channel_id=1, replica_groups={{{{0,1}}}}, to_apply=add.1
{CHAIN}
  ROOT d = f32[64,64]{{1,0}} negate(c40)
}}
"""
"""A program with a bit of everything, whose page is soon there."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its report with everything known."""
    pytest.importorskip("bokeh")
    path = tmp_path_factory.mktemp("small") / "report.html"
    hlofast.loads(SMALL).report(path, device="tpu-v5e", mesh={"data": 2})
    return path


def hostile() -> hlofast.Module:
    """A module whose every text is an attack."""
    head, entry = HOSTILE.split("\n\n", 1)
    place = "</title><script>window.hit=1</script>"
    return hlofast.loads(f"{head}\n{ADD}\n{entry}", path=place)


class Tags(HTMLParser):
    """The elements, attributes and addresses of a page as it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.addresses |= {value or "" for name, value in attrs if name in ("href", "src")}


def test_a_hostile_dump_stays_inert(browser: Browser, tmp_path: Path) -> None:
    module = hostile()
    path = tmp_path / "report.html"
    made = module.report(path, device="tpu-v5e", mesh={"<b>x</b>$$y$$": 2})
    head, _, body = made.html.split("<script>")[0].partition("</head>")
    assert head.count("<meta") == 6
    assert "<script" not in head
    tags = Tags()
    tags.feed(body)
    assert "svg" in tags.seen and not tags.seen & {"img", "iframe", "base", "meta", "b", "link"}
    assert not [name for name in tags.attributes if name.startswith("on") or name == "srcdoc"]
    assert all(address.startswith("#") for address in tags.addresses)
    opened = browser.open(path)
    page = opened.page
    page.locator("#search").fill("img src")
    page.wait_for_selector("#found li")
    page.keyboard.press("Enter")
    page.locator("#instruction h3").wait_for()
    assert "<img src=x onerror=window.hit=3>" in opened.text("#instruction")
    for canvas in page.locator(".canvas").all():
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        for step in range(4, 40, 3):
            page.mouse.move(box["x"] + box["width"] * step / 40, box["y"] + box["height"] * 0.4)
    assert page.evaluate("window.hit") is None
    assert page.locator("#found script, main script, main img, main iframe, base").count() == 0
    assert opened.requests == [path.as_uri()]
    assert opened.errors == []


def test_the_policy_forbids_all_but_the_page_s_own_scripts(report: Path) -> None:
    html = report.read_text(encoding="utf-8")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'none'"
    assert re.fullmatch(r"('sha256-[A-Za-z0-9+/=]{44}' ?)+", rules["script-src"])
    assert "innerHTML" not in html
    assert len(html) < 1_000_000


def test_the_pointer_shows_what_is_alive(browser: Browser, report: Path, train_step: Path) -> None:
    memory = hlofast.load(train_step).memory(device="tpu-v5e")
    page = browser.open(report).page
    line = page.locator("#live-line")
    at_peak = line.inner_text()
    assert f"({memory.live_peak:,} B)" in at_peak
    canvas = page.locator("#chart-memory .canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.locator("#live-line", has_not_text=at_peak).wait_for()
    step = number(line.inner_text().split(" of ")[0])
    assert 60 < step < 200
    live = memory.live_at(int(memory.steps()["instruction"][step]))
    names = [row["name"] + (row["index"] if row["index"] != "{}" else "") for row in live][:4]
    assert page.locator("#live tbody tr td:first-child").all_inner_texts()[:4] == names
    assert f"({memory.timeline[step]:,} B)" in line.inner_text()
    slider = page.locator("#live-step")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert f"Step {step + 1} of" in line.inner_text()
    assert slider.get_attribute("aria-valuetext") == line.inner_text()


def test_every_chart_has_its_figures_as_a_table(browser: Browser, report: Path) -> None:
    page = browser.open(report).page
    charts = page.locator("figure.chart")
    assert charts.count() == 7
    for pair in page.locator(".pair").all():
        assert pair.locator("canvas").count() > 0
        assert pair.locator("svg.still").count() == 0
        pair.locator("summary").click()
        assert number(pair.locator(".count").inner_text()) > 0
        assert pair.locator("table[role=grid]").get_attribute("aria-labelledby")
        label = pair.locator(".canvas").get_attribute("aria-label")
        assert pair.locator("figcaption h3").inner_text() in label


def test_charts_zoom_without_a_pointer(browser: Browser, report: Path) -> None:
    page = browser.open(report).page
    spans = "figures.map((c) => c.figure.x_range.end - c.figure.x_range.start)"
    before = page.evaluate(spans)
    assert len(before) == page.locator("figure.chart").count()
    for button in page.get_by_role("button", name="Zoom in").all():
        button.focus()
        page.keyboard.press("Enter")
    after = page.evaluate(spans)
    assert all(new < old for new, old in zip(after, before, strict=True))
    for button in page.get_by_role("button", name="Show all").all():
        button.click()
    assert page.evaluate(spans) == pytest.approx(before)


def test_a_click_makes_a_scope_as_wide_as_the_chart(browser: Browser, report: Path) -> None:
    page = browser.open(report).page
    canvas = page.locator("#chart-scopes-flops .canvas")
    canvas.scroll_into_view_if_needed()
    end = "figures.find((c) => c.spec.key === 'scopes-flops').figure.x_range.end"
    before = page.evaluate(end)
    trail = page.locator("#chart-scopes-flops .trail button")
    assert trail.all_inner_texts() == ["whole step 100.0 %"]
    box = canvas.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.3, box["y"] + 80)
    page.wait_for_timeout(200)
    assert page.evaluate(end) < before
    path = trail.all_inner_texts()
    assert len(path) > 1
    # The boxes above it keep their names.
    labels = "figures.find((c) => c.spec.key === 'scopes-flops').marks.at(-1)"
    shown = page.evaluate(f"{labels}.renderer.data_source.data.cut")
    assert "whole step" in shown and path[-1].rpartition(" ")[0].rpartition(" ")[0] in shown
    trail.first.click()
    assert page.evaluate(end) == before
    assert trail.count() == 1


def test_a_step_without_cost_has_no_shares(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    text = "HloModule idle\n\nENTRY main {\n  ROOT x = f32[8]{0} parameter(0)\n}\n"
    hlofast.loads(text).report(path, device="tpu-v5e")
    opened = browser.open(path)
    assert opened.errors == []
    assert set(opened.page.locator(".trail").all_inner_texts()) == {"whole step"}
    assert "NaN" not in opened.text("body")


def test_the_keyboard_reaches_everything(browser: Browser, small: Path) -> None:
    page = browser.open(small).page
    wanted = page.evaluate(
        """[...document.querySelectorAll('a[href],button,input,summary,[tabindex="0"]')]
        .filter((e) => e.tabIndex >= 0 && e.checkVisibility()).length"""
    )
    seen = "const seen = new Set(); addEventListener('focusin', (e) => seen.add(e.target)); seen"
    page.evaluate(f"window.seen = (() => {{ {seen.rsplit(' ', 1)[0]} return seen; }})()")
    for _ in range(wanted + 20):
        page.keyboard.press("Tab")
    reached = page.evaluate("window.seen.size")
    assert reached >= wanted
    sections = page.evaluate(
        "[...document.querySelectorAll('main > section')].filter((s) => "
        "[...window.seen].some((e) => s.contains(e))).length"
    )
    assert sections == page.locator("main > section:has(a, button, [tabindex='0'])").count() > 5


def test_no_barrier_is_in_either_theme(browser: Browser, small: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = browser.open(small, color_scheme="light").page
    for scheme in AXE:
        page.emulate_media(color_scheme=scheme)
        page.locator("#search").fill("dot")
        page.wait_for_selector("#found li")
        violations = axe.Axe().run(page, options=AXE[scheme]).response["violations"]
        found = [
            (scheme, violation["id"], [node["html"][:200] for node in violation["nodes"]][:3])
            for violation in violations
        ]
        assert found == []


def test_the_theme_can_be_chosen(browser: Browser, small: Path) -> None:
    page = browser.open(small, color_scheme="dark").page
    ground = "getComputedStyle(document.body).backgroundColor"
    ticks = "[...figures[0].figure.xaxis][0].major_label_text_color"
    dark, dark_ticks = page.evaluate(ground), page.evaluate(ticks)
    button = page.locator("#theme")
    button.click()
    assert button.inner_text() == "Theme: light"
    assert page.evaluate(ground) != dark
    assert page.evaluate(ticks) != dark_ticks
    button.click()
    assert page.evaluate(ground) == dark


def test_a_narrow_window_does_not_scroll_sideways(browser: Browser, small: Path) -> None:
    width = 340
    page = browser.open(small, viewport={"width": width, "height": 800}).page
    page.locator("#search").fill("dot")
    page.wait_for_selector("#found li")
    page.keyboard.press("Enter")
    page.locator("#instruction h3").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for card in page.locator(".figure, .grid, .chart, #instruction").all():
        box = card.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


def test_prints_the_verdict_the_charts_and_the_first_rows(browser: Browser, small: Path) -> None:
    opened = browser.open(small, color_scheme="dark")
    page = opened.page
    page.emulate_media(media="print")
    page.wait_for_selector("body.printing", state="attached")
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    rows = page.locator("#instructions-table tbody tr[aria-rowindex]")
    assert rows.count() == 30
    assert "more rows are not printed" in opened.text("#instructions-table .printed-note")
    assert len(page.pdf(prefer_css_page_size=True)) > 20_000
    page.emulate_media(media="screen")
    page.wait_for_selector("body:not(.printing)", state="attached")
    assert rows.count() < 30
    assert opened.errors == []


def test_a_page_is_complete_before_its_scripts_have_run(browser: Browser, small: Path) -> None:
    opened = browser.open(small, until="footer", java_script_enabled=False)
    page = opened.page
    pictures = page.locator("figure.chart svg.still")
    assert pictures.count() == page.locator("figure.chart").count() == 7
    for picture in pictures.all():
        assert picture.locator("path[d]:not(.rule), text.ink").count() > 0
    matmuls = page.locator("#matmuls .sheets table tbody tr")
    assert matmuls.count() == len(hlofast.loads(SMALL).matmuls()) == 1
    # Printed at once: as many pages and nearly as large as without a hurry.
    assert len(page.pdf(prefer_css_page_size=True)) > 40_000
    assert opened.errors == []


def test_time_comes_first_and_adds_up(browser: Browser, report: Path, train_step: Path) -> None:
    time = hlofast.load(train_step, device="tpu-v5e", mesh=MESH).time()
    page = browser.open(report, until=USABLE).page
    sections = page.locator("main > section").evaluate_all("all => all.map((e) => e.id)")
    assert sections[:3] == ["verdict", "time", "memory"]
    shares = page.locator("#verdict .parts span").evaluate_all(
        "all => all.map((e) => Number(e.style.flexGrow))"
    )
    parts = [row for row in time.tables["parts"] if row["seconds"]]
    assert shares == pytest.approx([row["share"] for row in parts], abs=1e-5)
    assert sum(shares) == pytest.approx(1, abs=1e-5)
    legend = page.locator("#verdict .step .legend").inner_text()
    assert all(f"exposed over {axes} " in legend for axes, own in time.exposed.items() if own)
    first = page.locator("#time .sheets .grid").first.locator(
        "tbody tr[aria-rowindex] td:first-child"
    )
    names = [row["name"] for row in named(time.longest(5), time.module)]
    assert first.all_inner_texts()[:5] == names


def named(table: hlofast.Table, module: hlofast.Module) -> list[dict[str, str]]:
    return [{"name": module[row["instruction"]].name} for row in table]


IN_SIGHT = {1440: 6, 1024: 3, 420: 1}
"""Widths of windows, and how many columns of each table are in sight at least."""


@pytest.mark.parametrize("width", IN_SIGHT)
def test_main_columns_are_in_sight(browser: Browser, report: Path, width: int) -> None:
    page = browser.open(report, viewport={"width": width, "height": 900}).page
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        hidden = page.locator(".grid").evaluate_all(
            """all => all.filter((grid) => grid.checkVisibility()).map((grid) => {
                const sight = grid.querySelector(".grid-scroll").getBoundingClientRect().right;
                const heads = [...grid.querySelectorAll("th")];
                const seen = heads.filter((own) => own.getBoundingClientRect().right <= sight + 1);
                return [grid.querySelector(".caption").textContent, heads.length, seen.length];
            })"""
        )
        assert len(hidden) > 15
        for caption, heads, seen in hidden:
            assert seen >= min(heads, IN_SIGHT[width]), (scheme, caption, heads, seen)


def test_colours_go_by_meaning() -> None:
    programs = ("decoder_v5e_2.txt.gz", "decoder_cpu_8.txt.gz", "mlp_scan_plain.txt.gz")
    colours: dict[str, set[str]] = {}
    for name in programs:
        html = hlofast.load(FIXTURES / "sharded" / name).report().html
        for colour, label in re.findall(r'style="background:(#\w+)"></span>([^<]+)</li>', html):
            colours.setdefault(label, set()).add(colour)
    assert {"parameter", "temporary", "residual", "all-reduce", "backward"} <= colours.keys()
    assert {label: len(own) for label, own in colours.items()} == dict.fromkeys(colours, 1)


def test_a_stage_and_a_check_have_their_places(train_step: Path) -> None:
    stage = hlofast.load(FIXTURES / "seedlike" / "pipeline_stage.txt.gz").report().html
    assert '<section id="stages"' in stage
    declared = hlofast.Declaration.loads("[predicted]\nflops = 1\n")
    page = hlofast.load(train_step, mesh=MESH).report(config=declared)
    assert page.tables["findings"]["code"][0] == "declared-and-compiled"


def test_notebooks_show_modules_tables_and_reports(browser: Browser, tmp_path: Path) -> None:
    module = hostile()
    shown = [module, module.table(), module.matmuls(), module.cost(), module.lint().table()]
    cells = [item._repr_html_() for item in (*shown, module.report(device="tpu-v5e"))]
    path = tmp_path / "notebook.html"
    path.write_text("<!DOCTYPE html><meta charset=utf-8>" + "<hr>".join(cells), encoding="utf-8")
    opened = browser.open(path, until="iframe")
    frame = opened.page.frame_locator("iframe")
    frame.locator("body[data-state=complete]").wait_for(state="attached")
    assert frame.locator("#chart-memory canvas").count() > 0
    # Long names lose their middle; the whole is the title of the cell.
    titles = (
        "[...document.querySelectorAll('table')[1].querySelectorAll('td')].map((own) => own.title)"
    )
    assert any("<img src=x onerror" in own for own in opened.page.evaluate(titles))
    assert opened.page.evaluate("window.hit") is None
    assert opened.page.locator("img, svg, table script").count() == 0
    assert [url for url in opened.requests if not url.startswith(("file:", "about:"))] == []
    assert opened.errors == []


def test_an_address_leads_to_its_instruction(browser: Browser, small: Path) -> None:
    page = browser.open(small, address="#i-22").page
    box = page.locator("#instruction").bounding_box()
    assert 0 <= box["y"] < 300
