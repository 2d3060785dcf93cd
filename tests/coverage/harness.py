"""Run one entry of torch's op, module or optimizer table on device kit, and compare with CPU torch.

An entry's class is the worst of its samples':

native       nothing left the device
reads        native but for numbers that the op itself has to know (`nonzero`, a boolean mask)
host         some aten op has no rule and ran in torch on the CPU: right, named, and a sync point
unsupported  a clear error of kit's, and nothing computed
error        any other error that CPU torch does not raise
wrong        other numbers, shapes or dtypes than CPU torch: there must be none
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_flatten, tree_map

from kit.errors import KitError
from kit.frontend.torch_device import open_session
from kit.run import Settings

__all__ = ["CLASSES", "Verdict", "check_module", "check_op", "check_optimizer", "entries"]

CLASSES = ("native", "reads", "host", "unsupported", "error", "wrong")
SAMPLES = 5  # of each entry, spread over its list
LARGEST = 20_000  # elements of a sample
UNDEFINED = ("empty", "new_empty", "resize", "_unsafe_masked_index_put")  # no defined numbers


@dataclass(frozen=True)
class Verdict:
    """What became of one entry."""

    kind: str  # "op", "module" or "optimizer"
    name: str
    verdict: str  # one of CLASSES
    why: str = ""  # the aten ops on the host, or the error
    samples: int = 0


def entries(kind: str) -> list[Any]:
    """The float32 entries of torch's table of this kind, by name."""
    if kind == "op":
        from torch.testing._internal.common_methods_invocations import op_db

        return [op for op in op_db if torch.float32 in op.supported_dtypes("cpu")]
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

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        self.worst, self.why, self.samples = "native", "", 0

    def add(self, verdict: str, why: str) -> None:
        self.samples += 1
        if CLASSES.index(verdict) > CLASSES.index(self.worst):
            self.worst, self.why = verdict, why

    def verdict(self) -> Verdict:
        return Verdict(self.kind, self.name, self.worst, " ".join(self.why.split())[:160],
                       self.samples)  # fmt: skip


