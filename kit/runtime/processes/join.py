"""Several processes, on one host or several, that run the same program: `join_processes`.

Tensors travel by jax's own collectives, through `jax.distributed` (gloo on CPUs, NCCL on GPUs);
everything else by a `Channel`, which also notices a process that has ended. Jax is loaded only to
join: each run asks here whether this process is alone, a native one too. The two parts of jax
that are not settled are here and nowhere else: `jax.distributed` itself, and its setting that lets
a process outlive another one (tried with jax 0.10.2; without that setting it ends with the other
one).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

from kit.errors import SessionError, SettingsError, but_of_handlers, is_a, suppressed
from kit.runtime.processes.channel import Channel
from kit.runtime.processes.greeting import Badge, checked_secret
from kit.runtime.processes.links import free_port
from kit.text import is_whole_number
from kit.threads import check_timeout

__all__ = ["Processes", "current_processes", "join_processes"]

_FAREWELL_S = 5.0  # at Python's end, for a collective whose others have gone
_current: Processes | None = None


@contextlib.contextmanager
def join_processes(
    coordinator: str,
    count: int,
    rank: int,
    *,
    devices: int | None = None,
    timeout_s: float = 120.0,
    secret: str | None = None,
    run: str = "",
) -> Iterator[Processes]:
    """Be process `rank` of `count` that run this program; each starts it so, on whatever host.

        with kit.join_processes("host0:9911", count=2, rank=0):
            run = kit.run(workload, settings, devices=2)  # on 4 devices

    In the block `kit.run` and `kit.DataParallel` take replicas in all processes: `devices` is the
    number in each. Every process gives the whole batches, and works on its part of them.

    Args:
        coordinator: "host:port" of process 0, where it waits for the others; a port that is free.
            An IPv6 address stands in brackets: "[::1]:9911".
        devices: of a GPU machine with several processes, how many belong to each; all if not given.
        timeout_s: for the others to come, here and wherever they meet later.
        secret: of this run: a process that does not know it cannot join. By default what the
            environment variable KIT_RUN_SECRET says, or the file that KIT_RUN_SECRET_FILE names.
        run: a name of this run; a process that gives another one cannot join.

    Raises:
        SettingsError: an argument is wrong, there is no secret, or jax has already begun.
        SessionError: the others do not come, or this is a second time in one process.
    """
    global _current
    if _current is not None:
        raise SessionError("this process has joined others already; it can once")
    _current = joined = Processes(
        coordinator, count, rank, devices=devices, timeout_s=timeout_s, secret=secret, run=run
    )
    is_for_good = False  # jax can begin for many processes but once
    try:
        joined.open()
        is_for_good = joined.is_open
        yield joined
    except BaseException as error:
        if not is_a(error, SystemExit) or error.code:  # else a program's ordinary end
            joined.channel.fail(error)
        raise
    finally:
        joined.close()
        if not is_for_good:
            _current = None


def current_processes() -> Processes | None:
    """The processes that this one has joined; None if it is alone."""
    return _current if _current is not None and _current.is_open else None


class Processes:
    """The joined processes, as one of them sees them.

    Attributes:
        rank, count: of processes.
        is_open: from the meeting to the end of the block; never, if this is the only one.
        tensors: of all of them, combined.
        channel: for everything that is no tensor.
        stuck: threads that were still in a collective when their group was closed.
    """

    def __init__(
        self,
        coordinator: str,
        count: int,
        rank: int,
        *,
        devices: int | None,
        timeout_s: float,
        secret: str | None,
        run: str,
    ) -> None:
        self._host, self._port = _host_and_port(coordinator)
        if not is_whole_number(count, 1):
            raise SettingsError(f"count must be a number of processes, not {count!r}")
        if not is_whole_number(rank, 0) or rank >= count:
            raise SettingsError(f"rank must be from 0 to {count - 1}, not {rank!r}")
        check_timeout(timeout_s)
        self.rank, self.count = rank, count
        known = checked_secret(secret) if count > 1 else ""
        self.channel = Channel(Badge(rank, count, known, run[:100]), timeout_s=timeout_s)
        from kit.runtime.processes.tensors import Tensors

        self.tensors = Tensors(count)
        self._devices = devices
        self.is_open = False
        self.stuck: list[threading.Thread] = []
        self._groups = 0

    def open(self) -> None:
        """Connect with the other processes, and start jax's own runtime for many processes."""
        if self.count == 1:
            return
        import jax

        self.channel.open(self._host, self._port)
        host = f"[{self._host}]" if ":" in self._host else self._host
        port = self.channel.meet("the start", free_port(self._host) if self.rank == 0 else 0)[0]
        with contextlib.suppress(AttributeError):  # a jax without it: see above
            jax.config.update("jax_enable_recoverability", True)
        ids = None
        if self._devices is not None:
            mine = self.channel.meet("the hosts", socket.gethostname())
            before = mine[: self.rank].count(mine[self.rank])  # processes of this host
            ids = list(range(before * self._devices, (before + 1) * self._devices))
        try:
            jax.distributed.initialize(
                f"{host}:{port}",
                self.count,
                self.rank,
                local_device_ids=ids,
                initialization_timeout=int(self.channel.timeout_s) + 1,
                cluster_detection_method="deactivate",
                coordinator_bind_address=f"{host}:{port}",  # else on every interface
            )
        except but_of_handlers(RuntimeError) as error:
            if self.channel.failure:
                raise SessionError(self.channel.failure) from error
            raise SettingsError(
                f"process {self.rank} cannot join the others ({error}): join them before anything "
                "else uses jax or device 'kit'"
            ) from error
        self.is_open = True
        atexit.register(self._at_exit)  # before the program's own, which are called first

    def close(self) -> None:
        """Leave: process 0 last, because jax ends the others when it goes before them."""
        if self.count == 1:
            return
        self.channel.leave()
        if self.is_open:
            import jax

            self.is_open = False
            if self.rank == 0:
                self.channel.wait_until_gone()
            # jax would wait for a process that does not answer, and then end this one
            if not self.channel.failure or self.channel.is_answered():
                with suppressed(RuntimeError):  # the others may have ended already
                    jax.distributed.shutdown()
        self.channel.close()

    def _at_exit(self) -> None:
        """Python aborts the process if a thread comes back from a collective while it ends."""
        until = time.monotonic() + _FAREWELL_S
        for thread in self.stuck:
            thread.join(max(until - time.monotonic(), 0))
        if any(thread.is_alive() for thread in self.stuck):
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # closed, or a program's own kind
                    stream.flush()
            os._exit(1)

    def place(self, devices: int, ordered: Callable[[str], None]) -> tuple[str, int]:
        """A name for a new group of replicas, and the rank of this process's first.

        Args:
            ordered: called with what `channel.announce` says under that name.

        Raises:
            SettingsError: the processes have different numbers of devices.
        """
        self._groups += 1  # each process makes them in the same order
        name = f"group {self._groups}"
        self.channel.on_announced(name, ordered)
        counts = self.channel.meet("the making of a DataParallel", devices)
        if len(set(counts)) > 1:
            raise SettingsError(
                f"every process must give the same number of devices, not {counts} (by process)"
            )
        return name, self.rank * devices


def _host_and_port(coordinator: str) -> tuple[str, int]:
    """`"host0:9911"` -> `("host0", 9911)`; an IPv6 address loses its brackets."""
    host, _, port = coordinator.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if in_brackets else host
    if (
        not host
        or in_brackets != (":" in host)
        or not port.isdecimal()
        or not 0 < int(port) < 65536
    ):
        raise SettingsError(
            "coordinator must be 'host:port', or '[address]:port' with an IPv6 address, not "
            f"{coordinator!r}"
        )
    return host, int(port)
