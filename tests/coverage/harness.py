"""Run one entry of torch's op, module or optimizer table on device kit, and compare with CPU torch.

An entry's class is the worst of its samples':

native       nothing left the device
reads        native but for numbers that the op itself has to know (`nonzero`, a boolean mask)
host         some aten op has no rule and ran in torch on the CPU: right, named, and a sync point
unsupported  a clear error of kit's, and nothing computed
error        any other error that CPU torch does not raise
wrong        other numbers, shapes or dtypes than CPU torch: there must be none
untested     CPU torch refuses every sample, or they are all too large
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from kit.errors import KitError
from kit.runs.settings import Settings
from kit.runtime.rules.default import DEFAULT_RULES
from kit.runtime.rules.table import Rules
from kit.runtime.session.session import current_session
from kit.torch.device import open_session
from tests.coverage.comparison import as_good, gradients, moved, other_strides, same, seeded, seen

__all__ = [
    "CLASSES",
    "UNDEFINED",
    "Verdict",
    "check_module",
    "check_op",
    "check_optimizer",
    "entries",
    "entry_name",
    "is_exact",
]

CLASSES = ("native", "reads", "host", "unsupported", "error", "wrong", "untested")
SAMPLES = 6  # of each entry, spread over its list
LARGEST = 20_000  # elements of a sample
UNDEFINED = ("empty", "new_empty", "resize", "_unsafe_masked_index_put")  # no defined numbers

# Entries whose numbers differ more between CPU torch and XLA, how much more, and why.
LOOSE = {"Muon": 100.0}  # rounds to bfloat16 at each of its iterations; equal in float32

Run = Callable[..., Any]


@dataclass(frozen=True)
class Verdict:
    """What became of one entry."""

    kind: str  # "op", "module" or "optimizer"
    name: str
    verdict: str  # one of CLASSES
    why: str = ""  # the aten ops on the host, or the error
    samples: int = 0
    strides: str = ""  # how some result lies in memory, if otherwise than CPU torch's


def entries(kind: str, dtype: torch.dtype = torch.float32) -> list[Any]:
    """The entries of torch's table of this kind that take this dtype."""
    if kind == "op":
        from torch.testing._internal.common_methods_invocations import op_db

        return [op for op in op_db if dtype in op.supported_dtypes("cpu")]
    if kind == "module":
        from torch.testing._internal.common_modules import module_db

        return list(module_db)
    from torch.testing._internal.common_optimizers import optim_db

    return list(optim_db)


def entry_name(entry: Any) -> str:
    """`linalg.norm.subgradients_at_zero`, `nn.Conv2d`, `AdamW`."""
    if hasattr(entry, "variant_test_name"):
        return entry.name + (f".{entry.variant_test_name}" if entry.variant_test_name else "")
    if hasattr(entry, "module_cls"):
        return f"nn.{entry.module_cls.__name__}"
    return entry.optim_cls.__name__


class Collector:
    """The worst class over the samples of one entry."""

    def __init__(self, kind: str, name: str, rules: Rules = DEFAULT_RULES) -> None:
        self.kind, self.name, self.rules = kind, name, rules
        self.worst, self.why, self.strides, self.samples = "native", "", "", 0

    def compare(self, run: Run, *, exact: bool, label: str = "", like: Run | None = None) -> None:
        """`run("cpu")`, or `like()`, then `run("kit")`. What CPU torch refuses does not count."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = seen(run("cpu") if like is None else like())
            except Exception:  # noqa: BLE001 - a sample that CPU torch itself refuses
                return
            self._add(*self._on_kit(run, expected, exact), label)

    def _add(self, verdict: str, why: str, label: str) -> None:
        self.samples += 1
        if CLASSES.index(verdict) > CLASSES.index(self.worst):
            self.worst, self.why = verdict, f"{label}: {why}" if label and why else why

    def _on_kit(self, run: Run, expected: Any, exact: bool) -> tuple[str, str]:
        try:
            with open_session(Settings(mode="lazy"), rules=self.rules) as session:
                got = seen(run("kit"))
                unlowered = sorted(str(name).split(" at ")[0] for name in session.unlowered)
                syncs = {s.cause for s in session.syncs} - {"copy to host"}
                again = None if exact else seen(run("kit"))
        except KitError as error:
            return "unsupported", str(error)
        except Exception as error:  # noqa: BLE001 - the table says which
            return "error", f"{type(error).__name__}: {error}"
        try:
            same(got, expected, exact=exact, loose=LOOSE.get(self.name, 1.0))
            if again is not None and not self.name.startswith(UNDEFINED):
                same(again, got, exact=True)  # the same seed, the same numbers
        except AssertionError as error:
            if not (exact and self._is_as_good(run, got, expected)):
                return "wrong", str(error)
        self.strides = self.strides or other_strides(got, expected)
        if unlowered:
            return "host", ", ".join(dict.fromkeys(unlowered))
        return ("reads", ", ".join(sorted(syncs))) if syncs else ("native", "")

    def _is_as_good(self, run: Run, got: Any, expected: Any) -> bool:
        """Where numbers cancel, neither device's are exact: ask double precision."""
        try:
            same(got, expected, exact=False)
            return as_good(got, expected, seen(run("wide")))
        except Exception:  # noqa: BLE001 - it cannot run in double precision
            return False

    def verdict(self) -> Verdict:
        """The entry's."""
        why = " ".join(self.why.split())[:200]
        worst = self.worst if self.samples else "untested"
        return Verdict(self.kind, self.name, worst, why, self.samples, self.strides)


