"""What the replicas of a model live in: devices, threads, sessions, and what can be asked of them.

`Replicas` is the part of a `DataParallel` that knows nothing of a step's pieces.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import get_ident
from typing import Any, Self

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from kit.errors import SessionError, SettingsError, named
from kit.runs.gradients import Link
from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.processes.join import Processes, current_processes
from kit.runtime.recording.sites import here
from kit.runtime.replicas.capture import Capture, capture
from kit.runtime.replicas.collectives import Collectives
from kit.runtime.replicas.devices import pick_devices
from kit.runtime.replicas.group import Group
from kit.runtime.replicas.pool import Pool
from kit.runtime.replicas.session import ReplicaSession, note_turn
from kit.runtime.rules.default import DEFAULT_RULES
from kit.runtime.rules.table import Rules
from kit.runtime.session.session import current_session
from kit.torch.device import register
from kit.torch.dispatch import Dispatcher, tape_of
from kit.torch.parallel.batch_norm import share_batch_norms
from kit.torch.parallel.reducer import Reducer, check_tuning
from kit.torch.parallel.shards import Shards
from kit.torch.tensors.places import ProgramPlace

__all__ = ["Replicas", "seed_of"]

_SEED_STEP = 7919  # between the random numbers of two replicas


def seed_of(seed: int, rank: int) -> int:
    """Of a replica's random numbers, by that of all; below 2**32, as a session takes it."""
    return (seed + rank * _SEED_STEP) % 2**32


