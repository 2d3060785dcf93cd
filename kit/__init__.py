"""kit: a microscope for the time between the host and the device in a training step.

    import kit
    from kit.workloads import bert

    run = kit.run(bert, kit.Settings(bulk_forward=15))
    kit.Explorer(bert)

Importing `kit` loads neither torch nor jax nor bokeh: a public name is imported at its first use.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kit import errors as errors
    from kit import jax as jax
    from kit.api import (
        Explorer,
        Session,
        autotune,
        bulk,
        compare,
        open_trace,
        plan,
        report,
        run,
        set_bulk_size,
        sweep,
    )
    from kit.formats.export import export_trace
    from kit.frontend.torch_hybrid import hybridize
    from kit.frontend.torch_multi import (
        all_finite,
        clip_by_global_norm,
        global_norm,
        multi_adamw,
        multi_lamb,
        multi_sgd,
        reset_arrays,
    )
    from kit.frontend.torch_parallel import DataParallel, Shards
    from kit.frontend.torch_parallel_barrier import Barrier
    from kit.frontend.torch_parallel_norm import SyncBatchNorm
    from kit.runs.analysis.diff import RunDiff, diff_runs
    from kit.runs.analysis.gradients import Link
    from kit.runs.analysis.kernels import Ceilings, kernel_table
    from kit.runs.analysis.lines import line_costs
    from kit.runs.analysis.memory import memory
    from kit.runs.analysis.segments import segment_costs
    from kit.runs.run import Run, Settings
    from kit.runs.whatif.predict import Prediction, predict
    from kit.runtime.ceilings import measure_ceilings
    from kit.runtime.processes import join_processes
    from kit.runtime.rules import Rules
    from kit.runtime.rules_all import DEFAULT_RULES
    from kit.widgets.compare import Comparison
    from kit.widgets.compiles import CompileView
    from kit.widgets.gaps import GapView
    from kit.widgets.graph import GraphView
    from kit.widgets.kernels import KernelView
    from kit.widgets.memory import MemoryView
    from kit.widgets.parallel import ParallelView
    from kit.widgets.plan import PlanView
    from kit.widgets.run_diff import RunDiffView
    from kit.widgets.segments import SegmentView
    from kit.widgets.source import SourceView
    from kit.widgets.timeline import TimelineView
    from kit.widgets.whatif import WhatIfView
    from kit.workloads.context import Context, Workload, workload

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_RULES",
    "Barrier",
    "Ceilings",
    "Comparison",
    "CompileView",
    "Context",
    "DataParallel",
    "Explorer",
    "GapView",
    "GraphView",
    "KernelView",
    "Link",
    "MemoryView",
    "ParallelView",
    "PlanView",
    "Prediction",
    "Rules",
    "Run",
    "RunDiff",
    "RunDiffView",
    "SegmentView",
    "Session",
    "Settings",
    "Shards",
    "SourceView",
    "SyncBatchNorm",
    "TimelineView",
    "WhatIfView",
    "Workload",
    "all_finite",
    "autotune",
    "bulk",
    "clip_by_global_norm",
    "compare",
    "diff_runs",
    "errors",
    "export_trace",
    "global_norm",
    "hybridize",
    "join_processes",
    "kernel_table",
    "line_costs",
    "measure_ceilings",
    "memory",
    "multi_adamw",
    "multi_lamb",
    "multi_sgd",
    "open_trace",
    "plan",
    "predict",
    "report",
    "reset_arrays",
    "run",
    "segment_costs",
    "set_bulk_size",
    "sweep",
    "workload",
]

_HOMES = {
    "Barrier": "kit.frontend.torch_parallel_barrier",
    "DataParallel": "kit.frontend.torch_parallel",
    "Shards": "kit.frontend.torch_parallel",
    "Link": "kit.runs.analysis.gradients",
    "SyncBatchNorm": "kit.frontend.torch_parallel_norm",
    "join_processes": "kit.runtime.processes",
    "memory": "kit.runs.analysis.memory",
    "GapView": "kit.widgets.gaps",
    "KernelView": "kit.widgets.kernels",
    "MemoryView": "kit.widgets.memory",
    "RunDiffView": "kit.widgets.run_diff",
    "RunDiff": "kit.runs.analysis.diff",
    "diff_runs": "kit.runs.analysis.diff",
    "Ceilings": "kit.runs.analysis.kernels",
    "kernel_table": "kit.runs.analysis.kernels",
    "measure_ceilings": "kit.runtime.ceilings",
    "Comparison": "kit.widgets.compare",
    "CompileView": "kit.widgets.compiles",
    "DEFAULT_RULES": "kit.runtime.rules_all",
    "Rules": "kit.runtime.rules",
    "Context": "kit.workloads.context",
    "Explorer": "kit.api",
    "GraphView": "kit.widgets.graph",
    "ParallelView": "kit.widgets.parallel",
    "PlanView": "kit.widgets.plan",
    "SegmentView": "kit.widgets.segments",
    "SourceView": "kit.widgets.source",
    "line_costs": "kit.runs.analysis.lines",
    "Run": "kit.runs.run",
    "Session": "kit.api",
    "Settings": "kit.runs.run",
    "TimelineView": "kit.widgets.timeline",
    "WhatIfView": "kit.widgets.whatif",
    "Workload": "kit.workloads.context",
    **dict.fromkeys(
        (
            "all_finite",
            "clip_by_global_norm",
            "global_norm",
            "multi_adamw",
            "multi_lamb",
            "multi_sgd",
            "reset_arrays",
        ),
        "kit.frontend.torch_multi",
    ),
    "hybridize": "kit.frontend.torch_hybrid",
    "autotune": "kit.api",
    "bulk": "kit.api",
    "compare": "kit.api",
    "export_trace": "kit.formats.export",
    "open_trace": "kit.api",
    "plan": "kit.api",
    "report": "kit.api",
    "run": "kit.api",
    "set_bulk_size": "kit.api",
    "segment_costs": "kit.runs.analysis.segments",
    "Prediction": "kit.runs.whatif.predict",
    "predict": "kit.runs.whatif.predict",
    "sweep": "kit.api",
    "workload": "kit.workloads.context",
}

# `jax` is not in __all__: `from kit import *` must not hide the user's own jax.
_ROOMS = frozenset({"errors", "jax"})


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"kit.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'kit' has no attribute {name!r}", name=name)
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # the next use finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})


class _Package(ModuleType):
    """Keeps `kit.run` and `kit.report` the functions, though files of the same names exist.

    Python binds a submodule to its package when it is first imported, and an import from it
    would so hide the function. Such an import still works; only that binding is left out.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """By name: pickle knows no modules, and cloudpickle only those of Python's own class."""
        return importlib.import_module, (__name__,)


sys.modules[__name__].__class__ = _Package
