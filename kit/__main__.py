"""`kit` and `python -m kit`: the command line, see `kit.cli.main`."""

from __future__ import annotations

import signal
import sys

__all__ = ["main"]


def main() -> int:
    """Do what the command line says; gives the exit status.

    An interrupt is told in one line also while modules are loaded, and where nothing is left to be
    done it is not told at all.
    """
    try:
        from kit.cli.main import main as act

        status = act()
    except KeyboardInterrupt:
        sys.stderr.write("kit: interrupted\n")
        status = 130  # 128 and the signal's number, as a shell says it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return status


if __name__ == "__main__":
    sys.exit(main())
