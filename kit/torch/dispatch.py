"""Torch calls become recorded ops: one `Frontend` for each session.

The first call of a kind (op, geometries, static arguments) makes a `Plan`; later ones only look it
up. Shapes come from torch's own meta kernels, once per kind: they cost 70 us a call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as nn_module
from torch.optim.optimizer import register_optimizer_step_pre_hook

from kit.errors import KitError, SessionError
from kit.ir import Aval
from kit.runtime.recording.bulk import Op, Value
from kit.runtime.recording.sites import format_site
from kit.runtime.recording.stream import Stream
from kit.runtime.recording.template import HOLE, Scalar
from kit.runtime.session.session import Session
from kit.torch.constants import of_module, of_optimizer
from kit.torch.ops.host import raise_as_cpu, run_on_host
from kit.torch.ops.plans import make_plan
from kit.torch.ops.stand_ins import stand_ins
from kit.torch.optimizers import prefer_fused
from kit.torch.tensors.places import Places
from kit.torch.tensors.tensor import Buffer, KitTensor, Spec, View, is_lifted

__all__ = ["Frontend", "Plan"]

_graph_task_id = torch._C._current_graph_task_id
_PLAIN = frozenset({int, bool, type(None), str, torch.dtype})
_INTEGERS = {int}
_NONE: dict[str, Any] = {}

Plan = Callable[["Frontend", Any, Any, list[KitTensor], list[float]], Any]
Collect = Callable[[], list[Value]]

# floats that the op's shape or exactness depends on: kept as constants
STATIC_FLOATS = frozenset(
    {
        "aten.pow.Tensor_Scalar",
        "aten.arange.start_out",
        "aten.linspace.out",
        "aten.native_layer_norm",
        "aten.linalg_vector_norm",
        "aten._foreach_norm.Scalar",
        "aten._foreach_pow.Scalar",
        "aten._cdist_forward",
        "aten._cdist_backward",
        "aten.logit",
        "aten.logit_backward",
        "aten.renorm",
    }
)


class Frontend:
    """Device "kit" as one session sees it; of several replicas, each sees its own `index`."""

    def __init__(self, index: int = 0) -> None:
        self.device = torch.device("kit", index)
        self.is_tracing = False  # a hybridized function runs for the first time
        self.overwritten: list[Buffer] = []  # by it
        self.programs: dict[Any, dict[Any, Any]] = {}  # of hybridized functions, by kind of call
        self.shared_zeros: dict[Spec, Value] = {}
        self._hooks: list[Any] = []
        self._kept: BaseException | None = None  # the error of a backward pass
        self.on_backward: Any = None  # called instead of torch's own, in a replica
        self.decomposing: Any = None  # the op that torch is taking apart
        self._session: Session | None = None
        self._plans: dict[Any, Plan] = {}
        self._static: dict[Any, bool] = {}
        self._specs: dict[Any, Spec] = {}

    # -- life ------------------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """The session, as long as it is open.

        Raises:
            SessionError: it has been closed.
        """
        if self._session is None:
            raise SessionError(
                "this tensor belongs to a kit session that has been closed. Work with it inside "
                "the `with kit.Session(...)` block, or keep a copy with .cpu() before it ends"
            )
        return self._session

    def open(self, session: Session) -> None:
        """The session opens: follow the program."""
        self._session = session
        session.seed = torch.initial_seed() % 2**32
        session.is_inference = self._is_inference
        self._follow(session.stream)
        self._hooks = [
            nn_module.register_module_forward_pre_hook(self._enter_module),
            nn_module.register_module_forward_hook(self._leave_module, always_call=True),
            register_optimizer_step_pre_hook(prefer_fused),
            register_optimizer_step_pre_hook(self._enter_update),
        ]
        # Backward runs in the thread that asks for it: torch sizes its pool of device threads at
        # the process's first backward, which may have been before device "kit" was registered.
        self._threads = torch.autograd.set_multithreading_enabled(False)
        self._threads.__enter__()

    def close(self) -> None:
        """The session closes: its tensors can only raise now."""
        self._threads.__exit__(None, None, None)
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._session = None
        self._plans.clear()
        self.programs.clear()
        self.shared_zeros.clear()

    @property
    def places(self) -> Places:
        """Where in the program this thread is."""
        stream = self.session.stream
        return stream.places or self._follow(stream)

    def _follow(self, stream: Stream) -> Places:
        """A thread records for the first time."""
        places = stream.places = Places()
        if not stream.is_main:  # for good: nobody can undo it when the session closes
            torch.autograd.set_multithreading_enabled(False)
        return places

    def _enter_module(self, module: Any, args: Any) -> None:
        stream = None if self._session is None else self._session.here.stream
        if stream is not None and stream.places is not None:
            if not stream.places.scope:
                self.session.stepper.watch(module, of_module)
            stream.places.enter(module)
            stream.look()

    def _leave_module(self, module: Any, args: Any, output: Any) -> None:
        stream = None if self._session is None else self._session.here.stream
        if stream is not None and stream.places is not None:
            stream.places.leave(module)
            stream.look()

    def _enter_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._session is not None and self._session.here.stream is not None:
            self._session.stepper.watch(optimizer, of_optimizer)

    def _is_inference(self) -> bool:
        """A network's forward pass without gradients; a loop over tensors is none."""
        return not torch.is_grad_enabled() and bool(self.places.scope)

    def mark_step(self) -> None:
        """A new step begins."""
        self.raise_kept()
        self.places.mark_step()

    def renew(self, result: Any, fresh: Callable[[Value], Value]) -> Any:
        """A step's result with each tensor over `fresh(its value)`, in lists and dicts too."""
        if isinstance(result, KitTensor):
            if isinstance(result.ref, View):
                self.session.stepper.note_obstacle("the step returns a view; return its .clone()")
                return result
            value = result.ref.read(self)
            new = fresh(value)
            return result if new is value else self.wrap(new, result.spec)
        if isinstance(result, dict):
            return {key: self.renew(item, fresh) for key, item in result.items()}
        if isinstance(result, list | tuple) and not hasattr(result, "_fields"):
            return type(result)(self.renew(item, fresh) for item in result)
        return result

    @functools.cached_property
    def decompositions(self) -> Any:
        """Torch's own decompositions into simpler ops, for those that have no rule."""
        return torch._decomp.decomposition_table

    # -- recording -------------------------------------------------------------------------------

    def dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one torch op: what `__torch_dispatch__` calls. The hottest lines of kit."""
        session = self._session
        if session is None:
            session = self.session
        with session.lock:  # several threads may record
            stream = session.here.stream or session.join()
            places = stream.places or self._follow(stream)
            if _graph_task_id() != places.task:
                places.relocate()
                if self._kept is not None:
                    self.raise_kept()
            bulk = stream.bulk
            if places.phase is not stream.phase or (bulk is not None and bulk.size >= bulk.limit):
                stream.begin(places.phase)
            key: list[Any] = [id(func)]  # ops live for ever; their own __hash__ is Python
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
            plan = self._plans.get(token)
            if plan is None:
                plan = self._plans[token] = self._plan(session, func, args, kwargs)
            return plan(self, args, kwargs, tensors, numbers)

    def failed(self, func: Any, args: Any, kwargs: Any, error: BaseException) -> Any:
        """An op has failed: raise its error, or keep it if torch's autograd is under way."""
        if _graph_task_id() == -1:
            raise error
        self.keep(error)
        return stand_ins(self, func, args, kwargs)

    def keep(self, error: BaseException) -> None:
        """Raise it once the backward pass is over: inside it would end the process."""
        if self._kept is None:
            self._kept = error

    def raise_kept(self) -> None:
        """Raise the first error of a backward pass that is over."""
        if self._kept is not None and _graph_task_id() == -1:
            error, self._kept = self._kept, None
            raise error

    def _plan(self, session: Session, func: Any, args: Any, kwargs: Any) -> Plan:
        try:
            return make_plan(self, session, func, args, kwargs)
        except KitError:
            raise
        except Exception as error:
            site = format_site(self.places.sync_frame()[0])
            error.add_note(f"kit: in {func} at {site or 'an unknown line'}")
            raise_as_cpu(func, args, kwargs, error)
            raise

    def _scan(
        self, func: Any, arg: Any, key: list[Any], tensors: list[KitTensor], numbers: list[float]
    ) -> None:
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
        elif kind is float and is_lifted(arg) and not self.is_static(func):
            key.append(float)
            numbers.append(arg)
        elif isinstance(arg, torch.Tensor):
            key.append((arg.shape, arg.dtype, "host"))
        else:
            key.append(kind)
            key.append(arg)

    def is_static(self, func: Any) -> bool:
        """True for an op whose Python floats are constants."""
        known = self._static.get(id(func))
        if known is None:
            name = str(func).removesuffix(".default")
            resizes = name.startswith(("aten.upsample", "aten._upsample"))  # by a factor
            known = self._static[id(func)] = resizes or name in STATIC_FLOATS
        return known

    def record(self, op: Op, inputs: Sequence[Value], numbers: Sequence[float]) -> list[Value]:
        """Append an op to the stream, at the place in the user's code that we are at."""
        places = self.places
        return self.session.stream.record(op, inputs, numbers, places.frame())

    def record_one(
        self, op: Op, tensors: list[KitTensor], numbers: Sequence[float], collect: Collect | None
    ) -> Value:
        """The same for most ops: one output, not a view; `collect` gives other inputs."""
        session = self._session
        if session is None:
            session = self.session
        stream = session.here.stream or session.join()
        frame = (stream.places or self._follow(stream)).frame()
        if collect is None:
            inputs = []
            for tensor in tensors:
                ref = tensor.ref
                value = ref.value if ref.__class__ is Buffer else None
                inputs.append(ref.read(self, frame) if value is None else value)
        else:
            inputs = collect()
        bulk = stream.bulk
        if bulk is None:
            bulk = stream.new_bulk()
        if numbers:
            bulk.scalars.extend(numbers)
        return bulk.add_one(op, inputs, frame)

    def full(self, spec: Spec, number: Any) -> Value:
        """A value filled with one number: a Python float is an input, anything else a constant."""
        numbers = []
        given = number
        if isinstance(number, float) and is_lifted(number):
            numbers, number = [number], Scalar("float64")
        static = {"size": spec.shape, "dtype": spec.aval.dtype}
        op = self.session.intern("kit.full", ((number,), static), (), (spec.aval,), len(numbers))
        value = self.record(op, [], numbers)[0]
        if not spec.shape:
            value.number = given
        return value

    def zeros(self, aval: Aval) -> Value:
        """Memory that is about to be overwritten whole."""
        static = {"size": aval.shape, "dtype": aval.dtype}
        return self.record(self.session.intern("kit.full", ((0,), static), (), (aval,), 0), [], [])[
            0
        ]

    def write_view(self, op: Op, base: Value, new: Value) -> Value:
        """The base's next value, after what `op` shows of it was overwritten."""
        args, kwargs = op.template
        static = {"view": op.name, "args": args[1:], "kwargs": kwargs}
        writer = self.session.intern(
            "kit.write_view",
            ((HOLE, HOLE), static),
            (base.aval, new.aval),
            (base.aval,),
            0,
            writes=(0,),
        )
        return self.record(writer, [base, new], [])[0]

    def own_value(self, tensor: KitTensor) -> Value:
        """The tensor's value, one that a cut does not drop: views are copied out of their base."""
        value = tensor.ref.read(self)
        if isinstance(tensor.ref, View):
            aval = tensor.spec.aval
            op = self.session.intern("aten.clone.default", ((HOLE,), {}), (aval,), (aval,), 0)
            value = self.record(op, [value], [])[0]
        return value

    # -- geometry --------------------------------------------------------------------------------

    def spec_of(self, meta: torch.Tensor) -> Spec:
        """The interned geometry of a meta tensor."""
        return self.spec(
            tuple(meta.shape), tuple(meta.stride()), int(meta.storage_offset()), meta.dtype
        )

    def spec(
        self, shape: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: torch.dtype
    ) -> Spec:
        """The interned geometry with these numbers."""
        key = (shape, stride, offset, dtype)
        spec = self._specs.get(key)
        if spec is None:
            spec = Spec(shape, stride, offset, dtype, Aval(shape, dtype_name(dtype)), self)
            self._specs[key] = spec
        return spec

    def cached_spec(self, key: Any, make: Callable[[], torch.Tensor]) -> Spec:
        """The geometry of the meta tensor that `make` gives, asked for once a key."""
        spec = self._specs.get(key)
        if spec is None:
            spec = self._specs[key] = self.spec_of(make())
        return spec

    def wrap(self, value: Value, spec: Spec) -> KitTensor:
        """A tensor over new memory that holds `value`."""
        return KitTensor.wrap(self, Buffer(spec, value), spec)

    def empty(
        self, shape: Sequence[int], dtype: torch.dtype | None, stride: Sequence[int] | None = None
    ) -> KitTensor:
        """Memory that nobody has written; reads as zeros."""
        dtype = dtype or torch.get_default_dtype()
        meta = (
            torch.empty(tuple(shape), dtype=dtype, device="meta")
            if stride is None
            else torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device="meta")
        )
        spec = self.spec_of(meta)
        return KitTensor.wrap(self, Buffer(spec), spec)

    # -- to and from the host --------------------------------------------------------------------

    def from_host(self, host: torch.Tensor, dtype: torch.dtype) -> Value:
        """Copy a CPU tensor to the device; later changes of the CPU tensor are not seen."""
        host = host.detach().to(device="cpu", dtype=dtype, copy=True).contiguous()
        if dtype is torch.bfloat16:
            import ml_dtypes

            return self.session.constant(host.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
        return self.session.constant(host.resolve_conj().resolve_neg().numpy())

    def to_host(self, tensor: KitTensor, *, cause: str) -> torch.Tensor:
        """A CPU copy of a tensor: a sync point."""
        session = self.session
        value = self.own_value(tensor)
        array = session.read(value, cause=cause, frame=self.places.sync_frame())
        if tensor.dtype is torch.bfloat16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))

    def run_on_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        """No rule: compute on the host, say so, and bring the results back. A sync point.

        Raises:
            UnsupportedOp: the session is strict, or the host cannot run the op either.
        """
        return run_on_host(self, func, args, kwargs)


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.float32` -> "float32"."""
    return str(dtype).removeprefix("torch.")


def view_of(home: Frontend, parent: Buffer | View, op: Op, spec: Spec) -> KitTensor:
    """A tensor that shows part of `parent`."""
    return KitTensor.wrap(home, View(parent, op), spec)
