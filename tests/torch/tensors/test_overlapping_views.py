"""Views that show one place of memory several times: written, read and refused as torch does it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.torch.device import open_session

Program = Callable[[str], Any]
CACHE = ExecutableCache()  # random programs have many parts in common
FIVE = torch.arange(5.0)
COLUMN = torch.arange(3.0).reshape(3, 1)
COMPLEX = torch.view_as_complex(torch.arange(6.0).reshape(3, 1, 2))


def written(
    start: torch.Tensor, view: Callable[[Any], Any], write: Callable[[Any], Any]
) -> Program:
    """A program: make `start` on a device, write to a view of it, give the whole."""

    def program(device: str) -> Any:
        base = start.clone().to(device)
        write(view(base))
        return base

    return program


def index(*places: int) -> Callable[[Any], Any]:
    return lambda x: torch.tensor(places).to(x.device)


def windows(x: Any) -> Any:
    return x.unfold(0, 2, 1)


def wide(x: Any) -> Any:
    return x.expand(3, 3)


PROGRAMS: dict[str, Program] = {
    "a column of an expanded column": written(COLUMN, wide, lambda v: v[:, 1].fill_(7)),
    "a row of an expanded vector": written(FIVE, lambda x: x.expand(2, 5), lambda v: v[0].fill_(7)),
    "a turned row": written(COLUMN, wide, lambda v: v.t()[1].copy_(torch.ones(3).to(v.device))),
    "a window": written(FIVE, windows, lambda v: v[0].fill_(9)),
    "added to a window": written(FIVE, windows, lambda v: v[1].add_(2)),
    "a window by strides": written(
        FIVE, lambda x: x.as_strided((3, 2), (1, 1)), lambda v: v[1].fill_(4)
    ),
    "all windows": written(FIVE, windows, lambda v: v.fill_(2)),
    "all windows, one after the other": written(FIVE, windows, lambda v: v.sub_(1)),
    "all windows, doubled": written(FIVE, windows, lambda v: v.mul_(2)),
    "all windows, digamma": written(FIVE + 1, windows, lambda v: v.digamma_()),
    "windows copied": written(
        FIVE, windows, lambda v: v.copy_(torch.arange(8.0).reshape(4, 2).to(v.device))
    ),
    "windows by index": written(FIVE, windows, lambda v: v.__setitem__(index(1, 3)(v), 5.0)),
    "rows by index": written(COLUMN, wide, lambda v: v.__setitem__(index(1)(v), 5.0)),
    "columns by index": written(COLUMN, wide, lambda v: v.index_fill_(1, index(1)(v), 5.0)),
    "a mask": written(COLUMN, wide, lambda v: v.masked_fill_(torch.eye(3).bool().to(v.device), 5)),
    "conjugated": written(COMPLEX, wide, lambda v: v.conj()[:, 1].fill_(2 + 1j)),
    "the parts of complex numbers": written(
        COMPLEX, wide, lambda v: torch.view_as_real(v)[:, 1, 0].fill_(2)
    ),
    "imaginary parts": written(COMPLEX, wide, lambda v: v.imag[:, 1].fill_(2)),
    "imaginary parts, conjugated": written(COMPLEX, wide, lambda v: v.conj().imag[:, 1].fill_(2)),
    "halves of an expanded column": written(
        COLUMN, lambda x: wide(x).view(torch.int32), lambda v: v[0].fill_(1)
    ),
    "halves of windows": written(
        FIVE, lambda x: windows(x).view(torch.int16), lambda v: v[1].fill_(7)
    ),
    "windows of halves": written(
        FIVE, lambda x: x.view(torch.int16).unfold(0, 3, 1), lambda v: v[1].fill_(7)
    ),
    "windows of pairs": written(
        torch.arange(8.0),
        lambda x: x.view(torch.float64).as_strided((2, 2), (1, 1)),
        lambda v: v[1].fill_(7),
    ),
    "windows as complex numbers": written(
        FIVE, lambda x: torch.view_as_complex(windows(x)), lambda v: v[1:2].fill_(7)
    ),
    "complex numbers, expanded": written(
        torch.zeros(3, 2),
        lambda x: torch.view_as_complex(x).expand(3, 3),
        lambda v: v[1].fill_(7),
    ),
    "imaginary parts by strides": written(
        COMPLEX.clone(), lambda x: x.imag.as_strided((2, 2), (2, 2), 1), lambda v: v[1].fill_(7)
    ),
    "conjugated numbers by strides": written(
        COMPLEX.clone(), lambda x: x.conj().as_strided((2, 2), (1, 1)), lambda v: v[1].fill_(7 + 1j)
    ),
    "refused: all of an expanded column": written(COLUMN, wide, lambda v: v.add_(1)),
    "refused: a copy": written(COLUMN, wide, lambda v: v.copy_(torch.ones(3, 3).to(v.device))),
    "a number, which torch refuses up to 2.14": written(
        COLUMN, wide, lambda v: v.__setitem__(slice(None), 5.0)
    ),
    "refused: a digamma": written(COLUMN, wide, lambda v: v.digamma_()),
    "refused: random numbers": written(COLUMN, wide, lambda v: v.uniform_()),
    "refused: an out": written(
        COLUMN, wide, lambda v: torch.add(torch.ones(3, 3).to(v.device), 1, out=v)
    ),
    "refused: a list": written(COLUMN, wide, lambda v: torch._foreach_add_([v], 1.0)),
    "refused: beyond the memory": written(FIVE, lambda x: x.as_strided((6,), (1,)), list),
    "refused: beyond, of a part": written(FIVE, lambda x: x[1:].as_strided((5,), (1,), 1), list),
    "refused: beyond, in place": written(FIVE, lambda x: x.as_strided_((6,), (1,)), list),
    "refused: conjugated numbers as floats": written(
        COMPLEX, lambda x: x.conj().view(torch.float32), list
    ),
    "refused: backwards": written(FIVE, lambda x: x.as_strided((2,), (-1,)), list),
    "nothing beyond the memory": written(
        FIVE, lambda x: x.as_strided((0,), (1,), 7), lambda v: v.fill_(1)
    ),
    "a part of memory laid out by channels": written(
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        lambda x: x.as_strided((4,), (1,)),
        lambda v: v.fill_(-1),
    ),
}


def outcome(program: Program, device: str) -> tuple[str, str] | torch.Tensor:
    """What a program gives: a CPU tensor, or the kind of its error and how that begins."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that such writes are deprecated
        try:
            return program(device).cpu()  # type: ignore[no-any-return]
        except Exception as error:  # noqa: BLE001 - it is compared
            return type(error).__name__, str(error)[:80]


