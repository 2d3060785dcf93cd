"""kit: a microscope for the time between the host and the device in a training step.

    import kit
    from kit.workloads import bert

    run = kit.run(bert, kit.Settings(bulk_forward=15))
    kit.Explorer(bert)

Importing `kit` loads neither torch nor jax nor bokeh: a public name is imported at its first use.
Which names there are, and where each lives, stands in `__init__.pyi` beside this file, once.
"""

from __future__ import annotations

import ast
import importlib
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

if sys.version_info < (3, 11):  # noqa: UP036 - pip says so, too; a folder on the path says nothing
    raise ImportError(
        f"kit needs Python 3.11 or newer, and this is {'.'.join(map(str, sys.version_info[:3]))}"
    )
if "free-threading" in sys.version:  # its counts of references do not say who holds an array
    raise ImportError(
        f"kit needs a Python with a global lock (GIL), and {sys.executable} is a free-threaded one"
    )


def _public_names() -> dict[str, str]:
    """Name -> its module, from the imports of `__init__.pyi`; a module stands for itself."""
    table = ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8"))
    imports = [statement for statement in table.body if isinstance(statement, ast.ImportFrom)]
    return {name.name: statement.module or "" for statement in imports for name in statement.names}


_HOMES = _public_names()
# Not in __all__: `from kit import *` must not hide a variable or a module of the user's own.
_HIDING = {"ir", "jax", "trace"}
__all__ = sorted(_HOMES.keys() - _HIDING, key=lambda name: (not name.isupper(), name))


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kit' has no attribute {name!r}{_meant(name)}", name=name)
    if _HOMES[name] == "kit":
        return _imported(f"kit.{name}")
    value = getattr(_imported(_HOMES[name]), name)
    globals()[name] = value  # the next use finds it without coming here
    return value


def _imported(name: str) -> ModuleType:
    """A module; the program's random numbers stay, though jax draws some as it is imported."""
    numbers = sys.modules.get("numpy.random")
    if numbers is None or "jax" in sys.modules:
        return importlib.import_module(name)
    state = numbers.get_state(legacy=False)
    try:
        return importlib.import_module(name)
    finally:
        numbers.set_state(state)


def _meant(name: str) -> str:
    """The public name that is nearest to a wrong one: IPython, unlike Python, guesses none."""
    known = {public.lower(): public for public in _HOMES}
    close = [] if name.startswith("_") else get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {known[close[0]]!r}?" if close else ""


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
