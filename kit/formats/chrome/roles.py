"""What each event of a Chrome trace is for, by its category and its name."""

from __future__ import annotations

import re

from kit.trace.communication import READS
from kit.trace.devices import (
    compiles,
    is_free,
    is_launch,
    is_runtimes,
    is_transfer,
    is_wait,
    sends_on_host,
)
from kit.trace.host import ENGINE
from kit.trace.kinds import KINDS

__all__ = [
    "ATEN_OPS",
    "EXPORTED",
    "HOST",
    "LAUNCHES",
    "OPS",
    "RUNTIME",
    "WORK",
    "Role",
    "is_torchs",
    "role_of",
]

EXPORTED = "kit."  # categories of our own files: "kit.kernel", "kit.sync"
_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_CALLS = frozenset({"cuda_runtime", "cuda_driver", "runtime", "hip_runtime"})
HOST = frozenset({"cpu_op", "operator", "user_annotation"})
# Categories of other programs, too: of Linux's traces, MXNet, ONNX Runtime.
_SHARED = frozenset({"kernel", "memcpy", "memset", "runtime", "operator"})
_KNOWN = (_GPU | _CALLS | HOST) - _SHARED
# "MmBackward0", "torch::autograd::AccumulateGrad"
_GRADIENT = re.compile(r"torch::autograd::|\w+Backward\d*$")


class Role:
    """What an event is for, as a small number."""

    OTHER, STEP, UPDATE, ENGINE, ATEN, READ, COPY, FINISH, INPUT, COMPILE = range(10)
    PYTHON, LAUNCH, TRANSFER, WAIT, KERNEL = range(10, 15)
    ANNOTATION = 15  # of the program: it may stand for a step
    COLLECTIVE = 16  # of a library that communicates on the host
    ASKED = 17  # the op that launches a collective: says what it is
    CALL = 18  # an op that is none of aten's
    GRADIENT = 19  # a function of autograd: an ENGINE if the file has no engine, else a CALL
    FREE = 20  # a call that gives memory back, and may wait for the device
    RUNTIME = 21  # any other call of CUDA's or HIP's that neither launches, copies nor waits
    OWN = 22  # our own spans: OWN + the number of their kind
    OWN_SYNC = 50


ATEN_OPS = frozenset({Role.ATEN, Role.READ, Role.COPY})
LAUNCHES = (Role.LAUNCH, Role.TRANSFER)
RUNTIME = (Role.FREE, Role.RUNTIME)
OPS = ATEN_OPS | {Role.CALL, Role.ENGINE, Role.GRADIENT}
# What a thread of the host does, but for Python and what the program has marked.
WORK = (*OPS, *LAUNCHES, *RUNTIME, Role.WAIT, Role.INPUT, Role.COMPILE, Role.COLLECTIVE)


def role_of(category: str, name: str) -> int:
    """The role of events of a category, in small letters, and a name."""
    if category.startswith(EXPORTED):
        kind = category.removeprefix(EXPORTED)
        if kind == "sync":
            return Role.OWN_SYNC
        return Role.OWN + KINDS.index(kind) if kind in KINDS else Role.OTHER
    if category in _GPU:
        return Role.KERNEL
    if category in _CALLS:
        return _role_of_call(name)
    if category == "python_function":
        return Role.PYTHON
    if category not in HOST:
        return Role.OTHER
    role = _role_of_host(name)
    if role != Role.OTHER:
        return role
    if category == "user_annotation":
        return Role.ANNOTATION
    return Role.GRADIENT if _GRADIENT.match(name) else Role.CALL


def is_torchs(category: str, role: int) -> bool:
    """Does nobody but torch, or the kit, write such an event? Of a kernel its arguments say it."""
    if category in _SHARED:
        return role not in (Role.OTHER, Role.KERNEL, Role.CALL)
    return role != Role.OTHER or category in _KNOWN


def _role_of_call(name: str) -> int:
    """By the name of a function of CUDA's or HIP's."""
    if is_wait(name):
        return Role.WAIT
    if is_launch(name):
        return Role.LAUNCH
    if is_transfer(name):
        return Role.TRANSFER
    if is_free(name):
        return Role.FREE
    return Role.RUNTIME if is_runtimes(name) else Role.OTHER


def _role_of_host(name: str) -> int:
    if name.startswith("aten::"):
        if name in READS:
            return Role.READ
        return Role.COPY if name == "aten::copy_" else Role.ATEN
    if sends_on_host(name):
        return Role.COLLECTIVE
    if name == "record_param_comms":
        return Role.ASKED
    for start, role in _BY_START:
        if name.startswith(start):
            return role
    return Role.COMPILE if compiles(name) else Role.OTHER


_BY_START = (
    ("ProfilerStep#", Role.STEP),
    ("kit step ", Role.STEP),
    ("Optimizer.", Role.UPDATE),
    (ENGINE, Role.ENGINE),
    ("enumerate(DataLoader)", Role.INPUT),
    ("kit finish", Role.FINISH),
)
