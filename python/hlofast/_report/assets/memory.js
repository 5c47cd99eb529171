// The live set at a step of the schedule: under the pointer, or at the slider.

const SHOWN_VALUES = 12;

class LiveSet {
  constructor(chart, steps, values, program) {
    this.chart = chart;
    this.steps = steps;
    this.program = program;
    const column = (key) => columnOf(values, key);
    this.first = column("first_step").values;
    this.last = column("last_step").values;
    this.bytes = column("bytes").values;
    this.made = column("instruction").values;
    this.kind = column("class");
    this.part = column("index");
    this.alive = columnOf(steps, "bytes").values;
    this.instructions = columnOf(steps, "instruction").values;
    this.build();
    let peak = 0;
    for (let step = 0; step < this.alive.length; step++) if (this.alive[step] > this.alive[peak]) peak = step;
    this.show(peak);
    this.follow();
  }

  build() {
    const last = Math.max(this.alive.length - 1, 0);
    this.slider = make("input", { type: "range", min: 0, max: last, step: 1, id: "live-step" });
    this.slider.addEventListener("input", () => this.show(Number(this.slider.value)));
    const label = make("label", { htmlFor: "live-step", textContent: "Step of the schedule" });
    this.line = make("p", { className: "live-line", id: "live-line" });
    this.body = make("tbody");
    const heads = ["value", "class", "bytes", "share"].map(
      (text, place) => make("th", { scope: "col", textContent: text, className: place > 1 ? "bytes" : "text" }),
    );
    const caption = make("caption", { textContent: "Live at this step, largest first" });
    this.table = make("table", { className: "plain" }, caption, make("thead", {}, make("tr", {}, ...heads)), this.body);
    const scroller = make("div", { className: "plain-scroll", tabIndex: 0, role: "group" }, this.table);
    scroller.setAttribute("aria-label", "Live at this step");
    this.rest = make("p", { className: "note" });
    this.element = make(
      "div", { className: "live", id: "live" }, make("div", { className: "live-slider" }, label, this.slider),
      this.line, scroller, this.rest,
    );
    this.chart.element.append(this.element);
  }

  // The pointer over the chart moves the slider; a click leaves it there.
  follow() {
    if (!this.chart.figure) return;
    let waiting = false;
    let wanted = 0;
    this.chart.figure.on_event("mousemove", (event) => {
      wanted = Math.round(Math.min(Math.max(Math.floor(event.x), 0), this.alive.length - 1));
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        this.show(wanted);
      });
    });
    this.marker = new Bokeh.Span({ location: this.step, dimension: "height", line_color: color("ink"), line_width: 1 });
    this.chart.marker = this.marker;
    this.chart.figure.add_layout(this.marker);
  }

  show(step) {
    if (!this.alive.length || step === this.step) return;
    this.step = step;
    this.slider.value = String(step);
    const found = [];
    for (let value = 0; value < this.first.length; value++) {
      if (this.first[value] <= step && step <= this.last[value] && this.bytes[value] > 0) found.push(value);
    }
    found.sort((a, b) => this.bytes[b] - this.bytes[a] || a - b);
    const total = Number(this.alive[step]);
    const name = clean(this.program.name(Number(this.instructions[step])));
    const text = `Step ${WHOLE.format(step)} of ${WHOLE.format(this.alive.length)}, ${name}: ${short(total, "bytes")} (${WHOLE.format(total)} B) in ${WHOLE.format(found.length)} values`;
    this.line.textContent = text;
    this.slider.setAttribute("aria-valuetext", text);
    this.body.replaceChildren(...found.slice(0, SHOWN_VALUES).map((value) => make(
      "tr", {},
      make("td", { className: "row" }, make("a", {
        href: `#i-${Number(this.made[value])}`,
        textContent: clean(this.program.name(Number(this.made[value])) + part(this.part.at(value))),
      })),
      make("td", { className: "text", textContent: this.kind.at(value).replace(/_/g, " ") }),
      make("td", { className: "bytes", textContent: WHOLE.format(this.bytes[value]) }),
      make("td", { className: "bytes", textContent: format(total ? Number(this.bytes[value]) / total : 0, "share") }),
    )));
    const more = found.slice(SHOWN_VALUES);
    let bytes = 0;
    for (const value of more) bytes += Number(this.bytes[value]);
    this.rest.textContent = more.length ? `and ${WHOLE.format(more.length)} more of ${short(bytes, "bytes")} together` : "";
    if (this.marker) this.marker.location = step;
  }
}

function part(index) {
  return index === "{}" ? "" : index;
}
