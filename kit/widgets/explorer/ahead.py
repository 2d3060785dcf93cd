"""Compile what the next move of a control will need, while nothing else runs.

`AheadLine.work` is the spare work of an explorer's `Reruns`: it compiles for one neighbouring
setting after the other until it is told to stop. While a cell runs, nothing is compiled.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ipywidgets import HTML, Checkbox, HBox, Layout

from kit.errors import Cancelled
from kit.notebook import in_kernel, notebook_events
from kit.runs.settings import Settings
from kit.text import format_count
from kit.widgets.explorer.actions import status_html
from kit.widgets.explorer.rerun import PrepareStep

__all__ = ["AheadLine"]

MOST = 16  # settings in one go
_REMEMBERED = 500
_STOPPED = "compiling ahead was stopped"  # by a run, by a cell, or by the box


class AheadLine(HBox):
    """One line that says what is compiled ahead, and a box that switches it off."""

    def __init__(
        self, prepare: PrepareStep | None, neighbours: Callable[[], list[Settings]]
    ) -> None:
        self._prepare, self._neighbours = prepare, neighbours
        # True: compiled; False: that has failed, and is not tried again. The oldest comes first.
        self._known: dict[Settings, bool] = {}
        self._forget: Callable[[], None] | None = None
        self.is_on = Checkbox(
            value=True,
            description="compile neighbours while idle",
            indent=False,
            layout=Layout(width="auto", flex="0 0 auto"),
        )
        self.text = HTML(layout=Layout(flex="1 1 160px", min_width="0"))
        super().__init__(
            [self.is_on, self.text],
            layout=Layout(
                flex_flow="row wrap",
                align_items="center",
                grid_gap="2px 10px",
                flex="2 1 400px",
                min_width="0",
                display="none" if prepare is None else "",
            ),
        )

    def note(self, settings: Settings, *, is_ready: bool = True) -> None:
        """These settings were run: what they need has been compiled."""
        self._known.pop(settings, None)
        self._known[settings] = is_ready
        while len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]

    def work(self, cancelled: Callable[[], bool]) -> None:
        """Compile for the neighbouring settings, one after the other; called when all is idle."""
        if self._prepare is None or not self.is_on.value:
            self._say("")
            return
        neighbours = self._neighbours()
        todo = [s for s in neighbours if s not in self._known][:MOST]
        programs = 0
        for done, settings in enumerate(todo):
            if cancelled():
                self._say(_STOPPED)
                return
            head = f"compiling ahead, neighbour {done + 1} of {len(todo)}"

            def show(text: str, fraction: float, head: str = head) -> None:
                self._say(f"{head}: {text}")

            is_ready = False
            try:
                programs += self._prepare(settings, progress=show, cancelled=cancelled)
                is_ready = True
            except Cancelled:
                self._say(_STOPPED)
                return
            except BaseException:  # noqa: BLE001, S110 - a run of these settings shows the error
                pass
            self.note(settings, is_ready=is_ready)
        ready = sum(self._known.get(settings, False) for settings in neighbours)
        said = f"{ready} of {len(neighbours)} settings one step away are ready"
        if ready == len(neighbours):
            said = "one step of any control is ready" if neighbours else ""
        more = format_count(programs, "program") if programs else "nothing"
        self._say(f"{said}: {more} compiled ahead" if todo else said)

    def steer(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """Pause while the box is off and, in a kernel, while a cell runs; one does now."""
        self.is_on.observe(lambda change: (resume if change["new"] else pause)(), "value")
        if not in_kernel():
            return
        events, hooks = notebook_events(), []
        for event, act in (("pre_run_cell", pause), ("post_run_cell", resume)):
            hook = _weak(act)
            events.register(event, hook)
            hooks.append((event, hook))
        pause()

        def forget() -> None:
            for event, hook in hooks:
                events.unregister(event, hook)

        self._forget = forget

    def stop(self) -> None:
        """Leave the cells alone: pause and resume no more because of them."""
        if self._forget is not None:
            self._forget()
            self._forget = None

    def _say(self, text: str) -> None:
        self.text.value = status_html(text)


def _weak(act: Callable[[], None]) -> Callable[[Any], None]:
    """A hook that keeps nothing alive."""
    reference = weakref.WeakMethod(act)

    def hook(_: Any) -> None:
        if (living := reference()) is not None:
            living()

    return hook
