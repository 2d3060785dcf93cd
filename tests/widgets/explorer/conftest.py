"""An explorer as a test makes one, closed at the test's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kit.widgets.explorer.view import Explorer
from kit.widgets.views import VIEWS
from tests.widgets.explorer.steps import QUICK, Step

# To make the others takes longer than the rest of most tests.
SOME = tuple(row for row in VIEWS if row.key in ("headline", "timeline", "advice"))


@pytest.fixture
def explore() -> Iterator[Callable[..., Explorer]]:
    made = []

    def make(step=None, settings=QUICK, *, views=SOME, **options) -> Explorer:
        made.append(Explorer(step or Step(), settings, views=views, **options))
        return made[-1]

    yield make
    for explorer in made:
        explorer.close()
