"""When a run was measured, and from which commit of the user's repository."""

from __future__ import annotations

import datetime
import subprocess

from kit.errors import but_of_handlers
from kit.runs.labels import COMMIT, TIME
from kit.runtime.session.interrupts import postponed

__all__ = ["provenance"]

_GIT = ("git", "describe", "--always", "--dirty=, changed", "--abbrev=8", "--exclude=*")
_PATIENCE_S = 2.0  # for git in a repository that is large, or on a slow disk


def provenance() -> dict[str, str]:
    """For a run's environment; without the commit where git is missing or knows no repository."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    commit = _commit()
    return {TIME: now, **({COMMIT: commit} if commit else {})}


def _commit() -> str:
    """Of the working directory: `1a2b3c4d`, or `1a2b3c4d, changed`."""
    try:
        with postponed():  # an interrupt while git is started would leave a child nobody waits for
            said = subprocess.run(
                _GIT, capture_output=True, encoding="utf-8", timeout=_PATIENCE_S, check=True
            )
    except but_of_handlers(OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return said.stdout.strip()[:80]
