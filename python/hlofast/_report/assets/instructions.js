// Instructions: search, details of one with its operands and users, and the table of all.

const FLAGS = { root: 1, implicit: 2 };
const FOUND = 40;
const EDGES = 200;
const LONGEST = 6000;

class Program {
  constructor(from) {
    const head = from.head;
    this.rows = head.rows;
    this.words = {};
    for (const [name, spec] of Object.entries(head.words)) this.words[name] = new TextColumn(from, spec);
    this.from = from;
    this.places = head.numbers;
    this.loaded = {};
    this.computations = new Texts(from, head.computations);
    this.textPlaces = head.text;
  }

  // Columns of numbers, unpacked on first use.
  numbers(name) {
    if (!(name in this.loaded)) {
      this.loaded[name] = name in this.places ? this.from.numbers(this.places[name]) : null;
    }
    return this.loaded[name];
  }

  name(row) {
    return row >= 0 && row < this.rows ? this.words.name.at(row) : "";
  }

  computation(row) {
    return this.computations.at(this.numbers("computation")[row]);
  }

  operands(row) {
    const offsets = this.numbers("operand_offsets");
    return this.numbers("operands").subarray(offsets[row], offsets[row + 1]);
  }

  users(row) {
    if (!this.userOffsets) this.findUsers();
    return new Set(this.userRows.subarray(this.userOffsets[row], this.userOffsets[row + 1]));
  }

  findUsers() {
    const offsets = this.numbers("operand_offsets");
    const operands = this.numbers("operands");
    const starts = new Uint32Array(this.rows + 1);
    for (const operand of operands) starts[operand + 1] += 1;
    for (let row = 0; row < this.rows; row++) starts[row + 1] += starts[row];
    const next = starts.slice();
    const users = new Uint32Array(operands.length);
    for (let row = 0; row < this.rows; row++) {
      for (let edge = offsets[row]; edge < offsets[row + 1]; edge++) users[next[operands[edge]]++] = row;
    }
    this.userOffsets = starts;
    this.userRows = users;
  }

  // Rows at the `to` end of the edges whose `from` end is `row`.
  edges(from, to, row) {
    const [a, b] = [this.numbers(from), this.numbers(to)];
    const found = [];
    for (let edge = 0; edge < a.length; edge++) if (Number(a[edge]) === row) found.push(Number(b[edge]));
    return found;
  }

  // The rows of a computation are contiguous.
  rootOf(computation) {
    const computations = this.numbers("computation");
    const flags = this.numbers("flags");
    let row = computations.indexOf(computation);
    while (row >= 0 && row < this.rows && computations[row] === computation) {
      if (flags[row] & FLAGS.root) return row;
      row += 1;
    }
    return -1;
  }

  text(row) {
    if (!this.textPlaces) return null;
    if (!this.bytes) {
      this.bytes = this.from.array(this.textPlaces.bytes);
      this.starts = this.from.array(this.textPlaces.starts);
      this.ends = this.from.array(this.textPlaces.ends);
    }
    const [start, end] = [this.starts[row], this.ends[row]];
    if (start >= this.bytes.length || end <= start) return null;
    const part = new TextDecoder().decode(this.bytes.subarray(start, Math.min(end, start + LONGEST)));
    return end - start > LONGEST ? `${part} … ${WHOLE.format(end - start - LONGEST)} more bytes` : part;
  }

  source(row) {
    const file = this.words.source_file.at(row);
    const line = this.numbers("source_line")[row];
    return file && line ? `${file}:${line}` : file;
  }

  // By row: 1 if the row contains every word, 3 if its name does, otherwise 0.
  matching(words) {
    let flags = null;
    for (const word of words) {
      const found = new Uint8Array(this.rows);
      this.words.name.flagHolding(word, found, 3);
      for (const name of ["op_name", "opcode", "source_file", "shape", "phase"]) {
        this.words[name].flagHolding(word, found, 1);
      }
      if (flags) for (let row = 0; row < flags.length; row++) flags[row] &= found[row];
      else flags = found;
    }
    return flags;
  }

  // Number of rows that contain every word of the query, and the `most` best matches.
  search(query, most) {
    const words = query.toLowerCase().trim().split(/\s+/).filter(Boolean);
    if (!words.length) return { rows: [], total: 0 };
    const flags = this.matching(words);
    const ranked = [[], [], [], []];
    let total = 0;
    for (let row = 0; row < this.rows; row++) {
      if (!flags[row]) continue;
      total += 1;
      let rank = 3;
      if (flags[row] === 3) {
        const name = this.name(row).toLowerCase();
        rank = name === words[0] ? 0 : name.startsWith(words[0]) ? 1 : 2;
      }
      if (ranked[rank].length < most) ranked[rank].push(row);
    }
    return { rows: ranked.flat().slice(0, most), total };
  }
}

