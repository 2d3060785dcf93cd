"""`kit demo`: what the kit is for, shown on a terminal: a step that waits, why, and the cure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING

from kit.runs.loss_scaling import HOST_CHECK, ON_DEVICE
from kit.text import format_count, format_percent, safe_terminal

if TYPE_CHECKING:
    from kit.runs.run import Run

__all__ = ["demo"]

_WIDTH = 88
_INTRO = (
    "A training step of a very small BERT, measured twice on device kit. Its gradients are scaled "
    "as for float16, and GradScaler has to know whether one of them was infinite."
)
_NEXT = """Now yours:
  kit run train.py           your training script, as it is: where its steps spend their time
  kit view trace.json.gz     a trace of torch.profiler or jax
  kit lab                    the notebooks, with sliders that run the step again"""


def demo(tell: Callable[[str], None]) -> int:
    """Measure a step that reads a number, and the same step without the read.

    Args:
        tell: takes lines for the user.
    """
    import kit
    from kit.widgets.base.progress import progress_bar
    from kit.workloads.masked_lm import Size, bert_of

    step = bert_of(Size(layers=1, width=128, heads=2, length=64, vocabulary=1000))
    settings = kit.Settings(mode="lazy", batch_size=8, steps=15, warmup=3)
    tell(f"{_wrapped(_INTRO)}\n")
    with progress_bar("kit demo") as progress:
        before = kit.run(step, settings, loss_scaling=HOST_CHECK, progress=progress)
    tell(f"1. The host looks ({HOST_CHECK!r}): {_numbers(before)}\n")
    tell(f"2. What that costs, and the cure.\n{_advice(before)}\n")
    with progress_bar("kit demo") as progress:
        after = kit.run(step, settings, loss_scaling=ON_DEVICE, progress=progress)
    tell(f"3. The device decides ({ON_DEVICE!r}): {_numbers(after)}")
    tell(_wrapped(f"{_change(before, after)}\n") + "\n")
    tell(_NEXT)
    return 0


def _numbers(run: Run) -> str:
    """The step in one line."""
    from kit.runs.change import step_text

    h = run.headline()
    return (
        f"{step_text(run)} a step, device busy {format_percent(h.device_busy_fraction)}, "
        f"{format_count(h.syncs_per_step, 'sync point')} a step"
    )


def _advice(run: Run) -> str:
    """The advice for the line that waits; or that line, and what else is to be said."""
    from kit.runs.verdict.verdict import verdict

    where = " and ".join(sorted({f"{sync.site} ({sync.cause})" for sync in run.sync_points}))
    waits = f"The host waits at {where}."
    if run.withheld:
        found = verdict(run)
        cure = f" Next: {found.next_step}." if found is not None else ""
        return _wrapped(safe_terminal(f"{waits} No times: {run.withheld}.{cure}", 600))
    texts = [advice.text for advice in run.advice()]
    said = [text for text in texts if any(sync.site in text for sync in run.sync_points)]
    rest = texts[0] if texts else "There is nothing to gain."
    return _wrapped(safe_terminal(said[0] if said else f"{waits} {rest}", 600))


def _change(before: Run, after: Run) -> str:
    """What the cure changed, by the rule for changes."""
    import numpy as np

    from kit.runs.analysis.diff import diff_runs

    found = diff_runs(before, after).step.difference
    said = "" if found is None else found.text(more="slower", less="faster")
    losses = np.array(before.losses), np.array(after.losses)
    if np.array_equal(*losses) and len(before.losses):
        same = "are bitwise the same"
    else:  # the two have the same steps
        apart = np.max(np.abs(losses[0] - losses[1]) / np.abs(losses[0]))
        same = f"differ by {apart:.1g} of a loss at most"
    return f"A step: {said or 'not comparable'}. The losses of the two {same}."


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="   ", subsequent_indent="   ")
