"""Compiled programs on disk, by jax's own persistent cache: a second kernel compiles nothing.

The cache is a setting of the whole process, so it serves the user's own jax as well. Whoever has
set `JAX_COMPILATION_CACHE_DIR` keeps that folder; `KIT_CACHE_DIR` names another one than the
default, and empty switches the cache off.

jax finds out what to keep, and by which key; what lies on disk is a `SealedFolder`. jax's own
folder runs whatever lies in it, never replaces a torn entry, and with a largest size it reads the
time of each entry at each write, under a lock that a stopped process keeps. jax has no public way
to give it another one, so the only name of jax's that is replaced is here.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from kit.runtime.compiling.sealed import SealedFolder
from kit.text import safe_terminal
from kit.versions import tried_text

try:
    from jax._src import compilation_cache as jax_cache
except ImportError:  # a jax that keeps it elsewhere: then nothing is kept on disk
    jax_cache = None  # type: ignore[assignment]
try:
    from jax._src import config as jax_config
except ImportError:  # then what is compiled ahead is found in its own process only
    jax_config = None  # type: ignore[assignment]

__all__ = ["counting_hits", "is_private", "use_disk_cache", "without_lines"]

_HIT = "/jax/compilation_cache/cache_hits"
_counter = threading.local()


def use_disk_cache() -> None:
    """Switch jax's persistent cache on, unless the user has decided otherwise."""
    # Else a program of equal arithmetic but other node numbers would be taken for ours.
    jax.config.update("jax_compilation_cache_include_metadata_in_key", True)
    if jax.config.values.get("jax_compilation_cache_dir") is not None:
        return
    chosen = _chosen_folder()
    if not chosen or not is_private(chosen) or not _let_jax_keep_in(chosen):
        return
    jax.config.update("jax_compilation_cache_dir", chosen)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # jax looks once, and may have compiled something before


def _chosen_folder() -> str:
    """The folder that the user names, or one below the user's own; "" where there is neither."""
    named = os.environ.get("KIT_CACHE_DIR")
    own = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser(os.path.join("~", ".cache"))
    if named is not None or own.startswith("~"):  # a user id that the system has no name for
        return named or ""
    return os.path.join(own, "overlap-kit", "xla")


def _let_jax_keep_in(folder: str) -> bool:
    """Let jax ask a `SealedFolder` for what it keeps there; false, and a warning, if it cannot."""
    original = getattr(jax_cache, "get_file_cache", None)
    try:
        if original is None:
            raise OSError(
                f"jax {jax.__version__} has no jax._src.compilation_cache.get_file_cache, by which "
                f"it opens a folder; kit was tried with {tried_text('jax')}"
            )
        sealed = SealedFolder(folder)
    except OSError as error:
        warnings.warn(
            f"no compiled program is kept in {safe_terminal(folder, 200)!r}: "
            f"{safe_terminal(error, 300)}. KIT_CACHE_DIR names another folder",
            stacklevel=3,
        )
        return False

    def get_file_cache(path: str) -> Any:
        return (sealed, path) if path == folder else original(path)

    jax_cache.get_file_cache = get_file_cache
    return True


def is_private(folder: str) -> bool:
    """Make the folder for this user alone. It holds machine code: false, and a warning, if not."""
    shown = repr(safe_terminal(folder, 200))
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        why = _why_shared(folder)
    except OSError as error:  # no home, or one that cannot be written to: a container, a full disk
        warnings.warn(
            f"no compiled program is kept in {shown}: {safe_terminal(error.strerror, 300)}. "
            "KIT_CACHE_DIR names another folder; if it is empty, nothing is kept or said",
            stacklevel=2,
        )
        return False
    if why:
        warnings.warn(
            f"no compiled program is kept in {shown}, because what is in it would be run: {why}. "
            "Or name another folder with KIT_CACHE_DIR",
            stacklevel=2,
        )
    return not why


def _why_shared(folder: str) -> str:
    """Why a folder may not be this user's alone, and what to do; "" if it is."""
    if sys.platform == "win32":
        # The bits of a mode say nothing there; what is in a profile inherits the user's own rights.
        home = Path.home().resolve()
        if not Path(folder).resolve().is_relative_to(home):
            return "only a folder below your own is known to be closed to others"
    else:
        found = os.stat(folder)
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            return (
                "others may write there. `chmod 700` it if it is yours and nobody else has written "
                "to it"
            )
        os.chmod(folder, 0o700)
    return ""


def without_lines() -> AbstractContextManager[object]:
    """While a program is lowered: its text does not say which lines of Python led to each op.

    The text is in the key. With these lines, a program that was compiled ahead would be compiled
    again in the next process, where a step waits for it: other lines of kit led to it.
    """
    limit: Any = getattr(jax_config, "traceback_in_locations_limit", None)
    no_lines: AbstractContextManager[object] = nullcontext() if limit is None else limit(0)
    return no_lines


@contextmanager
def counting_hits() -> Iterator[list[str]]:
    """Collect what is loaded from disk, instead of being compiled, in this thread's block."""
    hits: list[str] = []

    def note(event: str, **details: str | int) -> None:
        if event == _HIT and getattr(_counter, "hits", None) is hits:
            hits.append(event)

    _counter.hits = hits
    jax.monitoring.register_event_listener(note)
    try:
        yield hits
    finally:
        jax.monitoring.unregister_event_listener(note)
        _counter.hits = None
