"""What a page without a kernel says of a view's controls, and when it is stored again.

A control that no kernel answers is left out of such a page, but what it is set to belongs to the
picture: `set_to` says it. `Follower` has a notebook's page made again after a move.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from ipywidgets import HTML, Box, Button, Checkbox, FloatProgress, Layout, Text, VBox, Widget

from kit.errors import suppressed
from kit.notebook import notebook_events
from kit.text import safe_html
from kit.widgets.base.live_plot import LivePlot
from kit.widgets.base.tables import sentence

__all__ = ["LEFT_OUT", "REST_S", "Follower", "Labelled", "is_hidden", "is_panel", "set_to"]

REST_S = 0.5  # without a further move: to make a page takes longer than to draw what has moved
_UNSAID = Text | Button | FloatProgress  # what these hold is none of the picture's
LEFT_OUT = "Controls are left out of this page: they need a running kernel."


class Labelled(VBox):
    """A control under its label, which `page.js` makes its name for screen readers.

    Args:
        name: what a stored page calls the control; "" if it does not say what it is set to.
    """

    def __init__(self, label: HTML, control: Widget, name: str) -> None:
        self.name = name
        super().__init__([label, control], layout=Layout(overflow="visible"))
        self.add_class("kit-labelled")


def is_hidden(widget: Widget) -> bool:
    """Whether a widget is not shown now."""
    layout = getattr(widget, "layout", None)
    return layout is not None and layout.display == "none"


def is_panel(box: Box) -> bool:
    """True if there are controls in it, with nothing but their labels; a page leaves it out."""
    if hasattr(box, "drawn_from"):
        return False  # a view: its texts are what it shows
    kinds = [type(child) for child in box.children]
    controls = [k for k in kinds if not issubclass(k, Box | HTML | LivePlot)]
    return bool(controls) and not any(issubclass(k, Box | LivePlot) for k in kinds)


def set_to(view: Widget) -> str:
    """What the controls of a view are set to, and that they are left out; "" if it has none.

    While a run goes on, and after one that failed, they are not set to what was measured.
    """
    controls = _controls(view)
    if not controls:
        return ""
    run, asked = getattr(view, "run", None), getattr(view, "settings", None)
    if run is not None and asked is not None and run.settings != asked:
        shown = safe_html(run.settings.to_string() or "the defaults", 300)
        return sentence(f"The last run was measured with: <b>{shown}</b>. {LEFT_OUT}")
    said = [text for name, control in controls if (text := _said(name, control))]
    shown = f"Set to: {'; '.join(f'<b>{safe_html(text, 200)}</b>' for text in said)}. " * bool(said)
    return sentence(shown + LEFT_OUT)


def _controls(widget: Widget, name: str | None = None) -> list[tuple[str | None, Widget]]:
    """The controls that can be seen, each with the name that its label gives."""
    if is_hidden(widget) or isinstance(widget, HTML | LivePlot):
        return []
    if not isinstance(widget, Box):
        return [(name, widget)]
    of = widget.name if isinstance(widget, Labelled) else None
    return [found for child in widget.children for found in _controls(child, of)]


def _said(name: str | None, control: Any) -> str:
    """`device speed: 2 x`; of a box without a label what is ticked; "" if nothing is chosen."""
    if name == "" or isinstance(control, _UNSAID) or control.disabled:
        return ""
    value = getattr(control, "value", None)
    if isinstance(control, Checkbox):
        return f"{name}: {'on' if value else 'off'}" if name else control.description * bool(value)
    return f"{name or control.description or 'chosen'}: {_words(control, value)}"


def _words(control: Any, value: Any) -> Any:
    """The words of what is chosen; a slider's `label` is empty while it is at its first stop."""
    for option in getattr(control, "options", ()):
        words, offered = option if isinstance(option, tuple) else (option, option)
        if offered == value:
            return words
    return value


class Follower:
    """Calls `store` when what a view shows has changed and then rests: soon, or at a cell's end.

    A move comes as a message between two cells, or from a cell, and who executes a notebook ends
    the kernel right after the last one. A run may end on another thread.
    """

    def __init__(self, view: Widget, store: Callable[[], None]) -> None:
        self._store, self._is_due, self._changed_s = store, False, 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        with suppressed(RuntimeError):  # shown from a thread of the user's
            self._loop = asyncio.get_running_loop()
        self._watch(view)

    def rest(self) -> None:
        """Store nothing until something changes again."""
        self._is_due = False
        events = notebook_events()
        if events is not None and self._at_cells_end in events.callbacks["post_run_cell"]:
            events.unregister("post_run_cell", self._at_cells_end)

    def _watch(self, widget: Widget) -> None:
        """Follow what a page shows: texts, what controls are set to, what views are drawn from."""
        is_box = isinstance(widget, Box)
        if isinstance(widget, _UNSAID) or (is_box and is_hidden(widget)):
            return
        names = ("value", "children", *getattr(widget, "drawn_from", ()))
        followed = [name for name in names if widget.has_trait(name)]
        if followed:  # traitlets takes no name for all
            widget.observe(self._changed, followed)
        left_out = HTML if is_box and is_panel(widget) else ()
        for child in getattr(widget, "children", ()):
            if not isinstance(child, left_out):
                self._watch(child)

    def _changed(self, change: Any) -> None:
        if change["name"] == "children":
            self._watch(change["owner"])
        self._changed_s = time.monotonic()
        if self._is_due:
            return
        self._is_due = True
        events = notebook_events()
        if events is not None:
            events.register("post_run_cell", self._at_cells_end)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        if not self._is_due or self._loop is None:
            return
        left_s = self._changed_s + REST_S - time.monotonic()
        if left_s > 0:
            self._loop.call_later(left_s, self._look)
        else:
            self._store()

    def _at_cells_end(self, *_: Any) -> None:
        self._store()
