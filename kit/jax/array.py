"""What a step on jax returns: arrays that may not have been computed yet."""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import numpy as np

from kit.errors import SessionError
from kit.jax.calls import call_of
from kit.jax.places import caller, here
from kit.runtime.recording.bulk import Cell, Value
from kit.runtime.session.session import Session

__all__ = ["ARRAYS", "TRACING", "Kind", "LazyArray"]

Kind = tuple[tuple[int, ...], Any, bool]  # shape, dtype, weak type
# What jax takes for an array.
ARRAYS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)

Method = Callable[["LazyArray", Any], Any]


class Tracing(threading.local):
    """What this thread traces: no array is read meanwhile, or its numbers would be constants.

    Attributes:
        function: the name; empty if the thread traces nothing.
    """

    function = ""


TRACING = Tracing()


class Recorder(Protocol):
    """What an array asks of the jax half of its session."""

    def apply(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Record one small step."""


def _both(function: Callable[[Any, Any], Any]) -> tuple[Method, Method]:
    """Methods for `array op other` and `other op array`; they record, and compute nothing."""

    def forward(self: LazyArray, other: Any) -> Any:
        if not _is_array(other):
            return NotImplemented  # as jax's arrays do: `x == None` is False, `x + "a"` an error
        return self._recorder.apply(function, self, other)

    def reflected(self: LazyArray, other: Any) -> Any:
        if not _is_array(other):
            return NotImplemented
        return self._recorder.apply(function, other, self)

    return forward, reflected


def _is_array(x: object) -> bool:
    return isinstance(x, (LazyArray, ARRAYS))


def _method(name: str) -> Callable[..., Any]:
    """The method of `jax.Array` with that name; it records, and computes nothing."""

    def method(self: LazyArray, *args: Any, **kwargs: Any) -> Any:
        call, operands = call_of(name, args, kwargs, LazyArray, self.shape)
        return self._recorder.apply(call, self, *operands)

    method.__name__ = name
    return method


def _power(self: LazyArray, other: Any) -> Any:
    """`array ** other`: of an int jax must know which one it is, as it refuses `ints ** -1`."""
    return _method("__pow__")(self, other) if _is_array(other) else NotImplemented


class LazyArray:
    """An array of a step that is recorded, and may not have run.

    It goes into the next step as it is. `repr` and `print` never compute it; `float(x)`,
    `x.item()`, `x.tolist()` and `np.asarray(x)` do, once, and are sync points. The methods of
    `jax.Array` that compute are recorded.
    """

    __array_priority__ = 100  # `array of numpy + x` is recorded, as `x + array of numpy` is
    __slots__ = ("__weakref__", "_host", "_of", "_recorder", "_value", "dtype", "session", "shape",
                 "weak_type")  # fmt: skip

    def __init__(self, recorder: Recorder, session: Session, value: Value, kind: Kind) -> None:
        self.session = session
        self.shape, self.dtype, self.weak_type = kind  # weak: jax gives way to the other dtype
        self._recorder = recorder
        self._value = value
        self._host: np.ndarray[Any, Any] | None = None
        self._of: Cell | None = None  # where `_host` came from: a replay gives the value another

    # -- what it is ------------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that its elements take."""
        return self._value.aval.size_bytes

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        if self._host is not None and self._of is self._value.cell:
            return f"LazyArray({self._host}, dtype={self.dtype})"
        return f"LazyArray(shape={self.shape}, dtype={self.dtype}, not read yet)"

    def kit_value(self) -> Value:
        """The runtime's value behind it.

        Raises:
            SessionError: its session has been closed.
        """
        self.session.streams.check()
        if not self.session.is_open:
            raise SessionError(
                "this array belongs to a kit session that has been closed"
                f"{here()}. Read it inside the `with kit.Session(...)` "
                "block, or keep a copy with np.asarray(x) before the block ends"
            )
        return self._value

    def over(self, value: Value) -> LazyArray:
        """The same array over another value."""
        if value is self._value:
            return self
        return LazyArray(
            self._recorder, self.session, value, (self.shape, self.dtype, self.weak_type)
        )

    # -- reading it: sync points -----------------------------------------------------------------

    def read(self, cause: str) -> np.ndarray[Any, Any]:
        """Its numbers on the host; the first call waits for them."""
        if self._host is None or self._of is not self._value.cell:
            if jax.numpy.issubdtype(self.dtype, jax.dtypes.prng_key):
                raise TypeError(
                    f"a random key of type {self.dtype} has no numbers to read{here()}; return "
                    "jax.random.key_data(key) from the step"
                )
            if traced := TRACING.function:
                raise TypeError(
                    f"{self!r} is read while {traced} is traced{here()}: its numbers would be "
                    "fixed for ever. Make it an argument of the step"
                )
            self._host = self.session.read(self.kit_value(), cause=cause, frame=caller())
            self._host.setflags(write=False)
            self._of = self._value.cell
        return self._host

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.read("asarray")
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def item(self, *index: Any) -> Any:
        """One number, as Python's own."""
        return self.read("item").item(*index)

    def tolist(self) -> Any:
        """The numbers as nested lists."""
        return self.read("tolist").tolist()

    def block_until_ready(self) -> LazyArray:
        """Wait until it has been computed; jax's name for `session.wait_to_read(x)`."""
        self.session.reads.wait_to_read(self.kit_value(), "block_until_ready")
        return self

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __bool__(self) -> bool:
        return bool(self.read("bool"))

    def __index__(self) -> int:
        return operator.index(self.read("index")[()])

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __copy__(self) -> LazyArray:
        return self  # nothing can change it

    def __deepcopy__(self, memo: Any) -> LazyArray:
        return self

    def __reduce__(self) -> Any:
        """A pickle holds the numbers: it opens anywhere, with no session."""
        return np.array, (self.read("pickle"),)

    # -- computing with it: recorded, as one small step each -------------------------------------

    __add__, __radd__ = _both(operator.add)
    __sub__, __rsub__ = _both(operator.sub)
    __mul__, __rmul__ = _both(operator.mul)
    __truediv__, __rtruediv__ = _both(operator.truediv)
    __floordiv__, __rfloordiv__ = _both(operator.floordiv)
    __mod__, __rmod__ = _both(operator.mod)
    __pow__, (_, __rpow__) = _power, _both(operator.pow)
    __divmod__, __rdivmod__ = _both(divmod)
    __lshift__, __rlshift__ = _both(operator.lshift)
    __rshift__, __rrshift__ = _both(operator.rshift)
    __matmul__, __rmatmul__ = _both(operator.matmul)
    __lt__, __gt__ = _both(operator.lt)  # a < b and b > a are each other's reflection
    __le__, __ge__ = _both(operator.le)
    __eq__, _ = _both(operator.eq)
    __ne__, _ = _both(operator.ne)
    __hash__ = None  # type: ignore[assignment]  # as an array of jax

    __and__, __rand__ = _both(operator.and_)
    __or__, __ror__ = _both(operator.or_)
    __xor__, __rxor__ = _both(operator.xor)
    __neg__, __pos__, __abs__ = _method("__neg__"), _method("__pos__"), _method("__abs__")
    __invert__, __round__ = _method("__invert__"), _method("__round__")
    __getitem__ = _method("__getitem__")

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    all, any, argmax, argmin = map(_method, ("all", "any", "argmax", "argmin"))
    sum, prod, mean, std, var = map(_method, ("sum", "prod", "mean", "std", "var"))
    max, min, cumsum, cumprod, dot = map(_method, ("max", "min", "cumsum", "cumprod", "dot"))
    reshape, ravel, flatten, squeeze = map(_method, ("reshape", "ravel", "flatten", "squeeze"))
    transpose, swapaxes, repeat, take = map(_method, ("transpose", "swapaxes", "repeat", "take"))
    astype, clip, round, sort, argsort, copy = map(
        _method, ("astype", "clip", "round", "sort", "argsort", "copy")
    )

    @property
    def T(self) -> Any:
        """The array with its axes reversed."""
        return self.transpose()

    def __getattr__(self, name: str) -> Any:
        """What is left of `jax.Array`.

        Raises:
            AttributeError: it says where such a thing can be done.
        """
        what = f"a LazyArray has no attribute {name!r}"
        if hasattr(jax.Array, name) and not name.startswith("_"):
            what += f"{here()}: use it in the step, or on jax.numpy.asarray(x), which waits"
        raise AttributeError(what, name=name, obj=self)