function instructionSheet(program) {
  const text = (key, label, data, kind = "text") => ({ key, label, kind, data });
  const number = (key, label, kind, name) => ({
    key, label, kind, data: new NumberColumn(program.numbers(name), { unknown: -1 }),
  });
  const rows = new Uint32Array(program.rows);
  for (let row = 0; row < rows.length; row++) rows[row] = row;
  const computations = Object.assign(Object.create(TextColumn.prototype), {
    texts: program.computations, codes: program.numbers("computation"), length: program.rows, isText: true,
  });
  const columns = [
    { key: "instruction", label: "instruction", kind: "row", data: new NumberColumn(rows, {}) },
    text("opcode", "opcode", program.words.opcode),
    text("shape", "shape", program.words.shape, "code"),
    number("flops", "FLOPs per call", "flops", "flops"),
    number("bytes", "bytes per call", "bytes", "bytes_accessed"),
    number("times", "calls", "integer", "multiplicity"),
    text("phase", "phase", program.words.phase),
    text("computation", "computation", computations, "code"),
    text("op_name", "operation name", program.words.op_name, "code"),
    text("source_file", "file", program.words.source_file, "code"),
    number("source_line", "line", "integer", "source_line"),
  ];
  if (program.numbers("measured_seconds")) columns.splice(6, 0, number("measured", "measured, all calls", "seconds", "measured_seconds"));
  if (program.numbers("seconds")) columns.splice(6, 0, number("seconds", "time per call", "seconds", "seconds"));
  return { key: "instructions", caption: "All instructions", rows: program.rows, columns };
}

function showInstructions(program) {
  const names = (row) => program.name(row);
  const match = (query) => program.matching(query.split(/\s+/));
  new Grid(document.getElementById("instructions-table"), instructionSheet(program), names, {
    match, placeholder: "name, opcode, shape, phase, source",
  });
}

function link(program, row) {
  return make("a", { href: `#i-${row}`, textContent: clean(program.name(row)) });
}

function edgeList(program, title, rows) {
  const all = [...rows];
  const items = all.slice(0, EDGES).map((row) => make(
    "li", {}, link(program, row), " ",
    make("span", { className: "quiet-text", textContent: clean(program.words.opcode.at(row)) }), " ",
    make("code", { textContent: clean(cut(program.words.shape.at(row), 80)) }),
  ));
  if (all.length > EDGES) {
    items.push(make("li", { textContent: `and ${WHOLE.format(all.length - EDGES)} more` }));
  }
  const heading = make("h4", { textContent: `${title} (${WHOLE.format(all.length)})` });
  const list = items.length ? make("ul", { className: "edges" }, ...items)
    : make("p", { className: "quiet-text", textContent: "none" });
  return make("div", { className: "edge-list" }, heading, list);
}

function cut(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function instructionFacts(program, row) {
  const words = (name) => clean(program.words[name].at(row));
  const known = (name, kind) => {
    const value = program.numbers(name)[row];
    if (Number(value) < 0 || value !== value) return "unknown";
    return kind === "integer" ? format(value, kind) : `${short(value, kind)} (${format(value, "integer")})`;
  };
  const facts = [
    ["opcode", words("opcode")], ["shape", words("shape")], ["result", known("shape_bytes", "bytes")],
    ["computation", clean(program.computation(row))], ["phase", words("phase")],
    ["operation name", words("op_name")], ["source", clean(program.source(row))],
    ["FLOPs per call", `${known("flops", "flops")}, ${words("provenance")}`],
    ["bytes per call", known("bytes_accessed", "bytes")], ["calls", known("multiplicity", "integer")],
  ];
  if (program.numbers("seconds")) facts.push(["time per call", `${seconds(program.numbers("seconds")[row])}, modelled`]);
  if (program.numbers("measured_seconds")) {
    const measured = program.numbers("measured_seconds")[row];
    if (measured === measured) facts.push(["measured time", `${seconds(measured)}, all calls of a step`]);
  }
  const parameter = program.numbers("parameter_number")[row];
  if (parameter >= 0) facts.push(["parameter", String(parameter)]);
  const flags = program.numbers("flags")[row];
  if (flags & FLAGS.root) facts.push(["root", "the result of its computation"]);
  if (flags & FLAGS.implicit) facts.push(["implicit", "not in the text, which implies it"]);
  return make("dl", { className: "facts" }, ...facts.filter(([, value]) => value).map(
    ([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value })),
  ));
}

