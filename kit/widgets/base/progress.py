"""`progress_bar`: how far something is, how long it took and will take.

In a Jupyter kernel a bar under the cell, on a terminal one line that rewrites itself, elsewhere
nothing. Only a kernel loads ipywidgets.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from typing import IO, Any, Protocol

from kit.errors import named_in_a_line, suppressed
from kit.notebook import in_kernel
from kit.shown import Progress
from kit.text import format_percent, plain_text, safe_terminal

__all__ = [
    "Clock",
    "bar_when_told",
    "progress_bar",
    "progress_or_bar",
    "seldom",
    "time_left",
]

# Each change is a message to a page, whose browser draws it beside what is measured: with one for
# each step of 70 ms it took a fifth of a core.
_SHOW_EVERY_S, _SHOW_OTHER_TEXT_S = 0.5, 0.1
_WIDTH = 24  # characters of the bar on a terminal


@contextmanager
def progress_bar(title: str, *, stream: IO[str] | None = None) -> Iterator[Progress]:
    """A bar for the block: `with progress_bar("sweep") as report: report("run 1 of 3", 0.2)`.

    It is gone after the block; if the block raises, it stays and says with what.

    Args:
        title: what is going on, in a word or two.
        stream: the terminal; standard error if not given.

    Units:
        `report` takes a text and a fraction of the whole, from 0 to 1.
    """
    out = stream if stream is not None else sys.stderr
    bar: _Bar
    if in_kernel():
        bar = _Widget(title)
    elif out is not None and _is_terminal(out):
        bar = _Line(title, out)
    else:
        yield lambda text, fraction: None
        return
    clock = Clock()
    show = seldom(lambda text, part: bar.show(text, min(max(part, 0.0), 1.0), clock.words))

    def report(text: str, fraction: float) -> None:
        clock.mark(fraction)
        show(text, fraction)

    bar.show("starting", 0.0, "")
    try:
        yield report
    except BaseException as error:
        bar.fail(named_in_a_line(error), clock.words)
        raise
    bar.close()


def _is_terminal(stream: IO[str]) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # a program's own kind of stream, or one that is closed
        return False


def seldom(report: Progress, now: Callable[[], float] = time.monotonic) -> Progress:
    """The same report, made twice a second; at once at the end, and nearly so for another text."""
    said, shown = "", -math.inf

    def tell(text: str, fraction: float) -> None:
        nonlocal said, shown
        at = now()
        least = _SHOW_EVERY_S if text == said else _SHOW_OTHER_TEXT_S
        if at - shown >= least or fraction >= 1:
            said, shown = text, at
            report(text, fraction)

    return tell


@contextmanager
def progress_or_bar(progress: Progress | bool | None, title: str) -> Iterator[Progress | None]:
    """What a caller asked for: a callable of theirs, nothing if it is False, a bar otherwise."""
    if callable(progress):
        yield progress
    elif progress is False:
        yield None
    else:
        with progress_bar(title) as report:
            yield report


@contextmanager
def bar_when_told(title: str, after_s: float = 0.0) -> Iterator[Callable[..., None]]:
    """A bar that appears with the first text, such as what the block waits for, if there is any.

    Args:
        after_s: seconds after which a text is the first: what is over sooner needs no bar.
    """
    with ExitStack() as opened:
        reports: list[Progress] = []
        begun_s = time.monotonic()

        def tell(text: str, fraction: float = 0.0) -> None:
            if not reports and time.monotonic() - begun_s >= after_s:
                reports.append(opened.enter_context(progress_bar(title)))
            if reports:
                reports[0](text, fraction)

        yield tell


class Clock:
    """Elapsed time, and the time left if it goes on at the pace since the first mark.

    A resumed sweep begins half done; what was done before says nothing about the pace.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._start_s = now()
        self._first: tuple[float, float] | None = None  # (elapsed, fraction)
        self._last = (0.0, 0.0)

    def mark(self, fraction: float) -> float:
        """The fraction that is done now; gives the seconds since the start."""
        self._last = (self._now() - self._start_s, fraction)
        if self._first is None:
            self._first = self._last
        return self._last[0]

    @property
    def words(self) -> str:
        """`12 s, about 30 s left`."""
        elapsed, fraction = self._last
        left = time_left(self._first or (0.0, 0.0), self._last)
        after = f", about {_duration(left)} left" if left is not None and fraction < 1 else ""
        return f"{_duration(elapsed)}{after}"


