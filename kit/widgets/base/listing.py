"""Tables whose rows can be picked, and light up when what they stand for is picked elsewhere.

A row that can be picked is an element with `tables.row_attributes`: its place in the listing, the
lines and the nodes that it stands for. A saved report and a notebook use the same script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import traitlets
from ipywidgets import HTML, Box, Layout, Text

from kit.runs.run import Run
from kit.text import safe_html
from kit.trace.ranks.ranks import Ranks
from kit.widgets.base.errors import ErrorsIn
from kit.widgets.base.page import View
from kit.widgets.base.scripts import script
from kit.widgets.base.selection import NOTHING, Selection
from kit.widgets.base.tables import doubt_html
from kit.widgets.base.theme import FOCUS, PICKED, PICKED_EDGE

__all__ = ["LISTING_CSS", "Drawn", "Listing", "under_doubt"]

_PICKED = f"background:{PICKED} !important;box-shadow:inset 0 0 0 1px {PICKED_EDGE}"
# Where the reader has chosen all colours, no ground and no shadow is drawn: a picked row has a
# dashed ring, and two rings where the keyboard is.
_FORCED = (
    "@media (forced-colors: active) { :is(%s) "
    "{ outline: 2px dashed Highlight; outline-offset: -2px } "
    ":is(%s):focus-visible { outline: 6px double Highlight; outline-offset: -6px } }"
)
LISTING_CSS = f"""
[data-row] {{ cursor: pointer; }}
[data-row]:hover {{ background: rgba(128, 140, 155, 0.13); }}
[data-row]:focus-visible {{ outline: 2px solid {FOCUS}; outline-offset: -2px; }}
.kit-picked {{ {_PICKED} }}
{_FORCED % ((".kit-picked",) * 2)}
"""

# In a notebook the number of the row goes through a hidden text field to the kernel, and with it
# that of the drawing that it is a row of, as another one may have been drawn by then. The time
# makes each pick a change, also in another copy of the listing, and after a reload of the page.
_HANDLER = (
    f"const {{goToRow, pickedIn}} = {script('widgets/base/js/listing.js')};"
    "goToRow(event); const picked = pickedIn(event);"
    "if (!picked) return;"
    "const view = this.closest('.kit-listing');"
    "const field = view && view.querySelector('.kit-listing-pick input'); if (!field) return;"
    "view.dataset.picks = Math.max(Number(view.dataset.picks || 0) + 1, Date.now());"
    "const row = event.target.closest('[data-row]').dataset.row;"
    "field.value = [row, view.dataset.picks, this.dataset.drawing].join(' ');"
    "for (const name of ['input', 'change']) field.dispatchEvent(new Event(name, {bubbles: true}));"
)


Drawn = tuple[str, Sequence[Selection]]  # the HTML, and what each row of it stands for


def under_doubt(draw: Callable[[Run], Drawn]) -> Callable[[Run], Drawn]:
    """The same under a line that says why the run's numbers may be off, if they may."""

    def drawn(run: Run) -> Drawn:
        body, rows = draw(run)
        return doubt_html(run) + body, rows

    return drawn


class Listing(View):
    """What `draw` makes of `run`; assigning `run` redraws. Picking a row sets `selection`.

    What is drawn may be the ranks of a job in the place of one run.

    Picking the same row again picks nothing. Assigning `selection` marks the rows that belong to
    it: those that share a line or a node with it.
    """

    run = traitlets.Union([traitlets.Instance(Run), traitlets.Instance(Ranks)], allow_none=True)
    selection = traitlets.Instance(Selection)

    def __init__(self, name: str, draw: Callable[[Any], Drawn], run: Any = None) -> None:
        self.html = HTML(layout=Layout(width="auto"))
        self._marks, self._field = HTML(), Text()
        self._field.add_class("kit-listing-pick")
        self._field.observe(self._picked, "value")
        self._name, self._draw_run = name, draw
        self._rows: Sequence[Selection] = ()
        self._drawing = 0
        # In a box of its own: a box of texts and controls is no part of a page without a kernel.
        hidden = Box([self._marks, self._field], layout=Layout(display="none"))
        super().__init__([self.html, hidden], run=run, selection=NOTHING)
        self.add_class("kit-listing")
        self.add_class(self._class)

    @property
    def value(self) -> str:
        """The HTML that is shown."""
        return str(self.html.value)

    @property
    def _class(self) -> str:
        return f"kit-listing-{self.model_id}"

    @traitlets.observe("run")
    def _draw(self, change: dict[str, Any]) -> None:
        self.selection, self._rows = NOTHING, ()
        self._drawing += 1
        with ErrorsIn(self.html, self._name):
            body = ""
            if change["new"] is not None:
                body, self._rows = self._draw_run(change["new"])
            handler = safe_html(_HANDLER, 10_000)
            style = f"<style>{LISTING_CSS}</style>"
            self.html.value = (
                f'<div onclick="{handler}" onkeydown="{handler}" '
                f'data-drawing="{self._drawing}" data-lm-suppress-shortcuts="true">'
                f"{style}{body}</div>"
                if body
                else ""
            )

    @traitlets.observe("selection")
    def _mark(self, change: dict[str, Any]) -> None:
        """By a style that names rows, so that the listing keeps its focus and its place."""
        picked: Selection = change["new"]
        rows = [
            i
            for i, row in enumerate(self._rows)
            if row.sites & picked.sites or row.nodes & picked.nodes
        ]
        self._marks.value = _marks(self._class, rows) if rows else ""

    def _picked(self, change: dict[str, Any]) -> None:
        said = re.fullmatch(r"(\d{1,9}) \d{1,13} (\d{1,9})", change["new"])
        if said is None or int(said[2]) != self._drawing or int(said[1]) >= len(self._rows):
            return
        picked = self._rows[int(said[1])]
        self.selection = NOTHING if self.selection == picked else picked


def _marks(name: str, rows: Sequence[int]) -> str:
    """A style for these rows, and an image whose failure scrolls there; of the run only numbers."""
    where = ", ".join(f".{name} [data-row='{i}']" for i in rows)
    scroll = (
        f"const {{reveal}} = {script('widgets/base/js/listing.js')};"
        f"for (const view of document.querySelectorAll('.{name}'))"
        f"reveal({list(rows)}.map((i) => view.querySelector(`[data-row='${{i}}']`)));"
    )
    return (
        f"<style>{where} {{{_PICKED}}} {_FORCED % (where, where)}</style>"
        f'<img alt="" src="data:," onerror="{safe_html(scroll, 100_000)}">'
    )
