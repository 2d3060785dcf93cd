"""One model on several devices: `DataParallel`. Each replica is a thread, a session and a device.

A batch is split, each replica works on its part, and their gradients are added up, so that a step
is the step of one device on the whole batch. Each replica records its own ops, one after the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from numbers import Number
from typing import Any

from torch import Tensor

from kit.errors import SessionError, SettingsError
from kit.runtime.replicas.rendezvous import Rendezvous
from kit.runtime.steps.functions import KnownFunction
from kit.torch.constants import settings_of
from kit.torch.parallel.reducer import check_reduced
from kit.torch.parallel.replicas import Replicas
from kit.torch.parallel.shards import (
    Shards,
    detached,
    known_sizes,
    others_in,
    part_of,
    sizes_of,
    tensors_in,
    to_kit,
)

__all__ = ["DataParallel", "Optimizers", "Shards"]


class DataParallel(Replicas):
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
        return Shards.of(self._run([partial(to_kit, part) for part in parts]), parts.sizes)

    def __call__(self, *inputs: Any, **options: Any) -> Shards:
        """The model's outputs for each replica's part of the inputs, in the replicas' order."""
        parts = self._parts((inputs, options))
        return self.map(lambda module, part: module(*part[0], **part[1]), self.modules, parts)

    def _parts(self, batch: Any) -> Shards:
        """Each replica's part of a batch that may hold `Shards`; notes the sizes."""
        sizes = sizes_of(batch, self.count) or known_sizes(batch)
        if sizes:
            self._sizes = [sizes] * len(self.ranks)
        parts = (part_of(batch, rank, sizes, place) for place, rank in enumerate(self.ranks))
        return Shards.of(parts, sizes)

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
        sizes = known_sizes([a for a in args if isinstance(a, Shards)])
        return Shards.of(self._run(jobs), sizes)

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
        if any(isinstance(loss, Shards) for loss in losses):
            raise SessionError(
                "backward got what net.map returns as one replica's loss. Of several losses give "
                "them together, net.map(lambda a, b: (a, b), first, second), or one after the other"
            )
        is_local = self._is_local or self.count == 1
        parts = zip(losses, self._weights(known_sizes(losses)), strict=True)
        self._run([partial(self._backward, r, *part, is_local) for r, part in enumerate(parts)])

    def _backward(self, place: int, loss: Any, weight: float, is_local: bool) -> None:
        reducer = self._reducers[place]
        reducer.backward(list(tensors_in(loss)), weight, is_local=is_local)
        if self.count == 1:
            reducer.forget()

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
        With `step_mode="replay"` the steps after three equal ones, of the same `loss` and
        `optimizer`, are issued without running their Python.

        Raises:
            SettingsError: the optimizer is none of `net.optimizer`.
        """
        self._check_open()
        if not isinstance(optimizer, Optimizers):
            raise SettingsError(
                f"net.step takes an optimizer for every replica, as net.optimizer(torch.optim.SGD, "
                f"lr=0.1) makes them, not a {type(optimizer).__name__}"
            )
        if not self._whole_steps:
            meeting = Rendezvous(self._group, "the update", is_local=True)
            places = range(len(self.ranks))
            self._whole_steps = [_WholeStep(self, place, meeting) for place in places]
        parts = self._parts(batch)
        jobs = [
            partial(step.run, loss, one, part)
            for step, one, part in zip(self._whole_steps, optimizer.replicas, parts, strict=True)
        ]
        return Shards.of(self._run(jobs), parts.sizes)

    def update(self, place: int, optimizer: Any) -> None:
        """One replica's optimizer step, and the end of its step."""
        with self.updating(place):
            self._reducers[place].note = settings_of(optimizer)
            optimizer.step()
        self.sessions[place].mark_step()
        self.sessions[place].end_step()

    def mean(self, losses: Sequence[Any], weights: Sequence[float] = ()) -> float:
        """The loss of the whole batch, read from all devices: a sync point.

        Args:
            weights: how much each counts; by the batch that they are of, if not given.

        Raises:
            SettingsError: it is not one number for each replica.
        """
        self._check_open()
        _check_losses(losses, len(self.ranks))
        parts = zip(weights or self._weights(known_sizes(losses)), losses, strict=True)
        mean = sum(weight * float(loss.detach()) for weight, loss in parts)
        if (processes := self._group.processes) is None:
            return mean
        return float(sum(processes.channel.meet("the mean of losses", mean)))


class _WholeStep:
    """A replica's training step, from its part of the batch to its weights."""

    # No `__dict__`: a step is recorded anew when an attribute of its object is another one, and
    # this object tells the stepper by itself what has changed.
    __slots__ = ("_loss", "_meeting", "_net", "_of", "_parts", "_place")

    def __init__(self, net: DataParallel, place: int, meeting: Rendezvous) -> None:
        self._net, self._place, self._meeting = net, place, meeting
        self._of: tuple[Any, Any] = (None, None)  # loss and optimizer
        self._loss: KnownFunction | None = None  # as it was at its end
        self._parts: Any = ()

    def run(self, loss: Callable[..., Any], optimizer: Any, parts: Any) -> Any:
        """One step; in the replica's thread."""
        session = self._net.sessions[self._place]
        if self._of[1] is not optimizer:
            session.stepper.forget("net.step got another optimizer than before")
        if self._loss is not None and (why := self._loss.change(loss)):
            session.stepper.forget(f"of the loss function of net.step, {why}")
        self._loss = None  # it may hold the dict of state that this step puts another one for
        self._of = (loss, optimizer)
        self._parts = parts
        try:
            made = session.run_step(self._record)
        finally:
            self._parts = ()
        self._loss = KnownFunction(loss)
        session.end_step()
        return detached(made)

    def _record(self) -> Any:
        net, place = self._net, self._place
        session, reducer = net.sessions[place], net._reducers[place]
        loss, optimizer = self._of
        state = reducer.state()
        try:
            parts, _ = session.fetch(self._fetch)
            made = loss(reducer.module, *parts)
            net._backward(place, made, net.weights[place], net.count == 1)
            if net.count > 1:
                session.stepper.note_call(self._meet)
                self._meet()
        except BaseException:
            reducer.take_back(state)
            raise
        with net.updating(place):
            reducer.note = settings_of(optimizer)
            optimizer.step()
        optimizer.zero_grad()
        reducer.forget()
        return made

    def _fetch(self) -> Any:
        """The parts on the device, and all that a recorded step has of them as constants."""
        return [to_kit(part) for part in self._parts], [
            self._net.weights,
            [x if isinstance(x, Number) else hash(x) for x in others_in(self._parts)],
        ]

    def _meet(self) -> None:
        """Nobody updates anything before everybody has come so far."""
        rank = self._net.ranks[self._place]
        self._meeting.get(rank, self._meeting.put(rank, None))


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


def _check_losses(losses: Any, count: int) -> None:
    numbers = [x for x in losses if isinstance(x, Tensor) and x.numel() == 1]
    if len(losses) != count or len(numbers) != count:
        raise SettingsError(
            f"net.mean takes one loss for each of the {count} replicas, a tensor of one element; "
            "of several losses give one after the other: net.mean(net.map(lambda x: x[0], losses))"
        )
