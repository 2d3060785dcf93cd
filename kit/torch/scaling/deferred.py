"""Loss scaling whose check comes one step late, and which takes a wrong step back.

The optimizer steps at once, without knowing whether a gradient was infinite. One step later the
answer is there, and looking at it costs no wait. If the step was wrong, parameters and optimizer
state go back to what they were, and what has read them since runs again:
`kit.runtime.session.redo`. The step's Python is not run a second time, and random numbers are those
that were drawn.

Unlike the scaler "on device" this selects nothing in the program, so an optimizer pays for it only
when an infinity comes. It keeps a second copy of parameters and state for a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

from kit.errors import SettingsError
from kit.runtime.recording.bulk import Value
from kit.runtime.session.session import Session, current_session, session_for
from kit.torch.scaling.fused import (
    counted_on_device,
    has_new_hooks,
    make_fused,
    note_good_step,
    stepped,
    stepped_whatever_found,
)
from kit.torch.scaling.scaler import (
    CheckedScaler,
    counts_of,
    refuse_counts,
    starts_from_zero,
)
from kit.torch.scaling.writes import other_writes
from kit.torch.tensors.buffer import Buffer
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor

__all__ = ["DeferredScaler"]


class DeferredScaler(CheckedScaler):
    """`GradScaler` on device "kit" that looks at its check one step later.

    The scale itself follows on the device, so it is never late. An optimizer that counts its steps
    in a Python number is refused: the number could not be taken back.

    One number is read, once, where an optimizer that does not start from zeros makes its state, and
    until a hook has run in a good step.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._last: tuple[Session, int] | None = None  # the session and its step at `update`
        # Scale and growth count after this step, if no further optimizer has a say in them; how
        # many had. Recorded with the step, so that nothing is left to issue after it.
        self._next: tuple[int, torch.Tensor, torch.Tensor] | None = None

    def _stepping(self, optimizer: torch.optim.Optimizer) -> AbstractContextManager[None]:
        """The check of the step before is looked at, and that step taken back if it was wrong."""
        make_fused(optimizer)
        return stepped_whatever_found(optimizer)

    def update(self, new_scale: Any = None) -> None:
        """The next scale, on the device.

        Raises:
            SettingsError: `new_scale` is a number, and not a positive finite one.
        """
        foreseen, self._next = self._next, None
        if new_scale is None and foreseen is not None and foreseen[0] == len(self._found()):
            _, new_scale, self._growth_tracker = foreseen
        super().update(new_scale)
        if (session := current_session()) is not None:
            self._last = session, session.step

    def _found(self) -> list[torch.Tensor]:
        states = self._per_optimizer_states.values()
        return [found for state in states for found in state["found_inf_per_device"].values()]

    def _foresee(self) -> None:
        scale, tracker = self._check_scale_growth_tracker("step")
        scale, tracker, found = scale.clone(), tracker.clone(), self._found()
        torch._amp_update_scale_(
            scale,
            tracker,
            _any_of(found),
            self._growth_factor,
            self._backoff_factor,
            self._growth_interval,
        )
        self._next = len(found), scale, tracker

    def _maybe_opt_step(
        self,
        optimizer: torch.optim.Optimizer,
        optimizer_state: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        session = session_for("scaler.step() on device 'kit'")
        bad = _any_of(list(optimizer_state["found_inf_per_device"].values()))
        if _makes_unknown_state(optimizer):
            with counted_on_device(optimizer):
                if bool(bad):
                    return None
                note_good_step(optimizer)
                return optimizer.step(*args, **kwargs)
        if has_new_hooks(optimizer):
            if bool(bad):
                return None
            note_good_step(optimizer)
        if self._last == (session, session.step):  # the program never calls mark_step: look now
            session.flush("check")
            session.redo.close()
        counts = counts_of(optimizer)
        with counted_on_device(optimizer):
            before = _Snapshot(optimizer)
            with other_writes(before.tape, optimizer) as others:
                result = optimizer.step(*args, **kwargs)
        self._foresee()
        pairs = _own_values(before.tape, [*before.pairs(), *others.values()])
        session.redo.open(bad.kit_value(), pairs)
        refuse_counts(optimizer, counts)
        return result


def _own_values(tape: Tape, pairs: Iterable[tuple[Buffer, Value]]) -> list[tuple[Value, Value]]:
    """(value of now, value of before) of each buffer, whose value no other memory shows.

    What takes back a value that two share, after a `copy_` of one to the other, say, would give
    both the same numbers of before.
    """
    own: dict[Value, Value] = {}
    for buffer, old in pairs:
        value = buffer.read(tape)
        if value in own or getattr(value, "is_shared", False):
            buffer.write(tape, tape.copy(value))
            value = buffer.read(tape)
        own[value] = old
    return list(own.items())


def _any_of(found: list[torch.Tensor]) -> Any:
    """More than zero if one of torch's `found_inf` is."""
    return found[0] if len(found) == 1 else torch.stack(found).sum()


def _makes_unknown_state(optimizer: torch.optim.Optimizer) -> bool:
    """True before the step in which state is made of which only the optimizer knows the start."""
    return not starts_from_zero(optimizer) and any(
        not optimizer.state.get(p) for p in stepped(optimizer)
    )


class _Snapshot:
    """What a step may write, as it was before: values, which nothing can change."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._params = stepped(optimizer)
        self.tape: Tape = next(p.tape for p in self._params if isinstance(p, KitTensor))
        self._values: dict[int, tuple[Buffer, Value]] = {}
        self._state: dict[tuple[int, Any], Value] = {}  # (which parameter, key)
        self._shown: list[tuple[Any, Value]] = []  # of each parameter: its memory, its value there
        for i, p in enumerate(self._params):
            value = self._keep(p)
            self._shown.append((p.ref, value))  # type: ignore[attr-defined]
            for key, tensor in optimizer.state.get(p, {}).items():
                if isinstance(tensor, KitTensor):
                    self._state[i, key] = self._keep(tensor)

    def _keep(self, tensor: Any) -> Value:
        buffer = tensor.ref.base
        value: Value = buffer.read(tensor.tape)
        self._values[id(buffer)] = buffer, value
        return value

    def pairs(self) -> list[tuple[Buffer, Value]]:
        """(buffer, value of before) for all that has changed since.

        Raises:
            SettingsError: `p.data = ...` has let a parameter show memory that was there before.
        """
        pairs = [
            (buffer, value)
            for buffer, value in self._values.values()
            if buffer.value is not None and buffer.value is not value
        ]
        for p, (shown, value) in zip(self._params, self._shown, strict=True):
            new: Any = p.ref  # type: ignore[attr-defined]
            if new is shown:
                continue
            is_whole = new is new.base and shown is shown.base and new.spec.aval == value.aval
            if id(new) in self._values or not is_whole:
                raise SettingsError(
                    f"{type(self._optimizer).__name__}.step() or a hook of it assigns the .data of "
                    "a parameter memory that is not its own, which cannot be taken back; use "
                    "p.data.copy_(...), or loss_scaling='dynamic, host check'"
                )
            pairs.append((new, value))
        for i, p in enumerate(self._params):
            for key, tensor in self._optimizer.state.get(p, {}).items():
                if isinstance(tensor, KitTensor) and id(tensor.ref.base) not in self._values:
                    new = tensor.ref.base
                    old = self._state.get((i, key))  # replaced by another tensor, or just made
                    if old is None or old.aval != new.spec.aval:
                        old = torch.zeros_like(tensor).ref.base.read(tensor.tape)  # type: ignore[attr-defined]
                    pairs.append((new, old))
        return pairs
