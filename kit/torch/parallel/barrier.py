"""Where the replicas of a `DataParallel` meet in the middle of their work: `Barrier`.

Tensors that are brought need not be computed yet: no thread waits for a device here, only for the
other replicas' threads. And the sums that `SyncBatchNorm` needs, forward and backward.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kit.errors import SessionError, SettingsError
from kit.runtime.replicas.rendezvous import Rendezvous
from kit.runtime.replicas.session import ReplicaSession
from kit.runtime.session.session import current_session
from kit.text import check_whole_number
from kit.torch.dispatch import tape_of
from kit.torch.tensors.tensor import KitTensor, wrap

__all__ = ["Barrier", "all_sum", "gathered", "keep_error", "replica_here"]


def replica_here() -> ReplicaSession | None:
    """The replica whose thread this is; None outside of a `DataParallel`, or with one device."""
    session = current_session()
    if isinstance(session, ReplicaSession) and session.collectives.group.total > 1:
        return session
    return None


def _post(
    session: ReplicaSession, tensors: Sequence[Any], metas: Sequence[torch.Tensor], combine: str
) -> list[Any]:
    """Cut and post; gives what there will be, of the shapes and types of `metas`."""
    tape = tape_of(session)
    given = [t.kit_value() for t in tensors]
    session.flush("collective")
    number = session.next_collective()
    specs = [tape.spec_of(meta) for meta in metas]
    made, _ = session.collectives.post(
        session.rank,
        ("tensors", number),
        given,
        [spec.aval for spec in specs],
        combine=combine,
        name=f"collective {number}",
        priority=1 << 20,  # the next segment of a replica reads the result
    )
    return [wrap(tape, value, spec) for value, spec in zip(made, specs, strict=True)]


def all_sum(session: ReplicaSession, tensor: Any) -> Any:
    """The sum of the replicas' tensors, on this one's device; the host waits for nothing."""
    meta = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return _post(session, [tensor], [meta], "sum")[0]


def gathered(
    session: ReplicaSession, mine: Sequence[Any], metas: Sequence[torch.Tensor]
) -> list[Any]:
    """Every replica's tensors, by rank, on this one's device; `metas` has the shapes of all."""
    return _post(session, mine, metas, "all")


class _Gather(torch.autograd.Function):
    """Every replica's tensor; its adjoint sums the gradients of all copies of this one's."""

    @staticmethod
    def forward(ctx: Any, session: ReplicaSession, metas: Sequence[torch.Tensor], mine: Any) -> Any:
        """The tensors by rank; `metas` has their shapes."""
        ctx.session, ctx.metas = session, metas
        return tuple(gathered(session, [mine], metas))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradient of this replica's, from the losses of all."""
        session = ctx.session
        try:
            total = _post(session, grads, ctx.metas, "sum")
        except Exception as error:  # noqa: BLE001 - inside backward it would end the process
            keep_error(session, error)
            total = list(grads)
        return None, None, total[session.rank]


def keep_error(session: ReplicaSession, error: BaseException) -> None:
    """Raise it when the backward pass that runs here is over."""
    tape_of(session).keep(error)


