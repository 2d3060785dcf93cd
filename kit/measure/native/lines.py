"""Which line of the user's has called each op of one step, and at which of them the host waits.

torch's profiler has times, and no lines. So steps before the traced ones are looked at, op by op;
`kit/measure/native/match.py` finds their ops again among the profiler's events.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kit.ir import Aval
from kit.measure.base.loading import noted
from kit.measure.native.places import Place
from kit.runtime.recording.bulk import NOWHERE, Site
from kit.runtime.recording.sites import callers, format_site, is_users
from kit.runtime.session.interrupts import postponed
from kit.threads import in_forked_children
from kit.torch.tensors.places import outside_torch
from kit.torch.tensors.private import private
from kit.trace.imported import NOT_AN_ARRAY

__all__ = ["Lines", "ModuleNames", "SeenNode", "SeenOp", "is_compiled_here"]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_LOADER = _TORCH + os.path.join("utils", "data", "dataloader.py")
_MODULES = _TORCH + os.path.join("nn", "modules", "module.py")
_CALL = "_call_impl"  # the function of a module's that runs its `forward`
_AUTOGRAD = _TORCH + os.path.join("autograd", "graph.py")
_ENGINE = "_engine_run_backward"  # what a backward pass calls on the CPU has this frame around it
_MOST_OPS = 1_000_000  # of one step that are kept


@dataclass(frozen=True, slots=True)
class SeenOp:
    """An op of the step that was looked at."""

    name: str  # "aten::addmm"
    site: Site = NOWHERE  # the user's line; nowhere: only libraries were on the stack
    module: tuple[str, ...] = ()  # outermost first, by class: "Net_0", "Linear_3"
    inputs: tuple[Aval, ...] = ()  # of each argument; `NOT_AN_ARRAY` for what is none
    others: tuple[str, ...] = ()  # a convolution's arguments that are no arrays, as text


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A function of autograd in a backward pass of that step."""

    name: str  # "AddmmBackward0"
    sequence: int
    # They have a line where Python calls them: a hook, a function of the user's, a checkpoint.
    ops: list[SeenOp] = field(default_factory=list, compare=False)


class Lines(TorchDispatchMode):
    """Notes the ops of this thread while it is on, and the places of those that wait.

    It is below the modes of the program, such as a count of FLOPs, and so is none that one of them
    takes off in its place: a program's block may begin or end while this one is on. What is
    compiled stays compiled.

    Args:
        device: "cuda"; or "cpu", where nothing waits: then the reads, which would on a GPU.
        modules: one for all steps that are looked at.
    """

    supports_higher_order_operators = True  # one that is called is done as without the mode

    def __init__(self, device: str, modules: ModuleNames) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: dict[str, list[Place]] = {}  # by cause
        self.ops: list[SeenOp] = []  # in the order of their calls
        self.gradients: list[SeenNode] = []  # of the backward passes
        self._cause = _cause if device == "cuda" else _read
        self._modules = modules
        self._left = _MOST_OPS

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """For torch.compile: it need not run the program uncompiled for this mode."""
        return True

    def __enter__(self) -> Self:
        try:
            with postponed():
                _put_on([self, *_taken_off()])
            return self
        except BaseException:  # of the memory
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self._leave()
        except BaseException:  # an interrupt before it was postponed: nobody asks again
            self._leave()
            raise

    def _leave(self) -> None:
        with postponed():
            _put_on([mode for mode in _taken_off() if mode is not self])
            self._modules = ModuleNames()  # the program's own may be freed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        op = getattr(func, "overloadpacket", None)  # None: an op that takes functions
        if op is not None and func.namespace != "profiler":
            if cause := self._cause(op, args, result):
                site, via = outside_torch(sys._getframe())
                self.places.setdefault(cause, []).append((format_site(site), via))
            node = private("torch._C._current_autograd_node")()
            if self._left > 0:
                ops = self.ops if node is None else self._node(node).ops
                around = self._modules.around(sys._getframe(), is_backward=node is not None)
                ops.append(_seen(func, args, *around))
            self._left -= 1
        return result

    def _node(self, node: Any) -> SeenNode:
        """The function of autograd that calls an op; one that goes on is the last that was seen."""
        found = SeenNode(node.name(), node._sequence_nr())
        if not self.gradients or self.gradients[-1] != found:
            self.gradients.append(found)
        return self.gradients[-1]


