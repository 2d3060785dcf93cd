"""What a workload's builder is given: `Context`. How a builder is marked: `@workload`."""

from __future__ import annotations

import contextlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, overload

from kit.errors import SettingsError
from kit.measure.base.knobs import own_knobs
from kit.measure.base.loading import (
    BATCH,
    NEXT,
    WAITED,
    endless,
    fetched,
    noted,
    prefetched,
)
from kit.runs.knob import OwnKnob
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.text import format_count
from kit.trace import Timeline

__all__ = ["FRAMEWORKS", "Context", "Workload", "as_workload", "workload"]

Step = Callable[[], Any]
FRAMEWORKS = ("torch", "jax")
_IS_RUN = (
    "this is a finished run: what it ran cannot be run again with other settings from it. Give the "
    "workload to run it again; of a run on device kit, kit.predict(run, settings) says what other "
    "settings would give, and kit.WhatIfView(run) has sliders for it"
)


@dataclass(frozen=True)
class Workload:
    """A named builder: called with a `Context`, it gives the step, a function of no arguments.

    The step returns its loss as a tensor, unread: reading it is a sync point. Parameters of the
    builder beside the context that have a `kit.knob` as default are settings of this workload.
    """

    name: str
    build: Callable[..., Step]
    doc: str = ""  # what the step is, for people
    framework: str = "torch"  # one of FRAMEWORKS: mode "torch" runs the step by it alone
    # Of the module, as it was then: another one after it was loaded anew.
    _spec: Any = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        if self.framework not in FRAMEWORKS:
            raise SettingsError(f"framework must be one of {FRAMEWORKS}, not {self.framework!r}")
        object.__setattr__(self, "_spec", self._spec_now())
        _ = self.knobs  # one that cannot be is an error where the builder is defined

    @cached_property
    def knobs(self) -> tuple[OwnKnob, ...]:
        """The parameters of the builder that are settings of this workload, at their defaults."""
        return own_knobs(self.build, self.name)

    def settings(self, **values: Any) -> Settings:
        """Settings of this workload, its own knobs among them: `mine.settings(width=128)`.

        Raises:
            SettingsError: a name or a value is wrong.
        """
        return Settings(own=self.knobs).replace(**values)

    def fit(
        self, settings: Settings | None, changes: Mapping[str, Any] = MappingProxyType({})
    ) -> Settings:
        """The given settings, or the defaults, with a value for each of this workload's own knobs.

        Args:
            changes: values by name that replace those.

        Raises:
            SettingsError: they have a knob of another workload, or a value is wrong.
        """
        given = Settings() if settings is None else Settings.checked(settings)
        return given.fit(self.knobs, self.name).replace(**changes)

    def __call__(self, context: Context) -> Step:
        self._tell_if_reloaded()
        values = {knob.name: knob.value for knob in self.fit(context.settings).own}
        if why := _refusal(self.build, context, **values):
            name = self.name if self.name.isidentifier() else "mine"
            raise SettingsError(
                f"the workload {self.name!r} is called with the context of a run alone, as in "
                f"`def {name}(ctx):`, and takes other arguments: {why}"
            )
        step = self.build(context, **values)
        if not callable(step):
            raise SettingsError(
                f"the workload {self.name!r} must return its step, a function without arguments; "
                f"it returned {type(step).__name__}. Add `return step` at its end."
            )
        if why := _refusal(step):
            raise SettingsError(
                f"the step of the workload {self.name!r} is called without arguments, and takes "
                f"some: {why}. A batch comes from `next(batches)` in the step, with "
                "`batches = ctx.loader(dataset)` before it"
            )
        return step

    def _spec_now(self) -> Any:
        return getattr(sys.modules.get(getattr(self.build, "__module__", "")), "__spec__", None)

    def _tell_if_reloaded(self) -> None:
        """`%autoreload` renews functions and classes in place, but not the builder in here."""
        home = getattr(self.build, "__module__", "")
        path = getattr(self.build, "__qualname__", "")
        if home == "__main__" or home not in sys.modules:
            return
        now = _named(home, path)
        if not isinstance(now, Workload) or now is self or self._spec is self._spec_now():
            return
        codes = [getattr(one.build, "__code__", None) for one in (self, now)]
        if codes[0] != codes[1]:  # those that a loop makes have one code
            from kit.runtime.recording.sites import level_of_user

            warnings.warn(
                f"{home} was loaded anew, and this {path} is of before: it runs the old code. The "
                f"new one: `from {home} import {path.partition('.')[0]}`",
                stacklevel=level_of_user(),
            )

    def __getattr__(self, name: str) -> Any:
        """A view or a table that is given a workload asks it for what only its run has."""
        of_a_run = {field.name for kind in (Run, Timeline) for field in fields(kind)}
        more = "; `kit.run(workload)` gives a run, which has one" if name in of_a_run else ""
        raise AttributeError(f"a workload has no {name!r}{more}", name=name, obj=self)

    def __reduce__(self) -> tuple[Any, ...]:
        """By name where one leads back here: under `@workload` it hides the builder's own."""
        home = getattr(self.build, "__module__", "")
        path = getattr(self.build, "__qualname__", "")
        if home and _named(home, path) is self:
            return _named, (home, path)
        return Workload, (self.name, self.build, self.doc, self.framework)


