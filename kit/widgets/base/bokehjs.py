"""Put BokehJS into the page that shows a view, from this machine's own copy.

`jupyter_bokeh` draws with the BokehJS that it finds in the page and says "Could not create a view"
if there is none, so a view brings it along: no `output_notebook()`, no network. It comes twice:

- as a script in the output of one cell, which the notebook keeps. That is the one copy (1.3 MB) in
  a saved notebook; the stored pages of all views draw with it.
- in a widget beside each view, which no notebook keeps. It is there when a page is loaded again and
  the cell with the script is not drawn, or is gone.
"""

from __future__ import annotations

import json
from functools import cache

import bokeh
from bokeh.resources import Resources
from IPython.display import publish_display_data
from ipywidgets import Layout, Output

from kit.notebook import in_kernel, notebook_shell

__all__ = ["BokehJS", "bokehjs", "bokehjs_code", "bokehjs_source", "bokehjs_version"]


def bokehjs_version() -> str:
    """The version that BokehJS itself says: that of bokeh, without a local suffix."""
    return bokeh.__version__.split("+")[0]


@cache
def bokehjs_code() -> str:
    """BokehJS as its makers ship it."""
    return "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)


@cache
def bokehjs_source() -> str:
    """A script that defines `window.Bokeh`, unless the page has this version already (1.3 MB).

    Its text stays at `window.kitBokehJS[version]`, for the frames in the page.
    """
    version = json.dumps(bokehjs_version())
    return (
        f"(function() {{\nfunction define() {{\n{bokehjs_code()}\n}}\n"
        f"(window.kitBokehJS ??= {{}})[{version}] ??= `(${{define}}).call(window)`;\n"
        f"if (window.Bokeh?.version !== {version}) define.call(window);\n}})();"
    )


class BokehJS(Output):
    """A widget that shows nothing: a page that draws it has BokehJS.

    `keep` puts the same script into the output of a cell, once in a kernel.
    """

    def __init__(self) -> None:
        self._cell: str | None = None  # that keeps the script
        self._request = ""  # the run of that cell which published it
        data = {"application/javascript": bokehjs_source(), "text/plain": ""}
        output = {"output_type": "display_data", "data": data, "metadata": {}}
        super().__init__(outputs=(output,), layout=Layout(display="none"))

    def keep(self) -> None:
        """Publish the script, unless another cell keeps it; outside of a kernel, do nothing.

        A cell that runs again loses its outputs, so the one with the script gets it anew. Front
        ends that do not say which cell runs get the script once.
        """
        if not in_kernel():
            return
        cell, request = _running_cell()
        if self._cell is None or (cell and cell == self._cell and request != self._request):
            self._cell, self._request = cell, request
            publish_display_data({"application/javascript": bokehjs_source(), "text/plain": ""})


@cache
def bokehjs() -> BokehJS:
    """The one widget with BokehJS of this process: its script goes to the page once."""
    return BokehJS()


def _running_cell() -> tuple[str, str]:
    """The id of the cell that runs, "" if the front end gave none, and that of this run of it."""
    parent = notebook_shell().kernel.get_parent("shell") or {}
    request = parent.get("header", {}).get("msg_id", "")
    return str(parent.get("metadata", {}).get("cellId", "")), str(request)
