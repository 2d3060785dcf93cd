"""Autocast on device kit: the ops of torch's lists for CUDA, in the precision that these say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import kit
from kit.torch import autocast

HALF, WHOLE = torch.bfloat16, torch.float32
_HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
# What only a CUDA kernel does, or what no list of device kit needs: torch divides it further.
_ELSEWHERE = {
    "_convolution", "_convolution.deprecated", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell",
    "_scaled_dot_product_flash_attention",
}  # fmt: skip


def listed(*macros: str) -> set[str]:
    """The ops of torch's lists; source: the macros in its header."""
    text = _HEADER.read_text()
    names: set[str] = set()
    for macro in macros:
        (body,) = re.findall(rf"#define {macro}\(_\)((?:.*\\\n)+.*)", text)
        names |= {
            ".".join(re.split(r",\s*", op)) for op in re.findall(r"_\((\w+(?:, \w+)?)\)", body)
        }
    return names


@pytest.mark.parametrize(
    ("macros", "kits"),
    [
        (["AT_FORALL_LOWER_PRECISION_FP"], autocast.LOWER),
        (["AT_FORALL_FP32", "AT_FORALL_FP32_SET_OPT_DTYPE"], autocast.FLOAT32),
        (["AT_FORALL_PROMOTE"], autocast.WIDEST),
    ],
)
def test_each_op_of_torchs_lists_is_on_one_of_the_kits(macros: list[str], kits: Any) -> None:
    found = listed(*macros)
    assert len(found) > 10
    assert found - _ELSEWHERE <= set(kits)
    assert len(set(kits)) == len(kits)


def made(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.linspace(0.1, 0.9, int(torch.tensor(shape).prod())).view(shape).to("kit", dtype)


CASES: dict[str, tuple[Callable[[], torch.Tensor], torch.dtype]] = {
    "resize": (lambda: functional.interpolate(made(HALF, 1, 1, 4, 4), scale_factor=2), WHOLE),
    "RMS norm": (lambda: functional.rms_norm(made(HALF, 2, 4), (4,)), WHOLE),
    "product": (lambda: made(HALF, 2, 4).prod(1), WHOLE),
    "norm": (lambda: made(HALF, 2, 4).norm(), WHOLE),
    "loss of pairs": (lambda: functional.soft_margin_loss(made(HALF, 4), made(HALF, 4)), WHOLE),
    "triplets": (lambda: functional.triplet_margin_loss(*[made(HALF, 2, 4)] * 3), WHOLE),
    "equation": (lambda: torch.einsum("ij,jk->ik", made(WHOLE, 2, 3), made(WHOLE, 3, 2)), HALF),
    "outer product": (lambda: torch.addr(made(WHOLE, 2, 2), made(WHOLE, 2), made(WHOLE, 2)), HALF),
    "a cell of an LSTM": (
        lambda: torch.nn.LSTMCell(3, 2, device="kit")(made(WHOLE, 1, 3))[0],
        HALF,
    ),
    "samples of an image in half": (
        lambda: functional.grid_sample(
            made(HALF, 1, 1, 4, 4), made(WHOLE, 1, 2, 2, 2), align_corners=False
        ),
        WHOLE,
    ),
    "sum at places": (
        lambda: made(HALF, 3).scatter_add(0, torch.tensor([0, 1], device="kit"), made(WHOLE, 2)),
        WHOLE,
    ),
    "cross product": (lambda: torch.linalg.cross(made(WHOLE, 3), made(WHOLE, 3)), WHOLE),
    "all in half": (lambda: torch.atan2(made(HALF, 3), made(HALF, 3)), HALF),
    "scaled quotient": (lambda: torch.addcdiv(made(HALF, 3), made(HALF, 3), made(WHOLE, 3)), WHOLE),
    "doubles beside half": (
        lambda: torch.dot(made(torch.float64, 3), made(torch.float64, 3)),
        torch.float64,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_op_computes_in_the_precision_of_its_list(case: str) -> None:
    make, dtype = CASES[case]
    with kit.Session(), torch.autocast("kit", dtype=HALF):
        y = make()
        assert y.dtype is dtype
        assert y.isfinite().all().item()


def test_what_cuda_bans_is_refused_and_without_autocast_computed() -> None:
    with kit.Session():
        with torch.autocast("kit", dtype=HALF), pytest.raises(RuntimeError, match="with_logits"):
            functional.binary_cross_entropy(made(HALF, 3), made(WHOLE, 3))
        loss = functional.binary_cross_entropy(made(WHOLE, 3), made(WHOLE, 3))
        assert loss.item() > 0


def test_cross_entropy_rounds_its_log_softmax_as_on_cuda() -> None:
    """Torch asks for it in the dtype of the input, and CUDA's list keeps what is asked for."""
    scores = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)).to(HALF)
    labels = torch.arange(64) % 3
    with kit.Session(), torch.autocast("kit", dtype=HALF):
        found = functional.cross_entropy(scores.to("kit"), labels.to("kit")).cpu()
    rounded = torch.log_softmax(scores.double(), 1).to(HALF).float()
    torch.testing.assert_close(found, functional.nll_loss(rounded, labels))
    assert (found - functional.cross_entropy(scores.float(), labels)).abs() > 1e-5
