"""The public names of kit, and where each lives: the one table.

`kit/__init__.py` reads this file and imports a name at its first use. A type checker and an editor
read it too. `from kit import *` gives the names below, without `ir`, `jax` and `trace`.
"""

from kit import errors as errors
from kit import ir as ir
from kit import jax as jax
from kit import trace as trace
from kit import workloads as workloads
from kit.api import Explorer as Explorer
from kit.api import Session as Session
from kit.api import autotune as autotune
from kit.api import bulk as bulk
from kit.api import compare as compare
from kit.api import plan as plan
from kit.api import report as report
from kit.api import run as run
from kit.api import set_bulk_size as set_bulk_size
from kit.api import sweep as sweep
from kit.formats.export import export_trace as export_trace
from kit.formats.memory_snapshot import open_memory as open_memory
from kit.formats.ranks.ask import query_ranks as query_ranks
from kit.formats.ranks.read import open_ranks as open_ranks
from kit.formats.readers import open_trace as open_trace
from kit.measure.attached.loop import LoopWatch as LoopWatch
from kit.measure.attached.loop import watch as watch
from kit.measure.base.context import Context as Context
from kit.measure.base.context import Workload as Workload
from kit.measure.base.context import workload as workload
from kit.measure.base.knobs import knob as knob
from kit.runs.analysis.diff import RunDiff as RunDiff
from kit.runs.analysis.diff import diff_runs as diff_runs
from kit.runs.analysis.kernels import kernel_table as kernel_table
from kit.runs.analysis.lines import line_costs as line_costs
from kit.runs.analysis.memory import memory as memory
from kit.runs.analysis.segments import segment_costs as segment_costs
from kit.runs.device.callers import caller_table as caller_table
from kit.runs.gradients import Link as Link
from kit.runs.run import Run as Run
from kit.runs.settings import Settings as Settings
from kit.runs.whatif.predict import Prediction as Prediction
from kit.runs.whatif.predict import predict as predict
from kit.runtime.processes.join import join_processes as join_processes
from kit.runtime.profiling.ceilings import measure_ceilings as measure_ceilings
from kit.runtime.rules.default import DEFAULT_RULES as DEFAULT_RULES
from kit.runtime.rules.table import Rules as Rules
from kit.torch.hybrid.hybrid import hybridize as hybridize
from kit.torch.hybrid.multi import all_finite as all_finite
from kit.torch.hybrid.multi import clip_by_global_norm as clip_by_global_norm
from kit.torch.hybrid.multi import global_norm as global_norm
from kit.torch.hybrid.multi import multi_adamw as multi_adamw
from kit.torch.hybrid.multi import multi_lamb as multi_lamb
from kit.torch.hybrid.multi import multi_sgd as multi_sgd
from kit.torch.hybrid.multi import reset_arrays as reset_arrays
from kit.torch.parallel.barrier import Barrier as Barrier
from kit.torch.parallel.batch_norm import SyncBatchNorm as SyncBatchNorm
from kit.torch.parallel.data_parallel import DataParallel as DataParallel
from kit.torch.parallel.data_parallel import Shards as Shards
from kit.torch.trainers import lightning_strategy as lightning_strategy
from kit.trace.kernels import Ceilings as Ceilings
from kit.widgets.compare.view import Comparison as Comparison
from kit.widgets.explorer.linked import link_selections as link_selections
from kit.widgets.graph.view import GraphView as GraphView
from kit.widgets.memory.view import MemoryView as MemoryView
from kit.widgets.numbers.callers import CallerView as CallerView
from kit.widgets.numbers.compiles import CompileView as CompileView
from kit.widgets.numbers.gaps import GapView as GapView
from kit.widgets.numbers.kernels import KernelView as KernelView
from kit.widgets.numbers.parallel import ParallelView as ParallelView
from kit.widgets.numbers.plan import PlanView as PlanView
from kit.widgets.numbers.run_diff import RunDiffView as RunDiffView
from kit.widgets.numbers.segments import SegmentView as SegmentView
from kit.widgets.numbers.source import SourceView as SourceView
from kit.widgets.numbers.whatif import WhatIfView as WhatIfView
from kit.widgets.ranks.view import RanksView as RanksView
from kit.widgets.timeline.view import TimelineView as TimelineView

__version__: str
__all__: list[str]
