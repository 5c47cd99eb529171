// Assembles the page: theme, tables, charts, instructions.

const THEMES = ["system", "light", "dark"];

function setUpTheme() {
  const button = document.getElementById("theme");
  let place = 0;
  button.addEventListener("click", () => {
    place = (place + 1) % THEMES.length;
    const theme = THEMES[place];
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
    paintFigures();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintFigures);
  // In a notebook, the page around the frame says which theme it has, until the reader chooses one.
  if (parent === window) return;
  addEventListener("message", ({ data }) => {
    if (place || !data || !/^(light|dark)$/.test(data.hlofast)) return;
    document.documentElement.dataset.theme = data.hlofast;
    paintFigures();
  });
  parent.postMessage({ hlofast: "theme?" }, "*");
}

function setUpPrinting() {
  let before;
  const start = () => {
    if (document.body.classList.contains("printing")) return;
    document.body.classList.add("printing");
    before = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    for (const details of document.querySelectorAll("details")) details.open = true;
    paintFigures();
    printGrids(true);
  };
  const end = () => {
    document.body.classList.remove("printing");
    if (before) document.documentElement.dataset.theme = before;
    else delete document.documentElement.dataset.theme;
    paintFigures();
    printGrids(false);
  };
  addEventListener("beforeprint", start);
  addEventListener("afterprint", end);
  matchMedia("print").addEventListener("change", (query) => (query.matches ? start() : end()));
}

function trouble(error) {
  const place = document.getElementById("trouble");
  place.textContent = `This page could not be shown in full: ${error.message || error}`;
  place.hidden = false;
  document.body.dataset.state = "failed";
}

// Lets the browser paint before the next part is built.
function breathe() {
  return new Promise((resolve) => setTimeout(resolve));
}

async function build() {
  let program = null;
  if (document.body.classList.contains("module")) {
    program = new Program(await block("instructions"));
    new Search(program);
    addEventListener("hashchange", () => followAddress(program));
    await breathe();
    showInstructions(program);
    followAddress(program);
    await breathe();
  }
  const packed = await block("sections");
  const names = (row) => (program ? program.name(row) : String(row));
  const charts = [];
  for (const section of packed.head.sections) {
    const element = document.getElementById(section.key);
    const tables = element.querySelector(".sheets");
    for (const spec of section.charts) {
      const pair = document.getElementById(`pair-${spec.key}`);
      const chart = new Chart(pair, packed, spec, program);
      chart.table = sheetOf(packed, spec.sheet);
      const place = pair.querySelector(".figures-of");
      place.replaceChildren();
      chart.grid = new Grid(place, chart.table, names, { heading: "h4" });
      charts.push(chart);
    }
    tables.replaceChildren();
    for (const spec of section.sheets) new Grid(tables, sheetOf(packed, spec), names);
    await breathe();
  }
  document.body.dataset.state = "usable";
  if (charts.length && (await loadBokeh())) {
    for (const chart of charts) {
      await chart.draw();
      if (chart.spec.key.startsWith("scopes-")) new Scopes(chart);
      await breathe();
    }
  }
  const memory = charts.find((chart) => chart.spec.key === "memory");
  const values = memory && (await block("values"));
  if (values) new LiveSet(memory, memory.table, sheetOf(values, values.head), program);
}

// Keeps the anchor target in view while the page above it grows, until the user scrolls.
let hasMoved = false;
for (const kind of ["wheel", "pointerdown", "keydown", "touchstart"]) {
  addEventListener(kind, () => { hasMoved = true; }, { once: true, passive: true });
}

function keepInSight() {
  if (hasMoved || !location.hash) return;
  const id = location.hash.startsWith("#i-") ? "instruction" : location.hash.slice(1);
  const element = document.getElementById(id);
  if (element) element.scrollIntoView({ block: "start" });
}

setUpTheme();
setUpPrinting();
build().then(() => {
  keepInSight();
  document.body.dataset.state = "complete";
}, trouble);
