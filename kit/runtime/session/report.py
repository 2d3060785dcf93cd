"""A session described: counters, explanations, the machine.

The counters have the names and the meaning that pytorch/xla's `metrics_report` gave them, but for
`SyncWait`, which it lacks. On a GPU `ExecuteTime` is the time of the launches.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from typing import Any

import jax

from kit.cores import schedulable_cores, usable_cores
from kit.runs.bulk_sizes import BulkSizes, sizes_from_environment
from kit.runtime.compiling.lower import options_for
from kit.runtime.compiling.reasons import CompileLog
from kit.runtime.session.issuer import Issuer
from kit.runtime.steps.stepper import Stepper
from kit.shown import Lines
from kit.text import format_count, format_ms

__all__ = ["Report"]

# (its name in the report, our count, our total, unit of the total, how many of ours are one)
_METRICS = (
    ("CompileTime", "compile.count", "compile.ns", "ms", 1e6),
    ("ExecuteTime", "execute.count", "execute.ns", "ms", 1e6),
    ("OutboundData", "transfer_to_device.count", "transfer_to_device.bytes", "KiB", 1024),
    ("InboundData", "transfer_from_device.count", "transfer_from_device.bytes", "KiB", 1024),
    ("SyncWait", "sync.count", "sync.ns", "ms", 1e6),
)


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
    def log(self) -> CompileLog:
        """The compiles so far, each with its reason."""
        return self._issuer.executor.compiler.log

    def metrics_report(self) -> str:
        """The counters as text, with the meaning that they have in pytorch/xla.

        `UncachedCompile` counts programs that were compiled, `CachedCompile` those found in the
        cache, and each op that ran on the host is listed under its own name, as "aten::name".
        """
        metrics, steps, lines = Counter(self.metrics()), self._issuer.step, list[str]()
        for name, count, total, unit, scale in _METRICS:
            amount = metrics[total] / scale
            a_step = f"{amount / steps:>12.3f} {unit} a step" if steps else ""
            lines.append(f"{name:24}{metrics[count]:>8.0f}{amount:>14.2f} {unit:4}{a_step}")
        counts = {
            "UncachedCompile": metrics["cache.misses"],
            "CachedCompile": metrics["cache.hits"],
        }
        for op, times in sorted(self.unlowered.items()):
            counts[op.replace("aten.", "aten::", 1)] = times
        return "\n".join([*lines, *(f"{name:24}{n:>8.0f}" for name, n in counts.items())])

    def explain(self, sizes: BulkSizes) -> str:
        """What was recorded, how it was cut, and why each program was compiled, in words.

        Args:
            sizes: in force in the thread that asks.
        """
        m = Counter({k: int(v) for k, v in self.metrics().items()})
        compiling, waiting = (format_ms(m[name] / 1e6) for name in ("compile.ns", "sync.ns"))
        cuts = ", ".join(f"{m[k]} by {k[4:]}" for k in sorted(m) if k.startswith("cut."))
        lines = [
            f"{format_count(m['record.ops'], 'op')} recorded, cut into "
            f"{format_count(m['segment.count'], 'segment')} ({cuts})",
            f"{format_count(m['compile.count'], 'compile')} ({compiling}, "
            f"{m['compile.from_disk']} from disk), "
            f"{format_count(m['cache.hits'], 'segment')} found in the cache",
            f"{format_count(m['sync.count'], 'sync point')}, {waiting} waited",
        ]
        said = sizes_from_environment().origin
        environment = f"; in the environment: {said}" if said != "defaults" else ""
        lines.append(f"bulk sizes: {sizes} ({sizes.origin}{environment})")
        if m["check.count"]:
            lines.append(
                f"{format_count(m['check.count'], 'check')} looked at a step later; "
                f"{format_count(m['redo.count'], 'step')} taken back, "
                f"{format_count(m['redo.segments'], 'segment')} run again"
            )
        lines += self._stepper.describe()
        lines += self.log.explain()
        lines += [
            f"failed whole and ran op by op: {what}" for what in self._issuer.executor.recovered
        ]
        for op, n in self.unlowered.most_common():
            took = format_ms(self.unlowered_ns[op] / 1e6)
            lines.append(f"ran on the host, {format_count(n, 'time')}, {took}: {op}")
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
