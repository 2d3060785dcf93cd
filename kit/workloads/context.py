"""What a workload's builder is given: `Context`. How a builder is marked: `@workload`."""

from __future__ import annotations

import contextlib
import inspect
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, overload

from kit.errors import SettingsError
from kit.run import Settings

if TYPE_CHECKING:
    import torch

__all__ = ["FRAMEWORKS", "Context", "Workload", "as_workload", "prefetched", "workload"]

Step = Callable[[], Any]
FRAMEWORKS = ("torch", "jax")


@dataclass(frozen=True)
class Workload:
    """A named builder: called with a `Context`, it gives the step, a function of no arguments.

    The step returns its loss as a tensor, unread: reading it is a sync point.
    """

    name: str
    build: Callable[[Context], Step]
    doc: str = ""  # what the step is, for people
    framework: str = "torch"  # one of FRAMEWORKS: mode "torch" runs the step by it alone

    def __post_init__(self) -> None:
        if self.framework not in FRAMEWORKS:
            raise SettingsError(f"framework must be one of {FRAMEWORKS}, not {self.framework!r}")

    def __call__(self, context: Context) -> Step:
        step = self.build(context)
        if not callable(step):
            raise SettingsError(
                f"the workload {self.name!r} must return its step, a function without arguments; "
                f"it returned {type(step).__name__}. Add `return step` at its end."
            )
        return step

    def __reduce__(self) -> tuple[Any, ...]:
        """By name where one leads back here: under `@workload` it hides the builder's own."""
        home = getattr(self.build, "__module__", "")
        path = getattr(self.build, "__qualname__", "")
        if home and _named(home, path) is self:
            return _named, (home, path)
        return Workload, (self.name, self.build, self.doc, self.framework)


def _named(module: str, path: str) -> Any:
    """What a module has under a dotted name; None if there is nothing."""
    found: Any = sys.modules.get(module) or import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


@overload
def workload(build: Callable[[Context], Step]) -> Workload: ...
@overload
def workload(*, framework: str) -> Callable[[Callable[[Context], Step]], Workload]: ...
def workload(build: Callable[[Context], Step] | None = None, *, framework: str = "torch") -> Any:
    """Mark a function as a workload: it takes a `Context` and returns the training step.

    @kit.workload
    def mine(ctx):
        model = Net().to(ctx.device)
        ...
        return step

    A step made of `kit.jax.step` functions is marked `@kit.workload(framework="jax")`: its context
    is one for jax, and its baseline, mode "torch", is jax.jit.
    """
    if build is None:
        return lambda chosen: as_workload(chosen, framework)
    return as_workload(build, framework)


def as_workload(source: Any, framework: str = "torch") -> Workload:
    """The workload itself, or a plain builder function as one.

    Raises:
        SettingsError: it is neither.
    """
    if isinstance(source, Workload):
        return source
    if callable(source):
        name = getattr(source, "__name__", type(source).__name__)
        return Workload(name, source, inspect.getdoc(source) or "", framework)
    raise SettingsError(
        f"a workload is a function that takes a context and returns a step, "
        f"not {type(source).__name__}: decorate yours with @kit.workload"
    )


class Context:
    """One run's settings, and the parts of a step that depend on them.

    Attributes:
        settings: the run's `Settings`.
        device: "kit", "cuda" or "cpu": use it in `.to(ctx.device)`.
        batch_size, seed, accumulate: as in the settings.
    """

    def __init__(self, settings: Settings, device: str) -> None:
        self.settings = settings
        self.device = device
        self.batch_size = settings.batch_size
        self.seed = settings.seed
        self.accumulate = settings.accumulate

    def scaler(self) -> Any:
        """A gradient scaler for the chosen loss-scaling mode, with `GradScaler`'s interface."""
        from kit.frontend.scaler import make_scaler

        return make_scaler(self.settings.loss_scaling, self.device)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The forward pass's precision: nothing to do for float32."""
        import torch

        if self.settings.dtype == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=getattr(torch, self.settings.dtype))

    def loader(self, dataset: torch.utils.data.Dataset[Any]) -> Iterator[Any]:
        """Batches for ever, on the device, in an order that depends on the seed only.

        With `prefetch=k`, a thread prepares up to k batches on the host while the step runs.

        Raises:
            SettingsError: the dataset is smaller than a batch.
        """
        import torch

        length = len(dataset)  # type: ignore[arg-type]
        if length < self.batch_size:
            raise SettingsError(
                f"batch_size={self.batch_size}, but the dataset has only {length} items; "
                "choose a smaller batch or give more data"
            )
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=self.batch_size, shuffle=True, drop_last=True,
            generator=torch.Generator().manual_seed(self.seed),
        )  # fmt: skip
        batches = _endless(loader)
        if self.settings.prefetch:
            batches = prefetched(batches, self.settings.prefetch)
        return self._on_device(batches)

    def _on_device(self, batches: Iterator[Any]) -> Iterator[Any]:
        if self.device != "kit":
            while True:
                yield _to(next(batches), self.device)
        from kit.runtime.session import current_session

        session = current_session()
        assert session is not None, "device kit has a session while its workload runs"

        def load() -> Any:
            with session.span("input", "next batch"):
                batch = next(batches)
            return _to(batch, self.device)

        while True:
            yield session.fetch(load)


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _to(batch: Any, device: str) -> Any:
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: _to(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_to(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return [_to(value, device) for value in batch]
    return batch


def prefetched(batches: Iterator[Any], depth: int) -> Iterator[Any]:
    """The same batches, prepared ahead by a thread that ends with this iterator."""
    ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def offer(item: tuple[Any, BaseException | None]) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                ready.put(item, timeout=0.05)
                return

    def prepare() -> None:
        try:
            while not stopped.is_set():
                offer((next(batches), None))
        except BaseException as error:  # noqa: BLE001 - raised where the batch is asked for
            offer((None, error))

    thread = threading.Thread(target=prepare, name="kit prefetch", daemon=True)
    thread.start()
    try:
        while True:
            batch, error = ready.get()
            if error is not None:
                raise error
            yield batch
    finally:
        stopped.set()
        if thread is not threading.current_thread():  # the garbage collector may run there
            thread.join()
