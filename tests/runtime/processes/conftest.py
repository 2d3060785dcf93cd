"""Three channels that are open, for any test of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kit.runtime.processes.channel import Channel
from tests.runtime.processes.channels import opened


@pytest.fixture
def three() -> Iterator[list[Channel]]:
    made = opened(3)
    yield made
    for channel in made:
        channel.leave()
    for channel in made:
        channel.close()
