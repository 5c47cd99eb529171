// Charts: described by Python, drawn by BokehJS in the page's colours.

const figures = [];
const VERTICAL = new Set(["y", "y1", "y2", "top", "bottom"]);
const PLACES = new Set([...VERTICAL, "x", "left", "right"]);

async function loadBokeh() {
  const packed = await block("bokeh");
  if (!packed) return false;
  for (const place of packed.head.scripts) {
    const script = document.createElement("script");
    script.textContent = new TextDecoder().decode(packed.array(place));
    document.head.append(script);
  }
  blocks.delete("bokeh");
  return Boolean(window.Bokeh && Bokeh.Plotting);
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

class Chart {
  constructor(host, from, spec, program) {
    this.spec = spec;
    this.program = program;
    this.marks = spec.marks.map((mark) => ({ ...mark, sheet: sheetOf(from, mark.sheet) }));
    const id = `chart-${spec.key}`;
    const before = host.querySelector("figure");
    const still = before.querySelector("svg");
    this.canvas = make("div", { className: "canvas", role: "img" }, ...(still ? [still] : []));
    this.canvas.setAttribute("aria-label", `${spec.title}: a chart; the table below has its figures`);
    this.tools = make("div", { className: "tools", role: "group", hidden: true });
    this.tools.setAttribute("aria-label", `Part of ${spec.title} that is shown`);
    for (const [label, title, act] of [
      ["−", "Zoom out", () => this.zoom(1.6)], ["+", "Zoom in", () => this.zoom(1 / 1.6)],
      ["←", "Move left", () => this.move(-0.25)], ["→", "Move right", () => this.move(0.25)],
      ["All", "Show all", () => this.reset()],
    ]) {
      const button = make("button", { type: "button", textContent: label, title });
      button.setAttribute("aria-label", `${title}: ${spec.title}`);
      button.addEventListener("click", act);
      this.tools.append(button);
    }
    const head = make("figcaption", {}, make("h3", { textContent: spec.title }), this.tools);
    this.element = make("figure", { id, className: "chart" }, head, this.canvas);
    this.legend();
    if (spec.note) this.element.append(make("p", { className: "note", textContent: clean(spec.note) }));
    before.replaceWith(this.element);
  }

  legend() {
    const named = this.marks.filter((mark) => mark.legend);
    if (!named.length) return;
    this.element.append(make("ul", { className: "legend" }, ...named.map((mark) => {
      const swatch = make("span", { className: `swatch ${mark.glyph}` });
      swatch.style.background = mark.color;
      return make("li", {}, swatch, clean(mark.legend));
    })));
  }

  async draw() {
    const { spec } = this;
    const P = Bokeh.Plotting;
    const options = {
      height: spec.height, sizing_mode: "stretch_width", toolbar_location: null,
      tools: "tap", min_border_right: 12, background_fill_color: null,
      border_fill_color: null, outline_line_color: null,
      x_axis_label: spec.x.label || null, y_axis_label: spec.y.label || null,
    };
    if (spec.x.kind === "log") options.x_axis_type = "log";
    if (spec.y.kind === "log") options.y_axis_type = "log";
    if (spec.y.kind === "factors") {
      options.y_range = new Bokeh.Range1d({ start: spec.y.factors.length - 0.4, end: -0.6 });
    }
    if (spec.x.limits) {
      const [start, end] = spec.x.limits;
      options.x_range = new Bokeh.Range1d({ start: start / spec.x.scale, end: end / spec.x.scale });
    }
    this.figure = P.figure(options);
    if (spec.x.kind === "whole") for (const axis of this.figure.xaxis) axis.ticker.min_interval = 1;
    if (spec.y.kind === "factors") this.nameRows();
    this.marks.forEach((mark) => this.mark(mark));
    if (spec.y.kind === "linear") this.figure.y_range.start = 0;
    this.paint();
    this.canvas.replaceChildren();
    this.canvas.style.height = `${spec.height}px`;
    this.tools.hidden = false;
    this.view = await P.show(this.figure, this.canvas);
    this.home = [this.figure.x_range.start, this.figure.x_range.end];
    figures.push(this);
  }

  nameRows() {
    const [axis] = this.figure.yaxis;
    const { factors } = this.spec.y;
    axis.ticker = new Bokeh.FixedTicker({ ticks: factors.map((_, place) => place) });
    axis.major_label_overrides = new Map(factors.map((name, place) => [place, clean(name)]));
    for (const grid of this.figure.ygrid) grid.visible = false;
    if (factors.every((name) => !name)) {
      axis.visible = false;
      for (const grid of this.figure.xgrid) grid.visible = false;
    }
  }

  mark(mark) {
    const data = {};
    for (const column of mark.sheet.columns) data[column.key] = column.data.isText
      ? Array.from({ length: column.data.length }, (_, row) => clean(column.data.at(row)))
      : column.kind === "row" ? Array.from(column.data.values, Number)
        : Float64Array.from(column.data.values, Number);
    const fields = {};
    for (const [name, key] of Object.entries(mark.fields)) {
      const scale = !PLACES.has(name) ? 1 : VERTICAL.has(name) ? this.spec.y.scale : this.spec.x.scale;
      if (scale !== 1) data[`${name} `] = data[key].map((value) => value / scale);
      fields[name] = { field: scale === 1 ? key : `${name} ` };
      if (name === "x") mark.place = fields[name].field;
    }
    for (const key of mark.hover) {
      const column = mark.sheet.columns.find((one) => one.key === key);
      data[`${key} shown`] = column.data.isText ? data[key]
        : Array.from(column.data.values, (value) => column.data.isUnknown(value)
          ? "unknown" : short(value, column.kind));
    }
    const source = new Bokeh.ColumnDataSource({ data });
    const properties = { ...mark.options, ...fields, source };
    if (mark.glyph === "text") properties.text_color = color("ink");
    else Object.assign(properties, { color: mark.color, alpha: mark.alpha });
    if (mark.glyph === "quad" || mark.glyph === "hbar") properties.line_color = color("card");
    mark.renderer = this.figure[mark.glyph](properties);
    if (mark.hover.length) {
      const labels = Object.fromEntries(mark.sheet.columns.map((one) => [one.key, one.label]));
      const tooltips = mark.hover.map((key) => [labels[key], `@{${key} shown}`]);
      this.figure.add_tools(new Bokeh.HoverTool({ renderers: [mark.renderer], tooltips }));
    }
    const rows = mark.sheet.columns.find((one) => one.kind === "row");
    if (rows && this.program) {
      source.selected.change.connect(() => {
        const [first] = source.selected.indices;
        if (first !== undefined) location.hash = `#i-${Number(rows.data.at(first))}`;
      });
    }
  }

  paint() {
    const [ink, quiet, line, card] = ["ink", "quiet", "line", "card"].map(color);
    const { figure } = this;
    for (const axis of [...figure.xaxis, ...figure.yaxis]) {
      Object.assign(axis, {
        axis_label_text_color: quiet, axis_label_text_font_style: "normal", axis_label_text_font_size: "12px",
        major_label_text_color: quiet, major_label_text_font_size: "12px", axis_line_color: line,
        major_tick_line_color: line, minor_tick_line_color: null,
      });
    }
    for (const grid of [...figure.xgrid, ...figure.ygrid]) grid.grid_line_color = line;
    if (this.marker) this.marker.line_color = ink;
    for (const mark of this.marks) {
      if (!mark.renderer) continue;
      if (mark.glyph === "text") mark.renderer.glyph.text_color = { value: ink };
      if (mark.glyph === "quad" || mark.glyph === "hbar") mark.renderer.glyph.line_color = { value: card };
    }
  }

  zoom(factor) {
    this.show((start, end) => {
      const [middle, half] = [(start + end) / 2, ((end - start) / 2) * factor];
      return [middle - half, middle + half];
    });
  }

  move(share) {
    this.show((start, end) => [start + share * (end - start), end + share * (end - start)]);
  }

  show(change) {
    const range = this.figure.x_range;
    const [to, back] = this.spec.x.kind === "log" ? [Math.log10, (x) => 10 ** x] : [(x) => x, (x) => x];
    const [start, end] = change(to(range.start), to(range.end));
    range.setv({ start: back(start), end: back(end) });
  }

  reset() {
    this.figure.x_range.setv({ start: this.home[0], end: this.home[1] });
  }
}

// Nested scopes: a click zooms one to the width of the chart; the path above leads back. Names are cut
// to the part of their box that is in sight.
class Scopes {
  constructor(chart) {
    this.chart = chart;
    this.range = chart.figure.x_range;
    this.boxes = [];
    for (const mark of chart.marks) {
      if (mark.glyph === "quad") this.read(mark);
    }
    this.trail = make("nav", { className: "trail" });
    this.trail.setAttribute("aria-label", `Scope shown in ${chart.spec.title}`);
    chart.canvas.before(this.trail);
    chart.figure.on_event("tap", (event) => {
      const box = this.boxes.find((one) => event.x >= one.left && event.x <= one.right
        && event.y >= one.top && event.y <= one.bottom);
      if (box) this.show(box);
    });
    this.range.change.connect(() => this.fit());
    addEventListener("resize", () => this.fit());
    this.fit();
  }

  read(mark) {
    const get = (key) => columnOf(mark.sheet, key);
    const [left, right, top, bottom] = ["left", "right", "top", "bottom"].map((key) => get(key).values);
    const { scale } = this.chart.spec.x;
    for (let row = 0; row < left.length; row++) {
      this.boxes.push({
        left: Number(left[row]) / scale, right: Number(right[row]) / scale,
        top: top[row], bottom: bottom[row], depth: Number(get("depth").at(row)),
        label: clean(get("label").at(row)), share: get("share").at(row),
      });
    }
  }

  show(box) {
    this.range.setv({ start: box.left, end: box.right });
  }

  fit() {
    const { start, end } = this.range;
    const mark = this.chart.marks.find((one) => one.glyph === "text");
    const [label, left, width] = ["label", "left", "width"].map((key) => columnOf(mark.sheet, key));
    const { scale } = this.chart.spec.x;
    const unit = (this.chart.canvas.clientWidth * 0.96) / (end - start);
    const [texts, places] = [[], []];
    for (let row = 0; row < label.length; row++) {
      const first = Math.max(Number(left.values[row]) / scale, start);
      const last = Math.min((Number(left.values[row]) + Number(width.values[row])) / scale, end);
      const letters = Math.floor(((last - first) * unit - 8) / 6.6);
      texts.push(letters < 2 ? "" : cut(clean(label.at(row)), letters));
      places.push(first);
    }
    const source = mark.renderer.data_source;
    source.data = { ...source.data, cut: texts, [mark.place]: places };
    this.follow(start, end);
  }

  // The deepest box around what is in sight, and the boxes above it.
  follow(start, end) {
    const slack = (end - start) * 1e-6;
    const around = this.boxes.filter((box) => box.left <= start + slack && box.right >= end - slack);
    around.sort((a, b) => a.depth - b.depth);
    const parts = (around.length ? around : this.boxes.filter((box) => box.depth === 0)).map((box) => {
      const button = make("button", { type: "button", textContent: titleOf(box) });
      button.addEventListener("click", () => this.show(box));
      return button;
    });
    if (parts.length) parts[parts.length - 1].setAttribute("aria-current", "true");
    this.trail.replaceChildren(...parts);
  }
}

// Of a step that costs nothing, no box has a share.
function titleOf(box) {
  return box.share === box.share ? `${box.label} ${format(box.share, "share")}` : box.label;
}

function paintFigures() {
  for (const chart of figures) chart.paint();
}
