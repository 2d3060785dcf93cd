"""Entries of torch's op table with inputs that its own samples seldom have, against CPU torch.

A case has a number, which decides the entry, the sample, and what becomes of its tensors: another
dtype, a dimension of 0 or none at all, memory that is turned, strided or expanded; and of its whole
numbers: a dimension counted from the end, or one that is not there. CPU torch's result is wanted on
device kit, or an error of the type that CPU torch raises:

    python -m tests.coverage.odd_inputs --cases 20000 [--first 0] [--record odd.jsonl]
    python -m tests.coverage.odd_inputs --show 1234
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch.utils._pytree import tree_map

from kit.errors import KitError
from kit.runs.settings import Settings
from kit.torch.device import open_session
from tests.coverage.comparison import as_good, gradients, moved, same, seeded, seen
from tests.coverage.harness import UNDEFINED, entries, entry_name, is_exact

__all__ = ["Case", "Finding", "case", "find"]

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.uint8, torch.bool,
)  # fmt: skip
SAMPLES = 12  # of an entry, that are drawn from
LARGEST = 2000  # elements of a sample
CLOSE = {torch.float16: 2e-2, torch.bfloat16: 1e-1}  # as a part of the largest number


@dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        name: of the entry.
        run: the call on a device: its result and its gradients.
        text: its arguments.
        dtype: that its results are compared by.
        is_exact: False if it draws random numbers, or leaves some undefined.
    """

    name: str
    run: Callable[[str], Any]
    text: str
    dtype: torch.dtype
    is_exact: bool


@dataclass(frozen=True)
class Finding:
    """What became of a case.

    Attributes:
        kind: same; more: CPU torch has no kernel for the dtype, device kit computes; refused: by a
            clear error of kit's own; or different.
        what: how they differ.
    """

    kind: str
    what: str = ""


@cache
def _entries() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own tables warn of themselves
        skipped = (*UNDEFINED, "sparse.", "ops.aten._efficient", "to_sparse")
        return [op for op in entries("op") if not op.name.startswith(skipped)]


