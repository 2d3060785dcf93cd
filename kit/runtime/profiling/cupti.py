"""Is the profiling interface of CUDA (CUPTI) free? It serves one profiler of a process at a time.

torch's keeps it after its profile, and XLA's, which then sees nothing, writes errors to the
terminal and is deaf for the rest of the process: so it is not begun then. Seen on an H100 with
CUDA 13.0, torch 2.11 and jax 0.11.2.
"""

from __future__ import annotations

import ctypes

from kit.runtime.profiling.libraries import loaded

__all__ = ["TAKEN", "has_subscriber"]

TAKEN = (
    "no device kernels: another profiler of this process, such as torch's, holds CUDA's profiling "
    "interface (CUPTI), which serves one at a time; end that profile first. Torch's lets go only "
    "where TEARDOWN_CUPTI=1 was in the environment"
)
_DRIVER = "libcuda.so.1"  # without it CUPTI 13.2 ends the process: it calls itself for ever
_LIBRARIES = ("libcupti.so.13", "libcupti.so.12", "libcupti.so")
_MULTIPLE_SUBSCRIBERS = 39  # CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
_CALLED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
_nothing = _CALLED(lambda *_: None)  # it is asked for nothing, so it is never called


def has_subscriber() -> bool:
    """Does a profiler of this process hold CUPTI now?"""
    library = loaded(*_LIBRARIES)  # not loaded for the question
    if library is None or loaded(_DRIVER) is None:
        return False
    subscriber = ctypes.c_void_p()
    status: int = library.cuptiSubscribe(ctypes.byref(subscriber), _nothing, None)
    if not status:
        library.cuptiUnsubscribe(subscriber)
    return status == _MULTIPLE_SUBSCRIBERS
