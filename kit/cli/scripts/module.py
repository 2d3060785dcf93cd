"""The file of a module, found as `python -m` finds it, and how a file is run as Python runs it."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from kit.errors import SettingsError, is_a, named
from kit.text import safe_terminal

__all__ = ["before_exec", "find_module", "own_main", "run_in"]


def find_module(name: str) -> tuple[str, Path]:
    """The module that `python -m name` runs, and its file; of a package, that is its `__main__`.

    The packages around it are imported for that, as Python does it; the module itself is not.

    Raises:
        SettingsError: there is no such module, or no file of Python's that could be run.
    """
    before = sys.path[:]
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()
    try:
        found = _spec_of(name)
        if found is not None and found.submodule_search_locations is not None:
            name = f"{name}.__main__"
            found = _spec_of(name)
    finally:
        sys.path[:] = before
    if found is None or not found.has_location or found.origin is None:
        hint = f": without .py, kit run -m {name[:-3]}" if name.endswith(".py") else ""
        raise SettingsError(
            f"no module of Python called {safe_terminal(name)!r} can be run from here{hint}"
        )
    return name, Path(found.origin)


def run_in(module: ModuleType, path: str, name: str = "") -> None:
    """Run a file in a module, which others find in `sys.modules` from then on.

    Args:
        name: that of `python -m name`, which runs this file.
    """
    spec = importlib.util.find_spec(name) if name else None
    loader: Any = SourceFileLoader(module.__name__, path) if spec is None else spec.loader
    if spec is None:
        code = loader.source_to_code(loader.get_data(path), path)
    else:
        code = loader.get_code(name)
        vars(module).update(__spec__=spec, __package__=spec.parent)
    vars(module).update(__file__=path, __loader__=loader, __builtins__=builtins)
    sys.modules[module.__name__] = module
    exec(code, vars(module))


@contextlib.contextmanager
def own_main(goes_on: Callable[[], bool]) -> Iterator[ModuleType]:
    """A module `__main__` for a script, by which pickle finds what it defines.

    What the script does at exit finds that again; its threads, if some go on, keep it.
    """
    main, before = ModuleType("__main__"), sys.modules["__main__"]
    known = atexit._ncallbacks()
    try:
        yield main
    finally:
        if atexit._ncallbacks() != known:
            atexit.register(_as_it_was, main, sys.path[:])  # the last one is called first
        if not goes_on():
            sys.modules["__main__"] = before


@contextlib.contextmanager
def before_exec(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` where the program replaces its process: all functions of os come to these two."""
    found = {name: getattr(os, name) for name in ("execv", "execve")}

    def after_it(replace: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def acting(path: Any, *arguments: Any, **named: Any) -> NoReturn:
            if isinstance(path, int) or os.access(path, os.X_OK):  # else the next folder's is tried
                act()
            replace(path, *arguments, **named)

        return acting

    try:
        vars(os).update({name: after_it(replace) for name, replace in found.items()})
        yield
    finally:
        vars(os).update(found)


def _as_it_was(main: ModuleType, path: Sequence[str]) -> None:
    sys.modules["__main__"], sys.path[:] = main, path


def _spec_of(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # ".train" has no name
        return None
    except Exception as error:  # noqa: BLE001 - of the packages around it, which are the user's
        if is_a(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            return None
        package = safe_terminal(name.rpartition(".")[0])
        raise SettingsError(f"the package {package} cannot be imported: {named(error)}") from None
