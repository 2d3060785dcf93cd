"""Freed memory stays with the process: what a device's allocator does, for a device on a CPU.

A GPU's allocator keeps what a step has freed, and the next step finds it again. glibc's gives large
buffers back to the system, and the next step gets them fresh: the system clears each page when it
is first touched, inside of the kernel that touches it. Where that happens depends on sizes and on
the order of frees, not on the program: of BERT's step at batch 8 it was a third where the step
reads a number and nothing where it does not, and 0.4 either way at batch 32. Kernels that take
twice as long for such a reason would be charged to the read.

So glibc is asked for large buffers from its heap, which it does not give back, and for one heap for
all threads that start from now on: the heap of a thread of its own holds at most 64 MB. An older
glibc takes buffers of up to 32 MB from its heap, and gives larger ones back as ever. Other systems
and C libraries keep their ways, and so does a process whose user has set glibc by its
environment.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

from kit.errors import but_of_handlers

__all__ = ["ONE_HEAP", "keep_freed_memory"]

ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}  # of the environment, for a process that starts with threads
_SET = ("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_")  # how a user sets glibc, or another allocator
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of malloc.h
_MOST = 2**31 - 1
_MOST_OF_OLDER = 32 * 2**20  # what an older glibc takes for `_MMAP_THRESHOLD`


@cache
def keep_freed_memory() -> bool:
    """Ask glibc not to give freed memory back to the system; whether it will.

    Once in a process, best before it has threads; it lasts as long as the process.
    """
    theirs = {name for name in os.environ if name.startswith(_SET)}
    if theirs - {*ONE_HEAP}:
        return False
    try:
        if "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""):
            return False
        mallopt = ctypes.CDLL(None).mallopt
    except but_of_handlers(AttributeError, ValueError, OSError):
        return False  # no confstr, no such name, no such library
    # Without this, the other settings would have each buffer of 128 kB given back at once.
    if not any(mallopt(_MMAP_THRESHOLD, most) for most in (_MOST, _MOST_OF_OLDER)):
        return False
    wanted = {_TRIM_THRESHOLD: _MOST}
    if not theirs:
        wanted[_ARENA_MAX] = 1
    taken = [mallopt(name, value) for name, value in wanted.items()]
    return 0 not in taken
