"""Reports in a real browser: what they show, what they do when asked, what they never do."""

import re
from pathlib import Path

import pytest

import hlofast
from browser import Browser

MESH = "data=2,model=4"

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
        "peak": module.memory(device="tpu-v5e").xla_peak,
        "exposed": sum(time.exposed.values()),
        "flops": cost.flops,
        "bytes": cost.bytes_read + cost.bytes_written,
    }
    page = browser.open(report, until=USABLE).page
    for key, value in expected.items():
        assert float(page.locator(f"#figure-{key}").get_attribute("value")) == value
    assert "55.0 %" in page.locator("#verdict").inner_text()
    finding = module.lint(mesh)[0]
    assert finding.message in page.locator(".findings").inner_text()


def test_search_finds_an_instruction_and_its_neighbours(
    browser: Browser, report: Path, train_step: Path
) -> None:
    module = hlofast.load(train_step)
    wanted = next(one for one in module.entry.instructions if one.opcode == "fusion" and one.users)
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
        one.locator("h4").inner_text().split(" (")[0]: one.locator("a").all_inner_texts()
        for one in panel.locator(".edge-list").all()
    }
    assert lists["Operands"] == [one.name for one in wanted.operands]
    assert sorted(lists["Users"]) == sorted({one.name for one in wanted.users})
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
    grid.get_by_role("button", name="K", exact=True).click()
    header = grid.get_by_role("columnheader", name="K", exact=True)
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_hostile_dump_stays_inert(browser: Browser, tmp_path: Path, scheme: str) -> None:
    head, entry = HOSTILE.split("\n\n", 1)
    place = "</title><script>window.hit=1</script>"
    module = hlofast.loads(f"{head}\n{ADD}\n{entry}", path=place)
    path = tmp_path / "report.html"
    made = module.report(path, device="tpu-v5e", mesh={"<b>x</b>$$y$$": 2})
    head = made.html.split("</head>")[0]
    assert head.count("<meta") == 5
    assert "<script" not in head
    for attack in ("<img", "<svg", "<iframe", "<base", "onerror=window", "<b>x"):
        assert attack not in made.html.split("<script>")[0]
    opened = browser.open(path, color_scheme=scheme)
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
