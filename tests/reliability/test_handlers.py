"""A signal handler of the program's own, or a `__del__`, that uses a kit tensor: never wrong."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import pytest
import torch

import kit
from kit.errors import SessionError
from kit.runtime.engine.engine import Engine
from kit.runtime.recording.bulk import Bulk
from kit.runtime.session.streams import ThreadStreams
from kit.torch.dispatch import Dispatcher

SIGNAL = signal.SIGUSR1 if sys.platform != "win32" else signal.SIGTERM
Middle = list[Callable[..., Any]]
RECORDER: Middle = [Bulk.add_one, Bulk._append, Dispatcher.dispatch]
ENGINE: Middle = [ThreadStreams._issue, Engine.submit, Engine.wait]
SAID = "a signal handler or __del__ uses a kit tensor while an op is recorded"


@pytest.fixture(autouse=True)
def _handler_stays() -> Iterator[None]:
    before = signal.getsignal(SIGNAL)
    yield
    signal.signal(SIGNAL, before)
    sys.settrace(None)


class Steps:
    """Three steps of SGD, in the second of which something happens at one line of the kit."""

    def __init__(self, middle: Middle, happen: Callable[[Any], None]) -> None:
        self.happen = happen
        self.lines: dict[CodeType, list[int]] = {f.__code__: [] for f in middle}

    def run(self, at: tuple[CodeType, int] | None = None) -> list[torch.Tensor]:
        """The weights after it; without a line, notes which lines there are."""
        torch.manual_seed(0)
        happened: list[int] = []
        with kit.Session(kit.Settings(mode="bulked", bulk_forward=3, bulk_backward=3)) as session:
            net = torch.nn.Linear(4, 4).to("kit")
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            x = torch.randn(2, 4).to("kit")

            def look(frame: Any, event: str, _: Any) -> Any:
                code, line = frame.f_code, frame.f_lineno
                if code not in self.lines:
                    return None
                if event == "line" and at is None and line not in self.lines[code]:
                    self.lines[code].append(line)
                elif event == "line" and (code, line) == at and not happened:
                    happened.append(1)
                    self.happen(net)
                return look

            for step in range(3):
                sys.settrace(look if step == 1 else None)
                optimizer.zero_grad()
                loss = net(x).tanh().square().mean()
                loss.backward()
                optimizer.step()
                loss.item()
                sys.settrace(None)
                session.mark_step()
            assert at is None or happened
            return [p.detach().cpu() for p in net.parameters()]


def read(net: Any) -> None:
    net.weight.detach().sum().item()


def record(net: Any) -> None:
    net.weight.detach().sum()


@pytest.mark.parametrize(("middle", "use"), [(RECORDER, record), (ENGINE, read)])
def test_a_handler_at_any_line_in_the_middle_of_an_op_changes_no_number(
    middle: Middle, use: Callable[[Any], None]
) -> None:
    said: list[str] = []

    def happen(net: Any) -> None:
        def handle(*_: Any) -> None:
            try:
                use(net)
            except SessionError as error:
                said.append(str(error))

        signal.signal(SIGNAL, handle)
        signal.raise_signal(SIGNAL)

    steps = Steps(middle, happen)
    want = steps.run()
    assert all(steps.lines.values())
    for code, lines in steps.lines.items():
        for line in lines:
            got = steps.run((code, line))
            for a, b in zip(want, got, strict=True):
                assert torch.equal(a, b), f"{code.co_qualname}:{line}"
    assert said
    assert all(text.startswith(SAID) for text in said)


def test_what_a_handler_raises_comes_out_at_the_users_line_and_the_next_step_is_right() -> None:
    def handle(*_: Any) -> None:
        torch.ones(2, device="kit").sum()

    signal.signal(SIGNAL, handle)
    append, hit = Bulk._append.__code__, list[int]()

    def look(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is append and event == "line" and not hit:
            hit.append(1)
            signal.raise_signal(SIGNAL)
        return look if frame.f_code is append else None

    with kit.Session():
        x = torch.ones(2, device="kit")
        sys.settrace(look)
        with pytest.raises(SessionError, match=SAID):
            x + 1
        sys.settrace(None)
        assert (x + 2).tolist() == [3.0, 3.0]
        signal.raise_signal(SIGNAL)  # between two ops a handler may do as it likes


def test_a_del_in_the_middle_of_an_op_is_refused() -> None:
    said: list[str] = []

    class Dying:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        def __del__(self) -> None:
            try:
                self.x.sum()
            except SessionError as error:
                said.append(str(error))

    append = Bulk._append.__code__
    dying: list[Dying] = []

    def look(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is append and event == "line":
            dying.clear()
        return look if frame.f_code is append else None

    with kit.Session():
        x = torch.ones(2, device="kit")
        dying.append(Dying(x))
        sys.settrace(look)
        y = x + 1
        sys.settrace(None)
        assert y.tolist() == [2.0, 2.0]
    assert len(said) == 1
    assert said[0].startswith(SAID)
