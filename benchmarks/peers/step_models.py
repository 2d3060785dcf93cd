"""The models of `benchmarks/step.py` in torch, and a training step of each. Needs no kit.

Each function gives a network and what it is called with; the network returns its loss. Dropout is
off, so that all peers compute the same. The encoder's shape is that of `benchmarks/host_time.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["MODELS", "encoder", "training_step"]

WIDTH, HEADS, HIDDEN, TOKENS, BATCH = 128, 4, 512, 32, 8  # of the encoder

Model = tuple[nn.Module, tuple[Tensor, ...]]


class Regression(nn.Module):
    """A network and the mean squared error of its result."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(self.body(x), y)


class Classes(nn.Module):
    """A network and the cross entropy of its result."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.body(x), y)


class Words(nn.Module):
    """A network of transformers, with its own loss."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, ids: Tensor) -> Tensor:
        return self.body(input_ids=ids, labels=ids).loss  # type: ignore[no-any-return]


class LastOutput(nn.Module):
    """An LSTM, and a layer on what it gives at the last time step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, 2, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]


def encoder(layers: int = 4) -> Model:
    """A transformer's encoder, and a linear layer."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, dropout=0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    shape = BATCH, TOKENS, WIDTH
    net = Regression(nn.Sequential(body, nn.Linear(WIDTH, WIDTH)))
    return net, (torch.randn(shape), torch.randn(shape))


def gpt2() -> Model:
    """GPT-2 of transformers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=4, n_embd=192, n_head=4, vocab_size=2000, n_positions=64, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return Words(GPT2LMHeadModel(config)), (torch.randint(2000, (8, 64)),)


def bert() -> Model:
    """BERT tiny of transformers, that learns all words."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=2, hidden_size=128, num_attention_heads=2, intermediate_size=512,
        vocab_size=3000, max_position_embeddings=64, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return Words(BertForMaskedLM(config)), (torch.randint(3000, (8, 64)),)


def conv() -> Model:
    """A small convolutional network with batch norm."""

    def block(channels: int, out: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]

    pool = nn.MaxPool2d(2)
    blocks = [*block(3, 32), *block(32, 32), pool, *block(32, 64), *block(64, 64), pool]
    net = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return Classes(net), (torch.randn(16, 3, 32, 32), torch.randint(10, (16,)))


def lstm() -> Model:
    """Two layers of an LSTM over 32 time steps."""
    return Classes(LastOutput()), (torch.randn(16, 32, 64), torch.randint(10, (16,)))


def mlp() -> Model:
    """Six linear layers."""
    layers = [m for _ in range(5) for m in (nn.Linear(512, 512), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(512, 512))
    return Regression(net), (torch.randn(64, 512), torch.randn(64, 512))


MODELS: dict[str, Callable[[], Model]] = {
    "encoder": encoder, "gpt2": gpt2, "conv": conv, "lstm": lstm, "mlp": mlp, "bert": bert,
}  # fmt: skip


def training_step(name: str, device: str, wrap: Callable[[Any], Any] = lambda net: net) -> Any:
    """A whole step with AdamW on a device, a function that returns its loss unread."""
    torch.manual_seed(0)
    net, batch = MODELS[name]()
    net, batch = net.to(device), tuple(x.to(device) for x in batch)
    forward = wrap(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = forward(*batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
