"""What a trace of torch's says of collectives: operation, process group, bytes, number.

torch writes these into the arguments of NCCL's kernels, and into `record_param_comms`, the op
that has launched them; of gloo there are annotations, "gloo:all_reduce", with the shapes of the
inputs. NCCL makes an all-to-all, a gather and a scatter of sends and receives: of an older torch
only the annotation around their launch, "nccl:all_to_all", says what they are. Everything is taken
as a stranger's: of the wrong type it is not known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from kit.trace.communication import BYTES_UNKNOWN, Channel, operation_of
from kit.trace.imported import cut_name, whole, whole_said

__all__ = ["Message", "Messages", "named"]

# The bytes of one element, by torch's names of types as C++ and as Python spell them.
_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "uint8", "int8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("half", "bfloat16", "short", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("float", "int", "float32", "int32", "uint32", "complexhalf"), 4),
    **dict.fromkeys(("double", "long", "float64", "int64", "uint64", "complexfloat"), 8),
    **dict.fromkeys(("complex64", "long int"), 8),
    **dict.fromkeys(("complexdouble", "complex128"), 16),
}
_GATHERS = ("all_gather", "gather")  # a rank gets as often what it gives as its group is large
MAX_COLLECTIVES = 200_000  # of a file; the rest is not compared
_MAX_MEMBERS = 65_536
_MAX_SAID = 1 << 20  # characters of a list of them
_MAX_KEPT = 1 << 12  # of one that is read once for all of a file; torch's own have some hundreds
_MAX_ALL_MEMBERS = 4_000_000  # of all process groups that differ
_MAX_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class Message:
    """What the arguments of an event say of its collective."""

    channel: Channel
    size_bytes: int = BYTES_UNKNOWN
    number: int = -1
    is_even: bool = False  # does each rank send as much to every other?


class Messages:
    """What the events of a file say of their collectives, by the place of each event."""

    def __init__(self) -> None:
        self.copied: dict[int, int] = {}  # event -> bytes
        self._said: dict[int, Message] = {}
        self._external: dict[int, int] = {}  # event -> the op that has launched it
        self._asked: dict[int, Message] = {}  # op -> what it asked for
        self._channels: dict[Channel, Channel] = {}  # each is kept once
        self._members = 0

    def add(self, event: int, name: str, args: Mapping[str, Any]) -> None:
        """A kernel or an annotation that communicates."""
        if len(self._said) < MAX_COLLECTIVES:
            self._said[event] = self._kept(_message_of(name, args))
            self._external[event] = whole_said(args.get("External id"), 1 << 62)

    def copy(self, event: int, args: Mapping[str, Any]) -> None:
        """A copy of memory by a device."""
        size = whole_said(args.get("bytes"), _MAX_BYTES)
        if size >= 0 and len(self.copied) < MAX_COLLECTIVES:
            self.copied[event] = size

    def ask(self, args: Any) -> None:
        """The op that launches a collective."""
        if type(args) is dict and len(self._asked) < MAX_COLLECTIVES:
            asked = self._kept(_message_of("", args))
            self._asked[whole_said(args.get("External id"), 1 << 62)] = asked

    def _kept(self, message: Message) -> Message:
        """The message with a channel that all of its group share; bounded in what it names."""
        channel = message.channel
        if channel not in self._channels:
            if self._members + len(channel.members) > _MAX_ALL_MEMBERS:
                channel = replace(channel, members=())
            self._members += len(channel.members)
        return replace(message, channel=self._channels.setdefault(channel, channel))

    def items(self) -> Iterator[tuple[int, Message]]:
        """Event -> what is known of its collective; older files say it of the op only."""
        for event, message in self._said.items():
            asked = self._asked.get(self._external[event])
            is_known = bool(message.channel.group) or message.size_bytes != BYTES_UNKNOWN
            if asked is None or is_known:
                yield event, message
            elif asked.channel.operation:
                yield event, asked
            else:  # the op's own name says none, that of its kernel does
                found = named(asked, message.channel.operation)
                is_gather = found.channel.operation in _GATHERS
                yield event, replace(found, size_bytes=BYTES_UNKNOWN) if is_gather else found


def named(message: Message, operation: str) -> Message:
    """The same of another operation."""
    return replace(message, channel=replace(message.channel, operation=operation))


def _message_of(name: str, args: Mapping[str, Any]) -> Message:
    """What is known of a collective from an event's name and arguments."""
    said = cut_name(args.get("Collective name"))
    operation = operation_of(said) or operation_of(name)
    members = _members(args.get("Process Group Ranks"))
    size = whole(args.get("Group size"), _MAX_MEMBERS)
    if members and len(members) != size:  # torch shortens a long list
        members, size = ((), size) if size > 0 else (members, len(members))
    group = cut_name(args.get("Process Group Name"))
    shapes = args.get("Input Dims")
    if "In msg nelems" in args:
        elements = max(whole(args.get(k), _MAX_BYTES) for k in ("In msg nelems", "Out msg nelems"))
        width = _BYTES.get(cut_name(args.get("dtype")).lower(), 0)
    else:  # gloo's, and an older torch's: of what a rank gives
        elements, width = _elements(shapes, args.get("Input type"))
        if operation in _GATHERS:
            elements = -1
    is_known = elements >= 0 and width > 0 and elements * width <= _MAX_BYTES
    return Message(
        Channel(operation, group, members, max(size, 0)),
        elements * width if is_known else BYTES_UNKNOWN,
        whole(args.get("Seq"), 1 << 62),
        bool(said) and _is_even(said, args),
    )


def _is_even(said: str, args: Mapping[str, Any]) -> bool:
    """Are all parts of an all-to-all alike? torch names the sizes only where they may differ."""
    sizes = [args.get(f"{way} split size") or "" for way in ("In", "Out")]
    if args.get("In msg nelems") != args.get("Out msg nelems"):
        return False
    if not any(size not in ("", "[]") for size in sizes):
        return not said.endswith("v")  # all_to_allv, of sizes that are not told
    parts = [_members(size) for size in sizes]  # a long list is cut short by torch, and unknown
    return all(len(set(part)) == 1 for part in parts)


def _members(value: Any) -> tuple[int, ...]:
    """The ranks of a list, or of a text that holds one."""
    if isinstance(value, str):
        read = _members_kept if len(value) <= _MAX_KEPT else _members_said
        return read(value) if len(value) <= _MAX_SAID else ()
    if not isinstance(value, list) or len(value) > _MAX_MEMBERS:
        return ()
    ranks = tuple(x for x in value if whole(x, _MAX_MEMBERS) >= 0)
    return ranks if len(ranks) == len(value) else ()


def _members_said(text: str) -> tuple[int, ...]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    return () if isinstance(value, str) else _members(value)


_members_kept = lru_cache(maxsize=64)(_members_said)  # each collective of a group says the same


def _elements(shapes: Any, types: Any) -> tuple[int, int]:
    """Elements and bytes of each, of inputs that have one type."""
    if not isinstance(shapes, list) or not isinstance(types, list) or not types:
        return -1, 0
    if len({cut_name(t) for t in types}) != 1 or len(shapes) > 10_000:
        return -1, 0
    counts = []
    for shape in shapes:
        is_shape = isinstance(shape, list) and len(shape) <= 64
        if not is_shape or any(whole(x, _MAX_BYTES) < 0 for x in shape):
            return -1, 0
        counts.append(math.prod(shape))
    return sum(counts), _BYTES.get(cut_name(types[0]).lower(), 0)
