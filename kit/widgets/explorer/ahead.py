"""Compile what the next move of a control will need, while nobody needs the machine.

`AheadLine.work` is the spare work of an explorer's `Reruns`: it goes through the neighbouring
settings and has each compiled, until it is told to stop. While a cell runs, nothing is compiled.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from IPython.core.getipython import get_ipython
from ipywidgets import HTML, Checkbox, HBox, Layout

from kit.errors import Cancelled
from kit.runs.settings import Settings
from kit.text import safe_html
from kit.widgets.base.tables import FONT, MUTED
from kit.widgets.explorer.rerun import PrepareStep

__all__ = ["AheadLine"]

MOST = 16  # settings in one go
_REMEMBERED = 500


class AheadLine(HBox):
    """One line that says what is compiled ahead, and a box that switches it off."""

    def __init__(
        self,
        prepare: PrepareStep | None,
        neighbours: Callable[[], list[Settings]],
        *,
        on_change: Callable[[bool], None],
    ) -> None:
        self._prepare, self._neighbours = prepare, neighbours
        self._known: dict[Settings, None] = {}  # compiled, or known to fail; oldest first
        self._forget: Callable[[], None] | None = None
        self.is_on = Checkbox(
            value=True,
            description="compile neighbours while idle",
            indent=False,
            layout=Layout(width="auto", flex="0 0 auto"),
        )
        self.text = HTML(layout=Layout(flex="1 1 240px", min_width="0"))
        self.is_on.observe(lambda change: on_change(change["new"]), "value")
        super().__init__([self.is_on, self.text], layout=Layout(
            flex_flow="row wrap", align_items="center", grid_gap="2px 10px",
            margin="0 0 4px", display="none" if prepare is None else ""))  # fmt: skip

    def note(self, settings: Settings) -> None:
        """These were run: whatever they need has been compiled."""
        self._known.pop(settings, None)
        self._known[settings] = None
        while len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]

    def work(self, cancelled: Callable[[], bool]) -> None:
        """Compile for the neighbouring settings, one after the other; called when all is idle."""
        if self._prepare is None or not self.is_on.value:
            return
        todo = [s for s in self._neighbours()[:MOST] if s not in self._known]
        programs = 0
        for done, settings in enumerate(todo):
            if cancelled():
                return
            head = f"compiling ahead, neighbour {done + 1} of {len(todo)}"

            def show(text: str, fraction: float, head: str = head) -> None:
                self._say(f"{head}: {text}")

            try:
                programs += self._prepare(settings, progress=show, cancelled=cancelled)
            except Cancelled:
                self._say("compiling ahead gave way to a run")
                return
            except BaseException:  # noqa: BLE001, S110 - who asks for this run is told by the run
                pass
            self.note(settings)
        if todo:
            more = f"{programs} programs" if programs else "nothing"
            self._say(f"one step of any control is ready: {more} compiled ahead")

    def watch_cells(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """In a kernel: pause while a cell runs, and one does now."""
        shell = get_ipython()
        if shell is None or not hasattr(shell, "kernel"):
            return
        hooks = []
        for event, act in (("pre_run_cell", pause), ("post_run_cell", resume)):
            hook = _weak(act)
            shell.events.register(event, hook)
            hooks.append((event, hook))
        pause()

        def forget() -> None:
            for event, hook in hooks:
                shell.events.unregister(event, hook)

        self._forget = forget

    def stop(self) -> None:
        """Watch no longer."""
        if self._forget is not None:
            self._forget()
            self._forget = None

    def _say(self, text: str) -> None:
        self.text.value = (
            f'<div style="font:12px/1.4 {FONT};color:{MUTED}">{safe_html(text, 1000)}</div>'
        )


def _weak(act: Callable[[], None]) -> Callable[[Any], None]:
    """A hook that keeps nothing alive."""
    reference = weakref.WeakMethod(act)

    def hook(_: Any) -> None:
        if (living := reference()) is not None:
            living()

    return hook
