"""Open what `torch.cuda.memory._dump_snapshot` has written: measured memory, and who held its peak.

The file is a pickle, and a pickle can name any function to be called. So nothing is unpickled but
plain values: lists, tuples, dicts, texts and numbers. What names a class or a function is refused
before anything is called. A pickle of some bytes can also ask for gigabytes: its opcodes are looked
through first.
"""

from __future__ import annotations

import mmap
import os
import pickle
import pickletools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import IO, Any, cast

from kit.errors import TraceFileError, but_of_handlers
from kit.files import as_path, is_no_users, open_plain
from kit.text import format_bytes, format_count, format_share, safe_terminal, terminal_table
from kit.trace.imported import cut_name, naming, whole

__all__ = ["SNAPSHOT_SUFFIXES", "MemorySnapshot", "PeakHolder", "open_memory"]

SNAPSHOT_SUFFIXES = (".pickle", ".pkl")
MAX_BYTES = 1 << 28  # of a file; its values take several times as much
MAX_EVENTS = 5_000_000  # and as many blocks
MAX_FRAMES = 1_000  # of one stack

UNKNOWN_LINE = "unknown line"
BEFORE = "allocated before the history begins"
_whole = partial(whole, most=(1 << 64) - 1)


@dataclass(frozen=True, slots=True)
class PeakHolder:
    """What one line of the program held at the peak.

    Units:
        bytes, as the program asked for them
    """

    device: int
    line: str  # "train.py:41", of the user's code; UNKNOWN_LINE if no stack was kept; or BEFORE
    function: str
    bytes: int
    blocks: int


@dataclass(frozen=True)
class MemorySnapshot:
    """The memory that torch's allocator gave out on each device, measured.

    Units:
        bytes, as the program asked for them; `reserved` is what the allocator took from the device
    """

    name: str
    peak: Mapping[int, int]  # by device; of the time that the history covers
    at_end: Mapping[int, int]
    reserved: Mapping[int, int]  # at the end
    events: Mapping[int, int]  # allocations and frees in the history
    holders: tuple[PeakHolder, ...]  # of each device's peak, the largest first
    notes: tuple[str, ...] = ()
    origin: str = field(default="measured", init=False)

    def to_text(self, rows: int = 12) -> str:
        """The peak of each device and the lines that held it, for a terminal."""
        parts = [f"{safe_terminal(self.name, 60)}: memory, {self.origin} by torch's allocator"]
        for device, peak in sorted(self.peak.items()):
            held = [holder for holder in self.holders if holder.device == device]
            parts.append(
                f"device {device}: peak {format_bytes(peak)}, at the end "
                f"{format_bytes(self.at_end[device])}, reserved "
                f"{format_bytes(self.reserved[device])}, "
                f"{format_count(self.events[device], 'event')}"
            )
            cells = [
                [
                    safe_terminal(holder.line, 60),
                    safe_terminal(holder.function, 40),
                    format_bytes(holder.bytes),
                    format_share(holder.bytes / peak) if peak else "",
                    f"{holder.blocks:,}",
                ]
                for holder in held[:rows]
            ]
            heads = ("held at the peak by", "function", "bytes", "share", "blocks")
            left = (
                f"\nand {format_count(len(held) - rows, 'more line')}" if len(held) > rows else ""
            )
            parts.append(terminal_table(heads, cells, left=(0, 1)) + left)
        parts.append("\n".join(f"note: {safe_terminal(note, 300)}" for note in self.notes))
        return "\n\n".join(filter(None, parts))

    def __repr__(self) -> str:
        peak = max(self.peak.values(), default=0)
        return f"<kit.MemorySnapshot: peak {format_bytes(peak)} on one of {len(self.peak)}>"


def open_memory(path: str | os.PathLike[str]) -> MemorySnapshot:
    """The measured memory in a file of `torch.cuda.memory._dump_snapshot`.

    `print(kit.open_memory("snapshot.pickle").to_text())` says the peak of each device and which
    lines held it. Nothing of the file is executed.

    Raises:
        TraceFileError: it is no such snapshot, holds more than plain values, or is too large.
        OSError: there is no such file, or it cannot be read.
    """
    path = as_path(path)
    name = cut_name(path.name)
    with naming(name, "a snapshot"):
        return _memory_of(_plain_values(path), name)


