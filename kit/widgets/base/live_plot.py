"""A bokeh figure inside a notebook that misses no change.

`jupyter_bokeh.BokehModel` draws from a snapshot taken when it was made and sends later changes as
patches. A patch that comes before the view is there is lost, and one that comes while it is being
built reaches some glyphs and not others (seen with jupyter_bokeh 4.1, bokeh 3.9 and "run all
cells"). `LivePlot` takes a new snapshot in these two cases. A kernel that is busy hears of a view
late: who displays one calls `catch_up` before, and for a box of the user's, which does not, there
is a new snapshot at the end of each cell that has changed a figure without a view.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import traitlets
from bokeh.models import ColumnDataSource, Plot
from jupyter_bokeh.widgets import BokehModel

from kit.notebook import notebook_events
from kit.widgets.base.bokehjs import bokehjs

__all__ = ["LivePlot"]


class LivePlot(BokehModel):
    """`LivePlot(figure)` shows the figure; change the figure's models to redraw.

    Args:
        written: sources of which the page changes no data and no tags. What it says of them is an
            echo of what was drawn some time ago, and would put an older picture in a newer one's
            place.
    """

    def __init__(self, plot: Plot, written: Iterable[ColumnDataSource] = ()) -> None:
        self._written = {source.id for source in written}
        self._is_stale = False  # the figure has changed since the snapshot
        self._is_ready = False  # every view is laid out, so patches reach all of it
        # A patch is several messages in a row, and the figure is changed by several threads.
        self._patching = threading.RLock()
        bokehjs().keep()  # here, because a box of the user's shows the figure without its view
        super().__init__(plot)
        self.plot = plot
        self._view_count = 0  # from now on the front end counts its views
        plot.on_change("inner_width", self._laid_out)

    def close(self) -> None:
        """Remove it from the page; also twice, as when a closed widget is freed."""
        self._is_stale = False
        if self.comm is not None:
            super().close()

    def catch_up(self) -> None:
        """Take a new snapshot, if the figure has changed since the last one."""
        if self._is_stale:
            self._is_stale = False
            self.update_from_model(self._model)

    @traitlets.observe("_view_count")
    def _shown(self, change: dict[str, Any]) -> None:
        if (change["new"] or 0) > (change["old"] or 0):
            self._is_ready = False
            self.catch_up()

    def _laid_out(self, attr: str, old: int, new: int) -> None:
        if not self._is_ready:
            self._is_ready = not self._is_stale
            self.catch_up()

    def _sync_model(self, _model: Any, content: dict[str, Any], _buffers: list[Any]) -> None:
        model = content.get("model")
        is_echo = isinstance(model, dict) and model.get("id") in self._written
        if not (is_echo and content.get("attr") in ("data", "tags")):
            super()._sync_model(_model, content, _buffers)

    def _at_cells_end(self, *_: Any) -> None:
        notebook_events().unregister("post_run_cell", self._at_cells_end)
        self.catch_up()

    def _document_patched(self, event: Any) -> None:
        if event.setter is not self:
            was_stale, self._is_stale = self._is_stale, True  # first: a cell may end at any moment
            events = notebook_events()
            if events is not None and not (was_stale or self._view_count):
                events.register("post_run_cell", self._at_cells_end)
        with self._patching:
            super()._document_patched(event)
