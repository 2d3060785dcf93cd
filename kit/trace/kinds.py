"""Kinds of span, categories of a step's breakdown, causes of idle time: a table of each.

Timelines, the breakdown, colours, legends, exports and saved runs read them, so a new kind is one
row here. A kind's place in `KINDS` is its number in a timeline's column.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "AWAY",
    "BESIDE_WORKERS",
    "BY_TORCH",
    "CATEGORIES",
    "CATEGORY_ROWS",
    "CAUSES",
    "COPY",
    "ELSEWHERE",
    "GAP_CAUSES",
    "KINDS",
    "LEGEND",
    "LIMITS",
    "MADE_ANEW",
    "NOT_BEGUN",
    "OF_WORKERS",
    "ON_DEVICE",
    "OWN",
    "RECORDING",
    "SPAN_KINDS",
    "TRACE",
    "WORKERS_BEGIN",
    "WORKERS_END",
    "Category",
    "GapCause",
    "Key",
    "SpanKind",
]

# What may bound a step; of two that take equally long, the first in this order counts.
LIMITS = (
    "device",
    "recording",
    "sync",
    "input",
    "elsewhere",
    "own",
    "dispatch",
    "compile",
    "reduction",
    "communication",
    "callback",
    "dependency",
    "program",
    "unknown",
)
# Input spans of a loader with workers: of a batch that they prepare; of one for which this process
# works most of that time itself, as in a sampler; and of what starts and joins them.
OF_WORKERS, BESIDE_WORKERS = "next batch, of workers", "next batch, beside workers"
# How an input span of one array that the program gives begins, a loader's included; a line follows.
COPY = "copy to device"
# How a span begins in which jax runs a function to see its ops; "f at train.py:3: why" follows.
TRACE, MADE_ANEW = "trace of ", "the function was made anew"  # why, of one like one before
BY_TORCH = "torch.compile"  # how a span begins in which that compiles; " at train.py:3" may follow
WORKERS_BEGIN, WORKERS_END = "workers begin", "workers end"
ELSEWHERE, OWN = "host waits elsewhere", "own code"  # categories, and causes of idle time
NOT_BEGUN = "not begun"  # a cause
RECORDING = "recording"  # of a phase: each phase has a category of its own


@dataclass(frozen=True, slots=True)
class SpanKind:
    """One kind of span."""

    name: str
    title: str  # for legends
    color: str = ""  # its key in the theme's colours; "": in no legend
    category: str = ""  # of the breakdown; "": charged to none
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Category:
    """One row of a step's breakdown."""

    name: str
    charged: int  # of what goes on at one instant, the least is charged with the instant
    limit: str  # one of LIMITS: what bounds a step that goes there
    color: str = ""  # its key in the theme's colours
    phase: str = ""  # only spans of this name; the category of their kind is then RECORDING
    is_away: bool = False  # a thread in it does not record, though its phase goes on


