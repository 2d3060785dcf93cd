"""Replicas that run a step of the user's own, unchanged: `OwnStepParallel`.

Such a step holds its model, optimizer and loader itself. So the parameters whose gradients are to
be summed are those of the modules that the step calls, and they are summed in its `backward()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakTensorKeyDictionary

from kit.errors import SessionError, SettingsError
from kit.runtime.replicas.session import ReplicaSession
from kit.runtime.session.session import current_session
from kit.torch.constants import settings_of
from kit.torch.dispatch import tape_of
from kit.torch.optimizers import FOLLOWED, OptimizerWatch
from kit.torch.parallel.data_parallel import DataParallel
from kit.torch.parallel.reducer import check_reduced
from kit.torch.parallel.replicas import seed_of
from kit.torch.parallel.shards import Shards, detached, tensors_in

__all__ = ["OwnStepParallel"]


class OwnStepParallel(DataParallel, OptimizerWatch):
    """A `DataParallel` without a model: `build` makes each replica's step, `run` runs it once.

    Args:
        devices, options: as for `DataParallel`.
    """

    def __init__(self, devices: int | Sequence[Any] = 2, **options: Any) -> None:
        super().__init__(nn.Module(), devices, **options)
        self._taken: list[Sequence[int]] = [[] for _ in self.ranks]
        self._roots: list[dict[int, nn.Module]] = [{} for _ in self.ranks]
        self._steps: Shards = Shards()
        self._sizes_of: Any = WeakTensorKeyDictionary()  # tensor of a batch -> sizes of its parts

    def open(self) -> Self:
        """As for `DataParallel`."""
        super().open()
        self.at_close(nn_module.register_module_forward_pre_hook(self._see).remove)
        FOLLOWED.follow(self)
        self.at_close(partial(FOLLOWED.leave, self))
        return self

    def take(self, rank: int, sizes: Sequence[int], batch: Any = ()) -> None:
        """A replica's step has got its part of a batch of so many items for each replica.

        Its losses count by the batch that a module is called on, to be trained; if that is told by
        none of its arguments, by the last one that was taken before.
        """
        place = self._group.place(rank)
        for tensor in tensors_in(batch):
            self._sizes_of[tensor] = sizes
        self._taken[place] = sizes
        if not self._roots[place]:
            self._sizes[place] = sizes

    def build(self, make: Callable[[int], Callable[[], Any]]) -> None:
        """Each replica's step is `make(rank)`, called in its thread, one after the other.

        Not at the same time, because torch's random state belongs to the process. What the seed of
        `make` gives a step is the same in all, such as weights; the steps then draw other numbers.
        """
        made: list[Any] = []
        for place, rank in enumerate(self.ranks):
            jobs: list[Callable[[], Any]] = [lambda: None] * len(self.ranks)
            jobs[place] = lambda rank=rank: make(rank)  # type: ignore[misc]
            made.append(self._run(jobs)[place])
        for session in self.sessions:
            draws = session.draws
            draws.reseed(seed_of(draws.seed, session.rank), draws.calls)
        self._steps = Shards(made)

    @property
    def one_step(self) -> Callable[[], Any]:
        """The first replica's step, as the program has it."""
        step: Callable[[], Any] = self._steps[0]
        return step

    def run(self) -> Shards:
        """One step of every replica; gives what each returned, outside of autograd."""
        return self.map(self._one_step, Shards(range(len(self.ranks))))

    def _one_step(self, place: int) -> Any:
        result = self.sessions[place].run_step(self._steps[place])
        self.sessions[place].end_step()
        return detached(result)

    def _see(self, module: nn.Module, args: Any) -> None:
        """A module is called: one that no other module calls is a root."""
        session = self._mine()
        if session is not None and "." not in tape_of(session).place.scope:
            place = self._group.place(session.rank)
            if id(module) not in self._roots[place]:
                self._check_shapes(module)
                self._roots[place][id(module)] = module
            if torch.is_grad_enabled():
                known = (self._sizes_of.get(tensor, ()) for tensor in tensors_in(args))
                sizes = next(filter(None, known), ())
                self._sizes[place] = sizes or self._taken[place] or self._sizes[place]
                self._taken[place] = ()  # the loss of that is to come: a module, perhaps

    def _check_shapes(self, module: nn.Module) -> None:
        """While they are built, one after the other, replicas draw the same first weights."""
        lazy = (name for name, p in module.named_parameters() if is_lazy(p))
        if self._steps and (name := next(lazy, "")):
            raise SettingsError(
                f"{name!r} of {type(module).__name__} gets its shape and first numbers in the "
                "step, other ones in each replica: call the model once where the workload makes it"
            )

    def _loss_backward(self, place: int, *args: Any, **options: Any) -> None:
        roots, reducer = self._roots[place], self._reducers[place]
        if len(roots) != len(reducer.module._modules):
            reducer.take(nn.ModuleList(roots.values()))
        super()._loss_backward(place, *args, **options)

    def before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Refuse an update whose gradients were not summed."""
        session = self._mine()
        if session is None:
            return
        reducer = self._reducers[self._group.place(session.rank)]
        check_reduced([reducer])
        reducer.note = settings_of(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not reducer.has(parameter):
                    raise SessionError(
                        f"replica {session.rank}: the optimizer updates a parameter of shape "
                        f"{list(parameter.shape)} that is in no module whose forward was called, "
                        "so its gradient was not summed: make it an nn.Parameter of the model"
                    )

    def _mine(self) -> ReplicaSession | None:
        session = current_session()
        if self.count > 1 and isinstance(session, ReplicaSession):
            return session if session.collectives is self._collectives else None
        return None
