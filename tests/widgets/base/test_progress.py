"""The progress bar: on a terminal one line, in a kernel a widget, elsewhere nothing."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import nbclient
import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.notebook import in_kernel
from kit.widgets.base.progress import (
    Clock,
    bar_when_told,
    progress_bar,
    seldom,
    time_left,
)
from tests.factories import HOSTILE
from tests.warm import warm_kernel

CELL = """
from kit.notebook import in_kernel
from kit.widgets.base.progress import progress_bar
import gc
from ipywidgets import FloatProgress, Widget
assert in_kernel()
with progress_bar("good") as report:
    for i in range(5):
        report(f"part {i}", i / 5)
opened = [x for x in gc.get_objects() if isinstance(x, Widget) and x.comm is not None]
assert opened == [], opened
try:
    with progress_bar("bad <b>") as report:
        report("halfway", 0.5)
        raise MemoryError("no room for <script>")
except MemoryError:
    pass
bars = [x for x in gc.get_objects() if isinstance(x, FloatProgress)]
print(*(bar.bar_style or "plain" for bar in bars if bar.comm is not None))
"""


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """What each rewrite showed."""
        return [text.removesuffix("\x1b[K") for text in self.getvalue().split("\r")[1:]]


def test_a_page_hears_of_a_run_twice_a_second_and_of_another_text_soon():
    """A step each 5 ms for two seconds, whose words change at 1.2 s."""
    heard: list[tuple[str, float]] = []
    at_s = 0.0
    tell = seldom(lambda text, fraction: heard.append((text, round(at_s, 3))), now=lambda: at_s)
    for i in range(400):
        at_s = 0.005 * i
        tell("warming up" if at_s < 1.2 else "measuring", i / 400)
    tell("measuring", 1.0)
    assert heard == [
        ("warming up", 0.0),
        ("warming up", 0.5),
        ("warming up", 1.0),
        ("measuring", 1.2),
        ("measuring", 1.7),
        ("measuring", 1.995),  # the end
    ]


def test_a_bar_for_what_may_be_told_appears_with_the_first_text_only(
    monkeypatch: pytest.MonkeyPatch,
):
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    with bar_when_told("run"):
        pass
    assert out.lines == []
    with bar_when_told("run") as tell:
        tell("waits for the explorer of bert")
        shown = "".join(out.lines)
    assert "run: starting" in shown
    assert "run: waits for the explorer of bert" in shown
    assert out.lines[-1] == ""


def test_a_terminal_shows_one_line_that_is_gone_in_the_end():
    out = Terminal()
    with progress_bar("sweep", stream=out) as report:
        report("run 1 of 2", 0.5)
        report("run 2 of 2", 1.0)
    assert out.lines[0].endswith("  0%  sweep: starting")
    assert re.search(r"100%  \d+ s  sweep: run 2 of 2$", out.lines[-2])
    assert out.lines[-1] == ""
    assert "\n" not in out.getvalue()


@pytest.mark.parametrize(
    ("title", "shown"), [("層" * 40, 17), ("x" * 80, 34), ("✅" * 40, 17), ("x" + "層" * 40, 17)]
)
def test_letters_of_two_columns_stay_on_the_line(
    monkeypatch: pytest.MonkeyPatch, title: str, shown: int
):
    monkeypatch.setenv("COLUMNS", "67")  # one column stays free, and 32 are the bar's
    out = Terminal()
    with progress_bar(title, stream=out):
        pass
    assert sum(c in title for c in out.lines[0]) == shown


def test_after_an_error_the_terminal_keeps_its_text():
    out = Terminal()

    def fail() -> None:
        with progress_bar("sweep", stream=out) as report:
            report("run 1", 0.1)
            raise ValueError("bad batch\nand more")

    with pytest.raises(ValueError, match="bad"):
        fail()
    assert out.lines[-1].startswith("sweep: ValueError: bad batch  [after ")
    assert out.getvalue().endswith("\n")


@pytest.mark.parametrize("error", [OSError(5, "the terminal is gone"), ValueError("closed")])
def test_a_terminal_that_goes_away_ends_nothing_and_hides_no_error(error: Exception):
    out = Terminal()

    def gone(_: str) -> int:
        raise error

    with progress_bar("sweep", stream=out) as report:
        out.write = gone  # type: ignore[method-assign]
        report("run 1", 0.5)

    def fail() -> None:
        with progress_bar("sweep", stream=out):
            raise RuntimeError("bad batch")

    with pytest.raises(RuntimeError, match="bad batch"):
        fail()


def test_an_interrupt_is_shown_and_comes_through():
    out = Terminal()
    with pytest.raises(KeyboardInterrupt), progress_bar("sweep", stream=out):
        raise KeyboardInterrupt
    assert "sweep: KeyboardInterrupt" in out.lines[-1]


def test_a_stream_that_is_no_terminal_stays_empty():
    out = io.StringIO()
    with progress_bar("sweep", stream=out) as report:
        report("run 1", 0.5)
    assert out.getvalue() == ""


def test_a_stream_that_is_closed_or_of_the_programs_own_kind_is_no_terminal():
    """It raised ValueError or AttributeError out of `kit.run`."""
    closed = io.StringIO()
    closed.close()
    for stream in (closed, type("Log", (), {"write": len})()):
        with progress_bar("run", stream=stream) as report:
            report("step", 0.5)


def test_a_hostile_text_stays_one_line_of_the_terminals_width():
    out = Terminal()
    with progress_bar(HOSTILE, stream=out) as report:
        report(HOSTILE, 1.0)
    for line in out.lines:
        assert line.isprintable()
        assert len(line) < shutil.get_terminal_size().columns


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_of_the_terminal_will_do(encoding: str):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    out.isatty = lambda: True  # type: ignore[method-assign]
    with progress_bar("sweep", stream=out) as report:
        report("µ \ud800", 1.0)
    written = raw.getvalue().decode(encoding)
    assert "100%" in written
    assert ("µ" if encoding != "ascii" else "sweep: u") in written
    assert ("█" if encoding == "utf-8" else "###") in written


def test_the_terminal_is_written_ten_times_a_second_at_most():
    out = Terminal()
    with progress_bar("sweep", stream=out) as report:
        for i in range(1000):
            report("quick", i / 2000)
    assert len(out.lines) < 100


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20).map(sorted), st.floats(0.01, 1e4))
def test_time_left_falls_to_zero_at_an_even_pace(fractions: list[float], total_s: float):
    first = (fractions[0] * total_s, fractions[0])
    left = [time_left(first, (f * total_s, f)) for f in fractions]
    known = [x for x in left if x is not None]
    assert all(a + 1e-9 * total_s >= b >= 0 for a, b in pairwise(known))
    for f, x in zip(fractions, left, strict=True):
        assert x is None or x == pytest.approx((1 - f) * total_s, abs=1e-6 * total_s)


def test_what_was_done_before_does_not_count_as_pace():
    times = iter([100.0, 101.0, 111.0])
    clock = Clock(lambda: next(times))
    clock.mark(0.8)  # loaded from a folder, in a second
    clock.mark(0.9)
    assert clock.words == "11 s, about 10 s left"


@pytest.mark.parametrize(("seconds", "words"), [
    (0.2, "0 s"), (59.4, "59 s"), (125.0, "2 min 05 s"), (3780.0, "1 h 03 min"),
])  # fmt: skip
def test_a_time_reads_well(seconds: float, words: str):
    times = iter([0.0, seconds])
    clock = Clock(lambda: next(times))
    clock.mark(1.0)
    assert clock.words == words


def test_without_a_kernel_ipywidgets_is_not_loaded():
    code = (
        "import sys\nfrom kit.widgets.base.progress import progress_bar\n"
        "with progress_bar('x') as report: report('y', 0.5)\n"
        "print([m for m in ('ipywidgets', 'IPython', 'bokeh') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""
    assert not in_kernel()


@pytest.mark.notebook
def test_in_a_kernel_the_bar_goes_on_success_and_keeps_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("JUPYTER_PATH", warm_kernel(tmp_path))
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(CELL)]
    nbclient.NotebookClient(book, kernel_name="python3", timeout=120).execute()
    state = book.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    models = [m["state"] for m in state.values()]
    bars = [m for m in models if m.get("_model_name") == "FloatProgressModel"]
    assert ("danger", 0.5) in [(m["bar_style"], m["value"]) for m in bars]
    (printed,) = [o.text for o in book.cells[0].outputs if o.output_type == "stream"]
    assert printed.split() == ["danger"]
    shown = [m["value"] for m in models if m.get("_model_name") == "HTMLModel"]
    (failed,) = [text for text in shown if "MemoryError" in text]
    assert "no room for &lt;script&gt;" in failed
    assert "bad &lt;b&gt;" in failed
    assert not re.search("<script>|<b>bad <b>", failed)
