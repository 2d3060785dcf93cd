"""A real text as masked-language-modelling batches: tokeniser, masking, dataset.

The text is in the package (`data/README.md` names its source), so nothing is downloaded. Masking
follows BERT: 15 % of the positions are asked for; of these 80 % show [MASK], 10 % a random token
and 10 % the true one. It depends on the seed and the item only: every mode sees the same batches.
At least one position is asked for in each piece, so that a batch of one has a loss.

Source: Devlin et al., BERT, https://arxiv.org/abs/1810.04805, section 3.1.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache, lru_cache
from importlib import resources

import torch

from kit.errors import SettingsError

__all__ = ["IGNORE", "MASK", "SPECIAL", "MaskedText", "corpus", "tokenise", "vocabulary"]

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
UNK, CLS, SEP, MASK = 1, 2, 3, 4
IGNORE = -100  # a label that the loss passes over, torch's own default
_WORD = re.compile(r"[a-z]+|[^\sa-z]")


@cache
def corpus() -> str:
    """The text that comes with kit: Genesis and Exodus, about 360 kB of English."""
    return resources.files("kit.workloads").joinpath("data/genesis_exodus.txt").read_text("utf-8")


def tokenise(text: str) -> list[str]:
    """Lower-case words and single punctuation marks."""
    return _WORD.findall(text.lower())


def vocabulary(tokens: list[str], size: int) -> dict[str, int]:
    """Token ids: the special tokens, then the most frequent words, ties in alphabetical order."""
    counts = Counter(tokens)
    words = sorted(counts, key=lambda w: (-counts[w], w))[: size - len(SPECIAL)]
    return {token: i for i, token in enumerate((*SPECIAL, *words))}


@lru_cache(maxsize=4)
def _pieces(text: str, length: int, size: int) -> list[list[int]]:
    """The text's pieces as ids; kept, because each run of a sweep asks for the same ones.

    No tensor is kept: where the first one was made would hold for all.
    """
    tokens = tokenise(text)
    known = vocabulary(tokens, size)
    ids = [known.get(token, UNK) for token in tokens]
    body = length - 2
    pieces = [ids[i : i + body] for i in range(0, len(ids) - body + 1, body)]
    if not pieces:
        raise SettingsError(f"the text has {len(ids)} tokens, fewer than a piece of {body}")
    return [[CLS, *piece, SEP] for piece in pieces]


class MaskedText(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pieces of a text, each `(ids, labels)`; labels are IGNORE where nothing is asked.

    Shape:
        ids, labels: (length,), int64
    """

    def __init__(
        self, *, length: int = 64, size: int = 3000, seed: int = 0, text: str | None = None
    ) -> None:
        self.vocabulary_size = size
        self.seed = seed
        self.pieces = torch.tensor(_pieces(corpus() if text is None else text, length, size))

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids = self.pieces[index].clone()
        random = torch.Generator().manual_seed((self.seed * 1_000_003 + index) % 2**63)
        words = ids >= len(SPECIAL)
        chance = torch.rand(ids.shape, generator=random)
        asked = (chance < 0.15) & words
        if not asked.any():  # a mean loss over no position is nan: ask for the likeliest word
            asked = words & (chance == chance[words].min()) if words.any() else asked
        labels = torch.where(asked, ids, IGNORE)
        fate = torch.rand(ids.shape, generator=random)
        other = torch.randint(len(SPECIAL), self.vocabulary_size, ids.shape, generator=random)
        ids = torch.where(asked & (fate < 0.8), MASK, ids)
        return torch.where(asked & (fate >= 0.9), other, ids), labels
