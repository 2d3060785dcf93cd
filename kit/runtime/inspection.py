"""What a session tells about itself: counters, explanations, the machine.

The counters have the names and the meaning that pytorch/xla's `metrics_report` gave them.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax

from kit.ir.diff import GraphDiff
from kit.run import Compile

if TYPE_CHECKING:
    from kit.runtime.executor import Executor
    from kit.runtime.steps import Stepper

__all__ = ["Inspection", "as_text", "metrics_report"]

# (name of pytorch/xla's metric, our count, our total, unit of the total)
_METRICS = (
    ("CompileTime", "compile.count", "compile.ns", "ms"),
    ("ExecuteTime", "execute.count", "execute.ns", "ms"),
    ("TransferToDevice", "transfer_to_device.count", "transfer_to_device.bytes", "KiB"),
    ("TransferFromDevice", "transfer_from_device.count", "transfer_from_device.bytes", "KiB"),
    ("SyncWait", "sync.count", "sync.ns", "ms"),
)
_SCALE = {"ms": 1e6, "KiB": 1024}


def metrics_report(
    metrics: Mapping[str, float], unlowered: Mapping[str, int], steps: int
) -> list[tuple[str, int, float, float, str]]:
    """Rows of (metric, samples, total, per step, unit); counters have no total.

    `UncachedCompile` counts programs that were compiled, `CachedCompile` those found in the cache,
    and each op that ran on the host is listed under its own name, as "aten::name".
    """
    rows = []
    for name, count, total, unit in _METRICS:
        amount = metrics.get(total, 0) / _SCALE[unit]
        rows.append((name, int(metrics.get(count, 0)), amount, amount / max(steps, 1), unit))
    for name, count in (("UncachedCompile", "cache.misses"), ("CachedCompile", "cache.hits")):
        rows.append((name, int(metrics.get(count, 0)), 0.0, 0.0, ""))
    for op, times in sorted(unlowered.items()):
        rows.append((op.replace("aten.", "aten::", 1), times, 0.0, 0.0, ""))
    return rows


def as_text(rows: list[tuple[str, int, float, float, str]]) -> str:
    """The rows as aligned lines."""
    lines = []
    for name, samples, total, per_step, unit in rows:
        line = f"{name:24}{samples:>8}"
        if unit:
            line += f"{total:>14.2f} {unit:4}{per_step:>12.3f} {unit} a step"
        lines.append(line)
    return "\n".join(lines)


class Inspection:
    """The part of a session that only looks: every method may be called at any time."""

    _executor: Executor
    stepper: Stepper
    device: Any
    step: int
    unlowered: Counter[str]
    unlowered_ns: Counter[str]
    skeletons: dict[str, str]

    def metrics(self) -> dict[str, float]:
        """Counters since the session was opened; times in nanoseconds."""
        raise NotImplementedError

    @property
    def compiles(self) -> tuple[Compile, ...]:
        """The compiles so far, each with its reason; the latest few hundred."""
        return tuple(self._executor.compiles.notes)

    def compile_diff(self, i: int = -1) -> GraphDiff:
        """How the graph changed before compile `i` of `compiles`; the last one unless told."""
        return self._executor.compiles.diff(i)

    def metrics_report(self) -> str:
        """The counters as text, with the meaning that they have in pytorch/xla."""
        return as_text(metrics_report(self.metrics(), self.unlowered, self.step))

    def explain(self) -> str:
        """What was recorded, how it was cut, and why each program was compiled, in words."""
        m = Counter({k: int(v) for k, v in self.metrics().items()})
        cuts = ", ".join(f"{m[k]} by {k[4:]}" for k in sorted(m) if k.startswith("cut."))
        lines = [
            f"{m['record.ops']} ops recorded, cut into {m['segment.count']} segments ({cuts})",
            f"{m['compile.count']} compiles ({m['compile.ns'] / 1e6:.0f} ms, "
            f"{m['compile.from_disk']} from disk), {m['cache.hits']} segments found in the cache",
            f"{m['sync.count']} sync points, {m['sync.ns'] / 1e6:.1f} ms waited",
        ]
        lines += self.stepper.describe()
        lines += self._executor.compiles.explain()
        for op, n in self.unlowered.most_common():
            ms = self.unlowered_ns[op] / 1e6
            lines.append(f"ran on the host, {n} times, {ms:.1f} ms: {op}")
        for name, skeleton in self.skeletons.items():
            lines += [f"a rule for {name} would begin:", *("  " + x for x in skeleton.splitlines())]
        return "\n".join(lines)

    def environment(self) -> dict[str, str]:
        """Device and versions, for the reader of a saved run."""
        return {
            "device": f"{self.device.platform} ({self.device.device_kind})",
            "jax": jax.__version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "cores for XLA": os.environ.get("NPROC", str(os.cpu_count())),
        }