def compare(collector: Collector, run: Callable[[str], Any], *, exact: bool) -> None:
    """One sample: `run(device)` on the CPU, then on kit. What the CPU refuses does not count."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = run("cpu")
        except Exception:  # noqa: BLE001 - a sample that CPU torch itself refuses
            return
        collector.add(*_on_kit(run, expected, exact=exact))


def _on_kit(run: Callable[[str], Any], expected: Any, *, exact: bool) -> tuple[str, str]:
    try:
        with open_session(Settings(mode="lazy")) as session:
            got = tree_map(_to_host, run("kit"))
            unlowered = sorted(str(name).split(" at ")[0] for name in session.unlowered)
            syncs = {s.cause for s in session.syncs} - {"copy to host"}
    except KitError as error:
        return "unsupported", str(error)
    except Exception as error:  # noqa: BLE001 - the table says which
        return "error", f"{type(error).__name__}: {error}"
    try:
        _same(got, expected, exact=exact)
    except AssertionError as error:
        return "wrong", str(error)
    if unlowered:
        return "host", ", ".join(dict.fromkeys(unlowered))
    return ("reads", ", ".join(sorted(syncs))) if syncs else ("native", "")


def _same(got: Any, expected: Any, *, exact: bool) -> None:
    (flat, kind), (wanted, wanted_kind) = tree_flatten(got), tree_flatten(expected)
    assert len(flat) == len(wanted), f"{kind} instead of {wanted_kind}"
    for a, b in zip(flat, wanted, strict=True):
        if isinstance(b, torch.Tensor):
            assert isinstance(a, torch.Tensor), f"{type(a).__name__} instead of a tensor"
            assert a.shape == b.shape, f"shape {tuple(a.shape)} instead of {tuple(b.shape)}"
            assert a.dtype == b.dtype, f"{a.dtype} instead of {b.dtype}"
            if exact:
                assert_close(a, b, rtol=2e-3, atol=2e-4, equal_nan=True)
        elif exact and isinstance(b, float):
            assert_close(a, b, rtol=2e-3, atol=2e-4, equal_nan=True)
        elif exact:
            assert a == b, f"{a!r} instead of {b!r}"


def _to_host(item: Any) -> Any:
    return item.detach().cpu() if isinstance(item, torch.Tensor) else item


def _moved(item: Any, device: str) -> Any:
    """A copy on the device, a leaf of autograd if the original was one."""

    def move(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.detach().clone().to(device).requires_grad_(x.requires_grad)
        return torch.device(device) if isinstance(x, torch.device) else x

    return tree_map(move, item)


def _spread(items: Iterable[Any]) -> list[Any]:
    """A few of the items: the first, the last, and some between."""
    found = list(islice(items, 60))
    if len(found) <= SAMPLES:
        return found
    return [found[i * (len(found) - 1) // (SAMPLES - 1)] for i in range(SAMPLES)]


@contextlib.contextmanager
def _seeded(seed: int = 0) -> Iterator[None]:
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.random.set_rng_state(state)


def _gradients(out: Any, inputs: Any) -> list[Any]:
    """Of a fixed linear function of the outputs, with respect to every input that wants one."""
    outputs = [x for x in tree_flatten(out)[0] if isinstance(x, torch.Tensor) and x.requires_grad]
    leaves = [x for x in tree_flatten(inputs)[0] if isinstance(x, torch.Tensor)]
    leaves = [x for x in leaves if x.requires_grad]
    if not outputs or not leaves or any(x.is_complex() for x in outputs):
        return []
    weights = []
    for x in outputs:
        numbers = torch.linspace(0.5, 1.5, max(x.numel(), 1), dtype=torch.float32)[: x.numel()]
        weights.append(numbers.reshape(x.shape).to(x.device, x.dtype))
    return list(torch.autograd.grad(outputs, leaves, weights, allow_unused=True))


def check_op(op: Any) -> Verdict:
    """Forward and gradients of one entry of `op_db`, in float32."""
    collector = Collector("op", entry_name(op))
    differentiable = op.supports_autograd
    with _seeded():
        samples = _spread(op.sample_inputs("cpu", torch.float32, requires_grad=differentiable))
    for sample in samples:
        tensors = [x for x in tree_flatten((sample.input, sample.args, sample.kwargs))[0]
                   if isinstance(x, torch.Tensor)]  # fmt: skip
        if sum(x.numel() for x in tensors) > LARGEST:
            continue

        def run(device: str, sample: Any = sample, seed: int = 0) -> Any:
            given = _moved((sample.input, sample.args, sample.kwargs), device)
            with _seeded(seed):
                out = op(given[0], *given[1], **given[2])
            out = sample.output_process_fn_grad(out)
            return out, _gradients(out, given) if differentiable else []

        compare(collector, run, exact=_is_exact(op.name, run))
    return collector.verdict()


def _is_exact(name: str, run: Callable[..., Any]) -> bool:
    """False for random and uninitialised results: another seed gives other numbers."""
    if name.split(".")[-1].startswith(UNDEFINED) or name.startswith(UNDEFINED):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _same(run("cpu", seed=1), run("cpu", seed=2), exact=True)
        except AssertionError:
            return False
        except Exception:  # noqa: BLE001 - `compare` leaves out what CPU torch refuses
            return True
    return True


def check_module(info: Any) -> Verdict:
    """Forward and all gradients of one entry of `module_db`, in training mode."""
    collector = Collector("module", entry_name(info))
    with _seeded():
        inputs = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=True
        )
        inputs = _spread(inputs)
    for given in inputs:
        if given.forward_input is None:
            continue

        def run(device: str, given: Any = given, seed: int = 0) -> Any:
            with _seeded(seed):
                made = given.constructor_input
                module = info.module_cls(*made.args, **made.kwargs).to(torch.float32)
            module = module.to(device).train()
            moved = _moved((given.forward_input.args, given.forward_input.kwargs), device)
            with _seeded(seed):
                out = module(*moved[0], **moved[1])
            leaves = [moved, list(module.parameters())]
            return out, _gradients(out, leaves), list(module.buffers())

        compare(collector, run, exact=_is_exact_module(info))
    return collector.verdict()


def _is_exact_module(info: Any) -> bool:
    return "Dropout" not in info.module_cls.__name__ and info.module_cls.__name__ != "RReLU"


def check_optimizer(info: Any) -> Verdict:
    """Five steps of a small model with each of the entry's settings."""
    collector = Collector("optimizer", entry_name(info))
    device = "cpu"
    for given in info.optim_inputs_func(device=device):
        changes = dict(given.kwargs)

        def run(device: str, changes: Any = changes) -> Any:
            with _seeded():
                model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 5))
                x = torch.randn(3, 4)
            if info.optim_cls.__name__ in ("Muon",):
                for part in model:
                    part.bias = None
            model, x = model.to(device), x.to(device)
            moved = {k: v.to(device) if isinstance(v, torch.Tensor) and v.dim() else v
                     for k, v in changes.items()}  # fmt: skip
            optimizer = info.optim_cls(model.parameters(), **moved)

            def loss() -> Any:
                optimizer.zero_grad()
                value = torch.tanh(model(x)).square().sum()
                value.backward()
                return value

            for _ in range(5):
                loss()
                optimizer.step(loss if info.step_requires_closure else None)
            return list(model.parameters())

        compare(collector, run, exact=True)
    return collector.verdict()
