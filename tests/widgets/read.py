"""What a view of HTML says, and whether its tags are closed; runs of which only times are known."""

from __future__ import annotations

from html.parser import HTMLParser

from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.trace import SyncPoint, Timeline

VOID = {"col"}


class Reader(HTMLParser):
    """The text, the tags in order, and whether every tag was closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(html.replace("<wbr>", ""))  # where a word may go on in the next line
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def __str__(self):
        return " ".join(" ".join(self.text).split())


def run_with(step_ms: float, syncs: int = 0, wait_ms: float = 0.0, noise: float = 0.0,
             rounds: int = 1) -> Run:  # fmt: skip
    """Ten untraced steps, so many times over; each waits `syncs` times."""
    points = [SyncPoint(0, int(wait_ms * 1e6), "item", "train.py:4", "lib.py:2")] * (10 * syncs)
    times = [step_ms * (1 + noise * (i % 5 - 2)) for i in (3, 0, 7, 2, 9, 4, 1, 8, 5, 6)]
    nanoseconds = tuple(round(t * 1e6) for t in times)
    return Run(
        Settings(), (1.0,) * 10, nanoseconds * rounds, Timeline.of([]), tuple(points) * rounds
    )


def long_run(step_ms: float, **more: float) -> Run:
    """Long enough to know the machine's phases."""
    return run_with(step_ms, rounds=10, **more)
