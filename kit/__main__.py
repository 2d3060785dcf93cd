"""`kit` and `python -m kit`: the command line, see `kit.cli.main`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

__all__ = ["main"]


def main() -> int:
    """Do what the command line says; gives the exit status.

    An interrupt is told in one line also while modules are loaded. Once all is done and printed it
    ends the process at once, without a word: threads of a program may be waited for here.
    """
    try:
        _keep_places()
        from kit.cli.main import main as act

        status = act()
    except KeyboardInterrupt:
        sys.stderr.write("kit: interrupted\n")
        status = 130  # 128 and the signal's number, as a shell says it
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    signal.signal(signal.SIGINT, lambda *_: os._exit(status or 130))
    return status


def _keep_places() -> None:
    """Put the null device where a stream is closed (`2>&-`), for us and the processes we start.

    Else the next file that is opened, such as a saved run, takes its number, and what libraries
    write to the stream of that number.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)


if __name__ == "__main__":
    sys.exit(main())
