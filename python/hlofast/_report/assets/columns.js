"use strict";
// Unpacks the page's compressed blocks into typed arrays and strings. Text of the dump enters the
// page only through textContent, never as HTML.

const NUMBERS = {
  u8: Uint8Array, i8: Int8Array, u16: Uint16Array, i32: Int32Array, u32: Uint32Array,
  i64: BigInt64Array, f64: Float64Array,
};
const SAFE_HIGH = 1 << 20;

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const decoded = atob(text);
  const bytes = new Uint8Array(decoded.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = decoded.charCodeAt(i);
  return bytes;
}

class Block {
  constructor(buffer) {
    this.buffer = buffer;
    const length = new DataView(buffer).getUint32(0, true);
    this.start = 4 + length;
    this.head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  }

  array([start, bytes, kind]) {
    const type = NUMBERS[kind];
    return new type(this.buffer, this.start + start, bytes / type.BYTES_PER_ELEMENT);
  }

  // 64-bit integers become floats if all of them stay exact, which is nearly always.
  numbers(place) {
    const array = this.array(place);
    if (place[2] !== "i64") return array;
    const halves = new Int32Array(array.buffer, array.byteOffset, array.length * 2);
    const floats = new Float64Array(array.length);
    for (let i = 0; i < floats.length; i++) {
      const high = halves[2 * i + 1];
      if (high >= SAFE_HIGH || high < -SAFE_HIGH) return array;
      floats[i] = high * 4294967296 + (halves[2 * i] >>> 0);
    }
    return floats;
  }

  text(spec) {
    const place = spec.ascii || spec.utf16;
    const coding = spec.ascii ? "latin1" : "utf-16le";
    return new TextDecoder(coding).decode(this.array(place));
  }
}

const blocks = new Map();

function block(name) {
  if (!blocks.has(name)) blocks.set(name, readBlock(name));
  return blocks.get(name);
}

async function readBlock(name) {
  const element = document.getElementById(`block-${name}`);
  if (!element) return null;
  const packed = new Blob([bytesOf(element.textContent)]);
  element.remove();
  const stream = packed.stream().pipeThrough(new DecompressionStream("deflate"));
  return new Block(await new Response(stream).arrayBuffer());
}

// Concatenated strings; their offsets are computed on first use.
class Texts {
  constructor(from, spec) {
    this.count = spec.count;
    this.joined = from.text(spec);
    this.places = null;
    this.lower = null;
  }

  starts() {
    if (this.places) return this.places;
    const places = new Uint32Array(this.count + 1);
    let at = 0;
    for (let i = 1; i < this.count; i++) {
      at = this.joined.indexOf("\n", at) + 1;
      places[i] = at;
    }
    places[this.count] = this.joined.length + 1;
    this.places = places;
    return places;
  }

  at(index) {
    const starts = this.starts();
    return this.joined.slice(starts[index], starts[index + 1] - 1);
  }

  // Numbers of the strings that contain `needle` (lower case), ascending.
  holding(needle, most = Infinity) {
    if (this.lower === null) this.lower = this.joined.toLowerCase();
    // In some scripts lower case is longer, so offsets in it are not offsets in the text.
    if (this.lower.length !== this.joined.length) return this.holdingSlowly(needle, most);
    const starts = this.starts();
    const found = [];
    let at = this.lower.indexOf(needle);
    let low = 0;
    while (at >= 0 && found.length < most) {
      let high = this.count;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (starts[middle] <= at) low = middle; else high = middle;
      }
      found.push(low);
      if (low + 1 >= this.count) break;
      at = this.lower.indexOf(needle, starts[low + 1]);
    }
    return found;
  }

  holdingSlowly(needle, most) {
    const found = [];
    for (let i = 0; i < this.count && found.length < most; i++) {
      if (this.at(i).toLowerCase().includes(needle)) found.push(i);
    }
    return found;
  }
}

