"""Types and shapes that torch refuses: found once for each kind of call, by asking torch's CPU.

XLA takes what a rule gives it, and jax casts where torch raises: float64 inputs to float32 weights,
int32 labels. Torch's meta kernels, which tell the shapes, ask for little. So a call that mixes
types, has none of floating point, or a tensor that is empty or has no dimension, is first made on
the CPU with zeros of the same types.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import inf, isfinite
from typing import Any

import torch

from kit.torch.ops.host import error_on_cpu, zeros_on_cpu
from kit.torch.ops.schema import Recipe, flat_tensors, write_slots, written_tensors
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor

__all__ = ["check_draw", "check_numbers", "check_types", "with_fitting_numbers"]

# Elements of a call that is made on the CPU as large as it is, only to see whether it is refused;
# a larger one is made with two elements in each dimension, which tells what it says of types.
MOST = 1 << 16
# What torch's refusals of a type say; another error is one of the zeros.
_OF_TYPES = re.compile(
    r"dtype|scalar[ _]type|can't be cast|data ?type|not (yet )?implemented for|dtypes match|"
    r"not support|only supports|intended to support|Integers to negative|Expected a long tensor|"
    r"must be (a )?(long|int|bool)|must be of same type|Unsupported input type|out type|"
    r"floating point( or complex)? (type|tensor)|may not be a boolean|alpha must not be|"
    r"Input type .* and (weight|bias) type"  # of a convolution, where the processor has halves
)
# What its refusals of a shape say: asked for tensors that are empty or have no dimension, where
# meta kernels and XLA take more than torch does.
_OF_SHAPES = re.compile(r"\b(size|shape|dim|dimension|element|scalar)s?\b|empty|expected|non-?zero")
# The numbers in their tensors are lengths, which zeros would not be.
_OF_LENGTHS = ("aten._ctc_loss", "aten.segment_reduce")
# CUDA takes integers, and so a mixture of experts of transformers counts its tokens.
_FOR_CUDA = "aten.histc.default"
# These compare types before anything else, or are cheap: asked in full, however large they are.
_ALWAYS = frozenset(
    f"aten.{name}"
    for name in (
        "_cdist_forward", "addbmm", "addmm", "addmv", "baddbmm", "binary_cross_entropy", "bmm",
        "convolution", "dot", "embedding", "gather", "grid_sampler_2d", "grid_sampler_3d",
        "index_add", "index_add_", "index_copy", "index_copy_", "index_put", "index_put_",
        "index_select", "linear", "mm", "mv", "native_group_norm", "native_layer_norm",
        "nll_loss2d_forward", "nll_loss_forward", "take",
    )
)  # fmt: skip
# Not all types of floating point will do either: these want integers, no halves, or no truths.
_CHOOSY = re.compile(
    r"aten\.(bitwise_|__i?[lr]shift|index_|embedding\.|gather|scatter|take|_?linalg_|cholesky|"
    r"r?sub[_.])"
)

# Torch's meta kernels of these take numbers that its CPU refuses, such as a dimension that is not
# there. True: what is refused depends on sizes; else it is asked of a tensor with few elements.
_UNCHECKED = {
    f"aten.{name}": by_size
    for by_size, names in {
        False: ("_softmax", "_safe_softmax", "sort", "index_reduce", "convolution", "celu",
                "mvlgamma", "smooth_l1_loss"),
        True: ("diagonal_scatter", "select_scatter", "slice_scatter", "reflection_pad1d",
               "reflection_pad2d", "reflection_pad3d", "split", "unsafe_split",
               "split_with_sizes", "pixel_shuffle", "pixel_unshuffle"),
    }.items()
    for name in names
}  # fmt: skip
_OF_NUMBERS = re.compile(
    r"Dimension out of range|not support negative|negative .* not supported|greater than zero|"
    r"has to be greater|cannot be 0|less than the corresponding|size equal to the slice|"
    r"expects split_size be|expects a positive |can only be 0|non-negative entries|"
    r"at least a 1-dimensional"
)


def check_numbers(func: Any, args: Any, kwargs: Any) -> None:
    """Raise torch's error if its CPU takes no such numbers, where its meta kernels take any.

    Raises:
        RuntimeError, IndexError: torch's own sentence.
    """
    by_size = _UNCHECKED.get(str(func).rpartition(".")[0])
    if by_size is None:
        return

    def blank(tensor: torch.Tensor) -> torch.Tensor:
        shape = tensor.shape if by_size else [min(n, 2) for n in tensor.shape]
        return torch.zeros((), dtype=tensor.dtype, device="cpu").expand(shape)

    error = error_on_cpu(func, args, kwargs, blank)
    if error is not None and _OF_NUMBERS.search(str(error)):
        raise error


def check_types(func: Any, args: Any, kwargs: Any) -> None:
    """Raise torch's error if its CPU takes no arguments of these types, or of these odd shapes.

    Raises:
        RuntimeError, IndexError, NotImplementedError: torch's own sentence.
    """
    if "_backward" in str(func) or func.namespace == "kit":  # their types are checked before
        return
    if str(func).startswith("aten.as_strided"):  # it shows memory beyond its tensor's elements
        return
    if str(func) == _FOR_CUDA and args[0].dtype is not torch.bool:
        return
    tensors = flat_tensors([*args, *kwargs.values()])
    has_lengths = str(func).startswith(_OF_LENGTHS)
    is_odd = not has_lengths and any(not t.dim() or not t.numel() for t in tensors)
    has_complex = any(x.__class__ is complex for x in _numbers([*args, *kwargs.values()]))
    is_mixed = has_complex or _is_suspicious(func, tensors)
    if torch.Tag.nondeterministic_seeded in func.tags or not (is_odd or is_mixed):
        return
    is_small = sum(t.numel() for t in tensors) <= MOST
    is_whole = is_small or str(func).rpartition(".")[0] in _ALWAYS
    written = {id(t) for t in written_tensors(write_slots(func), args, kwargs)}

    def blank(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, KitTensor) and tensor.spec.repeats and id(tensor) in written:
            # torch looks at shared places before it looks at types
            memory = torch.zeros(tensor.spec.reach, dtype=tensor.dtype, device="cpu")
            return memory.as_strided(tensor.shape, tensor.stride())
        if not is_whole:
            return _shrunk(tensor)
        if is_small or id(tensor) in written:
            return zeros_on_cpu(tensor)
        return torch.zeros((), dtype=tensor.dtype, device="cpu").expand(tensor.shape)

    if (error := error_on_cpu(func, args, kwargs, blank)) is not None:
        of_type = is_mixed and _OF_TYPES.search(str(error))
        if of_type or (is_odd and is_whole and _OF_SHAPES.search(str(error))):
            raise error


def check_draw(func: Any, dtype: torch.dtype, numbers: Sequence[Any] = ()) -> None:
    """Raise torch's error if its CPU draws no such random numbers of this type.

    Args:
        numbers: the parameters of the distribution.

    Raises:
        RuntimeError, NotImplementedError: torch's own sentence.
    """
    if numbers or not dtype.is_floating_point:  # all types of floating point will do
        kind, words = _refusal(func, dtype, tuple(numbers))
        if kind is not None:
            raise kind(words)


@lru_cache(maxsize=1024)
def _refusal(
    func: Any, dtype: torch.dtype, numbers: tuple[Any, ...]
) -> tuple[type[Exception] | None, str]:
    """The error of torch's CPU for such a draw, if it has one."""
    one = torch.zeros(1, dtype=dtype, device="cpu")
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            func(one, *numbers)
    except Exception as error:  # noqa: BLE001 - raised by the caller
        return type(error), str(error)
    return None, ""


