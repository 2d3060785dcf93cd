"""A watch of a script's steps that begins once the script has loaded torch."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kit.errors import SettingsError
from kit.threads import waits_for_the_end

if TYPE_CHECKING:
    from kit.measure.attached.loop import LoopWatch
    from kit.runs.run import Run

__all__ = ["WithTorch"]

_LOOK_S = 0.2  # between two looks at the threads that are waited for


class WithTorch:
    """A watch of a script's steps, from the time on at which the script has loaded torch.

    Not before it: torch and its libraries read the environment as they are loaded, and a script may
    set that first, such as `OMP_NUM_THREADS`.

    Attributes:
        exits: what ends the watch, and all else that was begun. A context, left by contextlib's
            lines: an error in one of ours, in an `__exit__`, would leave the watch on.
        has_failed: an error of the script's has ended it, and has been told.
        has_stopped: `--stop` has ended it, and perhaps not its threads and processes.
    """

    def __init__(self, begin: Callable[[], LoopWatch]) -> None:
        self._begin = begin
        self._process = os.getpid()
        self._path = sys.path[:]  # ours, without the script's folder
        self._threads = set(threading.enumerate())
        self._excepthook = sys.excepthook
        self._watch: LoopWatch | None = None
        self.exits = contextlib.ExitStack()
        self.has_failed = self.has_stopped = False

    def begin(self) -> None:
        """Watch from now on, or once torch is loaded."""
        if "torch" in sys.modules:
            self._loaded()
        else:
            self.exits.callback(self._leave_imports)
            sys.meta_path.insert(0, self)

    @property
    def run(self) -> Run:
        """What was recorded.

        Raises:
            SettingsError: no step was.
        """
        if self._watch is None:
            raise SettingsError("the script has not loaded torch")
        return self._watch.run

    def tell(self, error: BaseException) -> None:
        """An error ends the script: call its own `sys.excepthook`, if it has put one there."""
        if sys.excepthook not in (self._excepthook, sys.__excepthook__):
            with contextlib.suppress(Exception, SystemExit):  # the error is told anyhow
                sys.excepthook(type(error), error, error.__traceback__)

    @property
    def failed(self) -> str:
        """Why a recording failed, in words; "" if none did."""
        from kit.measure.attached.recorder import FAILED

        ended = self._watch.ended if self._watch is not None else ""
        return ended if ended.startswith(FAILED) else ""

    @property
    def is_forked(self) -> bool:
        """Whether this is a child that the script has forked; it is not watched."""
        return os.getpid() != self._process

    @property
    def has_run(self) -> bool:
        """Whether a recording has been finished."""
        return self._watch is not None and bool(self._watch.runs)

    def wait_for_threads(self) -> None:
        """Wait for the script's threads, which are watched meanwhile; Python does at its end.

        Not for those of a pool, which end once Python tells them that it ends, nor for those that
        join the main thread. Others look whether that is alive: it has ended, as far as they know.
        """
        main = threading.main_thread()
        with contextlib.ExitStack() as undo:
            undo.callback(vars(main).pop, "is_alive", None)
            vars(main)["is_alive"] = lambda: False
            while threads := [t for t in self._threads_now() if not waits_for_the_end(t)]:
                threads[0].join(_LOOK_S)

    @property
    def has_threads(self) -> bool:
        """Whether threads of the script go on, for which Python waits at its end."""
        return bool(self._threads_now())

    def _threads_now(self) -> list[threading.Thread]:
        return [t for t in threading.enumerate() if not (t.daemon or t in self._threads)]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """For Python's import: where torch is, by whoever else knows; and to hear of its end."""
        if name != "torch":
            return None
        finders = (f.find_spec for f in sys.meta_path if f is not self)
        found = next(filter(None, (find(name, path, target) for find in finders)), None)
        if found is not None and found.loader is not None:
            load = found.loader.exec_module

            def then(module: ModuleType) -> None:
                load(module)
                self._loaded()

            found.loader.exec_module = then  # type: ignore[method-assign]
        return found

    def _loaded(self) -> None:
        self._leave_imports()
        if self.is_forked:
            return
        path = sys.path[:]
        try:
            # The script's folder comes last: other threads of it may import from there meanwhile.
            sys.path[:] = [*self._path, *(folder for folder in path if folder not in self._path)]
            watch = self._begin()
            watch.strangers = self._threads  # not those that the script has begun since
            self._watch = self.exits.enter_context(watch)
        finally:
            sys.path[:] = path

    def _leave_imports(self) -> None:
        with contextlib.suppress(ValueError):  # it has left, or never come
            sys.meta_path.remove(self)
