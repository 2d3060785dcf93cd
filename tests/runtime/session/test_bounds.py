"""What a session remembers has a bound: a job of days records, reads and compiles for ever."""

from __future__ import annotations

from typing import Any
from weakref import ref

import pytest
import torch

import kit
from kit.runtime.session import compiler, reads
from kit.runtime.steps.recording import Reasons


def test_a_session_remembers_the_latest_sync_points_and_who_follows_gets_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads, "KEPT", 2)
    with kit.Session() as session:
        x = torch.ones((), device="kit")
        followed = session.reads.follow()
        for _ in range(3):
            x.item()
        assert len(followed) == session.metrics()["sync.count"] == 3
        assert session.syncs == followed[1:]
        ended = ref(followed)
        del followed
        x.item()
        assert ended() is None
        assert len(session.syncs) == 2

    def reader(ctx: Any) -> Any:
        x = torch.ones((), device=ctx.device)
        return lambda: x + sum((x + i).item() for i in range(4))

    run = kit.run(reader, kit.Settings(steps=2, warmup=1))
    assert len(run.sync_points) == 2 * 4


def test_a_session_that_compiles_for_ever_forgets_the_names_of_the_oldest_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler, "MAX_NAMES", 2)
    with kit.Session() as session:
        for size in range(1, 5):
            torch.ones(size, device="kit").sum().item()
        assert session.metrics()["compile.count"] == 4
        assert len(session.issuer.executor.compiler._compiled) == 2


def test_reasons_that_are_others_each_time_are_counted_together() -> None:
    reasons = Reasons()
    for i in range(1000):
        reasons.note(f"the step changes kept[{i}]")
        reasons.note("the same, such as from 1 to 2")
    assert reasons.total() == 2000
    assert reasons.most_common(2)[0] == ("the same, such as from 1 to 2", 1000)
    assert len(reasons) < 200
