"""A session described: counters, explanations, the machine.

The counters have the names and the meaning that pytorch/xla's `metrics_report` gave them, but for
`SyncWait`, which it lacks. On a GPU `ExecuteTime` is the time of the launches.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax

from kit.cores import schedulable_cores, usable_cores
from kit.ir.graph import GraphDiff
from kit.runs.bulk_sizes import BulkSizes, sizes_from_environment
from kit.runs.compiles import Compile, GraphChange
from kit.runtime.compiling.lower import options_for
from kit.runtime.session.issuer import Issuer
from kit.runtime.steps.stepper import Stepper
from kit.text import Lines, format_count

__all__ = ["Report", "as_text", "metrics_report"]

# (its name in the report, our count, our total, unit of the total)
_METRICS = (
    ("CompileTime", "compile.count", "compile.ns", "ms"),
    ("ExecuteTime", "execute.count", "execute.ns", "ms"),
    ("OutboundData", "transfer_to_device.count", "transfer_to_device.bytes", "KiB"),
    ("InboundData", "transfer_from_device.count", "transfer_from_device.bytes", "KiB"),
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


class Report:
    """Describes a session; every method may be called at any time.

    Attributes:
        unlowered: "aten.x at file:line" -> how often that op ran on the host.
        unlowered_ns: the same, how long.
        skeletons: op -> the beginning of a rule for that op.
    """

    def __init__(self, device: Any, issuer: Issuer, stepper: Stepper) -> None:
        self.unlowered: Counter[str] = Counter()
        self.unlowered_ns: Counter[str] = Counter()
        self.skeletons: dict[str, str] = {}
        self._device = device
        self._issuer = issuer
        self._stepper = stepper

    @property
    def compiles(self) -> tuple[Compile, ...]:
        """The compiles so far, each with its reason; the latest few hundred."""
        return self._issuer.executor.compiler.log.notes

    def compile_diff(self, i: int = -1) -> GraphDiff:
        """How the graph changed before compile `i` of `compiles`; the last one unless told."""
        return self._issuer.executor.compiler.log.diff(i)

    def graph_changes(self) -> tuple[GraphChange, ...]:
        """What the recompiles worth showing changed, as a run keeps it."""
        return self._issuer.executor.compiler.log.changes()

    def metrics_report(self) -> str:
        """The counters as text, with the meaning that they have in pytorch/xla."""
        return as_text(metrics_report(self.metrics(), self.unlowered, self._issuer.step))

    def explain(self, sizes: BulkSizes) -> str:
        """What was recorded, how it was cut, and why each program was compiled, in words.

        Args:
            sizes: in force in the thread that asks.
        """
        m = Counter({k: int(v) for k, v in self.metrics().items()})
        cuts = ", ".join(f"{m[k]} by {k[4:]}" for k in sorted(m) if k.startswith("cut."))
        lines = [
            f"{format_count(m['record.ops'], 'op')} recorded, cut into "
            f"{format_count(m['segment.count'], 'segment')} ({cuts})",
            f"{format_count(m['compile.count'], 'compile')} ({m['compile.ns'] / 1e6:.0f} ms, "
            f"{m['compile.from_disk']} from disk), "
            f"{format_count(m['cache.hits'], 'segment')} found in the cache",
            f"{format_count(m['sync.count'], 'sync point')}, {m['sync.ns'] / 1e6:.1f} ms waited",
        ]
        said = sizes_from_environment().origin
        environment = f"; in the environment: {said}" if said != "defaults" else ""
        lines.append(f"bulk sizes: {sizes} ({sizes.origin}{environment})")
        if m["check.count"]:
            again = f"{m['redo.count']} steps were taken back, {m['redo.segments']} segments again"
            lines.append(f"{m['check.count']} checks looked at a step later; {again}")
        lines += self._stepper.describe()
        lines += self._issuer.executor.compiler.log.explain()
        lines += [
            f"failed whole and ran op by op: {what}" for what in self._issuer.executor.recovered
        ]
        for op, n in self.unlowered.most_common():
            ms = self.unlowered_ns[op] / 1e6
            lines.append(f"ran on the host, {n} times, {ms:.1f} ms: {op}")
        for name, skeleton in tuple(self.skeletons.items()):
            lines += [f"a rule for {name} would begin:", *("  " + x for x in skeleton.splitlines())]
        return Lines("\n".join(lines))

    def note_unlowered(self, name: str, site: str, ns: int, skeleton: str) -> None:
        """An op without a rule has run on the host."""
        key = f"{name} at {site}" if site else name
        self.unlowered[key] += 1
        self.unlowered_ns[key] += ns
        self.skeletons[name] = skeleton

    def environment(self) -> dict[str, str]:
        """Device and versions, for the reader of a saved run."""
        return {
            "device": f"{self._device.platform} ({self._device.device_kind})",
            "jax": jax.__version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "cores": str(usable_cores()),
            "cores for XLA": os.environ.get("NPROC", str(schedulable_cores())),
            **{n: str(x).lower() or "none" for n, x in options_for(self._device).items()},
        }

    def metrics(self) -> dict[str, float]:
        """Counters since the session was opened; times in nanoseconds."""
        counts = {**self._issuer.counts, **self._issuer.executor.counts}
        counts.update(self._stepper.counts)
        counts.setdefault("segment.count", 0)
        counts["unlowered.count"] = sum(self.unlowered.values())
        return {name: float(counts[name]) for name in sorted(counts)}

    def overheads(self) -> dict[str, float]:
        """What one launch and one wait cost here and now; see `Session.overheads`."""
        launch, sync = self._issuer.executor.overheads()
        return {"overhead.launch_ns": float(launch), "overhead.sync_ns": float(sync)}
