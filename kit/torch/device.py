"""Register device "kit" with torch, once a process, and open sessions on it.

Uses torch's experimental Python backend (`_setup_privateuseone_for_python_backend`); `register`
checks that it is there before it changes anything. The device guard is our own, so that an error of
a hook in backward does not end the process.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kit.errors import SessionError
from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.rules.default import DEFAULT_RULES
from kit.runtime.rules.table import Rules
from kit.runtime.session.interrupts import INTERRUPTS, postponed
from kit.runtime.session.session import Session, session_for
from kit.runtime.session.setup import Setup
from kit.torch.autocast import register_autocast
from kit.torch.backend import Backend, complete_torch
from kit.torch.backward import follow_backward
from kit.torch.dispatch import Dispatcher, tape_of
from kit.torch.flops import register_flops
from kit.torch.generators import name_random_numbers
from kit.torch.lazy_modules import follow_lazy_modules
from kit.torch.modules import keep_parameters, name_kits_data_parallel
from kit.torch.ops.attention import register_attention
from kit.torch.ops.losses import register_ctc
from kit.torch.ops.recurrent import register_recurrent
from kit.torch.ops.refused import register_refused
from kit.torch.tensors.private import private
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor, empty
from kit.versions import warn_of_untried

__all__ = ["open_session", "register"]


_OUTS = (
    "kron.out",
    "matmul.out",
    "linalg_matrix_rank.out",
    "linalg_matrix_rank.out_tol_tensor",
    "linalg_matrix_rank.atol_rtol_tensor_out",
    "linalg_matrix_rank.atol_rtol_float_out",
)


class _State:
    """How far this process is."""

    is_registered = False
    lock = threading.RLock()  # held while the device is registered


_STATE = _State()


def open_session(
    settings: Settings | None = None,
    *,
    rules: Rules = DEFAULT_RULES,
    strict: bool = False,
    cache: ExecutableCache | None = None,
    setup: Setup | None = None,
) -> Session:
    """A session whose `with` block makes `device="kit"` work in torch."""
    register()
    return Session(
        settings,
        rules=rules,
        strict=strict,
        cache=cache,
        frontends=(Dispatcher(),),
        setup=setup,
    )


def register() -> None:
    """Make device "kit" known to torch; the second call does nothing.

    Raises:
        SessionError: torch lacks the backend hook, or another library has taken it.
    """
    if _STATE.is_registered:
        return
    with _STATE.lock, postponed():
        if not _STATE.is_registered:
            _register()
            _STATE.is_registered = True


def _register() -> None:
    if getattr(torch, "kit", None) is not None:
        raise SessionError(
            "an error or an interrupt came while device 'kit' was registered with torch, which "
            "cannot be done twice in a process: restart Python"
        )
    warn_of_untried("python", "torch", "jax", "jaxlib")
    setup = private("torch.utils.backend_registration._setup_privateuseone_for_python_backend")
    taken = private("torch._C._get_privateuse1_backend_name")()
    if taken not in ("privateuseone", "kit"):
        raise SessionError(f"torch's spare device is already in use, by {taken!r}, in this process")
    module = Backend()
    INTERRUPTS.hook(module.question.is_asked)
    setup(rename="kit", backend_module=module, device_guard=module.question.guard)
    torch.kit.libraries = (  # type: ignore[attr-defined]
        _register_ops(),
        register_attention(),
        register_ctc(),
        register_refused(),
        *register_recurrent(),
        *register_autocast(),
    )
    keep_parameters()
    follow_lazy_modules()
    follow_backward()
    name_kits_data_parallel()
    name_random_numbers()
    register_flops()
    complete_torch(torch.kit)  # type: ignore[attr-defined]
    optimizer = importlib.import_module("torch.optim.optimizer")
    types = getattr(optimizer, "_foreach_supported_types", None)
    if types is not None and KitTensor not in types:  # multi-tensor optimizers, as on CUDA
        types.append(KitTensor)
    # Else `make_fx`, and so `torch.func.linearize`, would trace what our tensors give as constants.
    proxies = importlib.import_module("torch.fx.experimental.proxy_tensor")
    proxies.HANDLED_TYPES = (*proxies.HANDLED_TYPES, KitTensor)  # type: ignore[attr-defined]


def _register_ops() -> torch.library.Library:
    """Kernels of the device; the library must be kept alive."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    library.impl("_local_scalar_dense", _number, "PrivateUse1")
    library.impl("_efficientzerotensor", _zeros, "PrivateUse1")
    library.impl("tril_indices", _triangle(torch.tril_indices), "PrivateUse1")
    library.impl("triu_indices", _triangle(torch.triu_indices), "PrivateUse1")
    # One op in the graph instead of torch's five forward and eight backward (for one_hot, one whose
    # classes are checked): a kernel of the device's own is what keeps torch from taking it apart.
    # `KitTensor` sees the call first.
    library.impl("linear", _never, "PrivateUse1")
    library.impl("one_hot", _never, "PrivateUse1")
    # Torch's own versions of these write through memory that it takes to be shared, or not at all.
    for name in _OUTS:
        library.impl(name, _never, "PrivateUse1")
    return library


def _tape(device: Any = None) -> Tape:
    tape = tape_of(session_for("device 'kit'"))
    # torch makes "kit:0" of "kit", so index 0 means the device of the thread that asks
    if device is not None and device.index and device.index != tape.device.index:
        raise SessionError(
            f"device {device} was asked for, but this code runs on {tape.device}: say 'kit', which "
            "means the device of the code that runs"
        )
    return tape


# Torch gives by name what stands after the star in an op's schema, such as its layout.
Dtype = torch.dtype | None


def _empty(size: Sequence[int], *, dtype: Dtype = None, device: Any = None, **_: Any) -> KitTensor:
    return empty(_tape(device), size, dtype)


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: Dtype = None,
    device: Any = None,
    **_: Any,
) -> KitTensor:
    return empty(_tape(device), size, dtype, stride)


def _zeros(size: Sequence[int], *, dtype: Dtype = None, **_: Any) -> torch.Tensor:
    return torch.zeros(size, dtype=dtype, device="kit")


def _triangle(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Indices that depend on nothing on the device: made on the host, copied once."""

    def make(row: int, col: int, offset: int = 0, *, dtype: Dtype = None, **_: Any) -> torch.Tensor:
        return function(row, col, offset, dtype=dtype or torch.int64, device="cpu").to("kit")

    return make


def _never(*args: Any, **kwargs: Any) -> Any:
    raise SessionError("an op of device 'kit' got no tensor of it; this is a bug in kit")


def _number(source: KitTensor) -> Any:
    """`torch.tensor([x, y])` of tensors with one number each asks below the Python key."""
    return source.tape.dispatch(torch.ops.aten._local_scalar_dense.default, (source,), {})


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    """`torch.tensor(data, device="kit")` copies below the Python key, and arrives here."""
    tape = (target if isinstance(target, KitTensor) else source).tape
    return tape.dispatch(torch.ops.aten.copy_.default, (target, source), {})
