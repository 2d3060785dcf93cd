"""The parts of the check, in the order of their value: the one table of them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PARTS", "Part", "part_of"]


@dataclass(frozen=True, slots=True)
class Part:
    """One part.

    Attributes:
        module: its file in kit/gpu_check/parts/, with a function `run(journal)`.
        share: of the whole budget; what a part leaves over goes to those after it.
    """

    letter: str
    module: str
    share: float
    what: str


PARTS = (
    Part("a", "environment", 0.05, "versions, clocks, memory; jax and torch share one GPU"),
    Part(
        "b",
        "bert",
        0.46,
        "BERT, masked LM: loss scaling, step mode, bulk size, batch size, "
        "native torch and torch.compile beside it, by turns",
    ),
    Part("f", "native", 0.06, "native torch: sync points by line, idle causes, advice"),
    Part("d", "profiler", 0.08, "the profiler's GPU half: nodes, lanes, copies, clocks, sums"),
    Part("e", "correctness", 0.14, "losses against native torch, ops, memory against jax.jit"),
    Part("c", "models", 0.21, "GPT-2, zero_grad, RNN gates, ResNet-50, Inception-v3, BERT-large"),
)


def part_of(letter: str) -> Part:
    """The part of this letter.

    Raises:
        ValueError: there is none; the message lists them.
    """
    for part in PARTS:
        if part.letter == letter:
            return part
    known = ", ".join(part.letter for part in PARTS)
    raise ValueError(f"no part is called {letter!r}; there are: {known}")
