"""One model on several devices: `DataParallel`. Each replica is a thread, a session and a device.

A batch is split, each replica works on its part, and their gradients are added up, so that a step
is the step of one device on the whole batch. Replicas record at the same time, each its own ops.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Self

from torch import nn

from kit.errors import SessionError, SettingsError
from kit.frontend.torch_device import register
from kit.frontend.torch_frontend import Frontend
from kit.frontend.torch_hooks import Places
from kit.frontend.torch_parallel_batch import (
    Shards,
    detached,
    part_of,
    sizes_of,
    tensors_in,
    to_kit,
)
from kit.frontend.torch_parallel_grads import Reducer, check_reduced, check_tuning
from kit.frontend.torch_parallel_norm import share_batch_norms
from kit.run import Settings
from kit.run_parallel import Link
from kit.runtime.parallel import Group, Meeting, Pool
from kit.runtime.parallel_devices import pick_devices
from kit.runtime.parallel_exchange import Exchange
from kit.runtime.parallel_session import ReplicaSession
from kit.runtime.processes import Processes, current_processes
from kit.runtime.rules import Rules
from kit.runtime.rules_all import DEFAULT_RULES
from kit.runtime.session import current_session
from kit.runtime.sites import here

__all__ = ["DataParallel", "Optimizers", "Shards"]

SEED_STEP = 7919  # between the random numbers of two replicas


class DataParallel:
    """The model on several devices: each works on its part of a batch, gradients are summed.

        with kit.DataParallel(model, devices=2) as net:
            optimizer = net.optimizer(torch.optim.AdamW, lr=1e-3)
            for x, y in batches:                                   # on the CPU
                outputs = net(x)                                   # one for each device, in order
                losses = net.map(F.cross_entropy, outputs, net.split(y))
                net.backward(losses)                               # gradients of the whole batch
                optimizer.step()
                optimizer.zero_grad()

    `net.step(loss, optimizer, x, y)` does all of that with one hand-over to the threads. A loss is
    the mean over its part of the batch; parts count by their sizes, so that uneven ones give the
    gradients of the whole batch too.

    Args:
        model: on the CPU; each replica gets a copy.
        devices: how many different ones, or their names, such as ["cpu:0", "cpu:1"]. On a CPU, jax
            must be told before it begins how many devices it shall make of it; if it has not
            begun, this tells it.
        settings: bulk sizes and segment mode of each replica.
        rules: lowering rules, as for `kit.Session`.
        sync: `net(x)` and `net.map` wait until the devices have computed the results, so that an
            error is raised there; else they return as soon as everything is recorded.
        average: losses are means over their parts; false: they are sums.
        bucket_mb: gradients travel together in buckets of about so many million bytes.
        cut: "bucket": a backward segment ends when a bucket is full, so that it travels at once;
            "size": by `settings.bulk_backward` alone.
        sync_batch_norm: every batch normalisation takes the statistics of the whole batch.
        timeout_s: how long a replica may wait for another one.
        link: a connection between devices to imitate: buckets travel no faster than there.

    Raises:
        SettingsError: an argument is wrong, there are too few devices, or a parameter of the model
            is not on the CPU.
    """

    def __init__(
        self, model: nn.Module, devices: int | Sequence[Any] = 2, *,
        settings: Settings | None = None, rules: Rules = DEFAULT_RULES, sync: bool = False,
        average: bool = True, bucket_mb: float = 1.0, cut: str = "bucket",
        sync_batch_norm: bool = False, timeout_s: float = 120.0, link: Link | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(model, nn.Module):
            raise SettingsError(
                f"the model must be a torch.nn.Module, not a {type(model).__name__}"
            )
        check_tuning(cut, bucket_mb)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.device.type != "cpu":
                raise SettingsError(
                    f"{name!r} of the model is on {tensor.device}: give the model on the CPU, each "
                    "replica copies it to its own device"
                )
        self.settings = settings or Settings()
        self.devices = pick_devices(devices, self.settings.device)
        self.average = average
        self._model, self._sync, self._rules = model, sync, rules
        self._shares_norms = sync_batch_norm
        self._bucket_bytes, self.cut = int(bucket_mb * 1e6), cut
        self._group = Group(len(self.devices), timeout_s, current_processes())
        self._exchange = Exchange(self._group, self.devices, link)
        self._update = Meeting(self._group, "the update", is_local=True)
        self._reducers: list[Reducer] = []
        self._places: list[Places] = []  # in no order
        self._pool: Pool | None = None
        self._exits: contextlib.ExitStack | None = None
        self._sizes: list[int] = []  # of the parts of the last batch
        self._is_local = False
        self.modules: Shards = Shards()

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

    @property
    def sessions(self) -> list[ReplicaSession]:
        """The replicas' sessions, for their counters and explanations."""
        return self._exchange.sessions

    def open(self) -> Self:
        """What `with` does at its beginning, for the cells of a notebook; `close` ends it.

        Raises:
            SessionError: it was open before.
        """
        if self._exits is not None:
            raise SessionError("a DataParallel can be entered once; make a new one")
        register()
        self._exits = contextlib.ExitStack()
        homes = [Frontend(place) for place in range(len(self.devices))]
        self._exchange.sessions = [
            ReplicaSession(rank, device, self._exchange, self.settings, home, self._rules)
            for rank, device, home in zip(self.ranks, self.devices, homes, strict=True)
        ]
        copies = [
            share_batch_norms(copy.deepcopy(self._model), every=self._shares_norms)
            for _ in homes
        ]  # fmt: skip
        with contextlib.ExitStack() as undo:
            if self.count == 1:
                undo.enter_context(self.sessions[0])
            else:
                undo.callback(self._group.close)
                undo.callback(self._exchange.close)
                self._pool = Pool(self._group, lambda place: self._exchange.sessions[place])
                undo.callback(self._pool.close)
            made = self._run([partial(self._set_up, i, copy) for i, copy in enumerate(copies)])
            self._exits = undo.pop_all()
        self._reducers = list(made)
        self.modules = Shards(reducer.module for reducer in made)
        return self

    def close(self) -> None:
        """End the threads and sessions; the replicas' tensors can be read no more."""
        if self._exits is not None:
            self._group.close()
            self._exits.close()

    def at_close(self, call: Callable[[], Any]) -> None:
        """Call this when it closes, before the threads end."""
        if self._exits is not None:
            self._exits.callback(call)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _set_up(self, place: int, module: nn.Module) -> Reducer:
        session = self.sessions[place]
        session.seed += session.rank * SEED_STEP
        home: Frontend = session.frontend(Frontend)
        self._places.append(home.places)
        if self.count > 1:
            home.on_backward = partial(self._loss_backward, place)
        return Reducer(
            session, home, module.to("kit"), bucket_bytes=self._bucket_bytes, cut=self.cut
        )

    def _check_open(self) -> None:
        if self._exits is None or not self.sessions[0].is_open:
            raise SessionError("use a DataParallel in its `with` block: with kit.DataParallel(...)")

    def _run(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        """Each job in its replica's thread; here, if there is but one."""
        if self._pool is None:
            return [job() for job in jobs]
        line = here()
        for places in self._places:
            places.caller = line
        return self._pool.run(jobs)

    # -- a step, piece by piece --------------------------------------------------------------------

    def split(self, batch: Any) -> Shards:
        """Each replica's part of a batch, on its device: tensors are split along dimension 0.

        Parts differ by at most one item, the last ones are the smaller. Lists, tuples and dicts
        are split inside; what is no tensor, or has no dimension, goes to each replica as it is.

        Raises:
            SettingsError: there are fewer items than replicas, or tensors of different lengths.
        """
        if isinstance(batch, Shards):
            return batch
        self._check_open()
        parts = self._parts(batch)
        return Shards(self._run([partial(to_kit, part) for part in parts]))

    def __call__(self, *inputs: Any, **options: Any) -> Shards:
        """The model's outputs for each replica's part of the inputs, in the replicas' order."""
        return self.map(_call, self.modules, self._parts((inputs, options)))

    def _parts(self, batch: Any) -> Shards:
        """Each replica's part of a batch that may hold `Shards`; notes the sizes."""
        self._sizes = sizes_of(batch, self.count) or self._sizes
        parts = enumerate(self.ranks)
        return Shards(part_of(batch, rank, self._sizes, place) for place, rank in parts)

    def map(self, function: Callable[..., Any], *args: Any) -> Shards:
        """What the function gives in each replica's thread; arguments that are `Shards` are split.

        Raises:
            Exception: what the function has raised in the first replica that failed, with a note
                that names the replica and the line.
        """
        self._check_open()
        jobs = [
            partial(self._one, function, [a[r] if isinstance(a, Shards) else a for a in args], r)
            for r in range(len(self.ranks))
        ]
        return Shards(self._run(jobs))

    def _one(self, function: Callable[..., Any], args: list[Any], place: int) -> Any:
        result = function(*(to_kit(a) for a in args))
        if self._sync:
            for tensor in tensors_in(result):
                self.sessions[place].wait_to_read(tensor)
        return result

    def backward(self, losses: Sequence[Any]) -> None:
        """Gradients of the losses, one or several for each replica, summed over the replicas.

        They are those of the whole batch: with `average` a loss counts by its part's size.

        Raises:
            SessionError: there is not a loss for each replica.
        """
        if len(losses) != len(self.ranks):
            raise SessionError(
                f"backward got {len(losses)} losses for {len(self.ranks)} replicas; give one for "
                "each, in their order, as net.map returns them"
            )
        is_local = self._is_local or self.count == 1
        self._run([partial(self._backward, r, loss, is_local) for r, loss in enumerate(losses)])

    def _backward(self, place: int, loss: Any, is_local: bool) -> None:
        weight = self.weights[place]
        reducer = self._reducers[place]
        reducer.backward(list(tensors_in(loss)), weight, is_local=is_local)
        if self.count == 1:
            reducer.forget()

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

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside the block `backward` only accumulates; the first one after it sums everything."""
        before, self._is_local = self._is_local, True
        try:
            yield
        finally:
            self._is_local = before

    def optimizer(self, make: Callable[..., Any], **options: Any) -> Optimizers:
        """An optimizer for each replica, `make(parameters, **options)`, to be stepped as one."""
        made = self.map(lambda m: make(m.parameters(), **options), self.modules)
        return Optimizers(self, made)

    def step(self, loss: Callable[..., Any], optimizer: Optimizers, *batch: Any) -> Shards:
        """A whole training step with one hand-over: `loss(model, *part)`, backward, update.

        Gives each replica's losses; `net.mean` makes the loss of the whole batch of them. Weights,
        gradients and buffers change only if every replica has recorded its backward pass.
        """
        self._check_open()
        jobs = [
            partial(self._whole_step, place, loss, optimizer.replicas[place], parts)
            for place, parts in enumerate(self._parts(batch))
        ]
        return Shards(self._run(jobs))

    def _whole_step(self, place: int, loss: Callable[..., Any], optimizer: Any, parts: Any) -> Any:
        reducer = self._reducers[place]
        state = reducer.state()
        try:
            made = loss(reducer.module, *(to_kit(part) for part in parts))
            self._backward(place, made, self.count == 1)
            if self.count > 1:
                rank = self.ranks[place]
                self._update.take(rank, self._update.bring(rank, None))
        except BaseException:
            reducer.take_back(state)
            raise
        self.update(place, optimizer)
        optimizer.zero_grad()
        reducer.forget()
        return detached(made)

    def update(self, place: int, optimizer: Any) -> None:
        """One replica's optimizer step, and the end of its step."""
        optimizer.step()
        self.sessions[place].mark_step()
        self.sessions[place].end_step()

    def mean(self, losses: Sequence[Any]) -> float:
        """The loss of the whole batch, read from all devices: a sync point."""
        parts = zip(self.weights, losses, strict=True)
        mean = sum(weight * float(loss.detach()) for weight, loss in parts)
        if (processes := self._group.processes) is None:
            return mean
        return float(sum(processes.channel.meet("the mean of losses", mean)))

    def retune(
        self, *, bulk: int | tuple[int, int] | None = None, cut: str | None = None,
        bucket_mb: float | None = None, link: Link | None = None,
    ) -> None:  # fmt: skip
        """Go on with other segments or buckets, or over another imitated link (none if not given).

        Raises:
            SettingsError: an argument is wrong.
        """
        check_tuning(self.cut if cut is None else cut, 1.0 if bucket_mb is None else bucket_mb)
        self.wait_all()
        self._exchange.link = link
        self.cut = self.cut if cut is None else cut
        if bulk is not None:
            self._run([partial(session.set_bulk_size, bulk) for session in self.sessions])
        for reducer in self._reducers:
            reducer.cut = self.cut
            if bucket_mb is not None:
                reducer.fill_buckets(int(bucket_mb * 1e6))

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[Any]]:
        """Record what hosts and devices do in the block; the list gets the spans at its end.

        Lanes: "host/replica 0" what its thread records, "device/0 compute" its segments,
        "device/0 reduction" its buckets and other collectives; in `time.perf_counter_ns`.
        """
        spans: list[Any] = []
        self.wait_all()
        self._exchange.spans, self._exchange.is_tracing = [], True
        self._run([partial(session.watch, True) for session in self.sessions])
        try:
            yield spans
        finally:
            if self.processes is None or not self.processes.channel.failure:
                self.wait_all()
                self._run([partial(session.watch, False) for session in self.sessions])
            self._exchange.is_tracing = False
            for session in self.sessions:
                spans += session.lanes()
            spans += self._exchange.spans

    def backward_shape(self) -> tuple[int, list[tuple[int, int]]]:
        """Ops of the last reduced backward pass, and for each gradient (ops before it, bytes)."""
        return self._reducers[0].ops, list(self._reducers[0].gradients)

    @property
    def weights(self) -> list[float]:
        """How much of the loss the part of each replica here is: its share, or 1 for sums."""
        if not self.average or self.count == 1:
            return [1.0] * len(self.ranks)
        if not self._sizes:
            return [1.0 / self.count] * len(self.ranks)
        return [self._sizes[rank] / sum(self._sizes) for rank in self.ranks]

    def wait_all(self) -> None:
        """Block until every device has computed what was recorded for it.

        Raises:
            ExecutionError, LoweringError: a segment failed, and nobody has read what it poisoned.
        """
        self._run([session.wait_all for session in self.sessions])


class Optimizers:
    """The replicas' optimizers, stepped as one; each is an ordinary one, in `replicas`."""

    def __init__(self, net: DataParallel, made: Shards) -> None:
        self.replicas = made
        self._net = net

    def step(self) -> None:
        """Update every replica's weights, by gradients that are the same on all; ends the step.

        Raises:
            SessionError: gradients have not been reduced, so the replicas would part.
        """
        check_reduced(self._net._reducers)
        self._net._run([partial(self._net.update, r, o) for r, o in enumerate(self.replicas)])

    def zero_grad(self) -> None:
        """Forget the gradients of all replicas."""
        self._net._run([optimizer.zero_grad for optimizer in self.replicas])
        for reducer in self._net._reducers:
            reducer.forget()


def _call(module: nn.Module, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    args, options = given
    return module(*args, **options)
