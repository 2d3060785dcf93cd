"""Open an execution trace in Chakra's JSON form, if it holds times.

    trace ::= {"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id", "name", "ts", "inclusive_dur",
               "cat", "stream", "attrs": [{"name", "value"}]}]}
            | {"schema": "1.0.1", "nodes": [{"id", "name", "ts", "dur", "tid", "cat",
               "args": {"device", "stream", "correlation", "bytes"}}]}      of 2023

What torch's ExecutionTraceObserver writes has the ops and what they depend on, and no time; times
come into it when Chakra's `trace_link` joins it with a trace of torch.profiler. Nodes with a time
become events as torch.profiler would write them. Of the newer form no real file with times was met:
it follows the program that writes it.

What Chakra makes of it for simulators, as protobuf (`.et`) or as `{"workload_graph": [...]}`, says
how long nodes take, and not when they began: it has no timeline, and an error says so.
"""

from __future__ import annotations

import os
import re
from typing import Any

from kit.errors import TraceFileError
from kit.files import open_plain
from kit.formats.chrome.events import Events
from kit.formats.chrome.json import read_parts
from kit.formats.foreign import foreign_imported
from kit.text import format_count
from kit.trace.imported import Imported, cut_name, naming

__all__ = ["read_chakra"]

_NOT_MET = (
    "of Chakra's: of real files with times the reader has met those of 2023 only, so compare a "
    "number or two with the trace of torch.profiler that they are from"
)
_NO_TIMELINE = (
    "it says how long each node takes and on which it depends, not when it began, so there is no "
    "timeline in it. Open the trace of torch.profiler that it was made from"
)
_PROTOBUF = re.compile(r"\A[\s\S]{1,40}?\n\x06schema")  # the first attribute of its first message
_BEGIN = 64
_LENGTHS = ("inclusive_dur", "dur", "exclusive_dur")  # the first that a node has
_ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}


def read_chakra(path: str | os.PathLike[str], step_by: str = "") -> Imported:
    """The trace in a `.json` file; arguments and errors as of `read_chrome`."""
    events = Events(step_by)
    nodes = _Nodes(events)
    with naming(path):
        with open_plain(path) as file:
            if _PROTOBUF.search(file.read(_BEGIN).decode(errors="replace")):
                raise TraceFileError(
                    f"a graph for simulators, as Chakra's protobuf: {_NO_TIMELINE}"
                )
        read_parts(path, {("nodes",): nodes.add, ("workload_graph",): nodes.graph})
        if nodes.in_graph:
            raise TraceFileError(
                f"a graph for simulators, of {format_count(nodes.in_graph, 'node')}, as Chakra's "
                f"JSON: {_NO_TIMELINE}"
            )
        nothing = (
            f"an execution trace of {format_count(nodes.count, 'node')} without times that make a "
            "timeline: it says what ran, not when. Open the trace of torch.profiler that was "
            "recorded with it, or join the two by Chakra's trace_link"
        )
        return foreign_imported(
            events,
            program="Chakra execution trace",
            nothing=[nothing],
            notes=[_NOT_MET] * nodes.is_newer,
        )


class _Nodes:
    """Gives the nodes that have a time to `events`."""

    def __init__(self, events: Events) -> None:
        self.count = 0
        self.in_graph = 0  # nodes of a graph for simulators
        self.is_newer = False  # than the real files that were met?
        self._events = events

    def graph(self, node: Any) -> None:
        """Take one node of a graph for simulators."""
        self.in_graph += 1

    def add(self, node: Any) -> None:
        """Take one node."""
        self.count += 1
        if type(node) is not dict:
            self._events.add(None)
            return
        start = node.get("ts")
        length = next((node[key] for key in _LENGTHS if key in node), None)
        if start is None and length is None:
            return
        self.is_newer |= "inclusive_dur" in node
        category = cut_name(node.get("cat"))
        attributes = _attributes(node.get("attrs"))
        stream, args = node.get("stream", attributes.get("stream")), node.get("args")
        if category in _ON_GPU or stream is not None:
            category = category if category in _ON_GPU else "kernel"
            args = args if type(args) is dict else {"device": 0, "stream": stream}
            track: tuple[Any, Any] = (0, stream)
        else:
            category, args = category or "cpu_op", {}
            track = ("host", attributes.get("tid", node.get("tid")))
        event = {"ph": "X", "cat": category, "name": node.get("name"), "ts": start, "dur": length}
        self._events.add(event | {"pid": track[0], "tid": track[1], "args": args})


def _attributes(given: Any) -> dict[str, Any]:
    """The attributes of a node by their names."""
    items = given if type(given) is list else []
    return {
        item["name"]: item.get("value")
        for item in items[:1000]
        if type(item) is dict and isinstance(item.get("name"), str)
    }
