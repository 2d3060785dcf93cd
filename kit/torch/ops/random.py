"""Random ops: each draw is one recorded op whose key, like its parameters, is an input.

So the numbers change from step to step without a recompile, and the same seed gives the same ones.
A generator of device kit gives a key to each draw: its state is that of one of the CPU's.
"""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch

from kit.runtime.recording.template import HOLE, Scalar
from kit.runtime.session.session import Session
from kit.torch.ops.host import made_elsewhere
from kit.torch.ops.schema import Special, decomposed, recorded
from kit.torch.ops.strict import check_draw
from kit.torch.tensors.checks import check_writable
from kit.torch.tensors.spec import Spec
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor, wrap

__all__ = ["KEY", "RANDOM", "KitGenerator", "random_key"]

_GENERATOR = torch.Generator  # before a session replaces it
KEY = {"seed": Scalar("float64"), "call": Scalar("float64")}


class KitGenerator(_GENERATOR):
    """`torch.Generator("kit")`: torch's own of the CPU, which gives a key to each draw."""

    _made: ClassVar[WeakValueDictionary[int, KitGenerator]] = WeakValueDictionary()

    def __init__(self) -> None:
        self._made[self._cdata] = self  # type: ignore[attr-defined]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Device kit, of whichever session draws."""
        return torch.device("kit:0")

    def clone_state(self) -> KitGenerator:
        """Another one, which gives the same numbers from here on."""
        clone = KitGenerator()
        clone.set_state(self.get_state())
        return clone

    def __reduce__(self) -> Any:
        make, _, state = super().__reduce__()
        return make, ("kit",), state

    @classmethod
    def is_made(cls, generator: torch.Generator) -> bool:
        """Is this one? A call of torch's gives another object for the same generator."""
        return generator._cdata in cls._made  # type: ignore[attr-defined]


def random_key(session: Session, generator: torch.Generator | None = None) -> list[float]:
    """The numbers for `KEY`, others for each draw."""
    if generator is None:
        return [float(session.draws.seed), session.draws.next()]
    both: list[float] = torch.randint(2**32, (2,), generator=generator, device="cpu").tolist()
    return both


