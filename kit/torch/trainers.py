"""Libraries that own the training loop, and how they come to device kit.

transformers' Trainer and accelerate ask an environment variable for their device; Lightning takes a
strategy. Where such a library steps its optimizer, a step of the session ends, and where it asks
for the batch after one that it has evaluated. A session warns when an optimizer trains on the CPU
inside it, whoever drives it.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch

from kit.errors import SessionError, SettingsError
from kit.runtime.recording.sites import callers, format_site, here, level_of_user
from kit.runtime.session.session import Session, current_session
from kit.torch.optimizers import step_around
from kit.torch.tensors.tensor import KitTensor

__all__ = ["ACCELERATE_DEVICE", "CpuTraining", "LibrarySteps", "lightning_strategy"]

ACCELERATE_DEVICE = "ACCELERATE_TORCH_DEVICE"  # accelerate's variable, which transformers reads too
# Lightning's packages: each has its own classes, and refuses those of the others.
_LIGHTNING = ("lightning.pytorch", "pytorch_lightning", "lightning.fabric", "lightning_fabric")
_BY_VARIABLE = (
    f"For transformers' Trainer and accelerate: os.environ[{ACCELERATE_DEVICE!r}] = 'kit' before "
    "the first TrainingArguments or Accelerator is made"
)
_BY_STRATEGY = (
    "For Lightning: Trainer(strategy=kit.lightning_strategy()), in a script that opens the session "
    "itself, `with kit.Session():`, and is run by python, not by `kit run --on kit`"
)
_MOVE = "Move the model there: model.to('kit'), or with kit run --on kit: model.to('cuda')"
_CURES = {
    "transformers": _BY_VARIABLE,
    "accelerate": _BY_VARIABLE,
    **{package.partition(".")[0]: _BY_STRATEGY for package in _LIGHTNING},
}


def lightning_strategy(package: str = "") -> Any:
    """A strategy of Lightning's for device kit: `Trainer(strategy=kit.lightning_strategy())`.

    Each trainer takes one of its own, and trains in the session that is open around `fit`.

    Args:
        package: whose trainer it is for: "lightning.pytorch", "pytorch_lightning",
            "lightning.fabric" or "lightning_fabric". By default the first of these that the program
            has imported.

    Raises:
        SettingsError: there is no such package of Lightning's.
        ImportError: the package is not installed.
        SessionError: no session was opened yet in this process.
    """
    loaded = [name for name in _LIGHTNING if name in sys.modules]
    package = package or (loaded or list(_LIGHTNING))[0]
    if package not in _LIGHTNING:
        raise SettingsError(f"package is {package!r}: give one of {', '.join(_LIGHTNING)}")
    if getattr(torch, "kit", None) is None:
        raise SessionError(
            "torch knows device kit from the first session on: make the trainer in it, as in `with "
            "kit.Session(): Trainer(strategy=kit.lightning_strategy()).fit(model, loader)`"
        )
    base = importlib.import_module(f"{package}.accelerators").Accelerator
    single = importlib.import_module(f"{package}.strategies").SingleDeviceStrategy
    accelerator = type("KitAccelerator", (_DeviceKit, base), {})()
    strategy = type("KitStrategy", (_Evaluations, single), {})(
        device="kit", accelerator=accelerator
    )
    accelerator.serve(strategy, package)
    return strategy


class _DeviceKit:
    """What Lightning asks of an accelerator; its own class becomes the second base."""

    def __init__(self) -> None:
        self._strategy: Any = None
        self._package = ""

    def serve(self, strategy: Any, package: str) -> None:
        """Belong to this strategy, whose precision is known once its trainer begins."""
        self._strategy, self._package = strategy, package

    def setup_device(self, device: torch.device) -> None:
        """A trainer begins: `fit`, `validate`, `test` or `predict`."""
        if (session := current_session()) is None:
            raise SessionError(
                "Lightning was given device kit outside a session: wrap the call, as in `with "
                "kit.Session(): trainer.fit(model, loader)`"
            )
        LibrarySteps.of(session).begin()
        names = ("precision_plugin", "precision")  # of a Trainer's strategy, of a Fabric's
        found = [plugin for name in names if (plugin := getattr(self._strategy, name, None))]
        casts_on = getattr(found[0], "device", "kit") if found else "kit"
        if torch.device(casts_on).type != "kit":
            kind = getattr(found[0], "precision", "bf16-mixed")
            raise SettingsError(
                f"precision={kind!r} makes Lightning cast on {casts_on!r}, so nothing on device "
                f"kit would be cast. Instead of precision= give: plugins=[{self._package}.plugins."
                f"MixedPrecision({kind!r}, device='kit')]"
            )

    def teardown(self) -> None:
        """Nothing: the session stays open."""

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """For Lightning's DeviceStatsMonitor."""
        return {"memory_allocated": torch.kit.memory_allocated()}  # type: ignore[attr-defined]

    @staticmethod
    def parse_devices(devices: Any) -> int:
        """How many devices: one, which may be named by its index."""
        if devices in (1, "1", [0], "0,", -1, "-1"):
            return 1
        raise SettingsError(
            f"devices={devices!r}: a session has one device, devices=1. For several use "
            "kit.DataParallel, or kit.run(..., devices=2), with a loop of your own"
        )

    @staticmethod
    def get_parallel_devices(devices: int) -> list[torch.device]:
        return [torch.device("kit")] * devices

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return "kit"