class Barrier:
    """A place in the replicas' work where all must be before any goes on, with what they bring.

    `barrier.wait(x)` gives every replica the same: what `operation` makes of the list of all x, in
    the order of the replicas, not of arrival; by default their sum. x is a number, a tensor of
    device "kit" (its operation runs on each replica's own device, the results are the same), or
    anything else that the operation takes. Gradients pass through it, as through the same function
    of the whole batch. `i = push(x)` and `pull(i)` are its two halves, in one call of the threads.

        barrier = kit.Barrier(2)
        with kit.DataParallel(model, devices=2) as net:
            net.map(lambda x: barrier.wait(x.mean()), net.split(x))

    A barrier is passed by all or by none: when a replica fails, ends without coming or comes too
    late, all others get a `SessionError` that names it.

    Args:
        count: how many take part: the replicas of the DataParallel in which it is used.
        operation: a function of the list; it must give the same each time for the same list.

    Raises:
        SettingsError: `count` is not a whole number of at least 1.
    """

    def __init__(self, count: int, operation: Callable[[list[Any]], Any] | None = None) -> None:
        check_whole_number(SettingsError, "a barrier's count", count)
        self._count = count
        self._operation = operation or sum
        self._meeting: Rendezvous | None = None
        self._alone = itertools.count()  # visits where nobody else comes
        self._brought: dict[tuple[int, int], Any] = {}  # (rank, visit) -> tensor, until pulled

    def __repr__(self) -> str:
        return f"Barrier({self._count})"

    def __deepcopy__(self, memo: Any) -> Barrier:
        return self  # the copies of a model that holds it are to meet at it

    def wait(self, x: Any = 0) -> Any:
        """Give x, wait for the other replicas, and get the result of the operation over all.

        Raises:
            SessionError: another replica has failed, has ended, or does not come in time.
        """
        return self.pull(self.push(x))

    def push(self, x: Any = 0) -> int:
        """Give x without waiting; gives the number that `pull` takes."""
        session = replica_here()
        if session is None:
            if self._count > 1:
                raise SessionError(
                    f"{self!r} was used outside of a replica, where nobody else would come: call "
                    "it in a function that net.map or a module that a kit.DataParallel runs"
                )
            visit = next(self._alone)
            self._brought[0, visit] = x
            return visit
        meeting = self._of(session)
        session.stepper.note_obstacle(f"replicas meet at {self!r} in the middle of the step")
        is_tensor = isinstance(x, KitTensor)
        shown = [list(x.shape), str(x.dtype)] if is_tensor else x
        visit = meeting.put(session.rank, [is_tensor, shown])
        self._brought[session.rank, visit] = x.clone() if is_tensor else x  # as it is now
        return visit

    def pull(self, index: int) -> Any:
        """Wait for the tensors of all replicas for this `push`, and get the result.

        Raises:
            SessionError: another replica has failed, has ended, or does not come in time.
        """
        session = replica_here()
        rank = 0 if session is None else session.rank
        if (rank, index) not in self._brought:
            raise SessionError(f"replica {rank} pulls {index!r}, which it has not pushed")
        mine = self._brought.pop((rank, index))
        if session is None or self._meeting is None:
            return self._operation([mine])
        kinds, items = zip(*self._meeting.get(rank, index), strict=True)
        if any(kinds):
            if not all(kinds):
                at = kinds.index(False)
                raise SessionError(
                    f"replica {kinds.index(True)} brought a tensor of device 'kit' to {self!r}, "
                    f"replica {at} a {type(items[at]).__name__}: bring the same kind of thing"
                )
            if session.collectives.group.processes and any(item != items[0] for item in items):
                raise SessionError(
                    f"{self!r}: replicas of several processes must bring one shape and type, not "
                    + ", ".join(f"{dtype} {shape}" for shape, dtype in items)
                )
            metas = [
                torch.empty(
                    shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device="meta"
                )
                for shape, dtype in items
            ]
            return self._operation(list(_Gather.apply(session, metas, mine)))  # type: ignore[no-untyped-call]
        return self._operation(list(items))

    def _of(self, session: ReplicaSession) -> Rendezvous:
        group = session.collectives.group
        if self._count != group.total:
            more = self._count > group.total
            raise SessionError(
                f"{self!r} in a DataParallel of {group.total} replicas: "
                + (
                    "it would wait for ever for those that do not exist"
                    if more
                    else "it could not say who belongs together"
                )
                + f"; make it kit.Barrier({group.total})"
            )
        with group.changed:
            if self._meeting is None or self._meeting.group is not group:
                self._meeting = Rendezvous(group, repr(self))
                self._brought = {}
            return self._meeting
