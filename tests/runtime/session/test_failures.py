"""What a failure in a segment leaves: the culprit's error, and everything else its value."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import kit
from kit.errors import ExecutionError
from kit.runtime.compiling.lower import Executable
from kit.runtime.recording.bulk import Cell, Task
from kit.runtime.session.executor import Executor
from kit.runtime.session.findings import Findings


def failing_rules(broken: dict[str, bool]) -> Any:
    """`aten.erf` fails while the program runs, as long as `broken["now"]`."""

    def check(x: Any) -> Any:
        if broken["now"]:
            raise ValueError("a bad number")
        return x

    def erf(x: Any) -> Any:
        return jax.pure_callback(check, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    return kit.Rules({"aten.erf.default": erf}).over(kit.DEFAULT_RULES)


@pytest.mark.parametrize("segment_mode", ["fuse", "launch"])
def test_a_failure_in_a_segment_is_the_culprits_alone(segment_mode: str) -> None:
    broken = {"now": True}
    rules = failing_rules(broken)
    settings = kit.Settings(mode="bulked", bulk_forward=100, segment_mode=segment_mode)
    with kit.Session(settings, rules=rules) as session:
        x = torch.ones(3, device="kit")
        before = x + 1
        bad = torch.erf(x)
        depends = bad + before
        after = x * 5
        with pytest.raises(ExecutionError, match="a bad number"):
            session.wait_all()
        session.wait_all()  # said once
        assert before.tolist() == [2.0] * 3  # MXNet raises here
        assert after.tolist() == [5.0] * 3  # and here it keeps the old value
        for _ in range(2):  # and this it shows uninitialised
            for poisoned in (bad, depends):
                said = r"aten\.erf\.default, recorded at test_failures\.py:\d+"
                with pytest.raises(ExecutionError, match=said):
                    poisoned.tolist()
        bad.zero_()  # a whole overwrite heals
        assert bad.tolist() == [0.0] * 3
        later = depends + 1  # in a later segment: poison goes on, the rest runs
        fine = after + 1
        assert fine.tolist() == [6.0] * 3
        with pytest.raises(ExecutionError, match=r"aten\.erf\.default"):
            later.tolist()


@pytest.mark.parametrize(
    "heal",
    [
        lambda b: b.zero_(),
        lambda b: b.fill_(5.0),
        lambda b: b.copy_(torch.full((3,), 5.0)),
        lambda b: b.__setitem__(slice(None), 5.0),
        lambda b: b.__setitem__(..., torch.full((3,), 5.0, device="kit")),
        lambda b: b[:].copy_(torch.full((3,), 5.0)),
        lambda b: torch.mul(torch.full((3,), 5.0, device="kit"), 1.0, out=b),
        lambda b: b.normal_(),
    ],
)
def test_every_whole_overwrite_heals(heal: Callable[[Any], Any]) -> None:
    with kit.Session(kit.Settings(bulk_forward=3), rules=failing_rules({"now": True})) as session:
        bad = torch.erf(torch.ones(3, device="kit"))
        with pytest.raises(ExecutionError):
            session.wait_all()
        heal(bad)
        bad.tolist()
        half = torch.erf(torch.ones(3, device="kit"))
        half[0] = 1.0  # part of it is still the poisoned part
        with pytest.raises(ExecutionError, match="erf"):
            half.tolist()


def test_a_rule_that_fails_leaves_the_others_their_values() -> None:
    def wrong(x: Any) -> Any:
        return jnp.zeros(7)

    rules = kit.Rules({"aten.erf.default": wrong}).over(kit.DEFAULT_RULES)
    with kit.Session(kit.Settings(mode="lazy"), rules=rules):
        x = torch.ones(3, device="kit")
        good, bad = x + 1, torch.erf(x)
        with pytest.raises(kit.errors.LoweringError, match=r"the rule for aten\.erf\.default"):
            bad.tolist()
        assert good.tolist() == [2.0] * 3


def test_what_fails_only_as_a_whole_is_reported_and_has_values() -> None:
    times = {"calls": 0}

    def once(x: Any) -> Any:
        times["calls"] += 1
        if times["calls"] == 1:
            raise ValueError("only the first time")
        return x

    def erf(x: Any) -> Any:
        return jax.pure_callback(once, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    rules = kit.Rules({"aten.erf.default": erf}).over(kit.DEFAULT_RULES)
    with kit.Session(kit.Settings(mode="lazy"), rules=rules) as session:
        x = torch.ones(3, device="kit")
        assert (torch.erf(x) + 1).tolist() == [2.0] * 3
        assert "failed whole and ran op by op: segment 0" in session.explain()
        assert session.metrics()["segment.recovered"] == 1


def test_where_no_memory_is_left_for_the_words_the_error_is_no_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It said "the program was interrupted", as nothing had been noted on the values."""

    def fail(*_: object) -> None:
        raise MemoryError

    with kit.Session(kit.Settings(mode="lazy")) as session:
        for name in ("_run", "_salvage", "_poison"):
            monkeypatch.setattr(Executor, name, fail)
        said = r"recorded at test_failures.* failed: MemoryError"
        with pytest.raises(ExecutionError, match=said):
            (torch.ones(3, device="kit") + 1).tolist()
        monkeypatch.undo()
        session.wait_all()
        assert (torch.ones(3, device="kit") + 1).tolist() == [2.0, 2.0, 2.0]


def test_two_threads_that_look_at_what_probes_gave_leave_none_out() -> None:
    findings = Findings(lambda task, error: None)
    silent = cast(Executable, SimpleNamespace(asked=()))

    class Flag:
        """What a probe gives; another thread looks at all of task 0 while one asks for it."""

        is_asked = False

        def copy_to_host_async(self) -> None:
            pass

        def __array__(self, *args: Any, **kwargs: Any) -> Any:
            return np.zeros(0, np.int64)

        def is_ready(self) -> bool:
            if not self.is_asked:
                self.is_asked = True
                findings.look(until=0)
                return True
            return False

    for i in range(2):
        task = cast(Task, SimpleNamespace(index=i, step=0, guessed=None, outputs=[]))
        flag = Flag()
        flag.is_asked = i == 1  # its numbers are not there yet
        findings.begin(task)([(0, silent, flag)])
    findings.look()
    assert [issued.task.index for issued in findings._unseen] == [1]


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_a_failure_is_reported_once_or_not_while_the_program_decides(is_asked_for: bool) -> None:
    with kit.Session() as session:
        executor = session.issuer.executor
        decide = executor.confirm if is_asked_for else executor.retract
        other = threading.Thread(target=lambda: decide(task))

        class Decided(Task):
            """A task about which another thread decides just as the worker looks at it."""

            @property  # type: ignore[override]
            def guessed(self) -> Any:
                seen = self.known
                if threading.current_thread() is not other and not other.ident:
                    other.start()
                    other.join(0.05)
                return seen

            @guessed.setter
            def guessed(self, to: Any) -> None:
                self.known = to

        task = Decided(0, cast(Any, None))
        task.guessed = [Cell(None)] if is_asked_for else None
        executor._note_failure(task, ValueError("once"))
        other.join()
        assert len(executor.engine._failures) == is_asked_for
        executor.engine.take_failure()
