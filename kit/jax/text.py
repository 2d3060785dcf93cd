"""The exact text of an equation's parameters: equal texts mean the same computation.

Printed jaxprs do not serve: they shorten arrays, and show functions by their address. Here
variables are numbered in order of appearance, arrays are digested, and what has no text of its own
is named by its identity, which the op that is interned under the text keeps alive.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.interpreters import ad

__all__ = ["body_of", "context_of", "literal", "primitive_text", "shown", "text_of"]

# Calls whose value is that of the jaxpr inside: what else they carry is for transformations, and
# those are over when the jaxpr is there.
_INLINED = frozenset(
    {
        "checkpoint", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call",
        "custom_vjp_call_jaxpr", "jit", "pjit", "remat", "remat2",
    }
)  # fmt: skip
_MESH = jax.sharding.AbstractMesh
LONG = 400  # characters; a longer text is cut and ends with its digest
_LASTING = {"builtins", "jax", "jaxlib", "ml_dtypes", "numpy"}  # modules that nobody redefines
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def body_of(equation: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """The jaxpr that a call runs, and its constants; None if the equation is no such call."""
    if equation.primitive.name not in _INLINED:
        return None
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        body = equation.params.get(name)
        if body is not None:
            return getattr(body, "jaxpr", body), tuple(getattr(body, "consts", ()))
    return None


def shown(value: Any) -> str:
    """`text_of`, cut to a length that a tooltip can bear; the digest keeps it exact."""
    text = text_of(value)
    if len(text) <= LONG:
        return text
    return f"{text[:LONG]}… {hashlib.sha256(text.encode()).hexdigest()}"


def text_of(value: Any) -> str:
    """What a parameter is, exactly."""
    if isinstance(value, core.ClosedJaxpr):
        return _jaxpr(value.jaxpr, tuple(value.consts))
    if isinstance(value, core.Jaxpr):
        return _jaxpr(value, ())
    if type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, Enum | np.dtype):
        return str(value)
    if isinstance(value, core.Primitive):
        return primitive_text(value)
    if isinstance(value, dict):
        inner = ", ".join(f"{text_of(k)}: {text_of(v)}" for k, v in value.items())
        return f"{{{inner}}}"
    if isinstance(value, tuple | list | frozenset | set):
        return _sequence(value)
    if isinstance(value, type):  # numpy's have what their arrays have
        return _opaque(value)
    if isinstance(value, np.ndarray | np.generic | jax.Array) or hasattr(value, "__array__"):
        return _array(value)
    if is_dataclass(value):
        inner = ", ".join(f"{f.name}={text_of(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__name__}({inner})"
    if isinstance(value, jax.core.ShapedArray | jax.ShapeDtypeStruct):
        return _aval(value)
    if isinstance(value, jax.sharding.NamedSharding) and isinstance(value.mesh, _MESH):
        return repr(value)  # it names no devices, so this says all of it
    if isinstance(value, jax.tree_util.PyTreeDef):
        children = ", ".join(map(text_of, value.children()))
        return f"tree({value.num_leaves} {text_of(value.node_data())} {children})"
    if type(value).__module__.startswith("jax.") and _is_record(value):
        return f"{type(value).__name__}{text_of(vars(value))}"
    return _opaque(value)


def _is_record(value: Any) -> bool:
    """True for an object that is compared by what it holds, and holds it where we can see."""
    equality: Any = getattr(type(value), "__eq__", None)
    return equality is not object.__eq__ and hasattr(value, "__dict__")


def _sequence(value: Any) -> str:
    items = [text_of(x) for x in value]
    if isinstance(value, frozenset | set):
        items.sort()
    kind = "" if type(value) in (tuple, list) else type(value).__name__
    if hasattr(value, "_fields"):
        items = [f"{f}={x}" for f, x in zip(value._fields, items, strict=True)]
    return f"{kind}[{', '.join(items)}]" if type(value) is list else f"{kind}({', '.join(items)})"


def _array(value: Any) -> str:
    if hasattr(value, "dtype") and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"key<{jax.random.key_impl(value)}>{_array(jax.random.key_data(value))}"
    array = np.asarray(value)
    if array.ndim == 0 and array.dtype.kind in "biuf":
        return f"{array.dtype}({array[()]!s})"  # numpy's shortest text that is exact
    if array.ndim == 0 and jax.numpy.issubdtype(array.dtype, np.floating):
        return f"{array.dtype}({float(array)!r})"
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return f"{array.dtype}{list(array.shape)}#{digest}"


def primitive_text(value: Any) -> str:
    """Two primitives may have one name; those of jax are known by theirs."""
    name = value.name
    known = {id(getattr(room, f"{name}_p", None)) for room in (core.primitives, jax.lax)} | {
        id(ad.add_jaxvals_p)
    }
    return str(name) if id(value) in known else f"{name}@{id(value):x}"


def _opaque(value: Any) -> str:
    """A function or class of jax's own modules by its name there; all else by its identity.

    A notebook's cell that runs again gives a function of the user's another body under its name.
    """
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    name = getattr(value, "__qualname__", "")
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if name and found is value and value.__module__.partition(".")[0] in _LASTING:
        return f"{value.__module__}.{name}"
    return f"{type(value).__name__}@{id(value):x}"


def _aval(aval: Any) -> str:
    return f"{aval.dtype}{list(aval.shape)}" if hasattr(aval, "dtype") else _opaque(aval)


def _jaxpr(jaxpr: Any, consts: tuple[Any, ...]) -> str:
    numbers: dict[Any, int] = {}

    def bind(v: Any) -> str:
        numbers[v] = len(numbers)
        return f"{numbers[v]}:{_aval(v.aval)}"

    def atom(v: Any) -> str:
        if isinstance(v, core.Literal):
            return text_of(literal(v))
        return str(numbers[v])

    heads = [f"{bind(v)}={text_of(c)}" for v, c in zip(jaxpr.constvars, consts, strict=False)]
    heads += [bind(v) for v in [*jaxpr.constvars[len(consts) :], *jaxpr.invars]]
    lines = [f"({', '.join(heads)})"]
    for equation in jaxpr.eqns:
        inputs = " ".join(atom(v) for v in equation.invars)
        call = _call(equation)
        outputs = " ".join(bind(v) for v in equation.outvars)
        lines.append(f"{outputs} = {call} {inputs}")
    lines.append(f"({', '.join(atom(v) for v in jaxpr.outvars)})")
    return "; ".join(lines)


def _call(equation: Any) -> str:
    body = body_of(equation)
    if body is not None:
        return f"{equation.primitive.name}{{{_jaxpr(*body)}}}"
    inner = " ".join(f"{k}={text_of(v)}" for k, v in equation.params.items() if v is not None)
    return f"{primitive_text(equation.primitive)}[{inner}]{context_of(equation)}"


def literal(atom: Any) -> Any:
    """A number that stands in a jaxpr, with the dtype that it has there."""
    if jax.numpy.issubdtype(atom.aval.dtype, jax.dtypes.extended):
        return atom.val
    return np.array(atom.val, dtype=atom.aval.dtype)  # it may be the program's own, which changes


def context_of(equation: Any) -> str:
    """The settings that an equation was made under, where they are not jax's own."""
    context = getattr(equation, "ctx", None)
    parts = [(name, getattr(context, name, None)) for name in ("compute_type", "xla_metadata")]
    texts = [f"{name}={value!r}" for name, value in parts if value is not None]
    if getattr(context, "threefry_partitionable", True) is not True:
        texts.append("threefry_partitionable=False")
    mesh = getattr(context, "cur_abstract_mesh", None)
    if mesh is not None and not mesh.empty:
        texts.append(f"mesh={mesh!r}")
    return f"{{{' '.join(texts)}}}" if texts else ""