class _PlainUnpickler(pickle.Unpickler):
    """Values without behaviour: whatever has to be imported or looked up is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise TraceFileError(
            f"it names {cut_name(module, 80)}.{cut_name(name, 80)}, which a snapshot of torch's "
            "never does: it may have been made to run a program"
        )

    def persistent_load(self, pid: Any) -> Any:
        raise TraceFileError("it refers to something outside of it, which a snapshot never does")


def _plain_values(path: str | os.PathLike[str]) -> Any:
    with open_plain(path) as opened:
        if (size := os.fstat(opened.fileno()).st_size) > MAX_BYTES:
            raise TraceFileError(
                f"{format_bytes(size)} are more than {format_bytes(MAX_BYTES)}: keep less history, "
                "torch.cuda.memory._record_memory_history(max_entries=100_000)"
            )
        try:
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
                _check_places(content, size)
                content.seek(0)
                return _PlainUnpickler(content).load()
        except TraceFileError:
            raise
        except MemoryError:
            raise TraceFileError("it claims more memory than there is") from None
        except but_of_handlers(Exception) as error:  # a damaged pickle raises nearly anything
            raise TraceFileError(
                f"it is damaged, or no pickle: {cut_name(str(error), 200)}"
            ) from None


def _check_places(content: mmap.mmap, size: int) -> None:
    """Refuse to remember a value at a place far out: Python makes room for all places before."""
    for opcode, argument, _ in pickletools.genops(cast(IO[bytes], content)):
        if opcode.name.endswith("PUT") and isinstance(argument, int) and argument > size:
            raise TraceFileError("it is damaged: it numbers more values than it has bytes")


def _memory_of(found: Any, name: str) -> MemorySnapshot:
    if not isinstance(found, dict) or not isinstance(found.get("segments"), list):
        raise TraceFileError("it has no list of segments, as torch.cuda.memory._snapshot() has")
    traces = found.get("device_traces")
    traces = traces if isinstance(traces, list) else []
    if sum(len(trace) for trace in traces if isinstance(trace, list)) > MAX_EVENTS:
        raise TraceFileError(f"its history has more than {MAX_EVENTS:,} events")
    segments = list(_dicts(found["segments"]))
    counted = [len(s["blocks"]) for s in segments if isinstance(s.get("blocks"), list)]
    if sum(counted) > MAX_EVENTS:
        raise TraceFileError(f"it has more than {MAX_EVENTS:,} blocks")
    reserved: dict[int, int] = defaultdict(int)
    blocks: dict[int, dict[int, _Block]] = defaultdict(dict)
    for segment in segments:
        device = max(_whole(segment.get("device")), 0)
        reserved[device] += max(_whole(segment.get("total_size")), 0)
        blocks[device].update(_active(segment))
    histories = {i: history for i, trace in enumerate(traces) if (history := list(_events(trace)))}
    peaks, holders, notes = {}, [], []
    for device in sorted({*reserved, *histories}):
        peak, held = _peak(blocks[device], histories.get(device, []))
        peaks[device] = peak
        holders += _by_line(device, held)
        if not histories.get(device):
            notes.append(
                f"device {device} has no history: the peak is what is held at the end. Call "
                "torch.cuda.memory._record_memory_history() before the steps"
            )
    notes += _of_before(holders)
    lines = {holder.line for holder in holders}
    if UNKNOWN_LINE in lines and lines <= {UNKNOWN_LINE, BEFORE}:
        notes.append("no block has a stack of Python, so no line is known")
    ends = {d: sum(block.size for block in blocks[d].values()) for d in peaks}
    counts = {d: len(histories.get(d, ())) for d in peaks}
    of_devices = {d: reserved[d] for d in peaks}
    return MemorySnapshot(name, peaks, ends, of_devices, counts, tuple(holders), tuple(notes))


def _of_before(holders: Iterable[PeakHolder]) -> Iterator[str]:
    """Why the lines of some memory are not known, and what would tell them."""
    for holder in holders:
        if holder.line == BEFORE:
            yield (
                f"{format_bytes(holder.bytes)} of device {holder.device}'s peak were {BEFORE}: "
                "their lines are not known. Call torch.cuda.memory._record_memory_history() before "
                "the model and its optimizer are made, with max_entries for all that follows"
            )


@dataclass(frozen=True, slots=True)
class _Block:
    """Memory that was given out, and the stack that asked for it."""

    size: int
    frames: Any
    is_before: bool = False  # the history, which has no alloc of it; nothing has its stack


@dataclass(frozen=True, slots=True)
class _Event:
    is_alloc: bool
    address: int
    block: _Block


def _active(segment: Mapping[str, Any]) -> Iterator[tuple[int, _Block]]:
    """The blocks of a segment that the program holds; older files give no addresses of blocks."""
    at = _whole(segment.get("address"))
    for block in _dicts(segment.get("blocks")):
        size = max(_whole(block.get("size")), 0)
        address = _whole(block.get("address"))
        address = at if address < 0 else address
        at = address + size
        if block.get("state") == "active_allocated":
            asked = _whole(block.get("requested_size"))
            yield address, _Block(asked if asked >= 0 else size, block.get("frames"))


def _events(trace: Any) -> Iterator[_Event]:
    """What was given out and given back; torch counts a block as free when that is requested."""
    for event in _dicts(trace):
        action, size = event.get("action"), _whole(event.get("size"))
        if action in ("alloc", "free_requested") and 0 <= size < 1 << 50:
            block = _Block(size, event.get("frames"))
            yield _Event(action == "alloc", _whole(event.get("addr")), block)


def _peak(at_end: Mapping[int, _Block], history: list[_Event]) -> tuple[int, list[_Block]]:
    """The most bytes that were held at once, and the blocks that were.

    The history is replayed from its end, where all blocks are known, to its begin: torch keeps the
    newest events only, and what was given out before them is seen when it is given back.
    """
    live = {address: block.size for address, block in at_end.items()}
    now = peak = sum(live.values())
    place = len(history)  # the peak is before this event
    for i in range(len(history) - 1, -1, -1):
        event = history[i]
        if event.is_alloc:
            now -= live.pop(event.address, 0)
        else:
            now += event.block.size - live.get(event.address, 0)
            live[event.address] = event.block.size
        if now > peak:
            peak, place = now, i
    return peak, _held(at_end, history, place)


def _held(at_end: Mapping[int, _Block], history: list[_Event], place: int) -> list[_Block]:
    """The blocks that are live before an event of the history, with the stacks that asked."""
    later: dict[int, int] = {}  # address -> bytes, of blocks that are seen after the place only
    allocated = set()
    for event in history[place:]:
        if event.is_alloc:
            allocated.add(event.address)
        elif event.address not in allocated:
            later.setdefault(event.address, event.block.size)
    never_freed = {a: block for a, block in at_end.items() if a not in allocated and a not in later}
    asked = {event.address: event.block for event in history[:place] if event.is_alloc}
    freed = {a: _Block(size, None) for a, size in later.items()}
    live = freed | never_freed
    if not history:
        return list(live.values())
    return [_asked(block, asked.get(address)) for address, block in live.items()]


def _asked(block: _Block, by: _Block | None) -> _Block:
    """A live block with the stack that asked for it; without an alloc, the history is younger."""
    if by is not None:
        return replace(block, frames=block.frames or by.frames)
    return replace(block, is_before=not block.frames)


def _by_line(device: int, held: Iterable[_Block]) -> list[PeakHolder]:
    sizes: dict[tuple[str, str], list[int]] = defaultdict(list)
    for block in held:
        sizes[(BEFORE, "") if block.is_before else _line(block.frames)].append(block.size)
    rows = [PeakHolder(device, *place, sum(each), len(each)) for place, each in sizes.items()]
    return sorted(rows, key=lambda row: (-row.bytes, row.line, row.function))


def _line(frames: Any) -> tuple[str, str]:
    """The innermost line of Python that is not a library's, else the innermost of Python at all."""
    libraries = UNKNOWN_LINE, ""
    for frame in islice(_dicts(frames), MAX_FRAMES):
        file = cut_name(frame.get("filename")).replace("\\", "/")
        if not file.endswith(".py") and not file.startswith("<ipython"):
            continue
        place = (
            f"{file.rpartition('/')[2]}:{_whole(frame.get('line'))}",
            cut_name(frame.get("name")),
        )
        if not is_no_users(file):
            return place
        if libraries[0] == UNKNOWN_LINE:
            libraries = place
    return libraries


def _dicts(values: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(values, list | tuple):
        yield from (value for value in values if isinstance(value, dict))