@cache
def _samples(number: int, dtype: torch.dtype) -> list[Any]:
    op = _entries()[number]
    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(islice(op.sample_inputs("cpu", dtype, requires_grad=False), 60))
    found = [s for s in found if _size(s) <= LARGEST]
    return found[:: max(1, len(found) // SAMPLES)]


def _size(sample: Any) -> int:
    sizes = []
    tree_map(
        lambda x: sizes.append(x.numel()) if isinstance(x, torch.Tensor) else None,
        (sample.input, sample.args, sample.kwargs),
    )
    return sum(sizes)


def case(number: int) -> Case | None:
    """The case of this number; None if its entry has no small sample."""
    random = Random(number)
    which = random.randrange(len(_entries()))
    op = _entries()[which]
    dtype = random.choice(DTYPES)
    known = op.supported_dtypes("cpu")
    samples = _samples(which, dtype if dtype in known else torch.float32)
    if not samples:
        return None
    sample = random.choice(samples)
    odd = _Odd(random, dtype)
    given = tree_map(odd.numbers, (sample.input, sample.args, sample.kwargs))
    if (turned := Random(-number - 1)).random() < 0.15:
        given = tree_map(lambda x: _turned(x, turned), given)
    learns = random.random() < 0.5 and op.supports_autograd
    layouts = random.random()

    def run(device: str) -> Any:
        leaves = tree_map(_learning if learns else _plain, moved(given, device))
        lay = Random(layouts)
        args = tree_map(lambda x: _laid_out(x, lay), leaves)
        with seeded():
            out = sample.output_process_fn_grad(op(args[0], *args[1], **args[2]))
        return out, gradients(out, leaves) if learns else []

    exact = is_exact(op.name, run)
    return Case(entry_name(op), run, f"{_shown(given)}, learns={learns}", dtype, exact)


class _Odd:
    """Makes the tensors of a sample odd in what they hold."""

    def __init__(self, random: Random, dtype: torch.dtype) -> None:
        self._random, self._dtype = random, dtype
        self._casts = random.random() < 0.6  # all tensors of floating point, or some of them
        self._empties = random.random() < 0.15
        self._flattens = random.random() < 0.15

    def numbers(self, x: Any) -> Any:
        """A tensor with other numbers; anything else as it is."""
        if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
            return x
        r, x = self._random, x.detach()
        floats = x.is_floating_point() or x.is_complex()
        if r.random() < ((0.95 if floats else 0.1) if self._casts else 0.05):
            x = x.to(self._dtype)
        if x.dim() and ((self._empties and r.random() < 0.7) or r.random() < 0.02):
            x = x.narrow(r.randrange(x.dim()), 0, 0)
        elif x.numel() and ((self._flattens and r.random() < 0.7) or r.random() < 0.02):
            x = x.flatten()[0]
        return x.clone()


def _turned(x: Any, random: Random) -> Any:
    """A small whole number, counted from the other end or further away; anything else as it is."""
    if type(x) is not int or abs(x) > 4:
        return x
    return random.choice([x, -x - 1, -x - 1, x - 1, x + 2])


def _plain(x: Any) -> Any:
    return x


def _learning(x: Any) -> Any:
    wants = isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
    return x.requires_grad_() if wants else x


def _laid_out(x: Any, random: Random) -> Any:
    """The tensor, or one that lies otherwise in memory."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
        return x
    how = random.choice(["plain", "plain", "plain", "turned", "strided", "expanded", "flipped"])
    dim = random.randrange(9)
    if how == "turned" and x.dim() > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if how == "strided":
        return torch.stack([torch.ones_like(x), x], -1)[..., 1]
    if how == "expanded" and x.numel():
        dim %= max(x.dim(), 1)
        return x.narrow(dim, 0, 1).expand(x.shape) if x.dim() else x.expand(1)[0]
    if how == "flipped" and x.dim():
        return x.flip(dim % x.dim())
    return x


def _shown(item: Any) -> str:
    def show(x: Any) -> Any:
        return f"{x.dtype}{list(x.shape)}" if isinstance(x, torch.Tensor) else x

    return str(tree_map(show, item)).replace("torch.", "")


def find(made: Case, cache: Any = None) -> Finding:
    """What becomes of a case on device kit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected, error = seen(made.run("cpu")), None
        except Exception as raised:  # noqa: BLE001 - it is compared
            expected, error = None, raised
        try:
            with open_session(Settings(mode="lazy"), cache=cache):
                got = seen(made.run("kit"))
        except KitError as refusal:
            return Finding("refused", str(refusal))
        except Exception as raised:  # noqa: BLE001 - it is compared
            if type(raised) is type(error):
                return Finding("same")
            if "device kit" in str(raised):
                return Finding("refused", str(raised))
            return Finding("different", f"{_said(raised)} instead of {_said(error)}")
    if error is not None and "not implemented for" in str(error):
        return Finding("more", _said(error))
    if error is not None:
        return Finding("different", f"no error instead of {_said(error)}")
    loose = CLOSE.get(made.dtype, 2e-4) / 2e-4
    try:
        same(got, expected, exact=made.is_exact, loose=loose)
    except AssertionError as difference:
        if not _is_as_good(made, got, expected):
            return Finding("different", " ".join(str(difference).split())[:300])
    return Finding("same")


def _is_as_good(made: Case, got: Any, expected: Any) -> bool:
    """Where numbers cancel, neither device's are exact: ask double precision."""
    try:
        same(got, expected, exact=False)
        return made.is_exact and as_good(got, expected, seen(made.run("wide")))
    except Exception:  # noqa: BLE001 - it cannot run in double precision
        return False


def _said(error: Exception | None) -> str:
    words = " ".join(str(error).split())[:200]
    return "no error" if error is None else f"{type(error).__name__}: {words}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--record", type=Path, help="a line of JSON for each case that differs")
    parser.add_argument("--show", type=int, help="one case, and what becomes of it")
    given = parser.parse_args()
    if given.show is not None:
        made = case(given.show)
        print(made and f"{made.name}{made.text}", made and find(made))
        return
    kinds = Counter[str]()
    for number in range(given.first, given.first + given.cases):
        made = case(number)
        if made is None:
            continue
        found = find(made)
        kinds[found.kind] += 1
        if found.kind == "different":
            print(f"case {number}: {made.name}{made.text[:300]}\n  {found.what}", flush=True)
        if given.record:
            line = {"number": number, "name": made.name, "kind": found.kind, "what": found.what}
            with given.record.open("a") as record:
                record.write(json.dumps(line) + "\n")
    print(dict(kinds))
    raise SystemExit(kinds["different"] > 0)


if __name__ == "__main__":
    main()
