"""The explorer's buttons, how far its run is, what happened last, and what failed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ipywidgets import HTML, FloatProgress, HBox, Layout

from kit.errors import but_of_handlers, words_of
from kit.text import safe_html
from kit.widgets.base.controls import button
from kit.widgets.base.tables import FONT, INK, LINE, MONO, MUTED, PANEL, WORSE
from kit.widgets.numbers.advice import AGAIN

__all__ = ["ActionBar", "FailureBox", "failure_html", "status_html"]


class ActionBar(HBox):
    """Buttons that run, cancel and save; a bar while a run goes on; one line of status."""

    def __init__(
        self,
        *,
        on_run: Callable[[], None],
        on_cancel: Callable[[], None],
        on_save: Callable[[], None],
    ) -> None:
        self.run = button(AGAIN, "measure the current settings once more", button_style="info")
        self.cancel = button("Cancel", "stop the run in progress; the picture stays")
        said = "write all runs so far to report.html, or report_2.html where that is another's"
        self.save = button("Save report", said)
        for pressed, act in ((self.run, on_run), (self.cancel, on_cancel), (self.save, on_save)):
            pressed.on_click(lambda _, act=act: act())
        self.progress = FloatProgress(min=0.0, max=1.0, layout=Layout(width="140px", margin="0"))
        self.status = HTML(layout=Layout(flex="1 1 240px", min_width="0", margin="0"))
        self.announcer = HTML()  # the status for screen readers, without each step of the way
        self.announcer.add_class("kit-announce")
        self.announcer.add_class("kit-unseen")
        super().__init__(
            [self.run, self.cancel, self.save, self.progress, self.status, self.announcer],
            layout=Layout(
                flex_flow="row wrap",
                align_items="center",
                grid_gap="8px",
                margin="2px 0 0",
                flex="5 1 560px",
                min_width="0",
            ),
        )
        self.add_class("kit-actions")
        self.rest()
        self.say("not run yet")

    def start(self) -> None:
        """A run begins: it can be cancelled."""
        self.say("starting")
        self.progress.value, self.progress.layout.display = 0.0, ""
        self.cancel.disabled = False

    def rest(self) -> None:
        """Nothing runs: there is nothing to cancel."""
        self.progress.layout.display = "none"
        self.cancel.disabled = True

    def show_progress(self, text: str, fraction: float) -> None:
        """How far the run is; a fraction outside of 0 to 1 is taken as the nearer of the two."""
        self.progress.value = min(max(float(fraction), 0.0), 1.0)
        self.say(text)

    def say(self, text: str, *, is_news: bool = False, more: str = "") -> None:
        """Show a status; news is also announced to screen readers, with `more` shown elsewhere."""
        self.status.value = status_html(text)
        if is_news or not self.announcer.value:
            self.announcer.value = safe_html(f"{text}. {more}" if more else text, 1000)


class FailureBox(HTML):
    """The last exception, under the controls; `lock` is held while it changes."""

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock, self._of_control = lock, ""
        super().__init__(layout=Layout(width="auto"))

    def show(self, error: BaseException, trace: str = "") -> None:
        """What was raised; the traceback, if there is one, is folded away."""
        with self._lock:
            self.value = failure_html(error, trace)

    def guard(self, act: Callable[[], Any]) -> None:
        """Do what a control asks for, and show what it raises until one works again."""
        try:
            act()
            self.forgive()
        except but_of_handlers(Exception) as error:  # a message's handler has no caller to raise to
            self.refuse(error)

    def forgive(self) -> None:
        """A control works: what one was refused before is shown no longer."""
        with self._lock:
            if self.value == self._of_control:  # else it is of a run, and the next one answers
                self.value = ""

    def refuse(self, error: Exception) -> None:
        """What a control was refused, until one works again."""
        self.show(error)
        self._of_control = self.value


def status_html(text: str) -> str:
    """A line of quiet text."""
    return f'<div style="font:12px/1.4 {FONT};color:{MUTED}">{safe_html(text, 1000)}</div>'


def failure_html(error: BaseException, trace: str = "") -> str:
    """An exception in a box: what it says and where first, the traceback folded away."""
    name = type(error).__name__
    first, _, rest = words_of(error).strip().partition("\n")
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    said = "; ".join(note.removeprefix("kit: ") for note in notes if note.startswith("kit: "))
    where = f'<div style="color:{MUTED}">{safe_html(said, 600)}</div>' if said else ""
    detail = (
        f'<div style="white-space:pre-wrap;font:12px/1.45 {MONO};margin-top:4px">'
        f"{safe_html(rest, 2000)}</div>"
        if rest
        else ""
    )
    folded = (
        f'<details style="margin-top:6px"><summary style="cursor:pointer">traceback</summary>'
        f'<pre style="font:11px/1.4 {MONO};max-height:320px;overflow:auto;margin:6px 0 0">'
        f"{safe_html(trace, 20_000)}</pre></details>"
        if trace
        else ""
    )
    return (
        f'<div role="alert" style="font:13px/1.5 {FONT};color:{INK};background:{PANEL};'
        f"border:1px solid {LINE};border-left:4px solid {WORSE};border-radius:6px;"
        f'padding:8px 12px;overflow-wrap:anywhere"><b style="color:{WORSE}">{safe_html(name)}</b> '
        f"{safe_html(first, 600)}{detail}{where}{folded}</div>"
    )
