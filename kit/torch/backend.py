"""`torch.kit`: what torch and training scripts ask a device's module for, as of `torch.cuda`.

Each function does on device kit what it does elsewhere, or raises with what to use instead. Also
what torch does with any accelerator and cannot with one that is written in Python:
`torch.accelerator.synchronize` and its like, `pin_memory`, and `torch.load`.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any
from weakref import WeakSet

import torch

from kit.errors import BadMatrixError, BadValueError
from kit.runtime.profiling.devices import bytes_on, peak_bytes_on
from kit.runtime.session.session import Session, current_session, session_for
from kit.torch.tensors.storage import LoadedStorage
from kit.torch.tensors.unwinding import DeviceQuestion

__all__ = ["Backend", "complete_torch"]


def _session() -> Session:
    return session_for("torch.kit")


class _Missing:
    """A function of `torch.cuda`'s that device kit has none of; `why` says what to use instead."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __set_name__(self, owner: type, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"torch.kit.{self.__name__}: {self._why}")


_NO_STREAMS = (
    "device kit has no streams to choose from: a session orders its segments by what they read and "
    "write, and copies run beside them. Leave the stream out; instead of FSDP, use kit.DataParallel"
)
_NO_POOL = (
    "XLA keeps the device's memory and says nothing of its pool. torch.kit.memory_allocated() "
    "counts the arrays that are there, kit.MemoryView(kit.run(...)) shows a step's"
)
_NO_EVENTS = (
    "an event would time the recording, not the device. kit.run(...) has each step's time, and its "
    "timeline each kernel's; by hand, call torch.kit.synchronize() before time.perf_counter()"
)


