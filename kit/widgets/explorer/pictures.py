"""The views of an explorer: made from the table of views, laid out, linked, and drawn together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ipywidgets import Box, Layout, Tab, VBox, Widget

from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.predict import Prediction
from kit.trace import Timeline
from kit.widgets.explorer.linked import SelectionBar, link_selections
from kit.widgets.numbers.headline import still_html
from kit.widgets.numbers.whatif import modelled_run
from kit.widgets.timeline.columns import end_ns
from kit.widgets.views import TryChange, ViewRow

__all__ = ["Pictures"]

_MODELLED = ("headline", "timeline")  # these two show a model's picture, too; the rest waits


class Pictures:
    """One live view for each row of a table; all show the same run, and the same selection.

    Until a run has been measured, the headline and the timeline can show what a model expects of
    it. The other views are faded meanwhile: they show the run before.
    """

    def __init__(self, rows: Sequence[ViewRow], try_change: TryChange) -> None:
        self._rows = tuple(rows)
        self._made = {row.key: row.widget(try_change) for row in rows}
        linked = [view for view in self._made.values() if view.has_trait("selection")]
        link_selections(linked)
        self.selected = SelectionBar(linked)
        self._is_modelled = False
        self._axis_ns = 0.0  # of all runs so far
        self._left = VBox(
            self._at("left"), layout=Layout(flex="3 1 460px", min_width="0", overflow="auto")
        )
        right = VBox(self._at("right"), layout=Layout(flex="2 1 340px", min_width="0"))
        self._columns = Box(
            [self._left, right],
            layout=Layout(
                display="flex",
                flex_flow="row wrap",
                width="auto",
                grid_gap="24px",
                align_items="flex-start",
                margin="8px 0 0",
            ),
        )

    @property
    def views(self) -> Mapping[str, Any]:
        """The live views by the key of their row."""
        return MappingProxyType(self._made)

    @property
    def widgets(self) -> list[Widget]:
        """What is shown, from the top."""
        middle = [self.selected, *self._at("timeline"), self._columns]
        return [*self._at("numbers"), *middle, *self._at("below"), *self._at("foot")]

    def show(self, run: Run, before: Run | None = None, expected: Prediction | None = None) -> None:
        """Draw a measured run in all views.

        Args:
            before: the run that the headline compares with.
            expected: what a model had said, drawn as outlines under the timeline.
        """
        self._draw_times(run, before, expected)
        for row in self._rows:
            if row.key not in _MODELLED:
                applies = row.applies(run)
                view = self._made[row.key]
                view.run = run if applies else None
                view.layout.display = None if applies else "none"
        self._mark(is_modelled=False)

    def show_model(self, prediction: Prediction, measured: Run) -> None:
        """Draw what a model expects, and mark which views show the model and which do not."""
        modelled = modelled_run(measured, prediction)
        self._mark(is_modelled=True)
        self._made["headline"].show(modelled, measured, prediction)
        self._draw_timeline(modelled, None, measured)

    def stay(self, run: Run, before: Run | None, asked: Settings, what: str) -> None:
        """Show the last measured run, and say above it that it is not one of the settings `asked`.

        Args:
            what: what became of the run that was asked for, such as "was cancelled".
        """
        if self._is_modelled:  # it was not confirmed
            self._draw_times(run, before, None)
            self._mark(is_modelled=False)
        self._made["headline"].show(run, before, still=still_html(run, asked, what))

    def add_tab(self, title: str, view: Widget) -> None:
        """Put a view into a tab beside the first one of the left column."""
        first, *rest = self._left.children or [Tab()]
        if not isinstance(first, Tab):
            name = next(row.title for row in self._rows if self._made[row.key] is first)
            first = Tab([first], titles=(name,))
        titles = first.titles
        first.children = (*first.children, view)
        first.titles = (*titles, title)
        self._left.children = [first, *rest]

    def _at(self, place: str) -> list[Widget]:
        return [self._made[row.key] for row in self._rows if row.place == place]

    def _draw_times(self, run: Run, before: Run | None, expected: Prediction | None) -> None:
        self._made["headline"].show(run, before)
        self._draw_timeline(run, None if expected is None else expected.timeline, before)

    def _draw_timeline(self, run: Run, outline: Timeline | None, before: Run | None) -> None:
        """The axis stays as long as the longest run so far; the run before lies under this one."""
        timeline = self._made["timeline"]
        self._axis_ns = max(self._axis_ns, end_ns(run.timeline))
        with timeline.hold_trait_notifications():  # one picture, not two
            timeline.run, timeline.outline = run, outline
            timeline.ghost, timeline.axis_ns = before, self._axis_ns

    def _mark(self, *, is_modelled: bool) -> None:
        self._is_modelled = is_modelled
        change = "add_class" if is_modelled else "remove_class"
        getattr(self._made["timeline"], change)("kit-modelled")
        numbers = [v for v in self._at("numbers") if v is not self._made["headline"]]
        for part in (*numbers, self._columns, *self._at("below"), *self._at("foot")):
            getattr(part, change)("kit-stale")
