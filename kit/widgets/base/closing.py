"""Closing widgets: ipywidgets keeps each that is not closed, and all that it refers to."""

from __future__ import annotations

from ipywidgets import Widget

__all__ = ["close_widget"]


def close_widget(widget: Widget) -> None:
    """Close a widget and what it is made of."""
    parts = (getattr(widget, name, None) for name in ("layout", "style"))
    for part in (*getattr(widget, "children", ()), *parts):
        if isinstance(part, Widget):
            close_widget(part)
    widget.close()
