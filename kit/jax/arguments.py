"""Arguments of a step: what they are, and in what they differ from those of earlier calls."""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np

from kit.jax.array import ARRAYS, Kind, LazyArray

__all__ = [
    "NO_NUMBERS",
    "Signature",
    "difference",
    "host_array",
    "kind_of",
    "path_text",
    "paths_of",
    "settings_of_jax",
]

StaticArgument = tuple[str, type, Any]  # name, type and value: 1 is neither 1.0 nor True
# structure, kind of each leaf, static arguments, jax's own settings
Signature = tuple[Any, tuple[Kind, ...], tuple[StaticArgument, ...], tuple[Any, ...]]

NO_NUMBERS = "OSUMm"  # numpy's letters for dtypes that no device holds: objects, texts, times
MANY = 5  # changes that a reason lists
# Settings of jax's that decide what a trace finds, in words; a jax may lack some.
_SETTINGS = {
    "matmul precision": "jax_default_matmul_precision",
    "dtype promotion": "jax_numpy_dtype_promotion",
    "rank promotion": "jax_numpy_rank_promotion",
    "explicit 64-bit dtypes": "jax_explicit_x64_dtypes",
    "kind of key": "jax_default_prng_impl",
    "partitionable threefry": "jax_threefry_partitionable",
    "offset of seeds": "jax_random_seed_offset",
    "own derivative of softmax": "jax_softmax_custom_jvp",
    "check of static indices": "jax_check_static_indices",
    "disabled jit": "jax_disable_jit",
}


def settings_of_jax() -> dict[str, Any]:
    """The user's own settings of jax that decide what a trace finds, in words."""
    config: Any = jax.config
    found = {words: getattr(config, name, None) for words, name in _SETTINGS.items()}
    return {"default float": "float64" if config.jax_enable_x64 else "float32", **found}


def kind_of(leaf: Any) -> Kind:
    """Shape, dtype and weak type of an argument, as jax sees it.

    Raises:
        TypeError: it is no array; the message says what it is.
    """
    if isinstance(leaf, LazyArray):
        return leaf.shape, leaf.dtype, leaf.weak_type
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError("a value of another jax transformation (jit, grad or vmap around kit)")
    if not isinstance(leaf, ARRAYS):
        raise TypeError(f"a {type(leaf).__name__}, not an array{_hint(leaf)}")
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in NO_NUMBERS:
        raise TypeError(f"a numpy array of dtype {leaf.dtype}")
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise TypeError("an array that was deleted, or donated: give what that function returned")
    try:
        aval = jax.typeof(leaf)
    except OverflowError:
        raise TypeError(
            f"the number {leaf}, too large for jax's integers (jax_enable_x64 makes them 64 bits)"
        ) from None
    return tuple(aval.shape), aval.dtype, bool(aval.weak_type)


def _hint(leaf: Any) -> str:
    if any(base.__module__.partition(".")[0] == "torch" for base in type(leaf).__mro__):
        return ' of numpy or jax (a workload in jax is marked @kit.workload(framework="jax"))'
    if callable(leaf) and "equinox" in sys.modules:
        return ": of a module of equinox's give the arrays, by eqx.partition(module, eqx.is_array)"
    return ""


def host_array(leaf: Any, dtype: Any = None) -> Any:
    """An array as the runtime takes it: integers for keys, memory that no other code writes."""
    if isinstance(leaf, jax.Array):
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key_data(leaf)
        return leaf
    if getattr(leaf, "dtype", None) == jax.dtypes.float0:
        return np.zeros(leaf.shape, np.bool_)  # which nothing reads
    return np.array(leaf, dtype=dtype)


def paths_of(args: Any, kwargs: Any) -> list[str]:
    """`args[1]['x']` for each leaf."""
    found, _ = jax.tree.flatten_with_path((args, kwargs))
    return [path_text(path) for path, _ in found]


def path_text(path: Any) -> str:
    """`args[1]['x']` for jax's path to a leaf of `(args, kwargs)`."""
    return ("args", "kwargs")[path[0].idx] + jax.tree_util.keystr(path[1:])


def difference(paths: list[str], old: Signature, new: Signature) -> str:
    """In what a call's arguments differ from those of an earlier one, in words."""
    if old[0] != new[0]:
        return f"the structure of the arguments changed from {_short(old[0])} to {_short(new[0])}"
    changes = [
        f"{path} changed from {_kind_text(a)} to {_kind_text(b)}"
        for path, a, b in zip(paths, old[1], new[1], strict=True)
        if a != b
    ]
    before = {name: value for name, _, value in old[2]}
    changes += [
        f"the static argument {static[0]} changed from {before.get(static[0])!r} to {static[2]!r}"
        for static in new[2]
        if static not in old[2]
    ]
    changes += [
        f"jax's {name} changed from {a} to {b}"
        for (name, a), (_, b) in zip(old[3], new[3], strict=True)
        if a != b
    ]
    more = [f"and {len(changes) - MANY} more"] if len(changes) > MANY else []
    return "; ".join([*changes[:MANY], *more]) or "the static arguments changed"


def _kind_text(kind: Kind) -> str:
    shape, dtype, weak = kind
    return f"{dtype}[{','.join(map(str, shape))}]{' (weak type)' if weak else ''}"


def _short(tree: Any) -> str:
    text = str(tree).removeprefix("PyTreeDef")
    return text if len(text) <= 120 else f"{text[:120]}…"
