"""What the kit takes from torch below its public surface: each name here, and nowhere else.

A new torch may rename any of them. Then device "kit" cannot be had, and the error says which name
is missing and which versions of torch the kit was tried with.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from kit.errors import SessionError
from kit.versions import needed, tried_text

__all__ = ["NAMES", "private"]

NAMES = (
    "torch.utils.backend_registration._setup_privateuseone_for_python_backend",
    "torch._C._get_privateuse1_backend_name",
    "torch._C._acc.DeviceGuard",
    "torch._C._autograd.DeviceType",
    "torch._C._current_graph_task_id",
    "torch._C._current_autograd_node",
    "torch._C._autograd._get_sequence_nr",
    "torch._C._autograd._top_saved_tensors_default_hooks",
    "torch._C._disabled_torch_function_impl",
    "torch._C._get_overrideable_sdp_enabled",
    "torch._C._len_torch_dispatch_stack",
    "torch._C.DispatchKey.AutocastPrivateUse1",
    "torch._C.DispatchKeySet",
    "torch._C._ExcludeDispatchKeyGuard",
    "torch._decomp.decomposition_table",
    "torch._disable_dynamo",
    "torch.amp.autocast_mode._cast",
    "torch.autograd._enable_profiler",
    "torch.autograd._enable_record_function",
    "torch.autograd._engine_run_backward",
    "torch.autograd._profiler_enabled",
    "torch.autograd.profiler._is_profiler_enabled",
    "torch.autograd.profiler.profile._prepare_trace",
    "torch.distributed.Work.unbox",
    "torch.nn.Module._apply",
    "torch.nn.modules.module._global_forward_pre_hooks",
    "torch.nn.modules.module._global_forward_hooks",
    "torch.nn.modules.module._global_backward_pre_hooks",
    "torch.nn.modules.module._global_backward_hooks",
    "torch.optim.optimizer._global_optimizer_pre_hooks",
    "torch.optim.optimizer._global_optimizer_post_hooks",
    "torch.overrides._get_current_function_mode_stack",
    "torch.utils._device.DeviceContext",
    "torch.utils._python_dispatch._pop_mode",
    "torch.utils._python_dispatch._push_mode",
    "torch.utils.data.dataloader._BaseDataLoaderIter",
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter",
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter._shutdown_workers",
)


def private(name: str) -> Any:
    """What torch has under one of `NAMES`.

    Raises:
        SessionError: this torch has no such name.
    """
    assert name in NAMES, name
    found: Any = torch
    parts = name.split(".")[1:]
    for depth, part in enumerate(parts, start=2):
        if not hasattr(found, part):
            found = _module(".".join(name.split(".")[:depth]))
        else:
            found = getattr(found, part)
        if found is None:
            raise SessionError(
                f"torch {torch.__version__} has no {name}, which kit needs. Kit was tried "
                f'with {tried_text("torch")}: pip install "torch{needed().get("torch", "")}"'
            )
    return found


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
