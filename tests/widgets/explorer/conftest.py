"""An explorer as a test makes one, closed at the test's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kit.widgets.explorer.view import Explorer
from tests.widgets.explorer.steps import QUICK, Step


@pytest.fixture
def explore() -> Iterator[Callable[..., Explorer]]:
    made = []

    def make(step=None, settings=QUICK, **options) -> Explorer:
        made.append(Explorer(step or Step(), settings, **options))
        return made[-1]

    yield make
    for explorer in made:
        explorer.close()
