"""One session as its tensors see it: where their ops are recorded, and where numbers come from.

The tape lies below the tensors and knows none of them. What decides how a call of torch is
recorded lies above, in `kit.torch.dispatch`; the tape holds it as the function `dispatch`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch

from kit.errors import SessionError
from kit.ir import Aval
from kit.runtime.recording.bulk import Op, Value
from kit.runtime.recording.stream import Stream
from kit.runtime.recording.template import HOLE, Scalar
from kit.runtime.session.interrupts import INTERRUPTS
from kit.runtime.session.session import Session
from kit.threads import forked
from kit.torch.tensors.places import ProgramPlace
from kit.torch.tensors.private import private
from kit.torch.tensors.spec import Spec, check_dtype, dtype_name, is_lifted

__all__ = ["Tape"]

_graph_task_id = private("torch._C._current_graph_task_id")
Dispatch = Callable[[Any, Any, Any], Any]  # (op, args, kwargs) -> its result


class Tape:
    """Device "kit" of one session; in a group of replicas, each has the device of its `index`.

    Attributes:
        opened: the session while it is open. `session` is the same, but raises when it is not.
        dispatch: runs a call of a torch op on tensors of this tape.
        is_tracing: a hybridized function runs for the first time, see `tracing`.
        on_write: each is called with a buffer before it is written.
        programs: what hybridized functions have recorded: function -> kind of call -> program.
        shared_zeros: one value of zeros for each geometry, shown by all tensors that are reset.
        decomposing: the op that torch is taking apart into simpler ops.
        on_backward: called instead of torch's own `loss.backward()`: replicas sum their gradients.
    """

    def __init__(self, dispatch: Dispatch, index: int = 0) -> None:
        self.device = torch.device("kit", index)
        self.dispatch = dispatch
        self.opened: Session | None = None
        self.is_tracing = False
        self.on_write: list[Callable[[Any], None]] = []
        self.programs: dict[Any, dict[Any, Any]] = {}
        self.shared_zeros: dict[Spec, Value] = {}
        self.decomposing: Any = None
        self.on_backward: Callable[..., None] | None = None
        self._kept: BaseException | None = None  # the error of a backward pass
        # As long as a tensor or a recipe has one: a loop may slice at millions of offsets.
        self._specs = WeakValueDictionary[Any, Spec]()
        self._owner = os.getpid()  # the process of the session

    # -- life ------------------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """The session, as long as it is open.

        Raises:
            SessionError: it has been closed.
            EngineError: this is a forked child.
        """
        if self.opened is None:
            if os.getpid() != self._owner:
                raise forked("this tensor and its kit session")
            raise SessionError(
                "this tensor belongs to a kit session that has been closed. Work with it inside "
                "the `with kit.Session(...)` block, or keep a copy with .cpu() before it ends"
            )
        return self.opened

    def open(self, session: Session) -> None:
        """The session opens: tensors of this tape can be made."""
        self.opened, self._owner = session, os.getpid()
        self.follow(session.stream)

    def close(self) -> None:
        """The session closes: every use of a tensor of this tape raises from now on."""
        self.opened = None
        self.programs.clear()
        self.shared_zeros.clear()

    @property
    def place(self) -> ProgramPlace:
        """Where in the program this thread is."""
        stream = self.session.stream
        return stream.place or self.follow(stream)

    def follow(self, stream: Stream) -> ProgramPlace:
        """Begin to follow the program in the thread of this stream, which records for the first
        time."""
        place = stream.place = ProgramPlace()
        if not stream.is_main:  # for good: no other thread can undo it when the session closes
            torch.autograd.set_multithreading_enabled(False)
        return place

    @contextlib.contextmanager
    def tracing(self) -> Iterator[list[Any]]:
        """Inside the block a hybridized function runs; gives the list of buffers that it writes."""
        self.is_tracing, writes = True, list[Any]()
        try:
            with self.noting(writes.append):
                yield writes
        finally:
            self.is_tracing = False

    @contextlib.contextmanager
    def noting(self, note: Callable[[Any], None]) -> Iterator[None]:
        """Inside the block each buffer is noted before any thread writes it."""
        self.on_write.append(note)
        try:
            yield
        finally:
            self.on_write.remove(note)

    def note_write(self, buffer: Any) -> None:
        """This buffer is about to be written."""
        for note in tuple(self.on_write):  # another thread may add and remove its own
            note(buffer)

    # -- errors of a backward pass ---------------------------------------------------------------

    def keep(self, error: BaseException) -> None:
        """Raise it once the backward pass is over: inside it would end the process."""
        if self._kept is None:
            self._kept = error

    def raise_kept(self) -> None:
        """Raise the first error of a backward pass that is over."""
        if _graph_task_id() != -1:
            return
        error, self._kept = self._kept or torch.kit.question.take(), None  # type: ignore[attr-defined]
        if error is not None:
            raise error
        if self.opened is not None:
            INTERRUPTS.check()

    # -- recording -------------------------------------------------------------------------------

    def record(self, op: Op, inputs: Sequence[Value], numbers: Sequence[float]) -> list[Value]:
        """Append an op to the stream, at the line of the user's code that runs now."""
        return self.session.stream.record(op, inputs, numbers, self.place.frame())

    def full(self, spec: Spec, number: Any) -> Value:
        """A value filled with one number: a Python float is an input, anything else a constant."""
        numbers = []
        given = number
        if isinstance(number, float) and is_lifted(number):
            numbers, number = [number], Scalar("float64")
        static = {"size": spec.shape, "dtype": spec.aval.dtype}
        op = self.session.intern("kit.full", ((number,), static), (), (spec.aval,), len(numbers))
        if self.is_tracing:  # it belongs to the function's program
            value = self.record(op, (), numbers)[0]
        else:
            value = self.session.stream.record_fill(op, numbers, self.place.frame())
        if not spec.shape:
            value.number = given
        return value

    def copy(self, value: Value) -> Value:
        """The same numbers as a value of its own."""
        aval = (value.aval,)
        op = self.session.intern("aten.clone.default", ((HOLE,), {}), aval, aval, 0)
        return self.record(op, [value], ())[0]

    def zeros(self, aval: Aval) -> Value:
        """Memory of which every element is about to be overwritten."""
        static = {"size": aval.shape, "dtype": aval.dtype}
        op = self.session.intern("kit.full", ((0,), static), (), (aval,), 0)
        return self.record(op, [], [])[0]

    def write_view(self, op: Op, base: Value, new: Value) -> Value:
        """The base's next value, after what `op` shows of it was overwritten with `new`."""
        args, kwargs = op.template
        static = {"view": op.name, "args": args[1:], "kwargs": kwargs}
        return self._write("kit.write_view", static, base, new)

    def write_through(self, views: Sequence[Op], base: Value, new: Value) -> Value:
        """The base's next value, after what `views` show of it, one on another, is `new`."""
        calls = [(op.name, op.template[0][1:], op.template[1]) for op in views]
        return self._write("kit.write_through", {"views": calls}, base, new)

    def _write(self, name: str, static: dict[str, Any], base: Value, new: Value) -> Value:
        avals, template = (base.aval, new.aval), ((HOLE, HOLE), static)
        op = self.session.intern(name, template, avals, avals[:1], 0, writes=(0,))
        return self.record(op, [base, new], [])[0]

    def strided(self, base: Spec, spec: Spec) -> Op:
        """The view that shows memory like `base`, which has no gaps, in the geometry `spec`."""
        order = sorted(range(len(base.shape)), key=lambda d: (-base.stride[d], d))
        static = {} if order == sorted(order) else {"order": order}
        template = ((HOLE, list(spec.shape), list(spec.stride), spec.offset), static)
        return self.session.intern(
            "aten.as_strided.default", template, (base.aval,), (spec.aval,), 0, is_view=True
        )

    def from_host(self, host: torch.Tensor, dtype: torch.dtype) -> Value:
        """Copy a CPU tensor to the device; later changes of the CPU tensor are not seen."""
        check_dtype(dtype)
        start = time.perf_counter_ns()
        host = host.detach().to(device="cpu", dtype=dtype, copy=True).contiguous()
        if dtype is torch.bfloat16:
            import ml_dtypes

            array: Any = host.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        else:
            array = host.resolve_conj().resolve_neg().numpy()
        return self.session.inputs.constant(array, since_ns=start)

    # -- geometry --------------------------------------------------------------------------------

    def spec_of(self, meta: torch.Tensor) -> Spec:
        """The geometry of a meta tensor."""
        return self.spec(
            tuple(meta.shape), tuple(meta.stride()), int(meta.storage_offset()), meta.dtype
        )

    def spec(
        self, shape: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: torch.dtype
    ) -> Spec:
        """The geometry with these numbers."""
        key = (shape, stride, offset, dtype)
        spec = self._specs.get(key)
        if spec is None:
            check_dtype(dtype)
            spec = Spec(shape, stride, offset, dtype, Aval(shape, dtype_name(dtype)))
            self._specs[key] = spec
        return spec

    def spec_like(
        self,
        spec: Spec,
        dtype: torch.dtype | None = None,
        layout: torch.memory_format = torch.preserve_format,
    ) -> Spec:
        """The geometry of new memory for a tensor like one of the geometry `spec`."""
        kind = dtype or spec.dtype
        return self.cached_spec(
            ("like", spec.shape, spec.stride, kind, layout),
            lambda: torch.empty_like(spec.meta(), dtype=kind, memory_format=layout),
        )

    def cached_spec(self, key: Any, make: Callable[[], torch.Tensor]) -> Spec:
        """The geometry of the meta tensor that `make` gives; `make` is called once for each key.

        No key holds a `Spec`: that would be kept as long as what the key stands for.
        """
        spec = self._specs.get(key)
        if spec is None:
            spec = self._specs[key] = self.spec_of(make())
        return spec
