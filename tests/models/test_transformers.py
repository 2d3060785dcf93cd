"""Models that nobody here wrote train on device kit as in native torch, step after step."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

from kit.runtime.session.session import current_session
from kit.trace import SyncPoint
from tests.models import hub
from tests.models.compare import lazy, on

STEPS = 20
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "BERT": {},
    "GPT-2": {"fused": True},
    "T5": {"foreach": True},
    "Llama": {"fused": True},
}


def train(
    model: Any, batch: hub.Batch, device: str, steps: int = STEPS, read: Any = id, **options: Any
) -> list[Tensor]:
    """Losses, unread: AdamW, clipped gradients, a learning rate that warms up."""
    model, batch = model.to(device), {key: on(device, x) for key, x in batch.items()}
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, **options)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 5))
    losses = []
    for _ in range(steps):
        loss = model(**batch).loss
        read(loss)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        session = current_session() if device == "kit" else None
        if session is not None:
            session.mark_step()
    return losses


@pytest.mark.parametrize("name", hub.MODELS)
def test_a_model_trains_as_in_torch_without_a_sync_point(name: str) -> None:
    model, batch = hub.MODELS[name]()
    options = OPTIMIZERS.get(name, {})
    expected = torch.stack(train(copy.deepcopy(model), batch, "cpu", **options))
    with lazy(strict=True) as session:
        losses = train(model, batch, "kit", **options)
        assert session.syncs == []
        assert session.metrics()["unlowered.count"] == 0
        got = torch.stack(losses).cpu()
    assert expected[-1] < 0.9 * expected[0]  # it learns
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


def read_by(syncs: list[SyncPoint]) -> list[str]:
    """The library's files; the user's line, from which they were called, is in this one."""
    assert all(s.site.startswith("test_transformers.py:") for s in syncs)
    return [s.via.split(":")[0] for s in syncs]


def test_a_loss_read_each_step_is_the_only_sync_point() -> None:
    model, batch = hub.gpt2()
    seen: list[float] = []
    with lazy(strict=True) as session:
        train(model, batch, "kit", steps=3, read=lambda loss: seen.append(loss.item()))
        assert [(s.cause, s.site.split(":")[0]) for s in session.syncs] == [
            ("item", "test_transformers.py")
        ] * 3
    assert seen[2] < seen[0]


def test_a_padding_token_makes_transformers_look_for_it_unless_there_is_a_mask() -> None:
    """modeling_utils.py asks `pad_token_id in input_ids` to warn of a forgotten mask."""
    model, batch = hub.gpt2()
    model.config.pad_token_id = 0
    with lazy(strict=True) as session:
        model.to("kit")(batch["input_ids"].to("kit"))
        assert read_by(session.syncs) == ["transformers/modeling_utils.py"]


@pytest.mark.parametrize(
    ("attention", "is_ready"), [("sdpa", False), ("eager", False), ("sdpa", True), ("eager", True)]
)
def test_berts_padding_mask_is_read_by_transformers_unless_it_is_ready(
    attention: str, is_ready: bool
) -> None:
    """masking_utils.py asks `padding_mask.all()` whether there is any padding: docs say more."""
    _, batch = hub.bert()
    config = hf.BertConfig(**hub.SIZES, attn_implementation=attention)
    mask = batch["attention_mask"] if is_ready else batch["attention_mask"][:, 0, 0]
    with lazy(strict=True) as session:
        model = hf.BertModel(config).to("kit")
        model(batch["input_ids"].to("kit"), attention_mask=mask.to("kit"))
        assert read_by(session.syncs) == ([] if is_ready else ["transformers/masking_utils.py"])


def test_tied_weights_stay_tied_to_and_from_the_device() -> None:
    model, _ = hub.gpt2()
    count = len(list(model.parameters()))
    with lazy():
        for device in ("kit", "cpu"):
            model.to(device)
            assert model.lm_head.weight is model.transformer.wte.weight
            assert len(list(model.parameters())) == count


def test_greedy_generation_gives_torchs_words() -> None:
    model, _ = hub.gpt2()
    model.eval()
    prompt = hub.tokens(2, 4)
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    mask = torch.ones_like(prompt)
    expected = model.generate(prompt, attention_mask=mask, **options)
    with lazy(strict=True):
        words = model.to("kit").generate(prompt.to("kit"), attention_mask=mask.to("kit"), **options)
        assert torch.equal(words.cpu(), expected)


def test_evaluation_gives_torchs_logits() -> None:
    model, batch = hub.llama()
    model.eval()
    with torch.inference_mode():
        expected = model(batch["input_ids"]).logits
    with lazy(strict=True) as session:
        model.to("kit")
        with torch.inference_mode():
            logits = model(batch["input_ids"].to("kit")).logits
        assert session.syncs == []
        torch.testing.assert_close(logits.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_a_model_on_the_device_is_saved_and_loaded(tmp_path: Path) -> None:
    model, batch = hub.gpt2()
    words = batch["input_ids"]
    expected = model.eval()(words).logits.detach()
    with lazy(strict=True):
        model.to("kit").save_pretrained(tmp_path)
        again = type(model).from_pretrained(tmp_path).to("kit").eval()
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        third = type(model)(model.config).to("kit").eval()
        third.load_state_dict(torch.load(file, weights_only=True))
        fourth = copy.deepcopy(model)
        for each in (again, third, fourth):
            assert each.lm_head.weight is each.transformer.wte.weight
            torch.testing.assert_close(
                each(words.to("kit")).logits.detach().cpu(), expected, rtol=1e-4, atol=1e-5
            )


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated")
def test_gradient_checkpointing_changes_no_number() -> None:
    """It turns the cache off, and then transformers reads the positions unless a mask is ready."""
    model, batch = hub.gpt2()
    ready = {**batch, "attention_mask": torch.ones(6, 6, dtype=torch.bool).tril()[None, None]}
    expected = torch.stack(train(copy.deepcopy(model), batch, "cpu", steps=3))
    model.gradient_checkpointing_enable()
    with lazy(strict=True) as session:
        losses = train(copy.deepcopy(model), ready, "kit", steps=3)
        assert session.syncs == []
        torch.testing.assert_close(torch.stack(losses).cpu(), expected, rtol=1e-3, atol=1e-4)
        train(model, batch, "kit", steps=1)
        assert read_by(session.syncs[-1:]) == ["transformers/masking_utils.py"]
