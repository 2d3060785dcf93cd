"""BERT for masked-language modelling, in plain `torch.nn`: the step of PyTorch/XLA issue 3043.

Dropout is off, so that every mode computes the same numbers. Sizes: `SIZES`.

Source: Devlin et al., BERT, https://arxiv.org/abs/1810.04805.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kit.errors import SettingsError
from kit.measure.base.context import Context, Workload
from kit.workloads.text import IGNORE, MaskedText

__all__ = ["SIZES", "Bert", "Size", "bert", "bert_of"]


@dataclass(frozen=True)
class Size:
    """One BERT: `heads` must divide `width`."""

    layers: int
    width: int
    heads: int
    length: int  # tokens in a sequence
    vocabulary: int

    @property
    def inner(self) -> int:
        """Width of the feed-forward layer."""
        return 4 * self.width


SIZES = {
    "tiny": Size(layers=2, width=128, heads=2, length=64, vocabulary=3000),
    "small": Size(layers=4, width=256, heads=4, length=128, vocabulary=4000),
    "base": Size(layers=12, width=768, heads=12, length=128, vocabulary=4000),
    "large": Size(layers=24, width=1024, heads=16, length=128, vocabulary=4000),
}


class Attention(nn.Module):
    """Multi-head self-attention, written out: projections, views, products, softmax."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        """Shape: x (batch, length, width) -> the same."""
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Attention and feed-forward, each added to its input and normalised after."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention = Attention(size)
        self.norm1 = nn.LayerNorm(size.width)
        self.up = nn.Linear(size.width, size.inner)
        self.down = nn.Linear(size.inner, size.width)
        self.norm2 = nn.LayerNorm(size.width)

    def forward(self, x: Tensor) -> Tensor:
        """Shape: x (batch, length, width) -> the same."""
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.down(functional.gelu(self.up(x))))  # type: ignore[no-any-return]


class Bert(nn.Module):
    """Token ids and labels to the mean masked-language-modelling loss."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Parameter(torch.randn(size.length, size.width) * 0.02)
        self.norm = nn.LayerNorm(size.width)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.head = nn.Linear(size.width, size.width)
        self.head_norm = nn.LayerNorm(size.width)
        self.bias = nn.Parameter(torch.zeros(size.vocabulary))
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Shape: ids, labels (batch, length), int64 -> ()."""
        x = self.norm(self.tokens(ids) + self.positions)
        for layer in self.layers:
            x = layer(x)
        x = self.head_norm(functional.gelu(self.head(x)))
        logits = functional.linear(x, self.tokens.weight, self.bias)  # the head is tied
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)


_DOC = "A BERT encoder learns masked words of a real text, with AdamW."


def bert_of(size: str | Size, *, backend: str = "") -> Workload:
    """The BERT workload in one of `SIZES`: "tiny" for a laptop, "base" and "large" for a GPU.

    Args:
        size: its name, or a `Size` of your own.
        backend: of `torch.compile`, such as "inductor": a baseline, for mode "torch" only.

    Raises:
        SettingsError: there is no such size.
    """
    if isinstance(size, str) and size not in SIZES:
        raise SettingsError(f"no BERT is called {size!r}; there are: {', '.join(SIZES)}")
    chosen = SIZES[size] if isinstance(size, str) else size
    name = size if isinstance(size, str) else f"{size.layers}x{size.width}"
    compiled = f", torch.compile ({backend})" if backend else ""
    build = partial(_build, size=chosen, backend=backend)
    return Workload(f"bert {name}{compiled}", build, _DOC)


def _build(ctx: Context, size: Size, backend: str = "") -> Callable[[], Any]:
    if backend and ctx.device == "kit":
        raise SettingsError("torch.compile is for native torch: choose mode='torch'")
    torch.manual_seed(ctx.seed)
    model: Any = Bert(size).to(ctx.device)  # made on the host: all devices start from equal weights
    if backend:
        model = torch.compile(model, backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = ctx.scaler()
    batches = ctx.loader(MaskedText(length=size.length, size=size.vocabulary, seed=ctx.seed))

    def step() -> Tensor:
        total: Any = 0
        for ids, labels in ctx.micro_batches(batches):
            with ctx.autocast():
                loss = model(ids, labels) / ctx.accumulate
            scaler.scale(loss).backward()
            total = total + loss.detach()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return total  # type: ignore[no-any-return]

    return step


bert = Workload("bert", partial(_build, size=SIZES["tiny"]), _DOC)