class _Evaluations:
    """Each batch that Lightning evaluates is a step; Lightning's strategy is the second base."""

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        return _ending_step(super().validation_step(*args, **kwargs))  # type: ignore[misc]

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        return _ending_step(super().test_step(*args, **kwargs))  # type: ignore[misc]

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        return _ending_step(super().predict_step(*args, **kwargs))  # type: ignore[misc]


def _ending_step(result: Any) -> Any:
    if (session := current_session()) is not None:
        LibrarySteps.of(session).end_step(session)
    return result


class LibrarySteps:
    """Ends a session's steps where a library that owns the loop steps its optimizer.

    Of several optimizers one ends them, until another is stepped twice without it. A step that the
    program has ended itself is not ended again.
    """

    def __init__(self) -> None:
        # How many steps had ended after the last that a library has ended, and how many ops there
        # had been then; None: there was none.
        self._ended: tuple[int, int] | None = None
        self._leader: Callable[[], Any] = lambda: None  # the optimizer that ends them
        self._others: WeakSet[Any] = WeakSet()  # that were stepped since
        self._is_watched = False
        self.evaluated = 0  # steps that ended with a batch of a watched loop's own evaluation

    @classmethod
    def of(cls, session: Session) -> LibrarySteps:
        """Those of this session."""
        return _STEPS.setdefault(session, cls())

    def begin(self) -> None:
        """A library's loop begins: the next step is its own, whoever has ended the last one."""
        self._ended = None

    def has_ended(self, session: Session) -> bool:
        """Was the session's last step ended here, and has nothing been recorded since?"""
        return self._ended == (session.step, session.streams.ops_recorded())

    def end_step(self, session: Session) -> None:
        """A step of the library's loop has ended."""
        is_first = self._ended is None and session.stream.is_pending  # not if a watch has ended it
        if is_first or (self._ended is not None and self._ended[0] == session.step):
            session.mark_step()
        self._ended = session.step, session.streams.ops_recorded()

    def watch(self) -> None:
        """From now on a loop of the program's own is a library's: its steps end by themselves."""
        self._is_watched = True

    def after_evaluated(self, session: Session) -> None:
        """A loader is asked for a batch, and that before it was computed without gradients.

        Many such batches that nothing reads would become one program.
        """
        if session.stepper.has_run or current_session() is not session:
            return
        if _is_of_library(sys._getframe(1)):
            self.end_step(session)
        elif self._is_watched:
            self.evaluated += 1
            session.mark_step()

    def after_optimizer(self, optimizer: Any, session: Session) -> None:
        """In a hook of torch's: an optimizer has stepped."""
        is_apart = session.stepper.has_run or _is_all_on_cpu(optimizer)  # `run_step` ends its own
        if is_apart or not _is_of_library(step_around()):
            return
        if self._leader() in (None, optimizer) or optimizer in self._others:
            self._leader = ref(optimizer)
            self._others.clear()
            self.end_step(session)
        else:
            self._others.add(optimizer)


_STEPS: WeakKeyDictionary[Session, LibrarySteps] = WeakKeyDictionary()


def _is_of_library(frame: FrameType | None) -> bool:
    """Does a library's own code call the step of an optimizer, or the loader, in this frame?"""
    packages = map(_package, callers(frame))
    return next((x for x in packages if x not in ("torch", "kit")), "") in _CURES


class CpuTraining:
    """Notices what trains on the CPU inside one session, and says once what puts it on the device.

    A loop of the program's own may train there beside a training on the device, as a reference. A
    library that owns the loop is told in any case: it may have chosen the CPU by itself.
    """

    def __init__(self) -> None:
        self._has_warned = False

    def look(self, optimizer: Any, session: Session) -> None:
        """An optimizer is about to step."""
        if self._has_warned or not _is_all_on_cpu(optimizer):
            return
        library = _driver()
        if library or not session.streams.ops_recorded():
            self._has_warned = True
            site = format_site(here())
            warnings.warn(
                f"{type(optimizer).__name__}{site and f', at {site},'} trains on the CPU inside a "
                "session: nothing of it is on device kit, and the session's views do not show it. "
                + (_CURES[library] if library else _MOVE),
                UserWarning,
                stacklevel=level_of_user(),
            )


def _is_all_on_cpu(optimizer: Any) -> bool:
    groups = getattr(optimizer, "param_groups", ())
    first = [p for group in groups[:1] for p in group["params"][:1]]
    if not first or isinstance(first[0], KitTensor):
        return False  # at each step of a training on the device
    return all(p.device.type == "cpu" for group in groups for p in group["params"])


def _driver() -> str:
    """The library whose loop calls, as a key of `_CURES`; "" if the program's own does."""
    return next((x for x in map(_package, callers(sys._getframe(2))) if x in _CURES), "")


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
