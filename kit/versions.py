"""The versions of Python, torch and jax that kit was tried with, and what lies outside of them.

They stand once, as the rows of `tried.csv`, which `scripts/matrix.py` writes; the bounds in
`pyproject.toml` are held to them by a test. The standard library is enough to read both.
"""

from __future__ import annotations

import csv
import platform
import re
import tomllib
import warnings
from functools import cache
from importlib import metadata, resources
from pathlib import Path

from kit.errors import but_of_handlers

__all__ = [
    "UntriedVersionWarning",
    "cure_of",
    "is_early",
    "is_tried",
    "is_within",
    "minor",
    "needed",
    "tried",
    "tried_text",
    "warn_of_untried",
]

_SEEN: set[str] = set()  # packages that were looked at in this process
_COLUMN = {"jaxlib": "jax"}  # package -> column of the table, if it has another name there


class UntriedVersionWarning(UserWarning):
    """A package has a version that kit was never tried with."""


@cache
def tried(package: str) -> tuple[str, ...]:
    """The versions of a package that kit was tried with, "torch" -> ("2.11.0", ...), in order."""
    text = resources.files("kit").joinpath("tried.csv").read_text("utf-8")
    column = _COLUMN.get(package, package)
    found = {row[column] for row in csv.DictReader(text.splitlines()) if column in row}
    return tuple(sorted(found, key=_numbers))


def tried_text(package: str) -> str:
    """`torch 2.11.0, 2.12.1 and 2.13.0`."""
    *most, last = tried(package)
    return f"{package} {', '.join(most)}{' and ' if most else ''}{last}"


def minor(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` -> (2, 13): what is tried with one counts for all of these."""
    return _numbers(version)[:2]


def is_early(version: str) -> bool:
    """True for `2.14.0.dev20261120`, `2.14.0a0+git1f2e` and `2.14.0rc1`: none of them is 2.14."""
    return re.match(r"[\d.]+(?:dev|a|b|rc)\d", version) is not None


def is_tried(package: str, version: str) -> bool:
    """Whether kit was tried with this version, or with one that differs in its last number."""
    return minor(version) in map(minor, tried(package)) and not is_early(version)


def cure_of(package: str, version: str) -> str:
    """What to install instead of a version; "" where no bounds are known.

    Pip is content with a nightly that is installed, so the command says what it shall not be.
    """
    bounds = needed().get(package, "")
    without = f",!={version.partition('+')[0]}" * is_early(version)
    return f'pip install "{package}{bounds}{without}"' if bounds else ""


def needed() -> dict[str, str]:
    """Package -> its bounds, ">=0.10,<0.12": of the installed kit, or of the sources it lies in."""
    try:
        lines = metadata.requires("overlap-kit") or []
    except metadata.PackageNotFoundError:
        project = Path(__file__).parents[1] / "pyproject.toml"
        try:
            lines = tomllib.loads(project.read_text("utf-8"))["project"]["dependencies"]
        except but_of_handlers(OSError, ValueError, KeyError):
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
    """Warn, once in a process, of each package whose version kit was never tried with.

    Args:
        packages: as pip names them, or "python".
    """
    fresh = [name for name in packages if name not in _SEEN]
    _SEEN.update(fresh)
    for name in fresh:
        version = _installed(name)
        if version is None or is_tried(name, version):
            continue
        cure = cure_of(name, version)
        advice = f": {cure}" if cure else ", take one that was tried"
        warnings.warn(
            f"kit was tried with {tried_text(name)}, never with {version}. Should something fail "
            f"that looks like the version's fault{advice}",
            UntriedVersionWarning,
            stacklevel=3,
        )


def _installed(package: str) -> str | None:
    """Its version; None where a package is used from a folder of its own and has none."""
    if package == "python":
        return platform.python_version()
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` -> (2, 13, 0, 0); enough for bounds without pre-releases."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(x) for x in release[0].split(".")] if release else []
    return tuple(numbers + [0] * (4 - len(numbers)))