@dataclass(frozen=True, slots=True)
class GapCause:
    """Why a device may be idle: one row for each cause that a gap can have."""

    name: str
    color: str  # its key in the theme's colours; "" for a grey
    limit: str  # one of `kit.trace.LIMITS`: what bounds a step with such gaps
    said: str  # a clause for people


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a legend: a kind, or a phase of recording."""

    name: str
    title: str
    color: str


SPAN_KINDS = (
    SpanKind("step", "step", meaning="one whole step"),
    SpanKind("record", "record", category=RECORDING, meaning="the host records ops of a phase"),
    SpanKind("plan", "plan", "plan", meaning="the host cuts a segment"),
    SpanKind("lower", "lower", "lower", "compile", "ops become jax"),
    SpanKind("compile", "compile", "compile", "compile", "jax becomes a program"),
    SpanKind("dispatch", "dispatch", "dispatch", "dispatch", "a program is handed to the device"),
    SpanKind("wait", "wait (sync)", "wait", "sync wait", "the host waits for the device"),
    SpanKind("input", "input", "input", "input", "the host prepares or copies a batch"),
    SpanKind("kernel", "kernel", "kernel", "device busy", "what the device computes"),
    SpanKind(
        "ahead",
        "host is ahead",
        "ahead",
        meaning="the host has nothing to do until the device catches up, and lets it",
    ),
    SpanKind("device step", "device step", meaning="from the first to the last kernel of a step"),
    SpanKind(
        "reduction",
        "reduction (gradients)",
        "reduction",
        "reduction",
        "gradients travel between devices, on a lane of the device that they go to",
    ),
    SpanKind(
        "elsewhere",
        "host waits elsewhere",
        "elsewhere",
        ELSEWHERE,
        "the host neither computes nor waits for the device: it sleeps, reads a file, takes a "
        "lock (named after its line), or is in a call of the device's runtime (named after that)",
    ),
    SpanKind(
        "own",
        "own code",
        "own",
        OWN,
        "the program computes on the host between two ops: its own Python, or a library that it "
        "calls (on device kit ops of torch on CPU tensors, too); named after its line",
    ),
    SpanKind(
        "communication",
        "communication",
        "communication",
        "communication",
        "a kernel that sends to other devices, or waits for them: NCCL's and their like",
    ),
    SpanKind(
        "callback",
        "host callback",
        "callback",
        "host callback",
        "a kernel that calls a Python function of the program's and waits for it",
    ),
)

# In the order in which a breakdown lists them.
CATEGORY_ROWS = (
    Category("device busy", 0, "device", "kernel"),
    Category("communication", 1, "communication", "communication"),
    Category("host callback", 2, "callback", "callback"),
    Category("reduction", 3, "reduction", "reduction"),
    Category("compile", 4, "compile", "compile"),
    Category("dispatch", 5, "dispatch", "dispatch"),
    Category("forward recording", 10, "recording", "forward", phase="forward"),
    Category("backward recording", 11, "recording", "backward", phase="backward"),
    Category("update recording", 12, "recording", "update", phase="update"),
    Category("input", 7, "input", "input", is_away=True),
    Category("sync wait", 6, "sync", "wait", is_away=True),
    Category(ELSEWHERE, 8, "elsewhere", "elsewhere", is_away=True),
    Category(OWN, 9, "own", "own", is_away=True),
    Category("unknown", 13, "unknown"),
)

CAUSES = (
    GapCause("host recording", "forward", "recording", "the host was recording what comes next"),
    GapCause("compile", "compile", "compile", "a program was being compiled"),
    GapCause("dispatch", "dispatch", "dispatch", "a program was being handed to the device"),
    GapCause("sync point", "wait", "sync", "the host waited for the device"),
    GapCause(ELSEWHERE, "elsewhere", "elsewhere", "the host slept, or waited (file, lock, driver)"),
    GapCause(OWN, "own", "own", "the program computed on the host, between two ops"),
    GapCause("input", "input", "input", "the host prepared or copied a batch"),
    GapCause("reduction", "reduction", "reduction", "gradients were on their way between devices"),
    GapCause(
        "communication",
        "communication",
        "communication",
        "a collective ran, and nothing computed: it sent, or waited for other devices",
    ),
    GapCause(
        "host callback", "callback", "callback", "it waited for Python that its program calls"
    ),
    GapCause(
        "dependency",
        "plan",
        "dependency",
        "another device, or the kernel before, had to finish first",
    ),
    GapCause("program", "kernel", "program", "between the kernels of one program"),
    GapCause(
        NOT_BEGUN,
        "lower",
        "unknown",
        "the device had been given work and did not begin: what it did is not in the file",
    ),
    GapCause("unknown", "", "unknown", "no work of the host or of a device was seen"),
)

KINDS = tuple(kind.name for kind in SPAN_KINDS)
# While one of these goes on a thread records nothing, though its phase goes on.
_AWAY_ROWS = {row.name for row in CATEGORY_ROWS if row.is_away}
AWAY = ("ahead", *(kind.name for kind in SPAN_KINDS if kind.category in _AWAY_ROWS))
# What a call launches on a device: the first computes or copies, the others only wait or send.
ON_DEVICE = ("kernel", "communication", "callback")
CATEGORIES = tuple(row.name for row in CATEGORY_ROWS)
GAP_CAUSES = tuple(row.name for row in CAUSES)
# Of views that draw spans: a phase stands for the recording of its ops.
LEGEND = (
    *(Key(row.phase, row.phase, row.color) for row in CATEGORY_ROWS if row.phase),
    *(Key(kind.name, kind.title, kind.color) for kind in SPAN_KINDS if kind.color),
)
