"""GPT-2 as transformers has it, not changed, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from kit.measure.base.context import Context, Workload

__all__ = ["gpt2"]

_STILL = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # every mode the same
_TINY = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 50, "n_positions": 16}


def gpt2(size: str = "full") -> Workload:
    """It learns one batch.

    Args:
        size: "full", of 12 layers; or "tiny".

    Raises:
        ImportError: transformers is not installed.
    """
    hf = import_module("transformers")
    config = hf.GPT2Config(**(_TINY if size == "tiny" else {}), **_STILL, use_cache=False)
    length = 8 if size == "tiny" else 256

    def build(ctx: Context) -> Callable[[], Any]:
        torch.manual_seed(ctx.seed)
        model = hf.GPT2LMHeadModel(config).to(ctx.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        ids = torch.randint(0, config.vocab_size, (ctx.settings.batch_size, length))
        batch = ctx.part(ids).to(ctx.device)

        def step() -> Tensor:
            with ctx.autocast():
                loss: Tensor = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return step

    return Workload("gpt2", build, "GPT-2 of transformers learns one batch, with AdamW.")
