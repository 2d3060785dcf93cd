"""The strips of a comparison: the room that a text has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.trace import Span, Timeline
from tests.factories import make_run
from tests.widgets.compare.drawn import columns_of


def test_the_name_of_a_step_on_the_device_has_the_room_before_the_next_one():
    spans = [
        Span("host/main", "step 0", "step", 0, 100),
        Span("device steps", "first", "device step", 10, 60),
        Span("device steps", "second", "device step", 30, 90),
    ]
    run = replace(make_run(), timeline=Timeline.of(spans, (), "profiled"))
    texts = columns_of([run])["texts"]
    room = {text: 1e6 * ms for text, ms in zip(texts["text"], texts["room"], strict=True)}
    assert room["first"] == pytest.approx(20)
    assert room["second"] == pytest.approx(60)