def _random(name: str, *parameters: tuple[str, Any]) -> Special:
    """An in-place random fill; its parameters are inputs, and so is the random key."""

    def special(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
        target: KitTensor = args[0]
        generator = _generator(func, args, kwargs)
        check_writable(str(func), [target])
        check_draw(func, target.dtype, args[1:])
        named = dict(zip([p for p, _ in parameters], args[1:], strict=False))
        values = {p: named.get(p, kwargs.get(p, default)) for p, default in parameters}
        target.ref.write(tape, random_value(tape, name, target.spec, values, generator))
        return target

    return special


def _generator(func: Any, args: Any, kwargs: Any) -> torch.Generator | None:
    """The generator of the program's that a call names."""
    found = [x for x in (kwargs.get("generator"), *args) if isinstance(x, _GENERATOR)]
    if not found:
        return None
    if not KitGenerator.is_made(found[0]):
        raise RuntimeError(
            f"{func}: Expected a 'kit' device type for generator but found 'cpu': draw with "
            "torch.Generator('kit'), or on the CPU: torch.randn(size, generator=g).to('kit')"
        )
    return found[0]


def random_value(
    tape: Tape,
    name: str,
    spec: Spec,
    numbers: dict[str, float],
    generator: torch.Generator | None = None,
    **constants: Any,
) -> Any:
    """A value drawn by rule `name`; `numbers` are its parameters, `constants` too."""
    session = tape.session
    static = {"size": spec.shape, "dtype": spec.aval.dtype, **constants}
    dtype = "float64" if spec.dtype is torch.float64 else "float32"
    holes = {**{k: Scalar(dtype) for k in numbers}, **KEY}
    lifted = [*map(float, numbers.values()), *random_key(session, generator)]
    op = session.intern(name, ((), {**holes, **static}), (), (spec.aval,), len(lifted))
    return tape.record(op, [], lifted)[0]


def _dropout(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    x, p, train = args[0], float(args[1]), args[2] if len(args) > 2 else True
    if train is False or p == 0.0:
        ones = tape.spec(x.spec.shape, x.spec.stride, 0, torch.bool)
        return x.clone(), wrap(tape, tape.full(ones, True), ones)
    check_draw(func, x.dtype, (p, True))
    spec = tape.spec_like(x.spec)
    mask = tape.spec(spec.shape, spec.stride, 0, torch.bool)
    exact = x.dtype in (torch.float64, torch.complex128)
    template = ((HOLE,), {"p": Scalar("float64" if exact else "float32"), **KEY})
    numbers = [p, *random_key(tape.session)]
    return tuple(recorded(tape, "kit.dropout", template, [x], numbers, [spec, mask]))


def _bernoulli(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    target: KitTensor = args[0]
    generator = _generator(func, args, kwargs)
    if str(func) == "aten.bernoulli.p":
        return torch.empty_like(target).bernoulli_(args[1], generator=generator)
    if str(func) == "aten.bernoulli.default":
        outputs = [tape.spec_like(target.spec)]
        key = random_key(tape.session, generator)
        return recorded(tape, "kit.bernoulli", ((HOLE,), KEY), [target], key, outputs)[0]
    uniform = tape.spec(target.spec.shape, target.spec.stride, target.spec.offset, torch.float32)
    ends = {"low": 0.0, "high": 1.0}
    draw = wrap(tape, random_value(tape, "kit.uniform", uniform, ends, generator), uniform)
    p = args[1] if len(args) > 1 and not isinstance(args[1], _GENERATOR) else kwargs.get("p", 0.5)
    if isinstance(p, float | int):
        check_draw(func, target.dtype, (p,))
    target.copy_((draw < p).to(target.dtype))
    return target


def _like(name: str, **numbers: float) -> Special:
    """`randn_like` and its kin."""

    def special(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
        if (made := made_elsewhere(func, args, kwargs)) is not None:
            return made
        generator = _generator(func, args, kwargs)
        spec = _spec_like(tape, args[0], kwargs)
        check_draw(func, spec.dtype)
        return wrap(tape, random_value(tape, name, spec, numbers, generator), spec)

    return special


def _spec_like(tape: Tape, tensor: KitTensor, kwargs: Any) -> Spec:
    layout = kwargs.get("memory_format") or torch.preserve_format
    return tape.spec_like(tensor.spec, kwargs.get("dtype"), layout)


_RANDINT_LIKE = {2: torch.ops.aten.randint_like.default, 3: torch.ops.aten.randint_like.low_dtype}


def _randint_like(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    if (made := made_elsewhere(func, args, kwargs)) is not None:
        return made
    generator = _generator(func, args, kwargs)
    low, high = (0, args[1]) if len(args) == 2 else args[1:3]
    spec = _spec_like(tape, args[0], kwargs)
    check_draw(_RANDINT_LIKE[len(args)], spec.dtype, args[1:])
    value = random_value(tape, "kit.randint", spec, {}, generator, low=low, high=high)
    return wrap(tape, value, spec)


def _random_integers(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """`x.random_()`, `x.random_(to)`, `x.random_(low, to)`."""
    generator = _generator(func, args, kwargs)
    target: KitTensor = args[0]
    check_writable(str(func), [target])
    check_draw(func, target.dtype, args[1:])
    low, high = {1: (0, None), 2: (0, args[-1])}.get(len(args), args[1:3])
    high = _count(target.dtype) if high is None else high
    value = random_value(tape, "kit.randint", target.spec, {}, generator, low=low, high=high)
    target.ref.write(tape, value)
    return target


def _count(dtype: torch.dtype) -> int:
    """Torch draws from the integers that the type holds exactly."""
    if dtype.is_floating_point:
        return int(2 / torch.finfo(dtype).eps) + 1
    return 2 if dtype is torch.bool else min(torch.iinfo(dtype).max + 1, 2**63 - 1)


def _multinomial(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    generator = _generator(func, args, kwargs)
    weights, count = args[0], args[1]
    replacement = args[2] if len(args) > 2 else kwargs.get("replacement", False)
    most = weights.shape[-1] if weights.dim() in (1, 2) and weights.is_floating_point() else 0
    if not 0 < count <= (count if replacement else most) or not most:
        with torch.random.fork_rng(devices=[]):  # torch's own sentence
            func(torch.ones(weights.shape, dtype=weights.dtype, device="cpu"), count, replacement)
    spec = tape.spec_of(torch.empty((*weights.shape[:-1], count), dtype=torch.int64, device="meta"))
    template = ((HOLE,), {"count": count, "replacement": replacement, **KEY})
    key = random_key(tape.session, generator)
    return recorded(tape, "kit.multinomial", template, [weights], key, [spec])[0]


def _rrelu(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """Leaky, with a random slope for each number while training; `noise` keeps the slopes."""
    x, noise = args[0], args[1]
    given = list(args[2:5])
    low, high, training = given + [0.125, 1 / 3, False][len(given) :]
    if training:
        drawn = torch.empty_like(x).uniform_(low, high, generator=_generator(func, args, kwargs))
        slopes = torch.where(x <= 0, drawn, 1.0)
        noise.copy_(slopes)
        out = x * slopes
    else:
        out = torch.ops.aten.leaky_relu.default(x, (low + high) / 2)
    return x.copy_(out) if str(func).startswith("aten.rrelu_with_noise_.") else out


def _normal(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """Torch's own decomposition, which takes any deviations: here they are checked."""
    mean, std = args
    if isinstance(std, KitTensor) and std.is_floating_point():
        (std,) = recorded(tape, "kit.deviations", ((HOLE,), {}), [std], [], [std.spec])
    return decomposed(tape, func, mean, std, **kwargs)


RANDOM: dict[str, Special] = {
    "aten.normal.Tensor_Tensor": _normal,
    "aten.normal.float_Tensor": _normal,
    "aten.uniform_.default": _random("kit.uniform", ("low", 0.0), ("high", 1.0)),
    "aten.normal_.default": _random("kit.normal", ("mean", 0.0), ("std", 1.0)),
    "aten.log_normal_.default": _random("kit.log_normal", ("mean", 1.0), ("std", 2.0)),
    "aten.exponential_.default": _random("kit.exponential", ("rate", 1.0)),
    "aten.cauchy_.default": _random("kit.cauchy", ("median", 0.0), ("sigma", 1.0)),
    "aten.geometric_.default": _random("kit.geometric", ("p", 0.5)),
    "aten.random_.default": _random_integers,
    "aten.random_.to": _random_integers,
    "aten.random_.from": _random_integers,
    "aten.rand_like.default": (_rand_like := _like("kit.uniform", low=0.0, high=1.0)),
    "aten.rand_like.generator": _rand_like,
    "aten.randn_like.default": (_randn_like := _like("kit.normal", mean=0.0, std=1.0)),
    "aten.randn_like.generator": _randn_like,
    "aten.randint_like.default": _randint_like,
    "aten.randint_like.generator": _randint_like,
    "aten.randint_like.low_dtype": _randint_like,
    "aten.randint_like.low_generator_dtype": _randint_like,
    "aten.multinomial.default": _multinomial,
    "aten.rrelu_with_noise.default": _rrelu,
    "aten.rrelu_with_noise_.default": _rrelu,
    "aten.bernoulli_.float": _bernoulli,
    "aten.bernoulli_.Tensor": _bernoulli,
    "aten.bernoulli.default": _bernoulli,
    "aten.bernoulli.p": _bernoulli,
    "aten.native_dropout.default": _dropout,
}
