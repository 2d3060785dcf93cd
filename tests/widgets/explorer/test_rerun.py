"""Reruns: the newest request wins, whatever the step does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from kit.errors import Cancelled, ExecutionError, SessionError, SettingsError
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.widgets.explorer import rerun
from kit.widgets.explorer.rerun import MOST_IDLE_S, MOST_S, Reruns
from tests.factories import empty_run, make_run

LONG_S = 20.0


class Gate:
    """A step that stops at a gate, so that a test decides when it goes on."""

    def __init__(self):
        self.entered = {n: threading.Event() for n in range(1, 6)}
        self.opened = {n: threading.Event() for n in range(1, 6)}
        self.saw_cancelled: dict[int, bool] = {}
        self.started: list[int] = []

    def __call__(self, settings, /, *, progress, cancelled):
        n = settings.batch_size
        self.started.append(n)
        progress(f"batch {n}", 0.5)
        self.entered[n].set()
        assert self.opened[n].wait(LONG_S)
        self.saw_cancelled[n] = cancelled()
        return make_run(settings, steps=1)


class Heard:
    """What the callbacks were told, in order."""

    def __init__(self):
        self.all: list[tuple] = []

    def of(self, kind):
        return [rest for k, *rest in self.all if k == kind]

    def callbacks(self):
        return {
            f"on_{kind}": lambda *a, kind=kind: self.all.append((kind, *a))
            for kind in ("progress", "result", "error", "idle")
        }


def batch(n: int) -> Settings:
    return Settings(batch_size=n, steps=1)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def reruns(gate: Gate, heard: Heard) -> Iterator[Reruns]:
    reruns = Reruns(gate, **heard.callbacks())
    yield reruns
    for opened in gate.opened.values():
        opened.set()
    assert reruns.close(LONG_S)


def step_of(function):
    def step(settings, /, *, progress, cancelled):
        return function(settings)

    return step


def test_a_request_is_run_and_told_in_order(reruns, gate, heard):
    gate.opened[1].set()
    reruns.request(batch(1))
    run = reruns.wait(LONG_S)
    assert [k for k, *_ in heard.all] == ["progress", "result", "idle"]
    assert heard.of("progress") == [["batch 1", 0.5]]
    assert heard.of("result") == [[run]]
    assert run.settings == batch(1)
    assert not reruns.is_busy


def test_the_newest_request_wins_and_the_ones_between_never_start(reruns, gate, heard):
    reruns.request(batch(1))
    assert gate.entered[1].wait(LONG_S)
    reruns.request(batch(2))
    reruns.request(batch(3))
    gate.opened[3].set()
    gate.opened[1].set()
    assert reruns.wait(LONG_S).settings == batch(3)
    assert gate.started == [1, 3]
    assert gate.saw_cancelled == {1: True, 3: False}
    assert [run.settings.batch_size for (run,) in heard.of("result")] == [3]
    assert len(heard.of("idle")) == 1


def test_a_cancelled_run_reaches_no_one_and_is_not_an_error(reruns, gate, heard):
    reruns.request(batch(1))
    assert gate.entered[1].wait(LONG_S)
    reruns.cancel()
    gate.opened[1].set()
    with pytest.raises(Cancelled, match="cancelled"):
        reruns.wait(LONG_S)
    assert gate.saw_cancelled == {1: True}
    assert heard.of("result") == heard.of("error") == []
    assert len(heard.of("idle")) == 1


def test_cancelling_nothing_does_nothing(reruns, heard):
    reruns.cancel()
    assert heard.all == []
    assert not reruns.is_busy


def test_a_step_that_raises_cancelled_by_itself_is_not_an_error(heard):
    def give_up(settings):
        raise Cancelled("the user said no")

    reruns = Reruns(step_of(give_up), **heard.callbacks())
    reruns.request(batch(1))
    with pytest.raises(Cancelled):
        reruns.wait(LONG_S)
    assert [k for k, *_ in heard.all] == ["idle"]
    assert reruns.close(LONG_S)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_the_worker_survives_any_exception_of_a_step(kind, heard):
    def fail_first(settings):
        if settings.batch_size == 1:
            raise kind("half-way")
        return make_run(settings, steps=1)

    reruns = Reruns(step_of(fail_first), **heard.callbacks())
    reruns.request(batch(1))
    expected = ValueError if kind is ValueError else ExecutionError
    with pytest.raises(expected, match=r"half-way|ended by " + kind.__name__):
        reruns.wait(LONG_S)
    ((error, text),) = heard.of("error")
    assert isinstance(error, kind)
    assert "fail_first" in text
    reruns.request(batch(2))
    assert reruns.wait(LONG_S).settings == batch(2)
    assert reruns.close(LONG_S)


def test_an_error_whose_class_cannot_be_asked_for_is_told_with_its_lines(heard):
    class Unasked(ValueError):
        __class__ = property(abs)

    def fail(settings):
        raise Unasked("half-way")

    reruns = Reruns(step_of(fail), **heard.callbacks())
    reruns.request(batch(1))
    with suppress(Unasked):  # pytest.raises asks for the class
        reruns.wait(LONG_S)
    texts = [text for _, text in heard.of("error")]
    assert len(texts) == 1
    assert "in fail" in texts[0]
    assert texts[0].endswith("Unasked: half-way\n")
    assert reruns.close(LONG_S)


def test_an_error_of_a_replaced_run_is_not_shown(heard):
    entered, go_on = threading.Event(), threading.Event()

    def step(settings):
        if settings.batch_size == 1:
            entered.set()
            assert go_on.wait(LONG_S)
            raise RuntimeError("of the past")
        return make_run(settings, steps=1)

    reruns = Reruns(step_of(step), **heard.callbacks())
    reruns.request(batch(1))
    assert entered.wait(LONG_S)
    reruns.request(batch(2))
    go_on.set()
    assert reruns.wait(LONG_S).settings == batch(2)
    assert heard.of("error") == []
    assert reruns.close(LONG_S)


def test_a_step_that_returns_something_else_is_an_error(heard):
    reruns = Reruns(step_of(lambda settings: 42), **heard.callbacks())
    reruns.request(batch(1))
    with pytest.raises(TypeError, match=r"must return a kit\.Run, not int"):
        reruns.wait(LONG_S)
    assert reruns.close(LONG_S)


def test_a_view_that_cannot_draw_the_result_is_told_as_an_error():
    told = []

    def draw(run: Run) -> None:
        raise ZeroDivisionError("while drawing")

    reruns = Reruns(step_of(make_run), on_result=draw, on_error=lambda e, text: told.append(e))
    reruns.request(batch(1))
    with pytest.raises(ZeroDivisionError, match="while drawing"):
        reruns.wait(LONG_S)
    assert [str(e) for e in told] == ["while drawing"]
    assert reruns.close(LONG_S)


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_a_callback_that_fails_is_logged_and_the_run_goes_on(kind, caplog):
    def step(settings, /, *, progress, cancelled):
        progress("here", 0.1)
        return make_run(settings, steps=1)

    def broken(*_):
        raise kind("the page is gone")

    reruns = Reruns(step, on_progress=broken, on_idle=broken, spare=broken)
    for n in (1, 2):
        reruns.request(batch(n))
        assert reruns.wait(LONG_S).settings == batch(n)
    assert "a callback of the rerun failed" in caplog.text
    assert reruns.close(LONG_S)


def test_an_empty_run_is_a_run(heard):
    reruns = Reruns(step_of(lambda settings: empty_run()), **heard.callbacks())
    reruns.request(batch(1))
    assert reruns.wait(LONG_S).losses == ()
    assert reruns.close(LONG_S)


def test_waiting_for_nothing_says_so(reruns):
    with pytest.raises(SessionError, match="nothing was run yet"):
        reruns.wait(LONG_S)


def test_waiting_too_long_is_a_timeout_and_the_run_goes_on(reruns, gate):
    reruns.request(batch(1))
    with pytest.raises(TimeoutError, match="still running"):
        reruns.wait(0.01)
    gate.opened[1].set()
    assert reruns.wait(LONG_S).settings == batch(1)


def test_waiting_inside_a_callback_is_refused():
    refused = []

    def ask(run: Run) -> None:
        with pytest.raises(SessionError, match="wait for itself"):
            reruns.wait()
        refused.append(run)

    reruns = Reruns(step_of(make_run), on_result=ask)
    reruns.request(batch(1))
    assert refused == [reruns.wait(LONG_S)]
    assert reruns.close(LONG_S)


def test_close_ends_the_thread_and_refuses_more(gate, heard):
    reruns = Reruns(gate, **heard.callbacks())
    reruns.request(batch(1))
    assert gate.entered[1].wait(LONG_S)
    assert not reruns.close()  # it is still in the step
    gate.opened[1].set()
    assert reruns.close(LONG_S)
    assert heard.of("result") == heard.of("idle") == []
    with pytest.raises(SessionError, match="closed"):
        reruns.request(batch(2))


def test_no_thread_is_started_before_the_first_request(gate):
    before = set(threading.enumerate())
    reruns = Reruns(gate)
    assert set(threading.enumerate()) <= before
    assert reruns.close()


def test_settings_that_the_step_refuses_are_its_error(heard):
    reruns = Reruns(step_of(lambda s: s.replace(batch_size=0)), **heard.callbacks())
    reruns.request(batch(1))
    with pytest.raises(SettingsError, match="batch_size must be"):
        reruns.wait(LONG_S)
    assert reruns.close(LONG_S)


def test_a_step_that_would_begin_after_the_program_is_not_begun(heard, monkeypatch):
    """Nothing might wait for it any more: Python killed it inside of torch or XLA."""
    monkeypatch.setattr(rerun, "_has_ended", lambda: True)
    reruns = Reruns(step_of(make_run), **heard.callbacks())
    reruns.request(batch(1))
    with pytest.raises(Cancelled):
        reruns.wait(LONG_S)
    assert [k for k, *_ in heard.all] == ["idle"]
    assert reruns.close(LONG_S)


@pytest.mark.parametrize(
    ("works", "waits_s"),
    [
        (lambda at_s: False, MOST_IDLE_S),
        (lambda at_s: True, MOST_S),  # of the last 30 s a busy machine gives a compiler few
        (lambda at_s: at_s < 100, 100 + MOST_IDLE_S),
    ],
)
def test_the_end_of_a_program_waits_for_a_step_as_long_as_it_works(works, waits_s):
    """It waited for 30 s, and a step that was compiled for longer then ended it by SIGABRT."""
    waited_s = used_s = 0.0

    def is_done(seconds: float) -> bool:
        nonlocal waited_s, used_s
        used_s += 0.1 * seconds if works(waited_s) else 0.001
        waited_s += seconds
        return False

    rerun._wait_patiently(is_done, lambda: used_s)
    assert waited_s == pytest.approx(waits_s, abs=1)


def test_the_end_of_a_program_waits_no_longer_than_for_the_step():
    asked = []
    rerun._wait_patiently(lambda seconds: asked.append(seconds) or len(asked) == 3)
    assert len(asked) == 3
