// Virtual tables: only the visible rows are in the document.

const ROW_HEIGHT = 28;
const TALLEST = 6000000; // Browsers cannot make elements much taller than this.
const SHOWN_ROWS = 12;
const PRINTED_ROWS = 30;
const LONGEST_CODE = 40;
const LONGEST_PATH = 32;
const WIDE = 64; // Letters of a table from which it is as wide as the page.
const PARAMETERS = /\[[^/]*$/; // Of an operation: dot_general[precision=None].
let grids = 0;

// The last parts of a path.
function end(path) {
  if (path.length <= LONGEST_PATH) return path;
  const slash = path.indexOf("/", path.length - LONGEST_PATH);
  return `…${path.slice(slash > 0 ? slash : 1 - LONGEST_PATH)}`;
}

class Grid {
  // `sheet`: {key, caption, note, rows, sort, columns}; `names(row)` names instructions.
  constructor(host, sheet, names, options = {}) {
    this.sheet = sheet;
    this.names = names;
    this.number = ++grids;
    this.order = null; // Row numbers in display order; null for all rows in table order.
    this.active = -1;
    this.sorted = null;
    this.first = -1;
    this.filtered = null;
    this.query = "";
    this.match = options.match || ((query) => this.matching(query));
    this.widths = sheet.columns.map((column) => this.width(column));
    this.build(host, options);
    if (sheet.sort) this.sortBy(sheet.columns.findIndex((one) => one.key === sheet.sort), true);
    else this.refresh();
  }

  get count() {
    return this.order ? this.order.length : this.sheet.rows;
  }

  rowAt(place) {
    return this.order ? this.order[place] : place;
  }

  cell(column, row) {
    if (column.data.isText) return this.words(column, row);
    const value = column.data.at(row);
    if (column.kind === "row") return value < 0 ? "" : clean(this.names(Number(value)));
    return column.data.isUnknown(value) ? "unknown" : format(value, column.kind);
  }

  // Long names mostly differ at their end, so the middle is elided; of paths, the beginning.
  words(column, row) {
    const text = clean(column.data.at(row)) || "–";
    if (column.kind === "path" && text.length > LONGEST_PATH) return end(text.replace(PARAMETERS, "[…]"));
    if (column.kind !== "code" || text.length <= LONGEST_CODE) return text;
    return `${text.slice(0, LONGEST_CODE / 3)}…${text.slice(1 - (LONGEST_CODE * 2) / 3)}`;
  }

  width(column) {
    let most = column.label.length + 2;
    const step = Math.max(1, Math.floor(this.sheet.rows / 150));
    for (let row = 0; row < this.sheet.rows; row += step) {
      most = Math.max(most, this.cell(column, row).length);
    }
    return Math.min(most + 2, column.kind === "row" ? 28 : 38);
  }

  build(host, options) {
    const { sheet } = this;
    const id = `grid-${this.number}`;
    const title = make(options.heading || "h3", {
      id: `${id}-title`, className: "caption", textContent: sheet.caption,
    });
    this.counter = make("p", { className: "count", role: "status" });
    const bar = make("div", { className: "grid-bar" }, title, this.counter);
    if (sheet.rows > SHOWN_ROWS) bar.append(this.filterBox(id, options));
    const columns = this.widths.map((width) => {
      const column = make("col");
      column.style.width = `${width}ch`;
      return column;
    });
    this.headers = sheet.columns.map((column, place) => {
      const button = make("button", { type: "button", textContent: column.label });
      button.addEventListener("click", () => this.sortBy(place));
      const header = make("th", { scope: "col", className: column.kind }, button);
      header.setAttribute("aria-sort", "none");
      return header;
    });
    this.above = make("td", { colSpan: sheet.columns.length });
    this.below = make("td", { colSpan: sheet.columns.length });
    this.body = make("tbody");
    this.table = make(
      "table", { role: "grid" }, make("colgroup", {}, ...columns),
      make("thead", {}, make("tr", {}, ...this.headers)), this.body,
    );
    this.table.setAttribute("aria-labelledby", `${id}-title`);
    this.table.setAttribute("aria-colcount", sheet.columns.length);
    const letters = this.widths.reduce((a, b) => a + b, 0);
    this.table.style.minWidth = `${letters}ch`;
    this.scroller = make("div", { className: "grid-scroll", tabIndex: 0, role: "group" }, this.table);
    this.scroller.setAttribute("aria-label", `${sheet.caption}: arrow keys go through the rows`);
    this.scroller.addEventListener("scroll", () => this.render());
    this.scroller.addEventListener("keydown", (event) => this.key(event));
    this.more = make("p", { className: "printed-note" });
    const parts = [bar, this.scroller, this.more];
    if (sheet.note) parts.push(make("p", { className: "note", textContent: clean(sheet.note) }));
    this.element = make("div", { className: letters > WIDE ? "grid wide" : "grid" }, ...parts);
    host.append(this.element);
    allGrids.push(this);
  }

  filterBox(id, options) {
    const input = make("input", {
      type: "search", id: `${id}-filter`, autocomplete: "off", spellcheck: false,
      placeholder: options.placeholder || "filter",
    });
    input.setAttribute("aria-label", `Filter ${this.sheet.caption}`);
    let waiting = 0;
    input.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.filter(input.value), 80);
    });
    this.filterInput = input;
    return input;
  }

  filter(text) {
    this.query = text.trim().toLowerCase();
    this.filtered = this.query ? this.match(this.query) : null;
    this.arrange();
  }

  // Flags by row: whether the row's texts contain every word.
  matching(query) {
    let flags = null;
    for (const word of query.split(/\s+/)) {
      const found = new Uint8Array(this.sheet.rows);
      for (const column of this.sheet.columns) {
        if (column.data.isText) column.data.flagHolding(word, found, 1);
        else if (column.kind === "row") {
          for (let row = 0; row < found.length; row++) {
            const one = Number(column.data.at(row));
            if (!found[row] && one >= 0 && this.names(one).toLowerCase().includes(word)) found[row] = 1;
          }
        }
      }
      if (flags) for (let row = 0; row < flags.length; row++) flags[row] &= found[row];
      else flags = found;
    }
    return flags;
  }

  sortBy(place, descending = null) {
    const column = this.sheet.columns[place];
    if (descending === null) {
      const same = this.sorted && this.sorted.place === place;
      descending = same ? !this.sorted.descending : !column.data.isText;
    }
    this.sorted = { place, descending };
    this.headers.forEach((header, number) => {
      const here = number === place;
      header.setAttribute("aria-sort", here ? (descending ? "descending" : "ascending") : "none");
    });
    this.arrange();
  }

  arrange() {
    const rows = this.sheet.rows;
    let order = null;
    if (this.filtered) {
      order = [];
      for (let row = 0; row < rows; row++) if (this.filtered[row]) order.push(row);
      order = Uint32Array.from(order);
    } else if (this.sorted) order = Uint32Array.from({ length: rows }, (_, row) => row);
    if (this.sorted && order) {
      const column = this.sheet.columns[this.sorted.place];
      const keys = column.data.isText ? column.data.ranks() : column.data.values;
      const sign = this.sorted.descending ? -1 : 1;
      order.sort((a, b) => {
        const [x, y] = [keys[a], keys[b]];
        if (x === y) return a - b;
        if (x !== x) return 1;
        if (y !== y) return -1;
        return x < y ? -sign : sign;
      });
    }
    this.order = order;
    this.active = -1;
    this.scroller.scrollTop = 0;
    this.refresh();
  }

  refresh() {
    const all = WHOLE.format(this.sheet.rows);
    this.counter.textContent = this.filtered
      ? `${WHOLE.format(this.count)} of ${all} rows` : `${all} ${this.sheet.rows === 1 ? "row" : "rows"}`;
    this.table.setAttribute("aria-rowcount", this.count + 1);
    const shown = Math.min(this.sheet.rows, SHOWN_ROWS);
    const some = this.sheet.rows > SHOWN_ROWS;
    this.scroller.style.height = some ? `calc(${(shown + 1) * ROW_HEIGHT}px + 1.2rem)` : "auto";
    this.total = Math.min(this.count * ROW_HEIGHT, TALLEST);
    this.first = -1;
    this.render();
  }

  // The first visible row; scrolling is compressed if all rows together exceed TALLEST.
  topRow() {
    const hidden = this.total - SHOWN_ROWS * ROW_HEIGHT;
    if (hidden <= 0) return 0;
    const share = Math.min(this.scroller.scrollTop / hidden, 1);
    return Math.round(share * Math.max(this.count - SHOWN_ROWS, 0));
  }

  render(every = false) {
    const top = every ? 0 : Math.max(0, this.topRow() - 4);
    const end = every ? Math.min(this.count, PRINTED_ROWS) : Math.min(this.count, top + SHOWN_ROWS + 10);
    if (top === this.first && !every) return;
    this.first = every ? -1 : top;
    const focused = this.body.contains(document.activeElement);
    const space = every ? 0 : Math.max(0, Math.min(
      this.scroller.scrollTop - (this.topRow() - top) * ROW_HEIGHT,
      this.total - (end - top) * ROW_HEIGHT,
    ));
    const rest = every ? 0 : Math.max(0, this.total - space - (end - top) * ROW_HEIGHT);
    this.above.style.height = `${space}px`;
    this.below.style.height = `${rest}px`;
    const rows = [make("tr", { role: "presentation", className: "space" }, this.above)];
    for (let place = top; place < end; place++) rows.push(this.row(place));
    rows.push(make("tr", { role: "presentation", className: "space" }, this.below));
    this.body.replaceChildren(...rows);
    const hidden = this.count - PRINTED_ROWS;
    this.more.textContent = hidden > 0 ? `${WHOLE.format(hidden)} more rows are not printed.` : "";
    if (focused) this.focusActive();
  }

  row(place) {
    const row = this.rowAt(place);
    const cells = this.sheet.columns.map((column, place) => {
      const text = this.cell(column, row);
      const value = column.kind === "row" ? Number(column.data.at(row)) : -1;
      const cell = make("td", { className: column.kind, role: "gridcell" });
      const page = place === 0 && column.data.isText ? this.sheet.links[column.data.at(row)] : "";
      if (page) cell.append(make("a", { href: page, textContent: text, tabIndex: -1 }));
      else if (value >= 0) {
        cell.append(make("a", { href: `#i-${value}`, textContent: text, tabIndex: -1 }));
      } else cell.textContent = text;
      if (text.length > 24) cell.title = column.data.isText ? clean(column.data.at(row)) : text;
      return cell;
    });
    const element = make("tr", { tabIndex: -1 }, ...cells);
    element.setAttribute("aria-rowindex", place + 2);
    element.dataset.place = place;
    if (place === this.active) element.className = "active";
    return element;
  }

  key(event) {
    const moves = {
      ArrowDown: 1, ArrowUp: -1, PageDown: SHOWN_ROWS, PageUp: -SHOWN_ROWS,
      Home: -Infinity, End: Infinity,
    };
    if (event.key === "Enter" && event.target.tagName !== "A" && this.active >= 0) {
      const link = this.body.querySelector("tr.active a");
      if (link) link.click();
      return;
    }
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.tagName === "BUTTON" || !this.count) return;
    event.preventDefault();
    const from = this.active < 0 && moves[event.key] > 0 ? -1 : Math.max(this.active, 0);
    this.active = Math.min(Math.max(from + moves[event.key], 0), this.count - 1);
    this.reveal(this.active);
    this.first = -1;
    this.render();
    this.focusActive();
  }

  reveal(place) {
    const top = this.topRow();
    if (place >= top && place < top + SHOWN_ROWS - 1) return;
    const hidden = Math.max(this.count - SHOWN_ROWS, 1);
    const wanted = place < top ? place : place - SHOWN_ROWS + 2;
    const share = Math.min(Math.max(wanted / hidden, 0), 1);
    this.scroller.scrollTop = share * Math.max(this.total - SHOWN_ROWS * ROW_HEIGHT, 0);
  }

  focusActive() {
    const element = this.body.querySelector(`tr[data-place="${this.active}"]`);
    if (!element) {
      this.scroller.focus({ preventScroll: true });
      return;
    }
    (element.querySelector("a") || element).focus({ preventScroll: true });
  }
}

const allGrids = [];

function printGrids(printing) {
  for (const grid of allGrids) {
    grid.element.classList.toggle("printing", printing);
    if (printing) grid.render(true);
    else {
      grid.first = -1;
      grid.render();
    }
  }
}