class TextColumn {
  constructor(from, spec) {
    this.texts = new Texts(from, spec.texts);
    this.codes = spec.codes ? from.array(spec.codes) : null;
    this.length = this.codes ? this.codes.length : this.texts.count;
    this.isText = true;
  }

  at(row) {
    const code = this.codes ? this.codes[row] : row;
    return code < 0 || code >= this.texts.count ? "" : this.texts.at(code);
  }

  // Sets `flag` for rows whose string contains the needle; returns early if no string does.
  flagHolding(needle, rows, flag) {
    const holding = this.texts.holding(needle);
    if (!holding.length) return;
    if (!this.codes) {
      for (const row of holding) rows[row] |= flag;
      return;
    }
    const hit = new Uint8Array(this.texts.count);
    for (const code of holding) hit[code] = 1;
    for (let row = 0; row < rows.length; row++) {
      const code = this.codes[row];
      if (code >= 0 && hit[code]) rows[row] |= flag;
    }
  }

  // Ranks of the strings in sorted order.
  ranks() {
    const order = Uint32Array.from({ length: this.texts.count }, (_, i) => i);
    const texts = Array.from(order, (i) => this.texts.at(i));
    order.sort((a, b) => (texts[a] < texts[b] ? -1 : texts[a] > texts[b] ? 1 : 0));
    const rank = new Float64Array(texts.length);
    order.forEach((text, place) => { rank[text] = place; });
    if (!this.codes) return rank;
    return Float64Array.from(this.codes, (code) => (code < 0 ? -1 : rank[code]));
  }
}

class NumberColumn {
  constructor(values, spec) {
    this.values = values;
    this.unknown = "unknown" in spec ? spec.unknown : null;
    this.length = values.length;
    this.isText = false;
  }

  at(row) {
    return this.values[row];
  }

  isUnknown(value) {
    return value !== value || (this.unknown !== null && Number(value) === this.unknown);
  }
}

function sheetOf(from, spec) {
  const columns = spec.columns.map((one) => ({
    key: one.key,
    label: one.label,
    kind: one.kind,
    data: one.texts ? new TextColumn(from, one)
      : new NumberColumn(from.numbers(one.data), one),
  }));
  return { ...spec, columns };
}

function columnOf(sheet, key) {
  return sheet.columns.find((column) => column.key === key).data;
}

// Invisible and bidirectional characters are spelt out.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

function clean(text) {
  return text.replace(UNSEEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

function scaled(value, units, base) {
  let power = 0;
  while (Math.abs(value) >= base && power + 1 < units.length) {
    value /= base;
    power += 1;
  }
  return power ? `${value.toFixed(2)} ${units[power]}` : `${WHOLE.format(value)} ${units[0]}`.trim();
}

const RATES = {
  flop_rate: ["FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"],
  byte_rate: ["B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"],
};

function short(value, kind) {
  const number = Number(value);
  if (kind === "bytes") return scaled(number, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024);
  if (kind === "flops") return scaled(number, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"], 1000);
  return format(value, kind);
}

function format(value, kind) {
  if (kind === "seconds") return seconds(value);
  if (kind in RATES) return scaled(Number(value), RATES[kind], 1000);
  if (kind === "share") return `${(100 * value).toFixed(value && value < 0.001 ? 3 : 1)} %`;
  if (kind === "float") return floating(Number(value));
  return WHOLE.format(value);
}

function floating(value) {
  const size = Math.abs(value);
  // Whole numbers keep their zeros.
  if (size >= 1000 && size < 1e15) return WHOLE.format(value);
  return value.toPrecision(4).replace(/(\.\d*?)0+($|e)/, "$1$2").replace(/\.($|e)/, "$1");
}

function seconds(value) {
  if (!value) return "0 s";
  if (value < 0) return `-${seconds(-value)}`;
  for (const [factor, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) {
    if (value >= factor) return `${+(value / factor).toPrecision(4)} ${unit}`;
  }
  return `${+(value * 1e9).toPrecision(4)} ns`;
}

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && name !== "role") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
