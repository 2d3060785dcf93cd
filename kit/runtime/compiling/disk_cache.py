"""Compiled programs on disk, by jax's own persistent cache: a second kernel compiles nothing.

The cache is a setting of the whole process, so it serves the user's own jax as well. Whoever has
set `JAX_COMPILATION_CACHE_DIR` keeps that folder; `KIT_CACHE_DIR` names another one than the
default, and empty switches the cache off.

jax finds out what to keep, and by which key; what lies on disk is a `SealedFolder`. jax's own
folder runs whatever lies in it, never replaces a torn entry, and with a largest size it reads the
time of each entry at each write, under a lock that a stopped process keeps. jax has no public way
to give it another one, so a name of jax's is replaced here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import jaxlib.version
from jax.experimental.compilation_cache import compilation_cache

from kit.errors import but_of_handlers
from kit.runtime.compiling.folder import NOISY_JAXLIB, chosen_folder, is_private, warn_once
from kit.runtime.compiling.sealed import SealedFolder
from kit.text import safe_terminal
from kit.versions import is_within, tried_text

try:
    from jax._src import compilation_cache as jax_cache
except ImportError:  # a jax that keeps it elsewhere: then nothing is kept on disk
    jax_cache = None  # type: ignore[assignment]
try:
    from jax._src import config as jax_config
except ImportError:  # then what is compiled ahead is found in its own process only
    jax_config = None  # type: ignore[assignment]

__all__ = ["counting_hits", "use_disk_cache", "with_nodes", "without_lines"]

_HIT = "/jax/compilation_cache/cache_hits"
_counter = threading.local()


def use_disk_cache() -> None:
    """Switch jax's persistent cache on, unless the user has decided otherwise."""
    if jax.config.values.get("jax_compilation_cache_dir") is not None:
        return
    is_noisy = is_within(jaxlib.version.__version__, NOISY_JAXLIB)
    if is_noisy and jax.default_backend() == "cpu":
        return
    chosen = chosen_folder()
    if not chosen or not is_private(chosen) or not _let_jax_keep_in(chosen):
        return
    jax.config.update("jax_compilation_cache_dir", chosen)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # jax looks once, and may have compiled something before


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
    except but_of_handlers(OSError) as error:
        warn_once(
            f"no compiled program is kept in {safe_terminal(folder, 200)!r}: "
            f"{safe_terminal(error, 300)}. KIT_CACHE_DIR names another folder"
        )
        return False

    def get_file_cache(path: str) -> Any:
        return (sealed, path) if path == folder else original(path)

    jax_cache.get_file_cache = get_file_cache
    return True


def without_lines() -> AbstractContextManager[object]:
    """While a program is lowered: its text does not say which lines of Python led to each op.

    The text is in the key. With these lines, a program that was compiled ahead would be compiled
    again in the next process, where a step waits for it: other lines of kit led to it.
    """
    limit: Any = getattr(jax_config, "traceback_in_locations_limit", None)
    no_lines: AbstractContextManager[object] = nullcontext() if limit is None else limit(0)
    return no_lines


def with_nodes() -> AbstractContextManager[object]:
    """While a program is compiled: its nodes' numbers are in the key, and not in the user's keys.

    Else a program of equal arithmetic but other numbers would be taken for it.
    """
    in_key: Any = getattr(jax_config, "compilation_cache_include_metadata_in_key", None)
    if in_key is None:
        jax.config.update("jax_compilation_cache_include_metadata_in_key", True)
        return nullcontext()
    numbered: AbstractContextManager[object] = in_key(True)
    return numbered


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
