"""A view that is text: what a function makes of a run, as HTML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import traitlets
from ipywidgets import HTML, Layout

from kit.runs.run import Run
from kit.widgets.base.errors import ErrorsIn
from kit.widgets.base.page import View

__all__ = ["HtmlView"]


class HtmlView(View):
    """What `draw` makes of `run`; assigning `run` redraws, None clears.

    Args:
        name: what an error under the view calls it.
        draw: gives HTML that is escaped already.
    """

    run = traitlets.Instance(Run, allow_none=True)

    def __init__(self, name: str, draw: Callable[[Run], str], run: Run | None = None) -> None:
        self._name, self._draw = name, draw
        self.html = HTML(layout=Layout(width="auto"))
        super().__init__([self.html], run=run)

    @property
    def value(self) -> str:
        """The HTML that is shown."""
        return str(self.html.value)

    @traitlets.observe("run")
    def _redraw(self, _: Any = None) -> None:
        with ErrorsIn(self.html, self._name):
            self.html.value = "" if self.run is None else self._draw(self.run)