def _refusal(function: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """Why a function cannot be called with these arguments; "" if it can, or does not say."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*arguments, **named)
    except TypeError as error:
        return str(error)
    return ""


def _named(module: str, path: str) -> Any:
    """What a module has under a dotted name; None if there is nothing."""
    found: Any = sys.modules.get(module) or import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


@overload
def workload(build: Callable[..., Step]) -> Workload: ...
@overload
def workload(*, framework: str) -> Callable[[Callable[..., Step]], Workload]: ...
def workload(build: Callable[..., Step] | None = None, *, framework: str = "torch") -> Any:
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
    if isinstance(source, Run):
        raise SettingsError(_IS_RUN)
    if hasattr(source, "forward") and hasattr(source, "parameters"):
        raise SettingsError(
            "a model is no workload yet: write a function that takes a context, makes the model "
            "and its optimizer, and returns the step. The README's `mine(ctx)` is one"
        )
    if callable(source):
        name = getattr(source, "__name__", type(source).__name__)
        return Workload(name, source, inspect.getdoc(source) or "", framework)
    if isinstance(source, str):
        raise SettingsError(
            "a workload is given as itself, not by its name: `from kit.workloads import bert`, "
            "then `kit.run(bert)`"
        )
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
        self._at_end = contextlib.ExitStack()

    def close(self) -> None:
        """The run is over: end the threads that load batches natively, without a session."""
        self._at_end.close()

    def scaler(self) -> Any:
        """A gradient scaler for the chosen loss-scaling mode, with `GradScaler`'s interface."""
        from kit.torch.scaling.choose import make_scaler

        return make_scaler(self.settings.loss_scaling, self.device)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The forward pass's precision: nothing to do for float32."""
        import torch

        if self.settings.dtype == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=getattr(torch, self.settings.dtype))

    def loader(self, dataset: Any) -> Iterator[Any]:
        """Batches for ever, on the device, in an order that depends on the seed only.

        With `prefetch=k`, a thread prepares up to k batches while the step runs, and on device
        "kit" copies them there too.

        Args:
            dataset: a torch dataset with a length, or a list of items; or any other iterable, of
                batches, such as a DataLoader of your own, which is taken as it is, and from the
                start when it ends. Of ready batches: `DataLoader(batches, batch_size=None)`.

        Raises:
            SettingsError: the dataset is smaller than a batch, or a dict of whole arrays, as jax's
                are; or the iterable ends for good.
        """
        import torch

        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            return self._on_device(endless(_iterable(dataset)))
        if isinstance(dataset, Mapping) and 0 not in dataset:  # a torch dataset may be {0: item}
            raise SettingsError(
                'a dict of arrays is a dataset of jax: @kit.workload(framework="jax"). For torch '
                "give a TensorDataset(*tensors), or an object with a length and items"
            )
        self._check_holds_batch(len(dataset))
        loader = torch.utils.data.DataLoader(
            dataset,
            batch_size=self.batch_size,
            shuffle=True,
            drop_last=True,
            generator=torch.Generator().manual_seed(self.seed),
        )
        return self._on_device(endless(loader))

    def _check_holds_batch(self, length: int) -> None:
        """Refuse a dataset of fewer items than a batch has."""
        if length < self.batch_size:
            raise SettingsError(
                f"batch_size={self.batch_size}, but the dataset has only "
                f"{format_count(length, 'item')}; choose a smaller batch or give more data"
            )

    def part(self, batch: Any) -> Any:
        """What this step works on, of a batch that was made once and is not loaded: all of it.

        On several devices it is the replica's part, so that a step without a loader, too, has the
        losses of the whole batch: `x = ctx.part(torch.randn(ctx.settings.batch_size, 8))`.

        Args:
            batch: a tensor on the CPU, or several of the same length, in lists, tuples and dicts.
                `.to(ctx.device)` comes after it. Random ones that each step makes anew would be
                others in each replica: they have to come from `ctx.loader`.
        """
        return batch

    def mean(self, loss: Any) -> Any:
        """The loss of the whole batch, outside of autograd: what a step may decide by.

        On several devices each replica's loss is that of its part, and replicas that decide by it
        part: `scheduler.step(ctx.mean(loss).item())`. Every replica has to come, in each step.

        Args:
            loss: a tensor or an array of one number.
        """
        from kit.measure.base.loss import detached

        return detached(loss)

    def micro_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """`accumulate` batches, whose gradients make one update.

        On device "kit" what was recorded is issued after each, so that the device works on one
        while the next is recorded, as pytorch/xla's `mark_step` in the loop would do.
        """
        from kit.runtime.session.session import current_session

        for i in range(self.accumulate):
            if i and self.device == "kit" and (session := current_session()) is not None:
                session.flush("micro-batch")
            yield next(batches)

    def _on_device(self, batches: Iterator[Any]) -> Iterator[Any]:
        depth = self.settings.prefetch
        if self.device != "kit":
            import torch

            name = BATCH + (WAITED if depth else NEXT)
            region = partial(torch.profiler.record_function, name)
            for batch in noted(self._ahead(batches), region):
                yield _to(batch, self.device)
            return
        from kit.runtime.session.session import current_session

        session = current_session()
        assert session is not None, "device kit has a session while its workload runs"
        yield from fetched(session, batches, lambda batch: _to(batch, "kit"), depth)

    def _ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches, natively; a thread prepares them if the settings say so."""
        if not self.settings.prefetch:
            return batches
        ready = prefetched(batches, self.settings.prefetch)
        self._at_end.callback(ready.close)
        return ready


def _iterable(source: Any) -> Iterable[Any]:
    if isinstance(source, Iterable):
        return source
    raise SettingsError(
        f"ctx.loader takes a dataset with a length, or an iterable of batches, not a "
        f"{type(source).__name__}"
    )


def _to(batch: Any, device: str) -> Any:
    from kit.torch.tensors.containers import mapped

    def sent(value: Any) -> Any:
        if hasattr(value, "to"):
            return value.to(device)
        return mapped(value, sent, anew=True)  # a step may change its batch, not the loader's own

    return sent(batch)
