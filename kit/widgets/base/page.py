"""A view as a page of its own: what a notebook shows where no kernel and no network is.

`static_page(view)` walks a view's tree: its texts and figures stay, its controls are left out,
since no kernel answers them, and a line says what they are set to. What a figure does in the
browser still works. `View` puts the page under the live widget, as an output of its own that is
hidden while the live one is there, and makes it again when the view has changed: for saved
notebooks, exports of them to HTML, and sites that show them.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import logging
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, ClassVar

from bokeh.document import Document
from bokeh.embed import components
from bokeh.models import Plot
from IPython.display import publish_display_data
from ipywidgets import HTML, Box, HBox, Tab, VBox, Widget

from kit.notebook import in_kernel
from kit.text import WHOLE, format_count, quoted_page, safe_html
from kit.widgets.base.bokehjs import bokehjs, bokehjs_code, bokehjs_version
from kit.widgets.base.closing import close_widget
from kit.widgets.base.live_plot import LivePlot
from kit.widgets.base.scripts import asset, script
from kit.widgets.base.stored import Follower, is_hidden, is_panel, set_to

__all__ = [
    "POLICY",
    "View",
    "framed",
    "no_scripts",
    "packed",
    "page_scripts",
    "static_page",
    "unwarned",
]

# Nothing that is not in the page can be asked for. Bokeh makes functions of the texts in CustomJS.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)
_EMPTY_HEIGHT, _TEXT_HEIGHT = 40, 60  # pixels, until the page has said how high it is
_CSS = """
html { background: var(--jp-layout-color0, #fff); color-scheme: light;
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
body { margin: 0; padding: 4px; color: var(--jp-ui-font-color1, #1f2933);
  font: 13px/1.5 Inter, "Helvetica Neue", Arial, sans-serif; }
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
  if (!window.Bokeh) (0, eval)(await bokehjs());
  (0, eval)(await (await unpacked("models")).text());
})();
"""
_OWN_BOKEHJS = """
async function bokehjs() { return (await unpacked("bokehjs")).text(); }
"""
# A page in a frame of a notebook: the output of another cell has BokehJS, and may come later. While
# the frame is hidden, under a live view, nothing is drawn.
_NOTEBOOKS_BOKEHJS = """
async function bokehjs() {
  while (!innerWidth) { // a browser may tell a frame that it does not draw of no resize
    await new Promise((done) => { setTimeout(done, 200); });
  }
  const note = document.getElementById("no-bokehjs");
  for (let waited_ms = 0; ; waited_ms += 100) {
    let found = null;
    try {
      found = parent.kitBokehJS?.[note.dataset.version];
    } catch { } // a frame that may not look at the page around it
    note.hidden = Boolean(found) || waited_ms < 3000;
    if (found) return found;
    await new Promise((done) => { setTimeout(done, 100); });
  }
}
"""


_LEVEL = 6  # of gzip: the highest, 9, takes ten times as long for 3 % less of a large timeline


def packed(ident: str, data: bytes) -> str:
    """A block of a page that `unpacked(ident)` gives back there."""
    small = gzip.compress(data, _LEVEL, mtime=0)
    text = base64.b64encode(small).decode()
    return f'<script type="application/octet-stream" id="{safe_html(ident)}">{text}</script>'


@lru_cache(maxsize=1)
def _packed_bokehjs() -> str:
    """BokehJS as a packed block: 0.5 MB instead of 1.3 MB."""
    return packed("bokehjs", bokehjs_code().encode())


def page_scripts(models: str, *, in_notebook: bool = False) -> str:
    """What a page needs to draw bokeh models; `models`: the script of `bokeh.embed.components`.

    Args:
        in_notebook: the page is a frame of a notebook, one cell of which has BokehJS for all.
    """
    block, source = _packed_bokehjs(), _OWN_BOKEHJS
    if in_notebook:
        block, source = _no_bokehjs(), _NOTEBOOKS_BOKEHJS
    return f"{block}\n{packed('models', models.encode())}\n<script>{source}{_BOOT}</script>"


def _no_bokehjs() -> str:
    """What a frame says where the notebook's one copy of BokehJS is gone."""
    return (
        f'<p id="no-bokehjs" data-version="{safe_html(bokehjs_version())}" hidden>The figure is '
        "not drawn: BokehJS was in the output of another cell, and that is gone or out of reach. "
        "Restart the kernel and run all cells to have it again.</p>"
    )


def no_scripts(said: str) -> str:
    """A sentence for a page where no script runs; elsewhere a script removes it at once."""
    return (
        f'<p id="no-scripts" role="note">{safe_html(said, 400)}</p>'
        '<script>document.getElementById("no-scripts").remove();</script>'
    )


def static_page(view: Widget, title: str = "kit", *, in_notebook: bool = False) -> str:
    """The view as one HTML document that needs neither a kernel nor a network.

    Args:
        in_notebook: it is a frame of a notebook, one cell of which has BokehJS for all.
    """
    plots: list[Plot] = []
    body = set_to(view) + _static(view, plots)
    scripts = ""
    if plots:
        with unwarned():
            script, divs = components([_copy(plot) for plot in plots], wrap_script=False)
        for i, div in enumerate(divs):
            body = body.replace(_place(i), div, 1)
        scripts = page_scripts(script, in_notebook=in_notebook)
        figures = format_count(len(plots), "figure")
        body = no_scripts(f"{title}: {figures} not drawn, as no script runs here.") + body
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{safe_html(title)}</title><style>{_CSS}</style></head>\n"
        f"<body>{body}\n{scripts}</body></html>"
    )


