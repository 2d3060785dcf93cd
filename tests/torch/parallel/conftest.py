"""`two`: replicas for tests that need no network of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from kit.torch.parallel.data_parallel import DataParallel


@pytest.fixture(scope="module")
def two() -> Iterator[DataParallel]:
    """Two replicas of a small network, for what needs no network of its own."""
    from tests.torch.parallel.replicas import TwoHeads, net_on_one_cpu  # loads jax

    torch.manual_seed(0)
    with net_on_one_cpu(TwoHeads(), 2) as net:
        yield net