class ModuleNames:
    """Numbers the modules of each class, as torch's profiler does, in the order of their calls."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []  # so that no other module gets the identity of one
        self._counts: dict[str, int] = {}
        self._outer: dict[str, tuple[str, ...] | None] = {}  # around each; None: it differs

    def around(self, frame: Any, *, is_backward: bool) -> tuple[Site, tuple[str, ...]]:
        """The user's innermost line, and the modules that are being called, outermost first.

        In a backward pass only what the pass has called is asked: a checkpoint that computes again
        is in the modules that were around it in the forward pass.
        """
        site, names = NOWHERE, list[str]()
        while frame is not None:
            code = frame.f_code
            if is_backward and code.co_name == _ENGINE and code.co_filename == _AUTOGRAD:
                break
            if not site[0] and is_users(code.co_filename):
                site = code.co_filename, frame.f_lineno
            if code.co_name == _CALL and code.co_filename == _MODULES:
                names.append(self._name(frame.f_locals.get("self")))
            frame = frame.f_back
        path = tuple(reversed(names))
        if is_backward:
            return site, ((self._outer.get(path[0]) or ()) if path else ()) + path
        for i, name in enumerate(path):
            if self._outer.setdefault(name, path[:i]) != path[:i]:
                self._outer[name] = None
        return site, path

    def _name(self, module: Any) -> str:
        name = self._names.get(id(module))
        if name is None:
            kind = type(module).__name__
            number = self._counts.get(kind, 0)
            self._counts[kind] = number + 1
            self._kept.append(module)
            name = self._names[id(module)] = f"{kind}_{number}"
        return name


def is_compiled_here() -> bool:
    """Is this called by a function that torch.compile has compiled?

    At its end torch sets this thread's dispatch as it was at its beginning, so no mode may come or
    go in it.
    """
    frame: Any = sys._getframe()
    while frame is not None and not frame.f_code.co_qualname.startswith("_TorchDynamoContext."):
        frame = frame.f_back
    return frame is not None


def _seen(
    func: Any, args: Sequence[Any], site: Site = NOWHERE, module: tuple[str, ...] = ()
) -> SeenOp:
    name = func.name().partition(".")[0]
    inputs = tuple(_aval(x) if isinstance(x, torch.Tensor) else NOT_AN_ARRAY for x in args)
    return SeenOp(name, site, module, inputs, tuple(map(_text, args)) if "conv" in name else ())


def _aval(tensor: torch.Tensor) -> Aval:
    shape = tuple(tensor.shape)
    is_known = all(type(size) is int for size in shape)
    return Aval(shape, str(tensor.dtype).removeprefix("torch.")) if is_known else NOT_AN_ARRAY


def _text(arg: Any) -> str:
    """As torch writes an argument that is no array; "" for one that is."""
    return "" if isinstance(arg, torch.Tensor) or arg is None else str(arg)[:200]


def _taken_off() -> list[Any]:
    """The modes of this thread, the lowest first; none is on after this."""
    pop = private("torch.utils._python_dispatch._pop_mode")
    count = private("torch._C._len_torch_dispatch_stack")()
    return [pop() for _ in range(count)][::-1]


def _leave_behind() -> None:
    """In a forked child, such as a loader's worker: what is computed there is not looked at."""
    if private("torch._C._len_torch_dispatch_stack")():
        _put_on([mode for mode in _taken_off() if not isinstance(mode, Lines)])


def _put_on(modes: Sequence[Any]) -> None:
    for mode in modes:
        private("torch.utils._python_dispatch._push_mode")(mode)


def _cause(op: Any, args: Any, result: Any) -> str:
    """Why this op waits for the GPU, in the words of a `SyncPoint`; "" if it does not."""
    aten = torch.ops.aten
    if op is aten._local_scalar_dense:
        return "item" if args[0].is_cuda else ""
    if op is aten._to_copy or op is aten.copy_:
        source = args[1] if op is aten.copy_ else args[0]
        if source.is_cuda != result.is_cuda:
            return "copy_to_device" if result.is_cuda else "copy_to_host"
    return "nonzero" if op is aten.nonzero and args[0].is_cuda else ""


def _read(op: Any, args: Any, result: Any) -> str:
    """The same word where a number is read on the CPU, and not for an item of a loader."""
    if op is not torch.ops.aten._local_scalar_dense:
        return ""
    around = (f.f_code for f in callers(sys._getframe(1)))
    is_loaders = any(code is noted.__code__ or code.co_filename == _LOADER for code in around)
    return "" if is_loaders else "item"


in_forked_children(_leave_behind)
