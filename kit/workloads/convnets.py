"""ResNet-50 v1b and Inception-v3: the two networks that MXNet PR 14200 was measured with.

Plain `torch.nn`. "full" has the published sizes and is meant for a GPU; "tiny" keeps every kind of
block at an eighth of the width, fewer of equal ones, and small images, for a CPU.

Source: He et al. 2015, arXiv 1512.03385, with the stride in the 3x3 convolution (v1b, as in
gluon-cv and torchvision); Szegedy et al. 2015, arXiv 1512.00567, laid out as in torchvision.

Dropout is left out, so that every mode computes the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kit.errors import SettingsError
from kit.measure.base.context import Context, Workload

__all__ = ["LAYOUTS", "MODELS", "Inception3", "ResNet50", "convnet", "inception_v3",
           "inception_v3_inference", "resnet50_v1b", "resnet50_v1b_inference"]  # fmt: skip

LAYOUTS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
AUXILIARY = 0.4  # weight of Inception's second loss, as in TensorFlow-Slim
INCEPTION_EPS = 1e-3  # of its batch norms, as published


@dataclass(frozen=True)
class Size:
    """One size of a network: `divide` is what the published widths are divided by."""

    divide: int
    image: int  # pixels a side
    classes: int
    blocks: tuple[int, ...]  # of a ResNet's stages, or of Inception's kinds A, C and E
    auxiliary: bool = False  # Inception's second head, used in training only


def _unit(inputs: int, outputs: int, kernel: Any, **options: Any) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    conv = nn.Conv2d(inputs, outputs, kernel, bias=False, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def _start(network: nn.Module) -> None:
    """Weights that keep the size of what passes, as the published nets have (arXiv 1502.01852).

    torch's own shrink it at each ReLU: in eval mode an untrained net would forget its images.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1, and the way round them."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.reduce = _unit(inputs, width, 1)
        self.conv = _unit(width, width, 3, stride=stride, padding=1)
        self.expand = nn.Sequential(
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Shape: (N, C, H, W) to (N, 4 width, H / stride, W / stride)."""
        return functional.relu(self.expand(self.conv(self.reduce(x))) + self.shortcut(x))


class ResNet50(nn.Module):
    """ResNet-50 v1b; (N, 3, image, image) to (N, classes)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        stem = 64 // size.divide
        small = size.image < 64
        first = _unit(3, stem, 3, padding=1) if small else _unit(3, stem, 7, stride=2, padding=3)
        self.stem = nn.Sequential(first, nn.Identity() if small else nn.MaxPool2d(3, 2, 1))
        stages: list[nn.Module] = []
        inputs = stem
        for stage, blocks in enumerate(size.blocks):
            width = stem * 2**stage
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                stages.append(Bottleneck(inputs, width, stride))
                inputs = 4 * width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, size.classes)
        _start(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits. Shape: (N, classes)."""
        x = self.stages(self.stem(x))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))  # type: ignore[no-any-return]


class Branches(nn.Module):
    """Several ways through a block, joined by channel."""

    def __init__(self, *ways: nn.Module) -> None:
        super().__init__()
        self.ways = nn.ModuleList(ways)

    def forward(self, x: Tensor) -> Tensor:
        """Shape: (N, C, H, W) to (N, sum of the ways' channels, H', W')."""
        return torch.cat([way(x) for way in self.ways], 1)


def _way(inputs: int, *units: tuple[Any, ...]) -> nn.Sequential:
    """Units one after another: (outputs, kernel) or (outputs, kernel, padding) or (.., stride)."""
    layers: list[nn.Module] = []
    for outputs, kernel, *rest in units:
        padding = rest[0] if rest else 0
        stride = rest[1] if len(rest) > 1 else 1
        layers.append(_unit(inputs, outputs, kernel, padding=padding, stride=stride))
        inputs = outputs
    return nn.Sequential(*layers)


def _pooled(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), _unit(inputs, outputs, 1))


_Width = Callable[[int], int]  # what a published width becomes in a smaller network
_ROW, _COLUMN = ((1, 7), (0, 3)), ((7, 1), (3, 0))  # kernel and padding


def _block_a(n: int, w: _Width, pooled: int) -> Branches:
    """5x5, and two 3x3."""
    return Branches(
        _way(n, (w(64), 1)),
        _way(n, (w(48), 1), (w(64), 5, 2)),
        _way(n, (w(64), 1), (w(96), 3, 1), (w(96), 3, 1)),
        _pooled(n, pooled),
    )


def _block_b(n: int, w: _Width) -> Branches:
    """To half the size, after the A blocks."""
    return Branches(
        _way(n, (w(384), 3, 0, 2)),
        _way(n, (w(64), 1), (w(96), 3, 1), (w(96), 3, 0, 2)),
        nn.MaxPool2d(3, 2),
    )


def _block_c(n: int, w: _Width, c: int) -> Branches:
    """7x7 as 1x7 and 7x1."""
    return Branches(
        _way(n, (w(192), 1)),
        _way(n, (c, 1), (c, *_ROW), (w(192), *_COLUMN)),
        _way(n, (c, 1), (c, *_COLUMN), (c, *_ROW), (c, *_COLUMN), (w(192), *_ROW)),
        _pooled(n, w(192)),
    )


def _block_d(n: int, w: _Width) -> Branches:
    """To half the size, after the C blocks."""
    return Branches(
        _way(n, (w(192), 1), (w(320), 3, 0, 2)),
        _way(n, (w(192), 1), (w(192), *_ROW), (w(192), *_COLUMN), (w(192), 3, 0, 2)),
        nn.MaxPool2d(3, 2),
    )


def _block_e(n: int, w: _Width) -> Branches:
    """3x3 as 1x3 beside 3x1."""
    d = w(384)
    split, again = (
        Branches(_way(d, (d, (1, 3), (0, 1))), _way(d, (d, (3, 1), (1, 0)))) for _ in range(2)
    )
    return Branches(
        _way(n, (w(320), 1)),
        nn.Sequential(_way(n, (d, 1)), split),
        nn.Sequential(_way(n, (w(448), 1), (d, 3, 1)), again),
        _pooled(n, w(192)),
    )


class Auxiliary(nn.Module):
    """Inception's second head: a classifier of what leaves the C blocks."""

    def __init__(self, inputs: int, middle: int, outputs: int, classes: int) -> None:
        super().__init__()
        self.units = _way(inputs, (middle, 1), (outputs, 5))
        self.head = nn.Linear(outputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits. Shape: (N, inputs, H, H) to (N, classes); H is 17 for images of 299."""
        large = x.shape[-1] >= 17
        x = functional.avg_pool2d(x, 5, 3) if large else functional.adaptive_avg_pool2d(x, 5)
        x = functional.adaptive_avg_pool2d(self.units(x), 1)
        return self.head(x.flatten(1))  # type: ignore[no-any-return]


class Inception3(nn.Module):
    """Inception-v3; (N, 3, image, image) to (N, classes), twice if trained with a second head."""

    def __init__(self, size: Size) -> None:
        super().__init__()

        def w(width: int) -> int:
            return max(width // size.divide, 4)

        self.stem = nn.Sequential(
            _unit(3, w(32), 3, stride=2), _unit(w(32), w(32), 3), _unit(w(32), w(64), 3, padding=1),
            nn.MaxPool2d(3, 2), _unit(w(64), w(80), 1), _unit(w(80), w(192), 3), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        blocks: list[nn.Module] = []
        n = w(192)
        many_a, many_c, many_e = size.blocks
        for pool in (32, 64, 64)[:many_a]:
            blocks.append(_block_a(n, w, w(pool)))
            n = 2 * w(64) + w(96) + w(pool)
        blocks.append(_block_b(n, w))
        n += w(384) + w(96)
        for middle in (128, 160, 160, 192)[:many_c]:
            blocks.append(_block_c(n, w, w(middle)))
            n = 4 * w(192)
        self.auxiliary_at = len(blocks) - 1
        self.auxiliary = Auxiliary(n, w(128), w(768), size.classes) if size.auxiliary else None
        blocks.append(_block_d(n, w))
        n += w(320) + w(192)
        for _ in range(many_e):
            blocks.append(_block_e(n, w))
            n = w(320) + 4 * w(384) + w(192)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(n, size.classes)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = INCEPTION_EPS
        _start(self)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Logits, and in training the auxiliary head's if there is one. Shape: (N, classes)."""
        x = self.stem(x)
        second: Tensor | None = None
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i == self.auxiliary_at and self.auxiliary is not None and self.training:
                second = self.auxiliary(x)
        logits: Tensor = self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits if second is None else (logits, second)


# name -> (network, its sizes)
MODELS: dict[str, tuple[Callable[[Size], nn.Module], dict[str, Size]]] = {
    "resnet50_v1b": (
        ResNet50,
        {"full": Size(1, 224, 1000, (3, 4, 6, 3)), "tiny": Size(8, 32, 10, (1, 2, 2, 1))},
    ),
    "inception_v3": (
        Inception3,
        {"full": Size(1, 299, 1000, (3, 4, 2)), "tiny": Size(8, 75, 10, (1, 2, 1))},
    ),
}


def convnet(
    model: str,
    size: str = "auto",
    layout: str = "NCHW",
    *,
    training: bool = True,
    auxiliary: bool = False,
) -> Workload:
    """A step of one network: SGD with momentum on made-up images, or inference.

    Args:
        model: one of `MODELS`.
        size: "full", "tiny", or "auto": full on a GPU, tiny on a CPU.
        layout: "NCHW", or "NHWC": torch's channels_last. On device "kit" XLA chooses the layout of
            what lies between a program's inputs and outputs by itself.
        training: false is the forward pass alone, in eval mode and without gradients.
        auxiliary: train Inception-v3 with its second head.

    Raises:
        SettingsError: one of the names is unknown; the message lists them. Or there is no second
            head to train.
    """
    for name, value, known in (
        ("model", model, [*MODELS]),
        ("layout", layout, [*LAYOUTS]),
        ("size", size, ["auto", "full", "tiny"]),
    ):
        if value not in known:
            raise SettingsError(f"{name} must be one of {known}, not {value!r}")
    if auxiliary and (model != "inception_v3" or not training):
        raise SettingsError("auxiliary=True is for the training of 'inception_v3' only")
    build = partial(
        _build, model=model, size=size, layout=layout, training=training, auxiliary=auxiliary
    )
    what = "training" if training else "inference"
    name = "_".join([model, *(["nhwc"] if layout == "NHWC" else []), *([] if training else [what])])
    doc = f"{model}, {size}, {layout}, {what}{', with its auxiliary head' if auxiliary else ''}"
    return Workload(name, build, doc)


def _build(
    ctx: Context, *, model: str, size: str, layout: str, training: bool, auxiliary: bool
) -> Callable[[], Any]:
    make, sizes = MODELS[model]
    chosen = sizes[("full" if _on_gpu(ctx) else "tiny") if size == "auto" else size]
    torch.manual_seed(ctx.seed)
    memory: Any = LAYOUTS[layout]
    network: Any = make(replace(chosen, auxiliary=auxiliary))
    network = network.to(memory_format=memory).to(ctx.device)
    many = max(ctx.settings.batch_size, 16 if chosen.divide > 1 else 4)
    images = torch.randn(many, 3, chosen.image, chosen.image)
    data: Any = torch.utils.data.TensorDataset(images, torch.arange(many) % chosen.classes)
    batches = ctx.loader(data)
    return (_training if training else _inference)(ctx, network, batches, memory)


def _training(ctx: Context, network: nn.Module, batches: Any, memory: Any) -> Callable[[], Any]:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    scaler = ctx.scaler()

    def step() -> Tensor:
        total: Any = 0
        for images, labels in ctx.micro_batches(batches):
            with ctx.autocast():
                found = network(images.contiguous(memory_format=memory))
                loss = _loss(found, labels) / ctx.accumulate
            scaler.scale(loss).backward()
            total = total + loss.detach()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return total  # type: ignore[no-any-return]

    return step


def _loss(found: Tensor | tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
    if isinstance(found, tuple):
        logits, second = found
        return _loss(logits, labels) + AUXILIARY * _loss(second, labels)
    return functional.cross_entropy(found, labels)


def _inference(ctx: Context, network: nn.Module, batches: Any, memory: Any) -> Callable[[], Any]:
    network.eval()

    def step() -> Tensor:
        with torch.no_grad(), ctx.autocast():
            logits: Tensor = network(next(batches)[0].contiguous(memory_format=memory))
            return logits.float().square().mean()

    return step


def _on_gpu(ctx: Context) -> bool:
    if ctx.device != "kit":
        return ctx.device == "cuda"
    from kit.runtime.session.session import current_session

    session = current_session()
    return session is not None and session.device.platform != "cpu"


resnet50_v1b = convnet("resnet50_v1b")
inception_v3 = convnet("inception_v3")
resnet50_v1b_inference = convnet("resnet50_v1b", training=False)
inception_v3_inference = convnet("inception_v3", training=False)