def check(program: Program, **how: Any) -> None:
    expected = outcome(program, "cpu")
    with open_session(Settings(**how), cache=CACHE):
        found = outcome(program, "kit")
    if isinstance(expected, tuple) or isinstance(found, tuple):
        assert found == expected
    else:
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_write_reaches_each_place_that_the_view_shows(name: str) -> None:
    if name.startswith("refused"):
        assert isinstance(outcome(PROGRAMS[name], "cpu"), tuple)
    check(PROGRAMS[name])


REPEATED: list[Callable[[Any, int], Any]] = [
    lambda x, k: x.unfold(k % x.dim(), 1 + k % x.shape[k % x.dim()], 1 + k % 2),
    lambda x, k: x.expand(2, *x.shape),
    lambda x, k: x[:1].expand(3, *x.shape[1:]),
    lambda x, k: x.as_strided((2, 2), (1 + k % 2, 1 + k % 3), x.storage_offset()),
    lambda x, k: x.transpose(0, -1),
    lambda x, k: x[k % x.shape[0]] if x.dim() > 1 else x,
    lambda x, k: x[k % x.shape[0] :],
    lambda x, k: x.reshape(-1),
    lambda x, k: x.diagonal() if x.dim() == 2 else x,
]
FILLS: list[Callable[[Any, int], Any]] = [
    lambda x, k: x.fill_(k),
    lambda x, k: x.add_(k),
    lambda x, k: x[0].mul_(2),
    lambda x, k: x.copy_(x.clone() + 1),
    lambda x, k: x.select(-1, k % x.shape[-1]).fill_(k),
]
STEPS = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 9)), max_size=8)


@pytest.mark.parametrize("mode", ["imperative", "bulked", "lazy"])
@given(program=STEPS)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_programs_of_overlapping_views_equal_torch(mode: str, program: Any) -> None:
    def run(device: str) -> torch.Tensor:
        tensors = [torch.arange(20.0).reshape(4, 5).to(device)]
        for which, op, k in program:
            x = tensors[which % len(tensors)]
            if x.dim() == 0 or 0 in x.shape or x.dim() > 3:
                continue
            if op % 2:
                tensors.append(REPEATED[op % len(REPEATED)](x, k))
            else:
                FILLS[op % len(FILLS)](x, k)
        return torch.cat([t.reshape(-1).cpu() for t in tensors])

    check(run, mode=mode, bulk_forward=3)


def test_memory_with_gaps_is_memory_too() -> None:
    def program(device: str) -> torch.Tensor:
        x = torch.empty_strided((2, 2), (4, 1), device=device)
        x.as_strided((6,), (1,)).fill_(8)
        x.fill_(3)
        y = torch.empty_strided((2, 2), (1, 1), device=device)
        y.as_strided((3,), (1,)).zero_()
        y[0, 1] = 5
        return torch.cat([x.as_strided((6,), (1,)), y.reshape(-1)])

    check(program)


def test_parts_of_conjugated_numbers_are_not_shown_by_strides() -> None:
    with open_session(), pytest.raises(RuntimeError, match=r"conjugated numbers.*clone"):
        COMPLEX.to("kit").conj().imag.as_strided((2,), (2,), 1)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_complex_numbers_are_not_shown_as_integers(dtype: torch.dtype) -> None:
    with open_session(), pytest.raises(RuntimeError, match=r"smallest numbers.*view_as_real"):
        COMPLEX.to("kit").view(dtype)


def test_the_first_part_of_an_empty_tensor_is_empty() -> None:
    with open_session():
        assert [p.shape for p in torch.zeros(0, device="kit").split(1)] == [(0,)]
