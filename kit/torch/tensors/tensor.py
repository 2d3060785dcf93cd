"""Tensors of device "kit": a wrapper that torch's autograd drives, a buffer behind it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from math import prod
from typing import Any

import numpy as np
import torch

from kit.errors import SessionError
from kit.runtime.recording.bulk import Value
from kit.torch.tensors.buffer import Buffer, View, part_of, shows_memory
from kit.torch.tensors.learning import NEEDS_GRADIENT, attributes_of, telling
from kit.torch.tensors.private import private
from kit.torch.tensors.spec import Spec
from kit.torch.tensors.storage import LoadedStorage, Storage, copied, reduced
from kit.torch.tensors.tape import Tape

__all__ = [
    "KitTensor",
    "empty",
    "strided",
    "to_host",
    "unwritten",
    "wrap",
]

_make: Any = torch.Tensor._make_wrapper_subclass  # by position: 10 % faster than by keyword
_STRIDED = torch.strided


class KitTensor(torch.Tensor):
    """A torch tensor of device "kit". `repr` never computes; `print` does, and is a sync point."""

    __slots__ = ("ref", "spec", "tape")
    ref: Buffer | View
    spec: Spec
    tape: Tape

    __torch_function__ = private("torch._C._disabled_torch_function_impl")

    requires_grad = NEEDS_GRADIENT
    requires_grad_ = telling(torch.Tensor.requires_grad_)
    detach_ = telling(torch.Tensor.detach_)
    register_hook = telling(torch.Tensor.register_hook)
    register_post_accumulate_grad_hook = telling(torch.Tensor.register_post_accumulate_grad_hook)

    @staticmethod
    def over(tape: Tape, ref: Buffer | View, spec: Spec) -> KitTensor:
        """A new tensor object over `ref`, with the geometry `spec`."""
        tensor = _make(
            KitTensor, spec.shape, spec.stride, spec.offset, None, spec.dtype, _STRIDED, tape.device
        )
        tensor.ref = ref
        tensor.spec = spec
        tensor.tape = tape
        return tensor  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        known = args and args[0].__class__ is KitTensor
        tape = args[0].tape if known else _tape_of(args, kwargs)
        return tape.dispatch(func, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        """Of what is missing: a tensor of another device may be given this class, and lacks all."""
        if name not in KitTensor.__slots__:
            raise AttributeError(
                f"'KitTensor' object has no attribute {name!r}", name=name, obj=self
            )
        raise AttributeError(
            "a tensor of another device was made a KitTensor, as by as_subclass(type(x)), and has "
            "no numbers on device kit: move it there instead, by .to('kit')"
        )

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Gradients, as torch computes them; in replicas, summed over them."""
        if (replica := self.tape.on_backward) is not None:
            replica(self, *args, **kwargs)
        else:
            super().backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def shows_what(self, other: KitTensor) -> bool:
        """Do both show the same memory, element for element?"""
        is_same = self.ref.base is other.ref.base and self.spec is other.spec
        return is_same and shows_memory(self.ref) and shows_memory(other.ref)

    def kit_value(self) -> Value:
        """The runtime's value, one that the end of a bulk does not drop.

        A view is copied out of its base.
        """
        value = self.ref.read(self.tape)
        return self.tape.copy(value) if isinstance(self.ref, View) else value

    def numpy(self, *, force: bool = False) -> Any:
        """The numbers as a numpy array: a sync point.

        A copy; without `force` torch's is the tensor's own memory, so ours refuses to be written.
        """
        if self.requires_grad and not force:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. "
                "Use tensor.detach().numpy() instead."
            )
        array = np.array(to_host(self, cause="numpy").numpy(), copy=force or None)
        array.setflags(write=force)
        return array

    def tolist(self) -> Any:
        """The numbers as nested lists: a sync point."""
        return to_host(self, cause="tolist").tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError(f"a tensor on {self.device} cannot become an array without a copy")
        array = self.numpy()
        return array.astype(dtype or array.dtype, copy=bool(copy))

    def __array_wrap__(self, array: Any, *rest: Any) -> Any:
        """What a function of numpy has made of this tensor, on its device."""
        return super().__array_wrap__(array).to("kit")  # type: ignore[no-untyped-call]

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError(f"a tensor on {self.device} shares no memory by DLPack: take .cpu()")

    def __dlpack_device__(self) -> Any:
        self.__dlpack__()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        grad = ", requires_grad=True" if self.requires_grad else ""
        shape = list(self.shape)
        return f"KitTensor(shape={shape}, dtype={self.dtype}, device='{self.device}'{grad})"

    def __str__(self) -> str:
        text = repr(to_host(self, cause="print")).replace("tensor(", "kit tensor(", 1)
        return f"{text[:-1]}{_shown_graph(self)})"

    def __format__(self, spec: str) -> str:
        """One number as torch formats it, `f"{loss:.3f}"`: a sync point."""
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def untyped_storage(self) -> Any:
        """Whose memory this is: good for telling whether two tensors share theirs."""
        base = self.ref.base
        return Storage(base, prod(base.spec.shape) * base.spec.dtype.itemsize)

    def _typed_storage(self) -> Any:
        """What torch shares between processes, resizes, and shards in FSDP."""
        raise RuntimeError(
            "a tensor of device kit has no bytes on the host to share, resize or shard: take "
            ".cpu(). For several devices there is kit.DataParallel, instead of FSDP"
        )

    def data_ptr(self) -> int:
        """Where in that memory it begins: to compare with others, never to read from."""
        return id(self.ref.base) + self.spec.offset * self.dtype.itemsize

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles hold CPU tensors: they open anywhere, with no session, weights_only included."""
        host = copied(self) if shows_memory(self.ref) else self.detach().cpu()
        if isinstance(self, torch.nn.Parameter):
            host = torch.nn.Parameter(host, self.requires_grad)
        vars(host).update(attributes_of(self))
        return reduced(host.requires_grad_(self.requires_grad), protocol)

    def __copy__(self) -> KitTensor:
        """Another object over the same memory, a leaf as torch's is."""
        twin: Any = self.detach().requires_grad_(self.requires_grad)
        vars(twin).update(vars(self))  # and that it is a parameter
        return twin  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> KitTensor:
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        if isinstance(self, torch.nn.Parameter):  # torch's has no gradient or attributes either
            copy: Any = torch.nn.Parameter(self.detach().clone(), self.requires_grad)
            memo[id(self)] = copy
            return copy  # type: ignore[no-any-return]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment."
            )
        base = self.ref.base
        if id(base) not in memo:  # tensors that share memory share its copy
            whole: Any = KitTensor.over(self.tape, base, base.spec)
            memo[id(base)] = whole.clone().ref
        copy = KitTensor.over(self.tape, part_of(memo[id(base)], self.ref), self.spec)
        copy.requires_grad_(self.requires_grad)
        vars(copy).update(deepcopy(vars(self), memo))
        if self.grad is not None:
            copy.grad = self.grad.__deepcopy__(memo)
        memo[id(self)] = copy
        return copy  # type: ignore[no-any-return]

    def set_(self, source: Any = None, *where: Any) -> Any:
        """Show the memory of a checkpoint: `torch.load(..., map_location="kit")` asks for it."""
        if not isinstance(source, LoadedStorage):
            if where or not isinstance(source, KitTensor):
                raise RuntimeError(
                    f"set_ on {self.device} takes another tensor of it: x.set_(y.as_strided(...))"
                )
            return super().set_(source)  # type: ignore[call-overload]
        offset, shape, stride = where
        spec = self.tape.spec(tuple(shape), tuple(stride), offset, self.dtype)
        if source.buffer is None or source.buffer.spec.dtype is not self.dtype:
            source.buffer = self._loaded(source, spec)
        self.data = strided(self.tape, source.buffer, spec)
        return self

    def _loaded(self, source: LoadedStorage, spec: Spec) -> Buffer:
        """The checkpoint's memory on the device, in the geometry `spec` if that shows all of it."""
        count = source.nbytes() // self.dtype.itemsize
        if spec.offset or not spec.is_dense or spec.reach != count:
            spec = self.tape.spec((count,), (1,), 0, self.dtype)
        host = torch.empty(0, dtype=self.dtype).set_(source, 0, spec.shape, spec.stride)
        return Buffer(spec, self.tape.from_host(host, self.dtype))

    @property
    def data(self) -> Any:
        """The same memory, outside of autograd; assigning makes this tensor show other memory."""
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, other: Any) -> None:
        if not isinstance(other, KitTensor):
            raise RuntimeError(
                f"a tensor on {self.device} cannot take the data of one on {other.device}; "
                "move it first: x.data = y.to('kit')"
            )
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        if (session := self.tape.opened) is not None and (old := self.ref.base.value) is not None:
            session.stepper.forget("a tensor was given other memory, between two steps", of=old)
        self.ref, self.spec, self.tape = other.ref, other.spec, other.tape


