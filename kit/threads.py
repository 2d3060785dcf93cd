"""Start a thread, or say clearly that there are too many; read another one's stack; time limits;
when no garbage is collected; which objects live, without harm to other threads; how a forked child
ends, which has none of its parent's threads.

A thread that could not start must not be remembered as one that runs: whoever waits for its work
would wait for ever. So threads are started here, and kept by their owner afterwards.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading
from _thread import allocate_lock
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import chain
from numbers import Real
from typing import Any, NoReturn, TypeVar

from kit.errors import EngineError, SettingsError, but_of_handlers, suppressed

__all__ = [
    "check_timeout",
    "end_at_once",
    "exit_status",
    "forked",
    "in_forked_children",
    "living",
    "living_types",
    "read_stacks",
    "start_thread",
    "waits_for_the_end",
    "without_collection",
]

R = TypeVar("R")

_BEGIN_S = 30.0  # after which a new thread is taken for dead

_MOST_S = 1e9  # seconds, 30 years: Python's locks take nine times as many, jax's runtime twice
_COLLECTS_IN_FRAMES = sys.version_info < (3, 12)


class _Collector:
    """Python's garbage collector: off as long as a block of any thread needs it off.

    Each method may be called again for the same block, after an interrupt within the first call.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # an interrupt's handler may begin a block, too
        self._blocks: set[object] = set()
        self._was_on = False  # before the first of these

    def stop(self, block: object) -> None:
        """A block begins."""
        with self.lock:
            self._blocks.add(block)
            self._was_on |= gc.isenabled()
            gc.disable()

    def resume(self, block: object) -> None:
        """A block ends."""
        with self.lock:
            self._blocks.discard(block)
            if self._was_on and not self._blocks:
                gc.enable()
                self._was_on = False

    def begin_child(self) -> None:
        """In a forked child: the blocks are its parent's, whose other threads are not here."""
        self._blocks.clear()
        self.resume(None)
        self.lock.release()


_COLLECTOR = _Collector()
if hasattr(os, "register_at_fork"):  # not while another thread is within a method
    os.register_at_fork(
        before=_COLLECTOR.lock.acquire,
        after_in_parent=_COLLECTOR.lock.release,
        after_in_child=_COLLECTOR.begin_child,
    )


class _Begun(threading.Event):
    """Set by a new thread as it begins; `Thread.start` waits for it.

    Python's own waits for ever: a thread that has no memory for its first line never sets it. And
    after an interrupt of that wait the thread would work, though its starter knows of none.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_late = self._is_counted_on = False
        self._gate = allocate_lock()  # the thread waits at it until its starter is through
        self._gate.acquire()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the thread has begun.

        Raises:
            RuntimeError: it does not.
        """
        if not super().wait(_BEGIN_S if timeout is None else timeout):
            self._is_late = True
            raise RuntimeError(f"it did not begin within {_BEGIN_S:g} s")
        return True

    def run(self, work: Callable[..., object], *args: Any) -> None:
        """Do the work, unless nobody counts on it any more."""
        self._gate.acquire()
        if self._is_counted_on:
            work(*args)

    def let_run(self) -> None:
        """The starter counts on the thread."""
        self._is_counted_on = True
        self._gate.release()

    def forget(self, thread: threading.Thread) -> None:
        """The thread is not counted on, and not among those that Python names.

        One that begins although this failed (no memory to wait for it) takes its name away itself.
        """
        self._is_counted_on = False
        if self._gate.locked():
            self._gate.release()
        known: dict[threading.Thread, Any] = threading._limbo  # type: ignore[attr-defined]
        if thread in known and not self._is_late:
            super().wait(_BEGIN_S)
        if not self.is_set():
            known.pop(thread, None)