def with_fitting_numbers(recipe: Recipe, func: Any, args: Any, kwargs: Any) -> Recipe:
    """The recipe, which raises torch's error for a number that the tensors' type does not hold.

    Integers are part of what makes a kind of call, so they are looked at here; floats at each call,
    where torch's CPU minds them: it takes `x + 1e9` of halves, and no `masked_fill` with 1e9.

    Raises:
        RuntimeError: torch's own sentence.
    """
    numbers = list(_scalars(func, args, kwargs))
    if not numbers or func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags:
        return recipe
    kinds = {x for x in kwargs.values() if isinstance(x, torch.dtype)}
    kinds = kinds or {x.dtype for x in flat_tensors([*args, *kwargs.values()])}
    floats = [kind for kind in kinds if kind.is_floating_point or kind.is_complex]
    bounds = [_bounds(kind) for kind in floats or kinds]  # not of an index beside floats
    least = max((low for low, _ in bounds), default=-inf)
    most = min((high for _, high in bounds), default=inf)

    def may_not_fit(number: Any) -> bool:
        return not least <= number <= most and (isfinite(number) or not floats)

    if any(x.__class__ is complex or may_not_fit(x) for x in numbers):
        _refuse_overflow(func, args, kwargs)
    if not any(x.__class__ is float for x in numbers) or not _minds_overflow(func, args, kwargs):
        return recipe

    def fitting(tape: Tape, args: Any, kwargs: Any, tensors: Any, numbers: list[float]) -> Any:
        for number in numbers:
            if not least <= number <= most and may_not_fit(number):
                _refuse_overflow(func, args, kwargs)
        return recipe(tape, args, kwargs, tensors, numbers)

    return fitting


