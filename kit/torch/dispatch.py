"""Torch calls become recorded ops: one `Dispatcher` for each session.

The first call of a kind (op, geometries, static arguments) makes a `Recipe`; later ones look it up.
Shapes come from torch's own meta kernels, once per kind: they cost 70 us a call.

The way of one op: `KitTensor.__torch_dispatch__`, `Dispatcher.dispatch`, the recipe, `Bulk.add`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from sys import getrefcount
from typing import Any

import torch

from kit.errors import KitError
from kit.runtime.compiling.precision import Precision
from kit.runtime.recording.bulk import Value
from kit.runtime.recording.sites import format_site
from kit.runtime.session.interrupts import refuse_in_handler
from kit.runtime.session.session import Session
from kit.torch.follow import Follower
from kit.torch.ops.host import raise_as_cpu
from kit.torch.ops.recipes import make_recipe
from kit.torch.ops.schema import Recipe, has_static_floats
from kit.torch.ops.stand_ins import stand_ins
from kit.torch.scaling.fused import HOOKS_OF_ALL
from kit.torch.tensors.buffer import View
from kit.torch.tensors.containers import mapped
from kit.torch.tensors.private import private
from kit.torch.tensors.spec import is_lifted
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor, wrap

__all__ = ["Dispatcher", "tape_of"]

_graph_task_id: Callable[[], int] = private("torch._C._current_graph_task_id")
_default_dtype = torch.get_default_dtype
_dispatch_modes: Callable[[], int] = private("torch._C._len_torch_dispatch_stack")
_hooks_of_saved: Any = private("torch._C._autograd._top_saved_tensors_default_hooks")
_function_modes: Any = private("torch.overrides._get_current_function_mode_stack")
_HOOKS_OF_ALL: list[dict[int, Any]] = [
    private("torch.nn.modules.module._global_forward_pre_hooks"),
    private("torch.nn.modules.module._global_forward_hooks"),
    private("torch.nn.modules.module._global_backward_pre_hooks"),
    private("torch.nn.modules.module._global_backward_hooks"),
    *HOOKS_OF_ALL,
]
MAX_RECIPES = 65_536  # kinds of calls that are remembered; then all are learned again
_PLAIN = frozenset({int, bool, type(None), str, torch.dtype})
_INTEGERS = {int}
_NONE: dict[str, Any] = {}
_PLACING = ("torch.", "kit.")  # packages


class Dispatcher:
    """The torch half of a session: runs each call of an op on the tensors of its `tape`."""

    def __init__(self, index: int = 0) -> None:
        self.tape = Tape(self.dispatch, index)
        self._follower: Follower | None = None
        self._recipes: dict[Any, Recipe] = {}
        self._static: dict[int, bool] = {}  # id of an op -> are its floats constants?

    # -- what the session asks for ---------------------------------------------------------------

    def open(self, session: Session) -> None:
        """The session opens: follow the program."""
        torch.kit.seed_session(session)  # type: ignore[attr-defined]
        self.tape.open(session)
        self._follower = Follower(session)

    def close(self) -> None:
        """The session closes: its tensors can only raise now."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None
        self.tape.close()
        self._recipes.clear()

    def mark_step(self) -> None:
        """A new step begins; no replay follows where torch looks at each op or what it saves."""
        self.tape.raise_kept()
        self.tape.place.mark_step()
        note = self.tape.session.stepper.note_obstacle
        if _has_modes():  # such as `FlopCounterMode`
            note("a mode of torch's sees each op of the step")
        if _hooks_of_saved(False):
            note("torch.autograd.graph.saved_tensors_hooks see what the step saves")

    def is_inference(self) -> bool:
        """True in a network's forward pass without gradients; false in a loop over tensors."""
        return not torch.is_grad_enabled() and bool(self.tape.place.scope)

    def is_in_backward(self) -> bool:
        """True while torch's autograd runs in this thread."""
        return _graph_task_id() != -1

    def host_draws(self) -> bytes:
        """How far torch's random numbers of the CPU are."""
        return torch.get_rng_state().numpy().tobytes()

    def modes(self) -> dict[str, Any]:
        """What of torch's own settings decides how a step is recorded."""
        is_lower = torch.is_autocast_enabled("kit")
        return {
            "whether gradients are recorded": torch.is_grad_enabled(),
            "torch.inference_mode": torch.is_inference_mode_enabled(),
            "torch.autocast": is_lower and torch.get_autocast_dtype("kit"),
            "torch.autograd.set_detect_anomaly": torch.is_anomaly_enabled(),
            "torch.get_default_dtype()": torch.get_default_dtype(),
            "a hook of all modules or optimizers": [*map(id, self.hooks())],
            # No replay follows a step with these, so that which ones they are makes no difference.
            "torch.autograd.graph.saved_tensors_hooks": bool(_hooks_of_saved(False)),
            "the modes of torch's that see each op": _has_modes(),
        }

    @staticmethod
    def precision() -> Precision:
        """With how many bits native torch would multiply float32 on a GPU, by its own settings."""
        rounds = "tf32"  # else "ieee", or "none", which is the same where nothing else is said
        backends: Any = torch.backends
        return Precision(
            products=backends.cuda.matmul.fp32_precision == rounds,
            convolutions=backends.cudnn.conv.fp32_precision == rounds,
            recurrent=backends.cudnn.rnn.fp32_precision == rounds,
        )

    def hooks(self) -> list[Any]:
        """The functions that torch calls for all modules and optimizers."""
        return [hook for hooks in _HOOKS_OF_ALL for hook in hooks.values()]

    def renew(self, result: Any, fresh: Callable[[Value], Value]) -> Any:
        """A step's result with each tensor over `fresh(its value)`, in lists and dicts too."""
        if isinstance(result, KitTensor):
            tape = self.tape
            if isinstance(result.ref, View):
                tape.session.stepper.note_obstacle("the step returns a view; return its .clone()")
                return result
            value = result.ref.read(tape)
            new = fresh(value)
            return result if new is value else wrap(tape, new, result.spec)
        if isinstance(result, dict | list | tuple):
            return mapped(result, lambda item: self.renew(item, fresh), anew=True)
        return result

    def value_of(self, thing: Any) -> Value | None:
        """The value that a tensor of this device shows, or shows a part of; None of all else."""
        return thing.ref.base.value if isinstance(thing, KitTensor) else None

    def holds(self, thing: Any) -> int:
        """How many references to a tensor of this device there are, and to its memory."""
        if not isinstance(thing, KitTensor):
            return 0
        return getrefcount(thing) + getrefcount(thing.ref) + getrefcount(thing.ref.base)

    # -- one call --------------------------------------------------------------------------------

    def dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one torch op: what `__torch_dispatch__` calls. The hottest lines of kit."""
        tape = self.tape
        session = tape.opened
        if session is not None and session.lock._is_owned():
            refuse_in_handler(sys._getframe())
        try:
            session = session or tape.session  # the second one raises
            with session.lock:  # several threads may record
                stream = session.here.stream or session.streams.join()
                place = stream.place or tape.follow(stream)
                if _graph_task_id() != place.task:
                    place.relocate()
                    tape.raise_kept()
                bulk = stream.bulk
                if place.phase is not stream.phase or (
                    bulk is not None and bulk.size >= bulk.limit
                ):
                    stream.begin(place.phase)
                # Ops live for ever; their own __hash__ is Python.
                key: list[Any] = [id(func), _default_dtype()]
                tensors: list[KitTensor] = []
                numbers: list[float] = []
                for arg in args:
                    kind = arg.__class__
                    if kind is KitTensor:
                        key.append(arg.spec)
                        tensors.append(arg)
                    elif kind in _PLAIN:
                        key.append(kind)
                        key.append(arg)
                    else:
                        self._scan(func, arg, key, tensors, numbers)
                if kwargs:
                    for name in kwargs:
                        key.append(name)
                        self._scan(func, kwargs[name], key, tensors, numbers)
                else:
                    kwargs = _NONE
                token = tuple(key)
                recipe = self._recipes.get(token) or self._recipe(token, func, args, kwargs)
                return recipe(tape, args, kwargs, tensors, numbers)
        except BaseException as error:  # noqa: BLE001 - raised there, or kept
            return self._failed(func, args, kwargs, error)

    def _failed(self, func: Any, args: Any, kwargs: Any, error: BaseException) -> Any:
        """An op has failed: raise its error, or keep it if torch's autograd is under way."""
        if (session := self.tape.opened) is not None:
            session.streams.mend()
        if _graph_task_id() == -1:
            raise error
        self.tape.keep(error)
        return stand_ins(self.tape, func, args, kwargs)

    def _recipe(self, token: Any, func: Any, args: Any, kwargs: Any) -> Recipe:
        """The recipe for the first call of a kind."""
        if len(self._recipes) >= MAX_RECIPES:
            self._recipes.clear()
        try:
            recipe = self._recipes[token] = make_recipe(self.tape, func, args, kwargs)
        except KitError:
            raise
        except Exception as error:
            site = format_site(self.tape.place.sync_frame()[0])
            error.add_note(f"kit: in {func} at {site or 'an unknown line'}")
            raise_as_cpu(func, args, kwargs, error)
            raise
        return recipe

    def _scan(
        self, func: Any, arg: Any, key: list[Any], tensors: list[KitTensor], numbers: list[float]
    ) -> None:
        """Sort an argument into the key of its kind, the tensors and the numbers."""
        kind = arg.__class__
        if kind is KitTensor:
            key.append(arg.spec)
            tensors.append(arg)
        elif kind is list or kind is tuple or kind is torch.Size:
            if {*map(type, arg)} == _INTEGERS:
                key.append(tuple(arg))
            else:
                key.append(len(arg))
                for item in arg:
                    self._scan(func, item, key, tensors, numbers)
        elif kind is float and is_lifted(arg) and not self._is_static(func):
            key.append(float)
            numbers.append(arg)
        elif isinstance(arg, torch.Tensor):
            key.append((arg.shape, arg.dtype, "host"))
        else:
            key.append(kind)
            key.append(arg)

    def _is_static(self, func: Any) -> bool:
        known = self._static.get(id(func))
        if known is None:
            known = self._static[id(func)] = has_static_floats(func)
        return known


def tape_of(session: Session) -> Tape:
    """The tape of a session; a session without a torch half gets one now."""
    dispatcher: Dispatcher = session.frontend(Dispatcher)
    return dispatcher.tape


def _has_modes() -> bool:
    """Does a mode see each op of this thread?

    Not those of torch's and of the kit's that see functions: these say on which device tensors go.
    """
    others = (not type(m).__module__.startswith(_PLACING) for m in _function_modes())
    return _dispatch_modes() > 0 or any(others)
