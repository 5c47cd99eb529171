// One chart in a frame of a notebook: drawn by BokehJS from its JSON, in the colours around the frame.

let figure = null;
let around = null;

function paint() {
  if (!figure) return;
  const isDark = around ? around.hlofast === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const paper = around ? around.paper : isDark ? "#111418" : "#ffffff";
  const ink = isDark ? "#e6e9f0" : "#1b2130";
  const quiet = isDark ? "#a3adbf" : "#545d70";
  const line = isDark ? "#323a49" : "#dde1e8";
  document.documentElement.style.colorScheme = isDark ? "dark" : "light";
  for (const own of [document.documentElement, document.body]) own.style.background = paper;
  figure.title.text_color = ink;
  const { above, below, left, right, center } = figure;
  for (const part of [...above, ...below, ...left, ...right, ...center]) {
    if ("axis_line_color" in part.properties) {
      Object.assign(part, {
        axis_label_text_color: quiet, axis_label_text_font_style: "normal",
        major_label_text_color: quiet, axis_line_color: line,
        major_tick_line_color: line, minor_tick_line_color: null,
      });
    } else if ("grid_line_color" in part.properties) {
      part.grid_line_color = line;
    } else if ("inactive_fill_color" in part.properties) {
      Object.assign(part, {
        label_text_color: ink, background_fill_color: null, border_line_color: null,
        inactive_fill_color: paper,
      });
    }
  }
  for (const renderer of figure.renderers) {
    const { glyph } = renderer;
    if (glyph.type === "Text") glyph.text_color = { value: ink };
    if (glyph.type === "Quad" || glyph.type === "HBar") glyph.line_color = { value: paper };
  }
}

async function draw() {
  const packed = await block("figure");
  for (const place of packed.head.scripts) {
    const script = document.createElement("script");
    script.textContent = new TextDecoder().decode(packed.array(place));
    document.head.append(script);
  }
  const item = JSON.parse(new TextDecoder().decode(packed.array(packed.head.item)));
  const view = await Bokeh.embed.embed_item(item, "figure");
  const roots = view.roots || [...view];
  figure = (Array.isArray(roots) ? roots[0] : roots).model;
  paint();
  document.body.dataset.state = "complete";
}

addEventListener("message", ({ data }) => {
  if (!data || !/^(light|dark)$/.test(data.hlofast) || !/^rgba?\([\d., ]+\)$/.test(data.paper)) return;
  around = data;
  paint();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
parent.postMessage({ hlofast: "theme?" }, "*");
draw();