def framed(page: str, height: int, text: str = "") -> str:
    """The page inside another one, in its theme; `height` in pixels until it has loaded.

    `text` is what is left of it where frames are taken out, as code-hosting sites do.
    """
    follow = f"{script('widgets/base/js/frame.js')}.follow(this)"
    return (
        f'<iframe srcdoc="{quoted_page(page)}" title="a view of overlap-kit" loading="lazy" '
        f'style="width:100%;height:{height}px;border:0;resize:vertical" '
        f'onload="{quoted_page(follow)}">{safe_html(text, WHOLE)}</iframe>'
    )


def _static(widget: Widget, plots: list[Plot]) -> str:
    if is_hidden(widget):
        return ""
    if isinstance(widget, LivePlot):
        plots.append(widget.plot)
        return f'<div class="plot">{_place(len(plots) - 1)}</div>'
    if isinstance(widget, HTML):
        return str(widget.value)
    if not isinstance(widget, Box) or is_panel(widget):
        return ""
    parts = [part for child in widget.children if (part := _static(child, plots))]
    is_row = not isinstance(widget, VBox | Tab)
    inside = "".join(f"<div>{part}</div>" for part in parts)
    return f'<div class="{"row" if is_row else "rows"}">{inside}</div>' if parts else ""


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


def _copy(plot: Plot) -> Plot:
    """A figure as it is now, in a document of its own.

    To embed figures, bokeh takes them from their documents for a moment. Of a live one, a change in
    that moment, on another thread, would never reach the page.
    """
    if plot.document is None:
        return plot
    copies = Document.from_json(plot.document.to_json())
    found: Plot = copies.get_model_by_id(plot.id)
    return found


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
    """Base of the views: live where there is a kernel, a page of their own where there is none.

    A notebook stores the page in an output of its own, which follows what is shown: each new `run`,
    each move of a control.
    """

    drawn_from: ClassVar[tuple[str, ...]] = ("run",)  # traits whose change no text may show
    said: str = ""  # what stands for it where nothing is drawn; its `repr`, if empty
    _root: VBox | None = None  # what a cell shows: the view, and BokehJS before it
    _follower: Follower | None = None  # if a cell has an output that follows
    _lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()  # while it is read

    def __init__(self, children: Iterable[Widget] = (), **traits: Any) -> None:
        super().__init__(children, **traits)
        self.add_class("kit-view")  # whose keys are its own
        for part in self.children:
            if isinstance(part, HTML) and part.layout.display is None:
                part.layout.display = "block"  # as a flexbox it would be as wide as its tables

    def page(self) -> str:
        """What is shown now, as one HTML document: write it to a file, or put it into a report."""
        return self._page(in_notebook=False)

    def close(self) -> None:
        """Remove the view and the widgets in it."""
        follower, self._follower = self._follower, None  # what closing changes is not stored
        for part in (*self.children, self.layout):
            close_widget(part)
        if self._root is not None:  # BokehJS is for other views, too
            self._root.children = ()
            close_widget(self._root)
        super().close()
        if follower is not None:
            follower.rest()

    def store(self) -> None:
        """Have the notebook keep what is shown now, if a cell shows this view."""
        if self._follower is not None:
            self._follower.rest()
            self._publish_stored(update=True)

    def __repr__(self) -> str:
        run = getattr(self, "run", None)
        return f"{type(self).__name__}({run!r})" if run is not None else f"{type(self).__name__}()"

    def _page(self, *, in_notebook: bool) -> str:
        with self._lock:
            return static_page(self, repr(self), in_notebook=in_notebook)

    def _ipython_display_(self) -> None:
        if not in_kernel():
            publish_display_data({"text/plain": self.said or repr(self)})
            return
        publish_display_data({**self._live(), "text/plain": ""})
        self._publish_stored(update=False)
        self._follower = self._follower or Follower(self, self.store)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """Live and page in one, for who asks for it; JupyterLab never shows the page of such."""
        return {**self._live(), **self._stored()}

    def _live(self) -> dict[str, Any]:
        """The widget for a page with a kernel, BokehJS before it."""
        with self._lock:
            _catch_up(self)
        root: Any = self
        if _plots(self):
            bokehjs().keep()
            root = self._root = self._root or VBox([bokehjs(), self])
        root.add_class(_live_class(self))
        view: dict[str, Any] = VBox._repr_mimebundle_(root)
        return view

    def _stored(self) -> dict[str, Any]:
        said = self.said or repr(self)
        if not _plots(self):
            return {"text/plain": said, "text/html": set_to(self) + _static(self, [])}
        page = self._page(in_notebook=not _are_outputs_apart())
        html = framed(page, max(_height(self), _EMPTY_HEIGHT), said)
        return {"text/plain": said, "text/html": html}

    def _publish_stored(self, *, update: bool) -> None:
        stored = self._stored()
        html = _hidden_by(_live_class(self), stored["text/html"])
        publish_display_data(
            {**stored, "text/html": html},
            transient={"display_id": f"kit-{self.model_id}"},
            update=update,
        )


