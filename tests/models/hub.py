"""Hugging Face models, built from a tiny config with random weights: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

__all__ = ["MODELS", "Batch", "gpt2", "tokens"]

Batch = dict[str, Any]
WORDS = 53
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}
PICTURES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}


def tokens(rows: int = 3, length: int = 6, seed: int = 1) -> torch.Tensor:
    """Random words; the first three of the vocabulary stay for padding, beginning and end."""
    return torch.randint(3, WORDS, (rows, length), generator=torch.Generator().manual_seed(seed))


def pixels() -> torch.Tensor:
    return torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def bert() -> tuple[Any, Batch]:
    """Masked language modelling: a third of the words count, and one row is padded."""
    config = hf.BertConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    labels = tokens().masked_fill(torch.arange(6) % 3 != 0, -100)
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[1, 4:] = False
    batch = {"input_ids": tokens(seed=2), "labels": labels}
    return hf.BertForMaskedLM(config), {**batch, "attention_mask": mask[:, None, None]}


def gpt2() -> tuple[Any, Batch]:
    config = hf.GPT2Config(
        vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=16, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return hf.GPT2LMHeadModel(config), {"input_ids": tokens(), "labels": tokens()}


def t5() -> tuple[Any, Batch]:
    config = hf.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2,
        dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    batch = {"input_ids": tokens(), "labels": tokens(length=4)}
    return hf.T5ForConditionalGeneration(config), batch


def vit() -> tuple[Any, Batch]:
    config = hf.ViTConfig(
        **PICTURES, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    batch = {"pixel_values": pixels(), "labels": torch.arange(3)}
    return hf.ViTForImageClassification(config), batch


def llama() -> tuple[Any, Batch]:
    """Grouped queries, rotary positions, RMS norm, a gated MLP."""
    config = hf.LlamaConfig(**SIZES, num_key_value_heads=1)
    return hf.LlamaForCausalLM(config), {"input_ids": tokens(), "labels": tokens()}


def mistral() -> tuple[Any, Batch]:
    """As Llama, and a sliding window."""
    config = hf.MistralConfig(**SIZES, num_key_value_heads=1, sliding_window=3)
    return hf.MistralForCausalLM(config), {"input_ids": tokens(), "labels": tokens()}


def clip() -> tuple[Any, Batch]:
    """Two towers and a contrastive loss; it warms up slowly, or it diverges anywhere."""
    text = {**SIZES, "bos_token_id": 1, "eos_token_id": 2}
    config = hf.CLIPConfig(text_config=text, vision_config=PICTURES, projection_dim=8)
    return hf.CLIPModel(config), {
        "input_ids": tokens(),
        "pixel_values": pixels(),
        "return_loss": True,
    }


MODELS: dict[str, Callable[[], tuple[Any, Batch]]] = {
    "BERT": bert, "GPT-2": gpt2, "T5": t5, "ViT": vit,
    "Llama": llama, "Mistral": mistral, "CLIP": clip,
}  # fmt: skip
