"""One selection in all views of a run: what is picked in one lights up in the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipywidgets import HTML, Button, HBox, Layout

from kit.text import format_count, safe_html
from kit.widgets.base.selection import NOTHING, Selection
from kit.widgets.base.tables import FONT, INK, MUTED

__all__ = ["SelectionBar", "link_selections", "selection_text"]


def link_selections(views: Sequence[Any]) -> None:
    """Give each view the selection that was made last in any view."""

    def follow(change: dict[str, Any]) -> None:
        for view in views:
            if view is not change["owner"] and view.selection != change["new"]:
                view.selection = change["new"]

    for view in views:
        view.observe(follow, "selection")


class SelectionBar(HBox):
    """What is picked, in words for people who cannot see the marks, and a button that clears it."""

    def __init__(self, views: Sequence[Any]) -> None:
        self._views = views
        self.text = HTML(layout=Layout(margin="0"))
        self.clear = Button(description="Clear selection", layout=Layout(width="auto"))
        self.clear.on_click(lambda _: self._clear())
        super().__init__(
            [self.text, self.clear], layout=Layout(align_items="center", grid_gap="10px")
        )
        for view in views:
            view.observe(lambda change: self._say(change["new"]), "selection")
        self._say(NOTHING)

    def _clear(self) -> None:
        for view in self._views:
            view.selection = NOTHING

    def _say(self, picked: Selection) -> None:
        text = selection_text(picked)
        self.layout.display = "" if picked else "none"
        self.text.value = (
            f'<span role="status" style="font:12px/1.4 {FONT};color:{MUTED}">selected: '
            f'<b style="color:{INK}">{safe_html(text, 160)}</b></span>'
            if picked
            else ""
        )


def selection_text(picked: Selection) -> str:
    """`kernel fusion.3: 5 ops on 2 lines`; "" if nothing is picked."""
    if not picked:
        return ""
    ops, lines = len(picked.nodes), len(picked.sites)
    count = format_count(ops, "op") if ops else "no ops"
    where = f"on {lines} lines" if lines > 1 else f"at {next(iter(picked.sites))}" if lines else ""
    named = picked.label if picked.label not in picked.sites else ""
    return " ".join(x for x in (f"{named}:" if named else "", count, where) if x)
