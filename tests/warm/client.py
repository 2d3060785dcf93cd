"""The process that a test has started: its fork of the server works, and this waits for its end.

`python -IS client.py SOCKET ARGUMENTS`. A signal goes on to the fork; if this is killed, so is it.
"""

import marshal
import os
import signal
import socket
import sys
from contextlib import suppress

RELAYED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

ENDED = "the server of warm processes has ended"


def is_handed_on(number: int) -> bool:
    """Was this file open when this process began? It closes its own where another begins."""
    with suppress(OSError):
        return os.get_inheritable(number)
    return False


def received(server: socket.socket) -> int:
    """A number from the server; what it says instead is the end of this process."""
    said = server.recv(4096).decode()
    return int(said) if said.isdigit() else sys.exit(said or ENDED)


def main() -> None:
    early: list[int] = []
    pids: list[int] = []

    def relay(number: int, frame: object) -> None:
        if pids:
            os.kill(pids[0], number)
        else:
            early.append(number)

    for number in RELAYED:
        signal.signal(number, relay)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        try:
            server.connect(sys.argv[1])
        except OSError as error:
            sys.exit(f"{ENDED}: {error}")
        files = [number for number in range(255) if is_handed_on(number)]
        asked = marshal.dumps((sys.argv[2:], os.getcwd(), dict(os.environ), files))
        socket.send_fds(server, [asked], files)
        pids.append(received(server))
        for number in early:
            os.kill(pids[0], number)
        status = received(server)
    if os.WIFSIGNALED(status):
        with suppress(OSError):  # of SIGKILL
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


main()