def start_thread(
    work: Callable[..., object], name: str, *, args: Sequence[Any] = (), is_daemon: bool = True
) -> threading.Thread:
    """A thread that does this, and runs.

    Args:
        is_daemon: Python does not wait for it where the program ends.

    Raises:
        EngineError: the system gives no more threads, or Python is ending.
    """
    begun = _Begun()
    target = partial(begun.run, work)
    thread = threading.Thread(target=target, name=name, args=args, daemon=is_daemon)
    thread._started = begun  # type: ignore[attr-defined]
    try:
        try:
            thread.start()
            begun.let_run()
        except BaseException:
            begun.forget(thread)
            raise
    except but_of_handlers(RuntimeError, MemoryError) as error:
        cure = "end other threads, free memory, or raise the limit (ulimit -u, -v)"
        if "shutdown" in str(error):
            cure = "Python is ending; join the thread that still trains before the main one ends"
        raise EngineError(f"no thread for {name!r} could be started ({error}): {cure}") from error
    return thread


def check_timeout(seconds: Any) -> None:
    """Refuse what nobody can wait for.

    Raises:
        SettingsError: it is no number of seconds above 0, or more than some system can count.
    """
    is_number = isinstance(seconds, Real) and not isinstance(seconds, bool)
    if not (is_number and 0 < seconds <= _MOST_S):
        raise SettingsError(
            f"a timeout must be more than 0 seconds, and at most {_MOST_S:g}, not {seconds!r}"
        )


def forked(owner: str) -> EngineError:
    """What a forked child is told that uses what belongs to its parent.

    Args:
        owner: "the engine", "this kit session".
    """
    return EngineError(
        f"this process was forked from the one that owns {owner}, and threads do not survive a "
        "fork: read what the child needs before forking, or start the child with the 'spawn' method"
    )


def in_forked_children(call: Callable[[], object]) -> None:
    """Have this called in each forked child from now on: that cannot be taken back."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
        os.register_at_fork(after_in_child=call)


def exit_status(code: Any) -> int:
    """What a process that ends with `SystemExit(code)` gives to its shell; a text is written."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(2**63) <= code < 2**63 else 0xFF
    with suppressed(OSError):  # a full disk
        sys.stderr.write(f"{code}\n")
    return 1


def end_at_once(status: int) -> NoReturn:
    """End this process as Python does, but wait for no thread, and for nothing of libraries.

    In a forked child torch's profiler and libgomp wait there for threads that only the parent has.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or a program's own kind
            stream.flush()
    os._exit(status)


def read_stacks(read: Callable[[], R]) -> R:
    """What a function gives that goes through the frames of other threads.

    Python 3.11 makes the object of a frame when somebody asks for it, and may collect garbage while
    it does. What that calls lets other threads run, and one that leaves the frame meanwhile makes
    the process crash, now or later. So nothing is collected here. Later Pythons collect elsewhere.
    """
    with without_collection() if _COLLECTS_IN_FRAMES else contextlib.nullcontext():
        return read()


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """No garbage is collected until the block has ended, and each that has begun meanwhile."""
    block = object()
    try:
        try:
            _COLLECTOR.stop(block)
            yield
        finally:
            _COLLECTOR.resume(block)
    finally:  # twice, as an interrupt may come before the first
        _COLLECTOR.resume(block)


def waits_for_the_end(thread: threading.Thread) -> bool:
    """Does a thread end once Python ends, and not before?"""
    return thread in _of_pools() or read_stacks(lambda: _joins_main(thread))


def _joins_main(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        is_join = frame.f_code is threading.Thread.join.__code__
        if is_join and frame.f_locals.get("self") is threading.main_thread():
            return True
        frame = frame.f_back
    return False


def _of_pools() -> Collection[threading.Thread]:
    """The threads of all pools of `concurrent.futures`."""
    return getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", ())


def living(*kinds: type) -> list[Any]:
    """All objects of these classes, which are written in Python, and of their subclasses.

    Not by a list of all objects: while another thread makes a tuple of a generator, one more
    reference to what is half made, as in such a list, is a `SystemError` there.
    """
    found = {kind for kind in living_types() if issubclass(kind, kinds)}
    return [x for x in gc.get_referrers(*found) if type(x) in found] if found else []


def living_types() -> set[type]:
    """The types of all objects, gathered while no other thread can run."""
    return {*map(type, chain.from_iterable(map(gc.get_objects, (None,))))}