def _scalars(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """The numbers that become elements: those that the schema calls so, no sizes or dimensions."""
    for i, a in enumerate(func._schema.arguments):
        if "number" in str(a.type):
            given = args[i] if i < len(args) else kwargs.get(a.name)
            for x in given if isinstance(given, list | tuple) else (given,):
                if isinstance(x, int | float | complex):
                    yield x


def _numbers(args: Any) -> Iterator[Any]:
    """All that is no tensor among the arguments, and in lists of them."""
    for x in args:
        if isinstance(x, list | tuple):
            yield from _numbers(x)
        elif not isinstance(x, torch.Tensor):
            yield x


def _bounds(dtype: torch.dtype) -> tuple[float, float]:
    if dtype is torch.bool:  # every number is true or false
        return -inf, inf
    info = torch.finfo if dtype.is_floating_point or dtype.is_complex else torch.iinfo
    return info(dtype).min, info(dtype).max


def _refuse_overflow(func: Any, args: Any, kwargs: Any) -> None:
    error = error_on_cpu(func, args, kwargs, _shrunk)
    if error is not None and _OVERFLOW in str(error):
        raise error


def _minds_overflow(func: Any, args: Any, kwargs: Any) -> bool:
    """Does torch's CPU refuse floats beyond the range of the tensors' type in such a call?"""

    def large(x: Any) -> Any:
        if isinstance(x, list | tuple):
            return [large(item) for item in x]
        return 1e300 if x.__class__ is float else x

    named = {name: large(x) for name, x in kwargs.items()}
    return _OVERFLOW in str(error_on_cpu(func, large(args), named, _shrunk))


_OVERFLOW = "without overflow"


def _shrunk(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros of the same type and number of dimensions, and few of them."""
    return torch.zeros([min(n, 2) for n in tensor.shape], dtype=tensor.dtype, device="cpu")


def _is_suspicious(func: Any, tensors: list[torch.Tensor]) -> bool:
    if _CHOOSY.match(str(func)) or any(a.is_out for a in func._schema.arguments):
        return True
    kinds = {t.dtype for t in tensors}
    return len(kinds) > 1 or any(not kind.is_floating_point for kind in kinds)
