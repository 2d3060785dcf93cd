"""What bokeh takes for a property that nobody has set: looked up once for a class, not each time.

Bokeh goes through all base classes of a model whenever one of its defaults is read, and copies and
validates what it finds: a quarter of what it takes to draw a report. Numbers, texts and None stay
what they are; all else, and what a theme says, is looked up as ever.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from bokeh.core.property.descriptors import PropertyDescriptor

__all__ = ["keep_defaults"]

_FOR_EVER = (bool, float, int, str, type(None))  # nobody can change one


@cache
def keep_defaults() -> None:
    """From now on, in this process."""
    look_up = PropertyDescriptor._get_default
    known: dict[tuple[PropertyDescriptor[Any], type], Any] = {}

    def get_default(self: PropertyDescriptor[Any], model: Any) -> Any:
        themed = model.themed_values()
        if themed and self.name in themed:
            return look_up(self, model)
        key = self, type(model)
        if key in known:
            return known[key]
        found = look_up(self, model)
        if type(found) in _FOR_EVER and not self.has_unstable_default(model):
            known[key] = found
        return found

    PropertyDescriptor._get_default = get_default
