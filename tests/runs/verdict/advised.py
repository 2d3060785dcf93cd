"""Runs that are advised: a small step for real, and timelines written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

import kit
from kit.runs.verdict.verdict import Verdict, verdict
from kit.trace import Span, SyncPoint, Timeline

LAZY = kit.Settings(mode="lazy", steps=4, warmup=3, batch_size=16)


def run_of(
    after: Callable[[Any, Any], None] | None = None, settings: kit.Settings = LAZY, **optimizer: Any
) -> kit.Run:
    """A small step; `after(loss, output)` is what its author also does in each step."""

    @kit.workload
    def small(ctx: kit.Context) -> Callable[[], Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6))).to(ctx.device)
        opt = torch.optim.AdamW(model.parameters(), **optimizer)
        scaler, x = ctx.scaler(), torch.randn(ctx.batch_size, 64).to(ctx.device)

        def step() -> Any:
            out = model(x)
            loss = out.square().mean()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            if after is not None:
                after(loss.detach(), out.detach())
            return loss

        return step

    return kit.run(small, settings)


def rules(run: kit.Run) -> set[str]:
    return {advice.rule for advice in run.advice()}


# -- rules about how a step's time divides: a timeline that has it, and one that has not ----------

MS = 1_000_000


def synthetic(spans: Sequence[Span], settings: kit.Settings = LAZY, **fields: Any) -> kit.Run:
    step = Span("host/main", "step 0", "step", 0, 10 * MS)
    timeline = Timeline.of([step, *spans])
    return kit.Run(settings, (1.0,), (10 * MS,), timeline, **fields)


def one_step(spans: Sequence[Span], syncs: Sequence[SyncPoint] = (), **changes: Any) -> kit.Run:
    """One traced step of 10 ms, under the default settings but for `changes`."""
    settings = kit.Settings(**{"mode": "lazy", **changes})
    made = synthetic(spans, settings, sync_points=tuple(syncs))
    return replace(made, timeline=replace(made.timeline, syncs=tuple(syncs)))


def verdict_of(run: kit.Run) -> Verdict:
    found = verdict(run)
    assert found is not None
    return found


def busy(start: float, stop: float, device: int = 0) -> Span:
    return Span(f"device/{device}", "k", "kernel", int(start * MS), int(stop * MS))


def host(kind: str, start: float, stop: float, name: str = "forward") -> Span:
    return Span("host/main", name, kind, int(start * MS), int(stop * MS))