function showInstruction(program, row, focus) {
  const panel = document.getElementById("instruction");
  const parts = [
    make("h3", { textContent: clean(program.name(row)) }), instructionFacts(program, row),
    make(
      "div", { className: "edge-lists" },
      edgeList(program, "Operands", program.operands(row)), edgeList(program, "Users", program.users(row)),
    ),
  ];
  const lists = [];
  const called = program.edges("call_row", "call_computation", row);
  if (called.length) {
    lists.push(edgeList(program, "Results of called computations", called.map((one) => program.rootOf(one)).filter((one) => one >= 0)));
  }
  const callers = program.edges("call_computation", "call_row", program.numbers("computation")[row]);
  if (callers.length) lists.push(edgeList(program, "Called by", callers));
  const before = program.edges("control_row", "control_predecessor", row);
  if (before.length) lists.push(edgeList(program, "Waits for", before));
  if (lists.length) parts.push(make("div", { className: "edge-lists" }, ...lists));
  const text = program.text(row);
  if (text) parts.push(make("pre", { className: "text", tabIndex: 0, textContent: clean(text) }));
  panel.replaceChildren(...parts);
  if (focus) {
    panel.scrollIntoView({ block: "start" });
    panel.focus({ preventScroll: true });
  }
}

function followAddress(program) {
  const found = /^#i-(\d+)$/.exec(location.hash);
  if (found && Number(found[1]) < program.rows) showInstruction(program, Number(found[1]), true);
}

// The search box, with a list of matches that arrow keys navigate.
class Search {
  constructor(program) {
    this.program = program;
    this.input = document.getElementById("search");
    this.list = document.getElementById("found");
    this.count = document.getElementById("found-count");
    this.rows = [];
    this.active = -1;
    let waiting = 0;
    this.input.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.update(), 50);
    });
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.input.addEventListener("blur", () => setTimeout(() => this.close(), 150));
    document.addEventListener("keydown", (event) => {
      const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
      if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        this.input.focus();
      }
    });
    this.input.disabled = false;
    if (this.input.value) this.update();
  }

  update() {
    const { rows, total } = this.program.search(this.input.value, FOUND);
    this.rows = rows;
    this.active = -1;
    const items = rows.map((row, place) => {
      const item = make(
        "li", { id: `found-${place}`, role: "option" },
        make("b", { textContent: clean(this.program.name(row)) }), " ",
        make("span", { textContent: clean(this.program.words.opcode.at(row)) }), " ",
        make("code", { textContent: clean(cut(this.program.words.shape.at(row), 60)) }), " ",
        make("small", { textContent: clean(cut(this.program.words.op_name.at(row), 100)) }),
      );
      item.setAttribute("aria-selected", "false");
      item.addEventListener("mousedown", (event) => {
        event.preventDefault();
        this.open(place);
      });
      return item;
    });
    this.list.replaceChildren(...items);
    const open = this.input.value.trim() !== "";
    this.list.hidden = !items.length;
    this.input.setAttribute("aria-expanded", String(items.length > 0));
    this.input.removeAttribute("aria-activedescendant");
    this.count.textContent = open ? `${WHOLE.format(total)} found` : "";
    if (open && !total) this.count.textContent = "nothing found";
  }

  key(event) {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      this.choose((this.active + step + this.rows.length) % Math.max(this.rows.length, 1));
    } else if (event.key === "Enter" && this.rows.length) {
      event.preventDefault();
      this.open(Math.max(this.active, 0));
    } else if (event.key === "Escape") this.close();
  }

  choose(place) {
    const items = [...this.list.children];
    if (!items.length) return;
    items.forEach((item, number) => item.setAttribute("aria-selected", String(number === place)));
    items[place].scrollIntoView({ block: "nearest" });
    this.input.setAttribute("aria-activedescendant", items[place].id);
    this.active = place;
  }

  open(place) {
    const row = this.rows[place];
    this.close();
    if (location.hash === `#i-${row}`) showInstruction(this.program, row, true);
    else location.hash = `#i-${row}`;
  }

  close() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }
}
