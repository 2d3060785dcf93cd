"""The versions of torch, jax and the others that kit was tried with, and what lies outside of them.

They stand once, as the bounds in `pyproject.toml`. The standard library is enough to read them.
"""

from __future__ import annotations

import re
import tomllib
import warnings
from importlib import metadata
from pathlib import Path

__all__ = ["UntriedVersionWarning", "is_within", "needed", "warn_of_untried"]

_SEEN: set[str] = set()  # packages that were looked at in this process


class UntriedVersionWarning(UserWarning):
    """A package has a version that kit was never tried with."""


def needed() -> dict[str, str]:
    """Package -> its bounds, ">=0.10,<0.12": of the installed kit, or of the sources it lies in."""
    try:
        lines = metadata.requires("overlap-kit") or []
    except metadata.PackageNotFoundError:
        project = Path(__file__).parents[1] / "pyproject.toml"
        try:
            lines = tomllib.loads(project.read_text("utf-8"))["project"]["dependencies"]
        except (OSError, ValueError, KeyError):
            return {}
    found = {}
    for line in lines:
        match = re.match(r"([\w.-]+)\s*([^;]*)(;.*)?$", line)
        if match and "extra" not in (match[3] or ""):
            found[match[1]] = match[2].strip()
    return found


def is_within(version: str, bounds: str) -> bool:
    """Whether a version lies in bounds such as ">=0.10,<0.12"."""
    have = _numbers(version)
    for bound in filter(None, (x.strip() for x in bounds.split(","))):
        match = re.match(r"(>=|<)\s*([\d.]+)$", bound)
        if match and (have < _numbers(match[2])) is (match[1] == ">="):
            return False
    return True


def warn_of_untried(*packages: str) -> None:
    """Warn, once in a process, of each package whose version kit was never tried with."""
    fresh = [name for name in packages if name not in _SEEN]
    if not fresh:
        return
    _SEEN.update(fresh)
    bounds = needed()
    for name in fresh:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # used from a folder of its own: its version is not known
        if name in bounds and not is_within(version, bounds[name]):
            warnings.warn(
                f"kit was never tried with {name} {version}. Should something fail that looks like "
                f'the version\'s fault: pip install "{name}{bounds[name]}"',
                UntriedVersionWarning,
                stacklevel=3,
            )


def _numbers(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` -> (2, 13, 0, 0); enough for bounds without pre-releases."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(x) for x in release[0].split(".")] if release else []
    return tuple(numbers + [0] * (4 - len(numbers)))