class Replicas:
    """Copies of a model on several devices, each with a thread and a session of its own.

    Args and raises: as for `DataParallel`; and

    Args:
        caches: of executables, one for each replica here, to start with and to add to.
    """

    def __init__(
        self, model: nn.Module, devices: int | Sequence[Any] = 2, *,
        settings: Settings | None = None, rules: Rules = DEFAULT_RULES, sync: bool = False,
        average: bool = True, bucket_mb: float = 1.0, cut: str = "bucket",
        sync_batch_norm: bool = False, timeout_s: float = 120.0, link: Link | None = None,
        caches: list[ExecutableCache] | None = None,
    ) -> None:  # fmt: skip
        _check_model(model)
        check_tuning(cut, bucket_mb, link)
        self.settings = settings or Settings()
        self.devices = pick_devices(devices, self.settings.device)
        self.average = average
        self._model, self._sync, self._rules = model, sync, rules
        self._shares_norms = sync_batch_norm
        self._bucket_bytes, self.cut = int(bucket_mb * 1e6), cut
        self._caches = [] if caches is None else caches
        while len(self._caches) < len(self.devices):
            self._caches.append(ExecutableCache())
        self._group = Group(len(self.devices), timeout_s, current_processes())
        self._collectives = Collectives(self._group, self.devices, link)
        self.sessions: list[ReplicaSession] = []  # with the replicas' counters and explanations
        self._reducers: list[Reducer] = []
        self._places: list[ProgramPlace] = []  # in no order
        self._pool: Pool | None = None
        self._exits: contextlib.ExitStack | None = None
        self._sizes: list[Sequence[int]] = [[] for _ in self.devices]  # of all parts, by place
        self._is_local = False
        self._opener = 0  # the thread whose `torch.manual_seed` is meant for the replicas
        self._whole_steps: list[Any] = []  # once `step` has been called
        self._parted: tuple[int, BaseException] | None = None  # rank that failed to update
        self.modules: Shards = Shards()
        self.capture = Capture()  # of the last `watched` block

    # -- life ------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many replicas there are, in all processes."""
        return self._group.total

    @property
    def ranks(self) -> range:
        """Those of them that are in this process."""
        return self._group.ranks

    @property
    def processes(self) -> Processes | None:
        """Those that have joined, if this is not the only one."""
        return self._group.processes

    def open(self) -> Self:
        """What `with` does at its beginning, for the cells of a notebook; `close` ends it.

        Raises:
            SessionError: it was open before.
        """
        if self._exits is not None:
            raise SessionError("a DataParallel can be entered once; make a new one")
        register()
        self._exits = contextlib.ExitStack()
        dispatchers = [Dispatcher(place) for place in range(len(self.devices))]
        self.sessions = [
            ReplicaSession(rank, device, self._collectives, self.settings, tape, self._rules, cache)
            for rank, device, tape, cache in zip(
                self.ranks, self.devices, dispatchers, self._caches, strict=False
            )
        ]
        copies = [
            share_batch_norms(copy.deepcopy(self._model), every=self._shares_norms)
            for _ in dispatchers
        ]
        with contextlib.ExitStack() as undo:
            if self.count == 1:
                undo.enter_context(self.sessions[0])
            else:
                undo.callback(self._group.close)
                undo.callback(self._collectives.close)
                self._pool = Pool(self._group, lambda place: self.sessions[place], note_turn)
                undo.callback(self._pool.close)
            made = self._hand_out([partial(self._set_up, i, copy) for i, copy in enumerate(copies)])
            self._exits = undo.pop_all()
        self._reducers = list(made)
        self.modules = Shards(reducer.module for reducer in made)
        self._opener = get_ident()
        torch.kit.followers.add(self)  # type: ignore[attr-defined]
        return self

    def close(self) -> None:
        """End the threads and sessions; the replicas' tensors can be read no more."""
        if self._exits is not None:
            torch.kit.followers.discard(self)  # type: ignore[attr-defined]
            self._group.close()
            self._exits.close()

    def at_close(self, call: Callable[[], Any]) -> None:
        """Call this when it closes, before the threads end."""
        if self._exits is not None:
            self._exits.callback(call)

    def reseed(self, seed: int) -> None:
        """Other random numbers in each replica, by this seed; of a thread that did not open: no."""
        if get_ident() == self._opener:
            for session in self.sessions:
                session.draws.reseed(seed_of(seed, session.rank))

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _set_up(self, place: int, module: nn.Module) -> Reducer:
        session = self.sessions[place]
        session.draws.reseed(seed_of(session.draws.seed, session.rank))
        tape = tape_of(session)
        self._places.append(tape.place)
        if self.count > 1:
            tape.on_backward = partial(self._loss_backward, place)
        return Reducer(
            session, tape, module.to("kit"), bucket_bytes=self._bucket_bytes, cut=self.cut
        )

    def _check_open(self) -> None:
        if self._exits is None or not self.sessions[0].is_open:
            raise SessionError("use a DataParallel in its `with` block: with kit.DataParallel(...)")
        if self._parted is not None:
            rank, error = self._parted
            raise SessionError(
                f"the replicas have parted: the update of replica {rank} failed "
                f"({named(error)}), others have made theirs. Make a new DataParallel, of the model "
                "with one replica's net.modules[0].state_dict(), or with what you saved"
            ) from error

    @contextlib.contextmanager
    def updating(self, place: int) -> Iterator[None]:
        """What is in the block changes weights: if it fails, they are no more those of others."""
        try:
            yield
        except BaseException as error:
            if self.count > 1:
                self._parted = self.ranks[place], error
            raise

    def _run(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        """Each job in its replica's thread; here, if there is but one.

        Raises:
            SessionError: it is not open.
        """
        self._check_open()
        return self._hand_out(jobs)

    def _hand_out(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        """The same, with torch's modes of this thread."""
        if self._pool is None:
            return [job() for job in jobs]
        modes = _modes()
        if modes != _NO_MODES:  # torch keeps them for each thread
            jobs = [partial(_under, modes, job) for job in jobs]
        line = here()
        for place in self._places:
            place.caller = line
        return self._pool.run(jobs)

    # -- gradients ---------------------------------------------------------------------------------

    def _loss_backward(
        self, place: int, loss: Any, gradient: Any = None, retain_graph: bool | None = None,
        create_graph: bool = False, inputs: Any = None,
    ) -> None:  # fmt: skip
        """A program's own `loss.backward()` in a replica: its gradients are summed like others."""
        if current_session() is not self.sessions[place]:
            raise SessionError(
                f"backward() of a loss of replica {self.ranks[place]} outside of its thread, where "
                "the others would not come: use net.backward(losses), or loss.backward() "
                "inside of net.map"
            )
        self._reducers[place].backward(
            [loss], self.weights[place], is_local=self._is_local, gradient=gradient,
            retain_graph=retain_graph, create_graph=create_graph, inputs=inputs,
        )  # fmt: skip

    # -- tuning and watching -----------------------------------------------------------------------

    def retune(
        self,
        *,
        bulk: int | tuple[int, int] | None = None,
        cut: str | None = None,
        bucket_mb: float | None = None,
        link: Link | None = None,
    ) -> None:
        """Go on with other segments or buckets, or over another imitated link (none if not given).

        Raises:
            SettingsError: an argument is wrong.
        """
        self._check_open()
        size_mb = 1.0 if bucket_mb is None else bucket_mb
        check_tuning(self.cut if cut is None else cut, size_mb, link)
        self.wait_all()
        self._collectives.link = link
        self.cut = self.cut if cut is None else cut
        if bulk is not None:
            self._run([partial(session.set_bulk_size, bulk) for session in self.sessions])
        for session in self.sessions:
            session.stepper.forget("net.retune has changed segments or buckets")
        for reducer in self._reducers:
            reducer.cut = self.cut
            if bucket_mb is not None:
                reducer.fill_buckets(int(bucket_mb * 1e6))

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Record what hosts and devices do in the block: at its end `net.capture` has it.

        Lanes: "host/replica 0" what its thread records, "device/0 compute" its segments,
        "device/0 reduction" its buckets and other collectives; in `time.perf_counter_ns`.
        """
        self._check_open()
        self.wait_all()
        syncs = [session.reads.follow() for session in self.sessions]
        self._collectives.spans, self._collectives.is_tracing = [], True
        self._run([partial(session.watch, True) for session in self.sessions])
        try:
            yield
        finally:
            is_alive = self.processes is None or not self.processes.channel.failure
            try:
                if is_alive:
                    self.wait_all()
            finally:
                if is_alive:  # in their threads, which else would have recorded until now
                    self._hand_out([partial(session.watch, False) for session in self.sessions])
                self._collectives.is_tracing = False
                self.capture = capture(self.sessions, self._collectives.spans, syncs)
                self._collectives.spans = []

    def backward_shape(self) -> tuple[int, list[tuple[int, int]]]:
        """Ops of the last reduced backward pass, and for each gradient (ops before it, bytes)."""
        self._check_open()
        return self._reducers[0].ops, list(self._reducers[0].gradients)

    @property
    def note(self) -> dict[str, Any]:
        """The numbers of the first replica's optimizer at its last step, by name."""
        return self._reducers[0].note

    @property
    def weights(self) -> list[float]:
        """How much of the loss the part of each replica here is: its share, or 1 for sums."""
        return self._weights(())

    def _weights(self, sizes: Sequence[int]) -> list[float]:
        """The same of parts of these sizes; of the last batch's if there are none."""
        if not self.average or self.count == 1:
            return [1.0] * len(self.ranks)
        parts = zip(self.ranks, [sizes] * len(self.ranks) if sizes else self._sizes, strict=True)
        return [sizes[rank] / sum(sizes) if sizes else 1.0 / self.count for rank, sizes in parts]

    def wait_all(self) -> None:
        """Block until every device has computed what was recorded for it.

        Raises:
            ExecutionError, LoweringError: a segment failed, and its results have not been read.
        """
        self._run([session.wait_all for session in self.sessions])


def _check_model(model: Any) -> None:
    """Refuse what cannot be copied to several devices."""
    if not isinstance(model, nn.Module):
        raise SettingsError(f"the model must be a torch.nn.Module, not a {type(model).__name__}")
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        raise SettingsError(
            "a scripted or traced module cannot be copied to device kit: give the module that "
            "it was made from"
        )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise SettingsError(
                f"{name!r} of the model has no shape yet: call the model on a batch, on the "
                "CPU, before it is copied"
            )
        if tensor.device.type != "cpu":
            raise SettingsError(
                f"{name!r} of the model is on {tensor.device}: give the model on the CPU, each "
                "replica copies it to its own device"
            )


Modes = tuple[bool, bool, bool, torch.dtype | None]
_NO_MODES: Modes = (True, False, False, None)


def _modes() -> Modes:
    """Gradients on, inference mode, autocast on device "kit" and to what, in this thread."""
    is_cast = torch.is_autocast_enabled("kit")
    dtype = torch.get_autocast_dtype("kit") if is_cast else None
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), is_cast, dtype


def _under(modes: Modes, job: Callable[[], Any]) -> Any:
    has_gradients, is_inference, is_cast, dtype = modes
    with (
        torch.inference_mode(is_inference),
        torch.set_grad_enabled(has_gradients),
        torch.autocast("kit", dtype=dtype, enabled=is_cast),
    ):
        return job()