def _shown_graph(tensor: KitTensor) -> str:
    """What torch prints after the numbers of a tensor that has, or wants, a gradient."""
    node = tensor.grad_fn
    if node is None:
        return ", requires_grad=True" if tensor.requires_grad else ""
    name = type(node).__name__
    return f", grad_fn=<{node.name().rsplit('::', 1)[-1] if name == 'CppFunction' else name}>"


def wrap(tape: Tape, value: Value, spec: Spec) -> KitTensor:
    """A tensor over new memory that holds `value`."""
    return KitTensor.over(tape, Buffer(spec, value), spec)


def empty(
    tape: Tape,
    shape: Sequence[int],
    dtype: torch.dtype | None,
    stride: Sequence[int] | None = None,
) -> KitTensor:
    """A tensor over memory that has not been written; it reads as zeros."""
    dtype = dtype or torch.get_default_dtype()
    meta = (
        torch.empty(tuple(shape), dtype=dtype, device="meta")
        if stride is None
        else torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device="meta")
    )
    return unwritten(tape, tape.spec_of(meta))


def strided(tape: Tape, base: Buffer, spec: Spec) -> KitTensor:
    """A tensor that shows the memory of a buffer in the geometry `spec`.

    Raises:
        RuntimeError: there is not that much memory.
    """
    if spec is base.spec:
        return KitTensor.over(tape, base, spec)
    spec.check_inside(base.spec)
    return KitTensor.over(tape, View(base, tape.strided(base.spec, spec)), spec)


def unwritten(tape: Tape, spec: Spec) -> KitTensor:
    """A tensor over memory of its own that has not been written; gaps in it are memory, too."""
    if spec.is_dense:
        return KitTensor.over(tape, Buffer(spec), spec)
    memory = tape.spec((spec.reach,), (1,), 0, spec.dtype)
    return strided(tape, Buffer(memory), spec)


def to_host(tensor: KitTensor, *, cause: str) -> torch.Tensor:
    """A CPU copy of a tensor: a sync point, named by its `cause`."""
    tape, session = tensor.tape, tensor.tape.session
    tape.raise_kept()  # of a backward pass that made these numbers; numpy() is no op of torch
    with session.lock:  # a view is recorded
        value = tensor.kit_value()
    array = session.read(value, cause=cause, frame=tape.place.sync_frame())
    if tensor.dtype is torch.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))


def _tape_of(args: Any, kwargs: Any) -> Tape:
    stack = [*args, *(kwargs or {}).values()]
    while stack:
        item = stack.pop()
        if item.__class__ is KitTensor:
            return item.tape
        if isinstance(item, list | tuple):
            stack.extend(item)
    raise SessionError("no tensor of device 'kit' among the arguments")
