"""What an explorer shows as one text to share: its settings, and behind a # what is looked at.

The part behind the # is that of a report's address: kit/widgets/base/js/link.js writes the same. A
text may come from anyone: what is not of its form, or is too long, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode

from kit.runs.settings import Settings
from kit.widgets.base.selection import Selection, ranges_text

__all__ = ["Link"]

_MOST_TEXT, _MOST_NODES, _MOST_ITEMS, _MOST_NAME = 20_000, 20_000, 500, 400
_TIMES = re.compile(r"(-?[0-9]{1,15})_(-?[0-9]{1,15})")
_NODES = re.compile(r"([0-9]{1,8})(?:-([0-9]{1,8}))?")


class _Shown(Protocol):
    """What a link needs of an explorer."""

    settings: Any
    run: Any

    @property
    def views(self) -> Mapping[str, Any]: ...

    def rerun(self) -> None: ...


class Link:
    """The text of what an explorer shows, and the way back.

    Args:
        lock: is held while views are read or changed.
        is_waiting: true while a run of the explorer's settings is to come.
    """

    def __init__(
        self,
        explorer: _Shown,
        lock: AbstractContextManager[Any],
        is_waiting: Callable[[], bool],
    ) -> None:
        self._explorer, self._lock, self._is_waiting = explorer, lock, is_waiting
        self._wanted: tuple[Settings, str] | None = None  # what to look at, once its run is there

    def text(self) -> str:
        """What is shown, as one text: settings, range, selection, open groups.

        `open` shows it again, and so does the explorer's field for settings as text.
        """
        with self._lock:
            return f"{self._explorer.settings.to_string()}#{_looked_text(self._explorer.views)}"

    def open(self, text: str) -> None:
        """Show what `text` gave; settings of which no run is shown are run first.

        Raises:
            SettingsError: the text before the # is not of settings.
        """
        head, _, looked = text.partition("#")
        with self._lock:  # a run that ends meanwhile would be taken for the one that is wanted
            settings = self._explorer.settings
            self._explorer.settings = type(settings).parse(head, settings.own)
            self.look(looked)

    def look(self, text: str) -> None:
        """Look at what stands behind the #: now, and at the next run of the settings, if one comes.

        Settings whose run has failed, or was never started, are run.
        """
        with self._lock:
            self._wanted = self._explorer.settings, text
            self.follow()
            if self._wanted is not None and not self._is_waiting():
                self._explorer.rerun()

    def follow(self) -> None:
        """A run is shown: look at what was wanted of it."""
        with self._lock:
            if self._is_wanted():
                assert self._wanted is not None
                _look_at(self._explorer.views, self._wanted[1])
            self.settle()

    def settle(self) -> None:
        """Keep what is wanted only for a run that is to come, or has failed and may come yet."""
        with self._lock:
            is_left = self._wanted is not None and self._wanted[0] != self._explorer.settings
            if is_left or (self._is_wanted() and not self._is_waiting()):
                self._wanted = None

    def _is_wanted(self) -> bool:
        """Is the run that is shown the one to look at?"""
        run, wanted = self._explorer.run, self._wanted
        return (
            wanted is not None
            and run is not None
            and wanted[0] == run.settings == self._explorer.settings
        )


def _looked_text(views: Mapping[str, Any]) -> str:
    """What is looked at in these views: `range=100_2000&nodes=3-5&open=forward`."""
    timeline, graph = views["timeline"], views.get("graph")
    shown = timeline.sources["shown"].data
    picked: Selection = timeline.selection
    pairs = {
        "shown": _times(shown["start"][0], shown["stop"][0]) if len(shown["start"]) else "",
        "range": _times(*timeline.range_ns) if timeline.range_ns else "",
        "nodes": ranges_text(picked.nodes, ".") if len(picked.nodes) <= _MOST_NODES else "",
        "sites": "\n".join(_short(picked.sites)),
        "label": picked.label[:_MOST_NAME] if picked.nodes or picked.sites else "",
        "open": "\n".join(_short(graph.expanded)) if graph is not None else "",
    }
    written = ""
    for name, text in pairs.items():
        pair = urlencode({name: text}, errors="replace") if text else ""
        if pair and len(written) + len(pair) < _MOST_TEXT:  # what no reader takes is not written
            written = f"{written}&{pair}" if written else pair
    return written


def _look_at(views: Mapping[str, Any], text: str) -> None:
    """Show in these views what the text says; what it leaves out is as on opening."""
    if len(text) > _MOST_TEXT:  # the first pairs, whole
        text = text[: max(text.rfind("&", 0, _MOST_TEXT), 0)]
    given = dict(parse_qsl(text))
    timeline, graph = views["timeline"], views.get("graph")
    if graph is not None:
        graph.expanded = frozenset(_listed(given.get("open", "")))
    timeline.selection = Selection(
        frozenset(_nodes_in(given.get("nodes", ""))),
        frozenset(_listed(given.get("sites", ""))),
        given.get("label", "")[:_MOST_NAME],
    )
    timeline.range_ns = _times_in(given.get("range", ""))
    shown = _times_in(given.get("shown", ""))
    start, stop = ([], []) if shown is None else ([shown[0]], [shown[1]])
    timeline.sources["shown"].data = {"start": start, "stop": stop}


def _times(start_ns: float, stop_ns: float) -> str:
    return f"{round(start_ns)}_{round(stop_ns)}"


def _times_in(text: str) -> tuple[int, int] | None:
    found = _TIMES.fullmatch(text)
    if found is None or int(found[1]) >= int(found[2]):
        return None
    return int(found[1]), int(found[2])


def _nodes_in(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split("."):
        match = _NODES.fullmatch(part)
        if match is None:
            continue
        first, last = int(match[1]), int(match[2] or match[1])
        if len(found) + last - first >= _MOST_NODES:
            return []
        found += range(first, last + 1)
    return found


def _listed(text: str) -> list[str]:
    return [x for x in text.split("\n") if x and len(x) <= _MOST_NAME][:_MOST_ITEMS]


def _short(texts: Iterable[str]) -> list[str]:
    """Those that a reader takes, in order."""
    return _listed("\n".join(sorted(x for x in texts if "\n" not in x)))
