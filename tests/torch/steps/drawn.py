"""Functions that draw a number from what goes on by itself: an iterator, a file, a generator."""

from __future__ import annotations

import csv
import datetime
import io
import itertools
import random
import re
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch


def iterator() -> Callable[[], int]:
    numbers = itertools.count(1)
    return lambda: next(numbers)


def mapped() -> Callable[[], int]:
    numbers = map(int, iter(range(1, 100)))
    return lambda: next(numbers)


def generator() -> Callable[[], int]:
    def numbers() -> Iterator[int]:
        for i in range(100):
            yield i + 1

    made = numbers()
    return lambda: next(made)


def python_random() -> Callable[[], int]:
    made = random.Random(0)
    return lambda: 7 if made.random() < 0.15 else 0


PATTERN = [*range(1, 7), 7] * 3  # a step does something else where 7 comes


def looped_over() -> Callable[[], int]:
    """The place of a generator's `for` is in no variable of it."""

    def numbers() -> Iterator[int]:
        for each in [1] * 6 + [7] + [1] * 99:  # noqa: UP028 - a `yield from` is another place
            yield each

    made = numbers()
    return lambda: next(made)


def delegated() -> Callable[[], int]:
    def numbers() -> Iterator[int]:
        yield from [1] * 6 + [7] + [1] * 99

    made = numbers()
    return lambda: next(made)


def cycled() -> Callable[[], int]:
    numbers = itertools.cycle(PATTERN[:7])
    for _ in range(7):
        next(numbers)  # from now on it only goes through what it has kept
    return lambda: next(numbers)


def one_of_two() -> Callable[[], int]:
    ahead, numbers = itertools.tee(PATTERN)
    list(ahead)
    return lambda: next(numbers)


def line_of_a_file() -> Callable[[], int]:
    lines = io.TextIOWrapper(io.BytesIO("".join(f"{n}\n" for n in PATTERN).encode()))
    return lambda: int(next(lines))


def byte_of_a_file() -> Callable[[], int]:
    file = io.BytesIO(bytes(PATTERN))
    return lambda: file.read(1)[0]


def row_of_a_table() -> Callable[[], int]:
    rows = csv.reader(map(str, PATTERN))
    return lambda: int(next(rows)[0])


def scanned() -> Callable[[], int]:
    found = re.finditer(".", "".join(map(str, PATTERN)))
    return lambda: int(next(found).group())


def random_state() -> Callable[[], int]:
    made = np.random.RandomState(0)
    return lambda: 7 if made.rand() < 0.2 else 0


def torch_generator() -> Callable[[], int]:
    made = torch.Generator().manual_seed(0)
    return lambda: 7 if torch.rand(1, generator=made).item() < 0.2 else 0


def entropy() -> Callable[[], int]:
    made = random.SystemRandom()
    return lambda: int(made.random() * 0)


def method_of_an_iterator() -> Callable[[], int]:
    following = iter(PATTERN).__next__
    return lambda: following()


def method_of_numpys() -> Callable[[], int]:
    draw = np.random.default_rng(0).random
    return lambda: 7 if draw() < 0.2 else 0


def date() -> Callable[[], int]:
    day = datetime.date(2024, 1, 1)

    def count() -> int:
        nonlocal day
        day += datetime.timedelta(days=1)
        return day.day

    return count


def clock() -> Callable[[], int]:
    return lambda: int(time.perf_counter() * 0)


def file_opened_anew() -> Callable[[], int]:
    def count() -> int:
        with open(__file__) as file:
            return len(file.read(1))

    return count


DRAWN = (
    iterator, mapped, generator, python_random, looped_over, delegated, cycled,
    one_of_two, line_of_a_file, byte_of_a_file, row_of_a_table, scanned, random_state,
    torch_generator, entropy, method_of_an_iterator, method_of_numpys, date, clock,
    file_opened_anew,
)  # fmt: skip
