"""Pages inside notebooks: frames that cannot touch the notebook, in its theme, without a network.

A frame (`sandbox`, `srcdoc`) holds a whole page: a report, or one chart with BokehJS. The frame
does not see the notebook. It asks for the theme with a message, and the script beside it answers
with the colours around the frame; where notebooks do not run that script, the theme is the
system's.
"""

from __future__ import annotations

from html import escape

from hlofast._report.inline import Bokeh, asset, hash_of, text
from hlofast._report.pack import Block

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MARGIN = 16
"""Pixels around a chart."""
_THEMES = """
if (!window.hlofastThemes) {
  window.hlofastThemes = true;
  const frames = () => [...document.querySelectorAll("iframe.hlofast-page")];
  const tell = (frame) => {
    let paper = "rgb(255, 255, 255)", ink = getComputedStyle(frame.parentElement).color;
    for (let own = frame.parentElement; own; own = own.parentElement) {
      const color = getComputedStyle(own).backgroundColor;
      if (color !== "transparent" && !/, 0\\)$/.test(color)) { paper = color; break; }
    }
    const [red, green, blue] = paper.match(/[\\d.]+/g).map(Number);
    const theme = 0.3 * red + 0.59 * green + 0.11 * blue < 128 ? "dark" : "light";
    frame.contentWindow.postMessage({ hlofast: theme, paper, ink }, "*");
  };
  addEventListener("message", (event) => {
    if (!event.data || event.data.hlofast !== "theme?") return;
    for (const frame of frames()) if (frame.contentWindow === event.source) tell(frame);
  });
  const watch = new MutationObserver(() => setTimeout(() => frames().forEach(tell), 50));
  watch.observe(document.documentElement, { attributes: true });
  watch.observe(document.body, { attributes: true });
}
"""
"""Answers the frames; themes of notebooks are attributes of the document or its body."""


def framed(page: str, title: str, height: int) -> str:
    """Returns a page in a frame, for `_repr_html_`."""
    return (
        f'<iframe class="hlofast-page" title="{escape(title)}" sandbox="allow-scripts" '
        f'style="width:100%;height:{height}px;border:0" srcdoc="{escape(page)}"></iframe>'
        f"<script>{_THEMES}</script>"
    )


def displayed(figure: Any) -> Any:
    """Returns a bokeh figure that notebooks draw without `show` and `output_notebook`."""
    # Transparent from the start: what BokehJS has drawn at the edges stays.
    plain = (
        "background_fill_color",
        "border_fill_color",
        "border_line_color",
        "outline_line_color",
    )
    figure.update(**{name: None for name in plain if name in figure.properties()})
    # Bokeh's models accept new attributes only with a leading underscore, and notebooks look for
    # this one on the object.
    figure._repr_html_ = lambda: chart(figure)
    return figure


def chart(figure: Any) -> str:
    """Returns a bokeh figure in a frame."""
    import json
    from importlib import import_module

    item = import_module("bokeh.embed").json_item(figure, "figure")
    block = Block()
    scripts = Bokeh().scripts
    block.head = {
        "scripts": [block.place(script.encode("utf-8"), "u8") for script in scripts],
        "item": block.place(json.dumps(item).encode("utf-8"), "u8"),
    }
    # The order matters: the chart is drawn with what the other file defines.
    script = asset("columns.js") + asset("notebook.js")
    hashes = " ".join(map(hash_of, [script, *scripts]))
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "font-src 'none'; connect-src 'none'; base-uri 'none'; form-action 'none'"
    )
    title = figure.title.text or "chart"
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{text(title)}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 0; font: 13px system-ui, sans-serif; overflow: hidden; }}
</style>
</head>
<body>
<div id="figure"></div>
<script type="text/plain" class="block" id="block-figure">{block.base64()}</script>
<script>{script}</script>
</body>
</html>
"""
    return framed(page, title, (figure.height or 320) + _MARGIN)
