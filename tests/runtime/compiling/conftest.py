"""The tests of this folder are about compiling."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _programs_of_earlier_tests() -> None:
    """Instead of the fixture for all tests: here each test compiles all of its programs."""