def time_left(first: tuple[float, float], last: tuple[float, float]) -> float | None:
    """Seconds to fraction 1 at the pace between two (seconds, fraction); None if unknown."""
    seconds, gained = last[0] - first[0], last[1] - first[1]
    if seconds <= 0 or gained <= 0.01:  # too little to go by
        return None
    return seconds / gained * max(1 - last[1], 0.0)


class _Bar(Protocol):
    def show(self, text: str, fraction: float, times: str) -> None: ...

    def fail(self, error: str, times: str) -> None: ...

    def close(self) -> None: ...


class _Line:
    """One line of a terminal, written over itself."""

    def __init__(self, title: str, out: IO[str]) -> None:
        self._title, self._out = title, out

    def show(self, text: str, fraction: float, times: str) -> None:
        full = round(fraction * _WIDTH)
        bar = "█" * full + "░" * (_WIDTH - full)
        after = f"  {times}" if times else ""  # before the text, which may be cut off
        self._write(f"{bar} {format_percent(fraction):>5}{after}  {self._title}: {text}")

    def fail(self, error: str, times: str) -> None:
        self._write(f"{self._title}: {error}  [after {times.split(',')[0]}]", end="\n")

    def close(self) -> None:
        self._write("")

    def _write(self, line: str, end: str = "") -> None:
        safe = safe_terminal(line, 10_000)
        encoding = getattr(self._out, "encoding", None) or "utf-8"
        safe = plain_text(safe, encoding)
        room = max(shutil.get_terminal_size().columns - 1, 10)
        with suppressed(OSError, ValueError):  # the terminal is gone: the work goes on
            self._out.write(f"\r{_cut(safe, room)}\x1b[K{end}")
            self._out.flush()


def _cut(text: str, room: int) -> str:
    """The begin of a text that takes so many columns of a terminal; a Chinese letter takes two.

    A longer line goes on in the next row, where nothing is written over it.
    """
    used = list(accumulate(1 + (unicodedata.east_asian_width(c) in "WF") for c in text))
    return text[: bisect_right(used, room)]


class _Widget:
    """A bar and a line of text in the output of the running cell.

    A saved notebook has no widget, but the text that goes with it: none, or what went wrong.
    """

    def __init__(self, title: str) -> None:
        from ipywidgets import HTML, FloatProgress, HBox, Layout

        self._title = title
        self._bar = FloatProgress(min=0.0, max=1.0, layout=Layout(width="220px", flex="0 0 auto"))
        self._text = HTML(layout=Layout(flex="1 1 auto", min_width="0"))
        self._box = HBox([self._bar, self._text], layout=Layout(align_items="center"))
        self._box.add_class("kit-progress")
        self._publish("", is_first=True)

    def show(self, text: str, fraction: float, times: str) -> None:
        self._bar.value = fraction
        self._text.value = _html(format_percent(fraction), f"{self._title}: {text}", times)

    def fail(self, error: str, times: str) -> None:
        self._bar.bar_style = "danger"
        after = f"after {times.split(',')[0]}"
        self._text.value = _html(self._title, error, after)
        self._publish(f"{self._title}: {error} [{after}]")

    def close(self) -> None:
        from kit.widgets.base.closing import close_widget

        close_widget(self._box)

    def _publish(self, text: str, *, is_first: bool = False) -> None:
        from IPython.display import publish_display_data

        shown = self._box._repr_mimebundle_()
        publish_display_data(
            {**shown, "text/plain": text},
            transient={"display_id": f"kit-{self._box.model_id}"},
            update=not is_first,
        )


def _html(head: str, text: str, times: str) -> str:
    from kit.text import safe_html
    from kit.widgets.base.tables import FONT, INK, MUTED

    return (
        f'<div style="font:13px/1.5 {FONT};color:{INK};margin-left:10px;overflow-wrap:anywhere">'
        f"<b>{safe_html(head, 40)}</b>&ensp;{safe_html(text, 300)}"
        f'<span style="color:{MUTED};white-space:nowrap">&ensp;{safe_html(times)}</span></div>'
    )


def _duration(seconds: float) -> str:
    """`8 s`, `2 min 05 s`, `1 h 03 min`."""
    whole: Any = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
