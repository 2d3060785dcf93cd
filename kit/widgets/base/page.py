"""A view as a page of its own: what a notebook shows where no kernel and no network is.

`static_page(view)` walks a view's tree: its texts and figures stay, its controls are left out,
since no kernel answers them. What a figure does in the browser still works. `View` puts
the page beside the live widget, for exports of the notebook to HTML and for sites that show it.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import logging
from collections.abc import Iterator
from functools import lru_cache
from html import escape
from typing import Any

from bokeh.embed import components
from bokeh.models import Plot
from bokeh.resources import Resources
from ipywidgets import HTML, Box, HBox, Tab, VBox, Widget

from kit.widgets.base.bokehjs import load_bokehjs
from kit.widgets.base.live_plot import LivePlot

__all__ = ["POLICY", "View", "framed", "packed", "page_scripts", "static_page", "unwarned"]

# Nothing that is not in the page can be asked for. Bokeh makes functions of the texts in CustomJS.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)
_EMPTY_HEIGHT, _TEXT_HEIGHT = 40, 60  # pixels, until the page has said how high it is
_CSS = """
html { background: #fff; color-scheme: light; }
body { margin: 0; padding: 4px; font: 13px/1.5 Inter, "Helvetica Neue", Arial, sans-serif; }
.row { display: flex; flex-flow: row wrap; gap: 8px 24px; align-items: flex-start; }
.row > * { flex: 1 1 380px; min-width: 0; }
.rows > * { margin: 0 0 6px; }
"""
# `unpacked` is for the page's other blocks too.
_BOOT = """
async function unpacked(id) {
  const text = document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
}
(async () => {
  if (!window.Bokeh) (0, eval)(await (await unpacked("bokehjs")).text());
  (0, eval)(await (await unpacked("models")).text());
})();
"""


def packed(ident: str, data: bytes) -> str:
    """A block of a page that `unpacked(ident)` gives back there."""
    text = base64.b64encode(gzip.compress(data, mtime=0)).decode()
    return f'<script type="application/octet-stream" id="{escape(ident)}">{text}</script>'


@lru_cache(maxsize=1)
def _bokehjs() -> str:
    """BokehJS as a packed block: 0.5 MB instead of 1.3 MB."""
    source = "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)
    return packed("bokehjs", source.encode())


def page_scripts(models: str) -> str:
    """What a page needs to draw bokeh models; `models`: the script of `bokeh.embed.components`."""
    return f"{_bokehjs()}\n{packed('models', models.encode())}\n<script>{_BOOT}</script>"


def static_page(view: Widget, title: str = "kit") -> str:
    """The view as one HTML document that needs neither a kernel nor a network."""
    plots: list[Plot] = []
    body = _static(view, plots)
    scripts = ""
    if plots:
        with unwarned():
            script, divs = components(tuple(plots), wrap_script=False)
        for i, div in enumerate(divs):
            body = body.replace(_place(i), div, 1)
        scripts = page_scripts(script)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{_CSS}</style></head>\n"
        f"<body>{body}\n{scripts}</body></html>"
    )


def framed(page: str, height: int, text: str = "") -> str:
    """The page inside another one; `height` in pixels until it has loaded.

    `text` is what is left of it where frames are taken out, as code-hosting sites do.
    """
    fit = "this.style.height=(this.contentDocument.documentElement.scrollHeight+8)+'px'"
    return (
        f'<iframe srcdoc="{escape(page)}" title="a view of overlap-kit" loading="lazy" '
        f'style="width:100%;height:{height}px;border:0;resize:vertical" '
        f'onload="setTimeout(()=>{{{fit}}},400)">{escape(text)}</iframe>'
    )


def _static(widget: Widget, plots: list[Plot]) -> str:
    layout = getattr(widget, "layout", None)
    if layout is not None and layout.display == "none":
        return ""
    if isinstance(widget, LivePlot):
        plots.append(widget.plot)
        return f'<div class="plot">{_place(len(plots) - 1)}</div>'
    if isinstance(widget, HTML):
        return str(widget.value)
    if not isinstance(widget, Box) or _is_panel(widget):
        return ""
    parts = [part for child in widget.children if (part := _static(child, plots))]
    is_row = not isinstance(widget, VBox | Tab)
    inside = "".join(f"<div>{part}</div>" for part in parts)
    return f'<div class="{"row" if is_row else "rows"}">{inside}</div>' if parts else ""


def _is_panel(box: Box) -> bool:
    """True if there are controls in it, with nothing but their labels."""
    kinds = [type(child) for child in box.children]
    controls = [k for k in kinds if not issubclass(k, Box | HTML | LivePlot)]
    return bool(controls) and not any(issubclass(k, Box | LivePlot) for k in kinds)


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """Without bokeh's warning that a page cannot call what is in Python: here that is meant."""
    log = logging.getLogger("bokeh.embed.util")

    def is_news(record: logging.LogRecord) -> bool:
        return "real Python" not in record.getMessage()

    log.addFilter(is_news)
    try:
        yield
    finally:
        log.removeFilter(is_news)


def _place(i: int) -> str:
    return f"<!--kit plot {i}-->"


def _height(widget: Widget) -> int:
    """About as many pixels as the view is high."""
    if isinstance(widget, LivePlot):
        return int(widget.plot.height or 400)
    if not isinstance(widget, Box):
        return _TEXT_HEIGHT if isinstance(widget, HTML) and widget.value else 0
    heights = [_height(child) for child in widget.children]
    return max(heights, default=0) if isinstance(widget, HBox) else sum(heights)


class View(VBox):
    """Base of the views: live where there is a kernel, a page of their own where there is none."""

    def page(self) -> str:
        """What is shown now, as one HTML document: write it to a file, or put it into a report."""
        return static_page(self, repr(self))

    def __repr__(self) -> str:
        run = getattr(self, "run", None)
        return f"{type(self).__name__}({run!r})" if run is not None else f"{type(self).__name__}()"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        plots: list[Plot] = []
        html = _static(self, plots)
        if plots:
            load_bokehjs()
            html = framed(self.page(), max(_height(self), _EMPTY_HEIGHT), repr(self))
        bundle = super()._repr_mimebundle_(**options)
        own = {"text/plain": repr(self), "text/html": html}
        return {**bundle, **own} if isinstance(bundle, dict) else bundle
