"""Unmodified torch training steps on device kit give native torch's numbers, for every setting."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn

from kit.runs.bulk_sizes import UNLIMITED
from kit.runs.settings import Settings
from kit.runtime.session.session import Session
from kit.torch.device import open_session

pytestmark = pytest.mark.as_shipped

STEPS = 50


class Block(nn.Module):
    """Embedding, attention with views, layer norm, a tied head: what a transformer does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.qkv = nn.Linear(16, 48)
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        x = x + ((q @ k.transpose(-1, -2)) / 8**0.5).softmax(-1).matmul(v).transpose(1, 2).reshape(
            x.shape
        )
        x = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return x @ self.embed.weight.t()


def train(
    device: str,
    *,
    session: Session | None = None,
    steps: int = STEPS,
    scaler: Any = None,
    bad_steps: tuple[int, ...] = (),
    clip: bool = False,
    optimizer: Any = torch.optim.AdamW,
    **options: Any,
) -> list[float]:
    torch.manual_seed(0)
    model = Block().to(device)
    opt = optimizer(model.parameters(), lr=1e-2, **options)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for i in range(steps):
        ids = torch.randint(0, 40, (4, 6), generator=generator).to(device)
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
        losses.append(loss.detach())
        if i in bad_steps:
            loss = loss * float("inf")
        if scaler is None:
            loss.backward()
            opt.step()
        else:
            scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(opt)
            scaler.update()
        opt.zero_grad()
        if session is not None:
            session.mark_step()
    return [float(x) for x in losses]


@pytest.fixture(scope="module")
def native() -> list[float]:
    return train("cpu")


@pytest.mark.parametrize(
    "settings",
    [
        Settings(mode="imperative"),
        Settings(bulk_forward=1, bulk_backward=15),
        Settings(bulk_forward=15, bulk_backward=4),
        Settings(bulk_forward=UNLIMITED, bulk_backward=UNLIMITED),
        Settings(segment_mode="launch"),
        Settings(mode="lazy"),
    ],
    ids=lambda s: f"{s.mode}-{s.bulk_forward}-{s.bulk_backward}-{s.segment_mode}",
)
def test_fifty_losses_equal_native_torch(settings: Settings, native: list[float]) -> None:
    with open_session(settings) as session:
        got = train("kit", session=session)
        assert session.unlowered == {}
    torch.testing.assert_close(got, native, rtol=2e-4, atol=2e-5)
    assert got[-1] < got[0]


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.SGD, {"fused": True, "momentum": 0.9}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.Adam, {"fused": True, "weight_decay": 0.1}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.AdamW, {"foreach": False}),
        (torch.optim.RMSprop, {}),
        (torch.optim.Adagrad, {}),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_optimizers_equal_native_torch(optimizer: Any, options: Any) -> None:
    expected = train("cpu", steps=8, optimizer=optimizer, **options)
    with open_session() as session:
        got = train("kit", session=session, steps=8, optimizer=optimizer, **options)
        assert session.unlowered == {}
        compiles = session.metrics()["compile.count"]
    torch.testing.assert_close(got, expected, rtol=2e-4, atol=2e-5)
    assert compiles < 40


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_an_unmodified_grad_scaler_skips_the_same_steps(fused: bool, clip: bool) -> None:
    def scaler(device: str) -> Any:
        return torch.amp.GradScaler(device, init_scale=2.0**12, growth_interval=3)

    native_scaler, kit_scaler = scaler("cpu"), scaler("kit")
    options: Any = {"steps": 12, "bad_steps": (3, 7), "clip": clip, "fused": fused}
    expected = train("cpu", scaler=native_scaler, **options)
    with open_session() as session:
        got = train("kit", session=session, scaler=kit_scaler, **options)
        reads = [s for s in session.syncs if "grad_scaler" in s.via]
        assert kit_scaler.get_scale() == native_scaler.get_scale()
    torch.testing.assert_close(got, expected, rtol=2e-4, atol=2e-5)
    assert len(reads) == (0 if fused else 12)


def test_python_floats_are_inputs_so_a_learning_rate_schedule_compiles_nothing() -> None:
    with open_session() as session:
        weight = torch.ones(3, device="kit", requires_grad=True)
        opt = torch.optim.AdamW([weight], lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
        counts = []
        for _ in range(6):
            (weight * 2).sum().backward()
            opt.step()
            opt.zero_grad()
            schedule.step()
            session.mark_step()
            session.wait_all()
            counts.append(session.metrics()["compile.count"])
    assert counts[-1] == counts[2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_runs_matrix_products_in_the_lower_precision(dtype: torch.dtype) -> None:
    with open_session() as session:
        linear = nn.Linear(4, 4).to("kit")
        with torch.autocast("kit", dtype=dtype):
            y = linear(torch.ones(2, 4, device="kit"))
            z = y.softmax(-1)
        assert (y.dtype, z.dtype) == (dtype, torch.float32)
        z.sum().backward()
        assert linear.weight.grad.dtype is torch.float32
        assert session.unlowered == {}


def test_state_dict_deepcopy_and_save_round_trip() -> None:
    with open_session():
        torch.manual_seed(0)
        model = Block().to("kit")
        twin = copy.deepcopy(model)
        twin.up.weight.data.zero_()
        assert float(model.up.weight.abs().sum().detach()) > 0
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        fresh = Block().to("kit")
        fresh.load_state_dict(loaded)
        ids = torch.arange(6).view(1, 6).to("kit")
        assert torch.equal(fresh(ids).detach().cpu(), model(ids).detach().cpu())
    assert loaded["up.weight"].device.type == "cpu"


def test_a_copy_of_a_module_begins_without_gradients_as_torchs_does() -> None:
    def gradient_of_a_copy(device: str) -> Any:
        model = nn.Linear(2, 1).to(device)
        x = torch.ones(1, 2, device=device)
        model(x).sum().backward()
        twin = copy.deepcopy(model)
        twin(x).sum().backward()
        return twin.weight.grad.tolist()

    with open_session():
        assert gradient_of_a_copy("kit") == gradient_of_a_copy("cpu") == [[1.0, 1.0]]


def test_random_numbers_follow_the_seed() -> None:
    def draw(seed: int) -> Any:
        torch.manual_seed(seed)
        return torch.randn(1000, device="kit").cpu()

    with open_session():
        first, again, other = draw(3), draw(3), draw(4)
        dropped = nn.functional.dropout(torch.ones(1000, device="kit"), 0.25)
        kept = (dropped != 0).float().mean().item()
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert abs(float(first.mean())) < 0.15
    assert 0.68 < kept < 0.82