def _are_outputs_apart() -> bool:
    """True in Colab: each output is a frame of its own, and sees nothing of another cell's."""
    return "google.colab" in sys.modules


def _plots(view: Widget) -> list[Plot]:
    """The figures that a view shows."""
    found: list[Plot] = []
    _static(view, found)
    return found


def _catch_up(widget: Widget) -> None:
    """Figures that changed before they are displayed are drawn at once as they are now."""
    if isinstance(widget, LivePlot):
        widget.catch_up()
    for child in getattr(widget, "children", ()):
        _catch_up(child)


def _live_class(view: Widget) -> str:
    return f"kit-live-{view.model_id}"


def _hidden_by(live: str, html: str) -> str:
    """HTML that is hidden while the page has something of the class `live`, with its figures.

    The live widget comes some moments later than its stored page, which so begins hidden, too. That
    its kernel has ended, or the front end draws no figures, is said by a style, which a view with
    figures has by `page.js` as well.
    """
    mine = live.replace("live", "stored")
    return (
        f"<style>@keyframes kit-late {{from {{display: none}}}} "
        f".{mine} {{animation: kit-late 1s step-end}} "
        f"body:has(.{live}):not(:has(.{live} .jupyter-widgets-error-widget)) .{mine} "
        f"{{display: none}}\n{asset('widgets/base/js/live.css')}</style>"
        f'<div class="{mine}">{html}</div>'
    )
