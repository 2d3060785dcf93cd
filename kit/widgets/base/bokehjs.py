"""Put BokehJS into the page that shows a view, from this machine's own copy.

`jupyter_bokeh` draws with the BokehJS that it finds in the page and says "Could not create a view"
if there is none, so a view sends it along when it is displayed: no `output_notebook()`, no network.
"""

from __future__ import annotations

import json

import bokeh
from bokeh.resources import Resources
from IPython.core.getipython import get_ipython
from IPython.display import publish_display_data

__all__ = ["bokehjs_source", "load_bokehjs"]


def bokehjs_source() -> str:
    """A script that defines `window.Bokeh`, unless the page has this version already (1.3 MB)."""
    code = "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)
    version = json.dumps(bokeh.__version__.split("+")[0])
    return (
        f"(function() {{\nif (window.Bokeh && window.Bokeh.version === {version}) return;\n"
        f"{code}\n}}).call(window);"
    )


def load_bokehjs() -> None:
    """Publish the script into the output of the running cell; outside of a kernel, do nothing."""
    shell = get_ipython()
    if shell is not None and hasattr(shell, "kernel"):
        publish_display_data({"application/javascript": bokehjs_source(), "text/plain": ""})
