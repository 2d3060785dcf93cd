"""Runs that were recorded on a GPU, for machines without one; `recordings/README.md` says how."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources

from kit.errors import RunFileError
from kit.runs.run import Run

__all__ = ["RECORDINGS", "recorded"]

RECORDINGS = {  # name -> what a report or a diff calls it
    "bert_h100": "BERT base on an H100, device kit",
    "bert_h100_native": "BERT base on an H100, native torch",
    "bert_h100_replay": "BERT base on an H100, device kit, replay",
    "resnet50_h100": "ResNet-50 on an H100, device kit",
    "resnet50_h100_replay": "ResNet-50 on an H100, device kit, replay",
}


def recorded(name: str) -> Run:
    """A run that comes with kit: `kit.TimelineView(recorded("bert_h100_native"))`.

    Args:
        name: one of `RECORDINGS`.

    Raises:
        RunFileError: there is none of this name; the message lists them.
    """
    if name not in RECORDINGS:
        known = ", ".join(RECORDINGS)
        raise RunFileError(f"no recording is called {name!r}; there are: {known}")
    found = resources.files("kit.workloads").joinpath("recordings", f"{name}.kitrun")
    with resources.as_file(found) as path:
        return replace(Run.load(path), label=RECORDINGS[name])