def _spread(items: Iterable[Any], count: int = SAMPLES) -> list[Any]:
    """A few of the items: the first, the last, and some between."""
    found = list(islice(items, 80))
    if len(found) <= count:
        return found
    return [found[i * (len(found) - 1) // (count - 1)] for i in range(count)]


def check_op(
    op: Any,
    dtype: torch.dtype = torch.float32,
    *,
    samples: int = SAMPLES,
    rules: Rules = DEFAULT_RULES,
) -> Verdict:
    """Forward and gradients of one entry of `op_db`, and its in-place and `out=` forms."""
    collector = Collector("op", entry_name(op), rules)
    differentiable = dtype in op.supported_backward_dtypes("cpu") if op.supports_autograd else False
    with seeded():
        chosen = _spread(op.sample_inputs("cpu", dtype, requires_grad=differentiable), samples)
    chosen = [s for s in chosen if _size(s) <= LARGEST]
    for i, sample in enumerate(chosen):
        run = _forward(op, sample, differentiable)
        exact = is_exact(op.name, run)
        collector.compare(run, exact=exact)
        if i in (0, len(chosen) - 1):
            for label, other in _variants(op, sample, differentiable):
                collector.compare(other, exact=is_exact(op.name, other), label=label)
    return collector.verdict()


def _size(sample: Any) -> int:
    flat = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    return sum(x.numel() for x in flat if isinstance(x, torch.Tensor))


def _forward(op: Any, sample: Any, differentiable: bool, **how: Any) -> Run:
    def run(device: str) -> Any:
        given = moved((sample.input, sample.args, sample.kwargs), device, **how)
        with seeded():
            out = op(given[0], *given[1], **given[2])
        out = sample.output_process_fn_grad(out)
        return out, gradients(out, given) if differentiable else []

    return run


def _variants(op: Any, sample: Any, differentiable: bool) -> Iterator[tuple[str, Run]]:
    """The op on views, in place (into a view too), and with `out=`."""
    yield "of views", _forward(op, sample, differentiable, through_a_view=True)
    if op.inplace_variant is not None and not sample.broadcasts_input:
        yield "in place", _in_place(op, sample, differentiable and op.supports_inplace_autograd)
        yield "in place in a view", _in_place_in_view(op, sample)
    if op.supports_out:
        yield "out=", _out(op, sample)


def _in_place(op: Any, sample: Any, differentiable: bool) -> Run:
    def run(device: str) -> Any:
        given = moved((sample.input, sample.args, sample.kwargs), device)
        target = given[0].clone()
        with seeded(), torch.set_grad_enabled(differentiable):
            out = op.inplace_variant(target, *given[1], **given[2])
        return out, target, gradients(out, given) if differentiable else []

    return run


def _in_place_in_view(op: Any, sample: Any) -> Run:
    def run(device: str) -> Any:
        given = moved((sample.input, sample.args, sample.kwargs), device)
        with seeded(), torch.no_grad():
            whole = torch.stack([torch.ones_like(given[0]), given[0]])
            op.inplace_variant(whole[1], *given[1], **given[2])
        return whole

    return run


def _out(op: Any, sample: Any) -> Run:
    def run(device: str) -> Any:
        given = moved((sample.input, sample.args, sample.kwargs), device)
        with seeded(), torch.no_grad():
            like = op(given[0], *given[1], **given[2])
            several = isinstance(like, list | tuple)
            out = tuple(map(torch.empty_like, like)) if several else torch.empty_like(like)
            result = op(given[0], *given[1], **given[2], out=out)
        result = tuple(result) if several else result
        return sample.output_process_fn_grad(out), sample.output_process_fn_grad(result)

    return run


def is_exact(name: str, run: Run) -> bool:
    """False for random and uninitialised results."""
    if name.split(".")[-1].startswith(UNDEFINED) or name.startswith(UNDEFINED):
        return False
    with warnings.catch_warnings(), _Draws() as draws:
        warnings.simplefilter("ignore")
        try:
            run("cpu")
        except Exception:  # noqa: BLE001 - `compare` leaves out what CPU torch refuses
            return True
    return not draws.seen


class _Draws(TorchDispatchMode):
    """Whether some op took random numbers; a dropout of 0 does not."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = torch.random.get_rng_state()
        out = func(*args, **(kwargs or {}))
        self.seen = self.seen or not torch.equal(before, torch.random.get_rng_state())
        return out


def check_module(info: Any, *, samples: int = SAMPLES) -> Verdict:
    """Forward, all gradients and the buffers of one entry of `module_db`."""
    collector = Collector("module", entry_name(info))
    for training in (True, False) if info.train_and_eval_differ else (True,):
        with seeded():
            inputs = info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
            )
            chosen = [x for x in _spread(inputs, samples) if x.forward_input is not None]
        for given in chosen:
            run = _module(info, given, training)
            collector.compare(run, exact=is_exact(entry_name(info), run))
    return collector.verdict()


def _module(info: Any, given: Any, training: bool) -> Run:
    def run(device: str) -> Any:
        made = given.constructor_input
        with seeded():
            module = info.module_cls(*made.args, **made.kwargs).to(torch.float32)
        module = module.to(device).train(training)
        args, kwargs = moved((given.forward_input.args, given.forward_input.kwargs), device)
        with seeded():
            out = module(*args, **kwargs)
        leaves = [args, kwargs, list(module.parameters())]
        return out, gradients(out, leaves), list(module.buffers())

    return run


IMPLEMENTATIONS = ("foreach", "fused", "capturable")


def check_optimizer(info: Any, *, samples: int = 100) -> Verdict:
    """Five steps of a small model with each of the entry's settings, in each implementation."""
    collector = Collector("optimizer", entry_name(info))
    known = inspect.signature(info.optim_cls.__init__).parameters
    for given in _spread(info.optim_inputs_func(device="cpu"), samples):
        if "differentiable" in given.kwargs:
            continue
        plain = {k: v for k, v in given.kwargs.items() if k not in IMPLEMENTATIONS}
        reference = partial(_optimizer(info, plain), "cpu")
        collector.compare(_optimizer(info, plain), exact=True, like=reference)
        for flag in IMPLEMENTATIONS:
            if flag in known and (flag != "fused" or "fused" in info.supported_impls):
                switched = _optimizer(info, {**plain, flag: True})
                collector.compare(switched, exact=True, label=flag, like=reference)
    return collector.verdict()


def _optimizer(info: Any, changes: dict[str, Any]) -> Run:
    def run(device: str) -> Any:
        with seeded():
            model: Any = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 5))
            x = torch.randn(3, 4)
        if info.optim_cls.__name__ == "Muon":  # for matrices only
            for part in model:
                part.bias = None
        model, x = model.to(device), x.to(device)
        on_device = {
            k: v.to(device) if isinstance(v, torch.Tensor) and v.dim() else v
            for k, v in changes.items()
        }
        optimizer = info.optim_cls(model.parameters(), **on_device)

        def loss() -> Any:
            optimizer.zero_grad()
            value = torch.tanh(model(x)).square().sum()
            value.backward()
            return value

        for _ in range(5):
            loss()
            optimizer.step(loss if info.step_requires_closure else None)
            if device == "kit":
                current_session().mark_step()
        return list(model.parameters())

    return run