class Backend:
    """What torch looks up as `torch.kit`."""

    libraries: Any = None  # registrations end when their library objects do

    def __init__(self) -> None:
        self.question = DeviceQuestion()
        self._state: torch.Tensor | None = None  # of random numbers, for the next session
        # Replicas that are open: their sessions are those of other threads, and the program seeds
        # them in its own, by `reseed(seed)`.
        self.followers: WeakSet[Any] = WeakSet()

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        """Device kit works where a session is open; without one, torch shall not turn to it."""
        return current_session() is not None

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        """There is one device for each session; `torch.cuda.set_device(0)` has nothing to do."""
        index = device if isinstance(device, int) else torch.device(device).index or 0
        if index != 0:
            raise RuntimeError(
                f"device kit:{index} was asked for, and a session has one device; for several, use "
                "kit.DataParallel or kit.run(..., devices=2)"
            )

    def device_count(self) -> int:
        return 1

    def get_device_name(self, device: Any = None) -> str:
        found = _session().device
        return f"{found.device_kind} ({found.platform}, by XLA)"

    def synchronize(self, device: Any = None) -> None:
        """Run all that is recorded and wait for it, as `session.wait_all()` does."""
        session = current_session()
        if session is not None:  # without one, nothing runs
            session.wait_all()

    # -- random numbers --------------------------------------------------------------------------

    def manual_seed(self, seed: int) -> None:
        self._state = None
        session, seed = current_session(), int(seed) % 2**32
        for one in list(self.followers) if session is None else [session.draws]:
            one.reseed(seed)

    manual_seed_all = manual_seed

    def initial_seed(self) -> int:
        return _session().draws.seed

    def seed(self) -> int:
        """A seed that the system draws."""
        self.manual_seed(found := torch.Generator().seed())
        return found

    seed_all = seed

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """The state of the session that is open; else the one that was set for the next.

        Code that saves every device's state asks here where neither is: that state is empty.
        """
        session = current_session()
        if session is None and self._state is not None:
            return self._state.clone()
        state = [] if session is None else [session.draws.seed, session.draws.calls]
        return torch.tensor(state, dtype=torch.int64, device="cpu")

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        """Of the session that is open; else of the next one, unless torch is seeded until then."""
        session = current_session()
        if session is None:
            self._state = state.cpu() if len(state) else None
        elif len(state):
            session.draws.reseed(*(int(x) for x in state))

    def seed_session(self, session: Session) -> None:
        """A session opens: it takes the state that was set for it, its own seed, or torch's."""
        state, self._state = self._state, None
        seed = (session.settings.seed or torch.initial_seed()) % 2**32
        numbers = [seed] if state is None else map(int, state)
        session.draws.reseed(*numbers)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [self.get_rng_state()]

    def set_rng_state_all(self, states: Any) -> None:
        self.set_rng_state(*states)

    # -- memory ----------------------------------------------------------------------------------

    def empty_cache(self) -> None:
        """Nothing: XLA keeps the memory, and gives it to the next program."""

    def memory_allocated(self, device: Any = None) -> int:
        """Bytes of the arrays that are on the device now; what is recorded only has none yet."""
        return bytes_on(_session().device)

    def max_memory_allocated(self, device: Any = None) -> int:
        """The largest number of bytes in use so far, as XLA counts them."""
        on = _session().device
        if (peak := peak_bytes_on(on)) is None:
            raise RuntimeError(
                f"torch.kit.max_memory_allocated: XLA counts no peak on this device ({on}). "
                "kit.MemoryView(kit.run(...)) shows a step's"
            )
        return peak

    reset_peak_memory_stats = _Missing("XLA's peak counts from the start of the process")
    memory_stats = _Missing(_NO_POOL)
    memory_reserved = _Missing(_NO_POOL)
    max_memory_reserved = _Missing(_NO_POOL)
    mem_get_info = _Missing(_NO_POOL)
    reset_accumulated_memory_stats = _Missing(_NO_POOL)

    # -- what device kit does not have -----------------------------------------------------------

    Stream = _Missing(_NO_STREAMS)
    stream = _Missing(_NO_STREAMS)
    current_stream = _Missing(_NO_STREAMS)
    Event = _Missing(_NO_EVENTS)
    get_device_properties = _Missing("XLA tells a device's name only: torch.kit.get_device_name()")

    # -- what torch itself asks ------------------------------------------------------------------

    _initialized = True  # activation checkpointing asks, to draw the same random numbers again

    def _is_in_bad_fork(self) -> bool:
        return False

    def device(self, index: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """XLA computes in bfloat16 on every device."""
        return True

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


# Torch asks the allocator of C++ for these, which a device in Python cannot have: the name in
# `torch.accelerator` -> that in `torch.cuda` and `torch.kit`.
_OF_ACCELERATORS = {"get_memory_info": "mem_get_info"} | {
    name: name
    for name in (
        "synchronize",
        "empty_cache",
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "memory_stats",
        "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
    )
}


def complete_torch(backend: Backend) -> None:
    """Make the functions of torch that work with any accelerator work with device kit."""
    for name, known_as in _OF_ACCELERATORS.items():
        if (original := getattr(torch.accelerator, name, None)) is not None:
            setattr(torch.accelerator, name, _of_session_or_cuda(original, backend, known_as))
    _pin_memory()
    torch.serialization.register_package(9, lambda storage: None, _load)
    # `except torch.linalg.LinAlgError` catches what the device finds; its class knows no torch.
    BadMatrixError.__bases__ = (BadValueError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


def _of_session_or_cuda(original: Any, backend: Backend, name: str) -> Any:
    """Asks device kit where a session is open, and else CUDA, if the program uses it."""

    @functools.wraps(original)
    def ask(*args: Any, **kwargs: Any) -> Any:
        is_cudas = current_session() is None and torch.cuda.is_initialized()
        return getattr(torch.cuda if is_cudas else backend, name)(*args, **kwargs)

    return ask


def _pin_memory() -> None:
    """Let loaders pin their batches: with device kit registered, torch asks it for such memory.

    Device kit copies from any memory, so a batch is returned as it is. CUDA, if it is there, is
    asked by name.
    """
    original = torch.Tensor.pin_memory

    @functools.wraps(original)
    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        device = _or_cuda(device)
        if device is None or torch.device(device).type == "kit":
            return self
        return original(self, device)

    torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign, assignment]
    asked = torch.Tensor.is_pinned

    @functools.wraps(asked)
    def is_pinned(self: torch.Tensor, device: Any = None) -> bool:
        device = _or_cuda(device)
        return asked(self) if device is None else asked(self, device)

    torch.Tensor.is_pinned = is_pinned  # type: ignore[method-assign, assignment]


def _or_cuda(device: Any) -> Any:
    """CUDA, if it is there, where no device is named."""
    return "cuda" if device is None and torch.cuda.is_available() else device


def _load(storage: Any, location: str) -> Any:
    """`torch.load(..., map_location="kit")`; None for any other place."""
    if location != "kit" and not location.startswith("kit:"):
        return None
    _session()
    torch.kit.set_device(location)  # type: ignore[attr-defined]
    return LoadedStorage.of(storage)
