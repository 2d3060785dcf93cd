"""Read a Chrome trace file some events at a time: bounded memory, whatever the file holds.

    file ::= {"key": value, ..., "traceEvents": [event, ...], ...}  |  [event, ...     "]" optional
           | event event ...     one a line, say

The format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
All may be packed by gzip, and be UTF-8 or UTF-16. A decoder takes some events at a time from a
window over the text, so a file of a gigabyte needs a few megabytes.
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import IO, Any

from kit.errors import TraceFileError
from kit.files import encoding_of, open_plain
from kit.formats.chrome.names import is_cut, mended_json
from kit.shown import Progress

__all__ = ["BEGINS", "MAX_EVENTS", "read_events", "read_parts"]

_MAX_TEXT_BYTES = 4 << 30  # unpacked
MAX_RATIO = 300  # gzip packs real traces 10 to 40 times, at most; zeros 1000 times
MAX_EVENTS = 10_000_000
# One event, or one value beside the events; unpacked, each character may take 24 bytes of memory.
MAX_VALUE_CHARS = 8 << 20
MAX_HEAD_CHARS = 8 << 20  # of all values beside the events that are kept

_FREE_BYTES = 64 << 20  # so much may be unpacked from any file
_CHUNK = 1 << 20
_PIECE = 16 << 10  # characters that are decoded at once: so many fit into a core's fastest memory
_FEW, _MANY = 16, 4096  # events to read one by one before events are tried together again
_SPACE = " \t\n\r"
_SPACES = re.compile(r"[ \t\n\r]*")
_NEXT_EVENT = re.compile(r"[ \t\n\r]*([,\]])[ \t\n\r]*")
_NEXT_OBJECT = re.compile(r"[ \t\n\r]*,[ \t\n\r]*(?=\{)")
_NEXT_KEY = re.compile(r"[ \t\n\r]*([,}])[ \t\n\r]*")
_SPACES_AFTER = re.compile(r"([ \t\n\r]*)")
_BEFORE_DELIMITER = re.compile(r"[ \t\n\r]*(?=([,\]}]))")
_MAX_NESTING = 12  # of lists and objects that are walked through; what is deeper is one value
BEGINS = "["
_COLON = re.compile(r"[ \t\n\r]*(:)[ \t\n\r]*")
_decode = json.JSONDecoder(strict=False).raw_decode  # torch writes names with control characters


def _fast_decoder() -> Callable[[str], Any]:
    """orjson, which takes less than half the time; in a checkout that lacks it the same scanner.

    What orjson refuses (NaN, half of a pair of surrogates) the scanner then reads event by event. A
    whole number of more than 64 bits is a float to orjson, and not kept by any reader either way.
    """
    if find_spec("orjson") is None:
        return json.loads
    loads: Callable[[str], Any] = import_module("orjson").loads
    return loads


_decode_whole = _fast_decoder()

Take = Callable[[Sequence[Any]], None]


def read_events(
    path: str | os.PathLike[str], take: Take, progress: Progress | None = None
) -> dict[str, Any]:
    """Call `take` with the events of the file, some at a time; returns what stands beside them.

    Of values that are not events the last of a name counts; "]" may be missing where the format
    allows it (`"unclosed": True` is then in the result), and more may stand behind the end of the
    file's text or of its packing (`"tail": True`). What torch has written so that it is no JSON is
    mended (`"mended": True`).

    `progress` is called for each megabyte of text, with the part of the file that is read.

    Raises:
        TraceFileError: not JSON, cut off, not a Chrome trace, or too large; the message says where.
        OSError: the file cannot be read.
    """
    with _opened(path, progress) as window:
        head = _read(window, take)
        return head | {"mended": True} if window.is_mended else head


Path = tuple[str, ...]
Parts = Mapping[Path, Callable[[Any], None]]


def read_parts(path: str | os.PathLike[str], parts: Parts) -> None:
    """Call a function with each element of lists that lie inside of a JSON file's object.

    Args:
        parts: the names on the way to a list, and what takes its elements; what is no list is
            given whole. Of a list on the way, `BEGINS` in the place of a name: its next element.

    Raises:
        TraceFileError, OSError: as `read_events`.
    """
    with _opened(path) as window:
        if window.peek() != "{":
            raise TraceFileError(f"it is no JSON object: it begins with {window.sample()}")
        _walk(window, (), parts, 0)


@contextmanager
def _opened(path: str | os.PathLike[str], progress: Progress | None = None) -> Iterator[_Window]:
    """The text of a file; an error says so if its packing is damaged."""
    with open_plain(path) as file:
        try:
            yield _Window(file, progress)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TraceFileError(
                f"its gzip packing is damaged or was cut off ({error}): write the trace again"
            ) from None


def _walk(window: _Window, path: Path, parts: Parts, depth: int) -> None:
    """Read one value, and hand out what was asked for of it."""
    take = parts.get(path)
    is_on_way = take is None and any(part[: len(path)] == path for part in parts)
    first = window.peek()
    if first == "[" and (take or not is_on_way):
        window.at += 1
        if window.peek() == "]":
            window.at += 1
            return
        while True:
            value, window.at = window.value(_NEXT_EVENT)
            window.count()
            if take is not None:
                take(value)
            if window.delimiter == "]":
                return
    if first in ("[", "{") and take is None and depth < _MAX_NESTING:
        _walk_through(window, path, parts, depth)
        return
    value, window.at = window.value(_BEFORE_DELIMITER)
    if take is not None:
        take(value)


def _walk_through(window: _Window, path: Path, parts: Parts, depth: int) -> None:
    """Each value of an object or of a list."""
    is_object = window.peek() == "{"
    window.at += 1
    if window.peek() == ("}" if is_object else "]"):
        window.at += 1
        return
    begins = None if is_object else parts.get((*path, BEGINS))
    while True:
        inside = path
        if begins is not None:
            begins(None)
        if is_object:
            key, window.at = window.value(_COLON)
            if not isinstance(key, str):
                raise TraceFileError(f"it is not JSON: a name is expected {window.where()}")
            inside = (*path, key)
        window.count()
        _walk(window, inside, parts, depth + 1)
        match = window.match(_NEXT_KEY if is_object else _NEXT_EVENT)
        window.at = match.end()
        if match[1] != ",":
            return


def _read(window: _Window, take: Take) -> dict[str, Any]:
    first = window.peek()
    if not first:
        raise TraceFileError("it is empty: the program that wrote it may not have finished")
    if first == "[":
        window.at += 1
        return _with_tail({}, window) if _events(window, take) else {"unclosed": True}
    if first != "{":
        raise TraceFileError(f"it is not JSON: it begins with {window.sample()}")
    window.at += 1
    head: dict[str, Any] = {}
    has_events, kept = False, 0
    if window.peek() == "}":
        raise TraceFileError("it has no 'traceEvents': it is not a Chrome trace")
    while True:
        key, end = window.value(_COLON)
        if not isinstance(key, str):
            raise TraceFileError(f"it is not JSON: a name is expected {window.where()}")
        window.at = end
        if key == "traceEvents" and window.peek() == "[":
            window.at += 1
            if not _events(window, take):
                raise window.cut_off()
            has_events = True
            match = window.match(_NEXT_KEY)
            closed, window.at = match[1] == "}", match.end()
        else:
            value, end = window.value(_NEXT_KEY)
            closed = window.delimiter == "}"
            window.at = end
            kept += window.length
            if len(head) < 1000 and kept <= MAX_HEAD_CHARS:
                head[key[:200]] = value
        if closed:
            break
    if not has_events and "ph" in head:
        _more_events(window, head, take)
        return _with_tail({}, window)
    if not has_events:
        raise TraceFileError(
            "it has no list 'traceEvents': it is JSON, but not a Chrome trace. torch writes one by "
            "prof.export_chrome_trace(path)"
        )
    return _with_tail(head, window)


def _with_tail(head: dict[str, Any], window: _Window) -> dict[str, Any]:
    """The head, and whether more stands behind the end."""
    return head | {"tail": True} if window.peek() or window.has_tail else head


def _more_events(window: _Window, event: Any, take: Take) -> None:
    """The first event, and those that follow it without a list around."""
    take((event,))
    for _ in range(MAX_EVENTS):
        if window.peek() == ",":
            window.at += 1
        if window.peek() != "{":
            return
        event, window.at = window.value(_SPACES_AFTER, may_end=True)
        take((event,))
    raise _too_many()


def _events(window: _Window, take: Take) -> bool:
    """Read up to "]"; false if the file ends without it, after a whole event."""
    if window.peek() == "]":
        window.at += 1
        return True
    single, after_failure = 0, _FEW
    while window.events < MAX_EVENTS:
        if not single:
            several = _several(window)
            take(several)
            window.events += len(several)
            after_failure = _FEW if several else min(2 * after_failure, _MANY)
            single = 0 if several else after_failure
            continue
        single -= 1
        try:  # the straight way, and the other where the window ends or something is wrong
            event, end = _decode(window.text, window.at)
            match = _NEXT_EVENT.match(window.text, end)
        except (ValueError, RecursionError):
            match = None
        if match is not None:
            delimiter, window.at = match[1], match.end()
        elif not window.peek():
            return False  # after a comma
        else:
            event, window.at = window.value(_NEXT_EVENT, may_end=True)
            delimiter = window.delimiter
        take((event,))
        window.events += 1
        if delimiter != ",":
            return delimiter == "]"
    raise _too_many()


def _several(window: _Window) -> list[Any]:
    """Some events, decoded together, if more follow; none where that is not as simple as that.

    One call of the scanner makes each name of a value once. Text that ends with "}" and is a list
    between brackets holds whole events, whatever else is in it.
    """
    if len(window.text) - window.at < _PIECE:
        window.more()  # no event is tried before its end is read: each error counts lines
    text, end = window.text, window.at + _PIECE
    for _ in range(4):
        cut = text.rfind("},", window.at, end)
        if cut < 0:
            return []
        if match := _NEXT_OBJECT.match(text, cut + 1):
            break
        end = cut
    else:
        return []
    try:
        events: list[Any] = _decode_whole(f"[{text[window.at : cut + 1]}]")
    except (ValueError, RecursionError):
        return []
    window.at = match.end()
    return events


def _too_many() -> TraceFileError:
    return TraceFileError(
        f"it holds more than {MAX_EVENTS:,} events: trace fewer steps, or without with_stack"
    )


class _Window:
    """The text from `at` on, as far as it has been read."""

    def __init__(self, file: IO[bytes], progress: Progress | None) -> None:
        self._file, self._progress = file, progress
        packed = file.read(2)
        file.seek(0)
        self._size = os.fstat(file.fileno()).st_size
        self._is_packed = packed == b"\x1f\x8b"
        self._source: Any = gzip.GzipFile(fileobj=file) if self._is_packed else file
        self._decoder: codecs.IncrementalDecoder | None = None  # known by the first bytes
        self.has_tail = self.is_mended = False
        self.events = 0  # of the lists that were read: a file may have several
        self._read = 0
        self._passed = 0  # characters before `text`
        self.text = ""
        self.at = 0
        self.is_whole = False
        self.delimiter = ""
        self.length = 0  # of the last value

    def peek(self) -> str:
        """The next character that is no space; "" at the end."""
        while True:
            self.at = _SPACES.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def value(self, after: re.Pattern[str], *, may_end: bool = False) -> tuple[Any, int]:
        """The JSON value at `at`, and where the text goes on behind the delimiter that follows."""
        self.peek()
        size = _CHUNK
        while True:
            try:
                value, end = _decode(self.text, self.at)
                self.length = end - self.at
                if match := after.match(self.text, end):
                    self.delimiter = match[1]
                    return value, match.end()
                rest = self.text[end:].strip(_SPACE)
                if rest or (self.is_whole and not may_end):
                    raise self.cut_off() if not rest else self.not_json(end)
                if self.is_whole:
                    self.delimiter = ""
                    return value, len(self.text)
            except RecursionError:
                raise TraceFileError("it is nested too deeply to be a trace") from None
            except TraceFileError:
                raise
            except ValueError as error:  # also a number of thousands of digits
                at = getattr(error, "pos", self.at)
                mended = mended_json(self.text, self.at, at)
                if mended != self.text:
                    self.text, self.is_mended = mended, True
                    continue
                if self.is_whole:
                    cut = is_cut(str(error), self.text[at : at + 20].strip(_SPACE))
                    raise self.cut_off() if cut else self.not_json(at) from None
            if len(self.text) - self.at > MAX_VALUE_CHARS:
                raise TraceFileError(
                    f"it is not JSON, or holds a value of more than {MAX_VALUE_CHARS:,} "
                    f"characters, {self.where()}"
                )
            self.more(size)
            size *= 2  # so that a long value is not scanned too often

    def count(self) -> None:
        """One more value of a list or an object was read."""
        self.events += 1
        if self.events > MAX_EVENTS:
            raise _too_many()

    def match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """The delimiter at `at`, spaces around it included."""
        self.peek()
        found = pattern.match(self.text, self.at)
        if found is None:
            raise self.not_json(self.at) if self.peek() else self.cut_off()
        return found

    def more(self, size: int = _CHUNK) -> bool:
        """Read on, and forget what is before `at`; false at the end of the file."""
        if self.is_whole:
            return False
        data = self._bytes(size)
        if self._decoder is None:
            self._decoder = codecs.getincrementaldecoder(encoding_of(data[:2]))("replace")
        self._read += len(data)
        self.is_whole = not data
        if self._read > _MAX_TEXT_BYTES:
            raise TraceFileError(f"it is longer than {_MAX_TEXT_BYTES:,} bytes: trace fewer steps")
        if self._read > _FREE_BYTES and self._read > MAX_RATIO * self._size:
            raise TraceFileError(
                f"it unpacks to more than {MAX_RATIO} times its size, as no trace does: it was "
                "made to fill the memory. Unpack it yourself if you trust it"
            )
        if self._progress is not None:
            self._progress("reading", self._file.tell() / max(self._size, 1))
        self._passed += self.at
        self.text = self.text[self.at :] + self._decoder.decode(data, final=self.is_whole)
        self.at = 0
        return True

    def _bytes(self, size: int) -> bytes:
        """The next bytes; what follows a packed text and is not packed is its tail."""
        if not self._is_packed:
            data: bytes = self._source.read(size)
            return data
        parts: list[bytes] = []
        while size > 0 and not self.has_tail:
            try:  # one read below at a time: an error loses nothing that came before it
                part = self._source.read1(size)
            except gzip.BadGzipFile as error:
                if not (self._read or parts) or "Not a gzipped file" not in str(error):
                    raise
                self.has_tail = True
                break
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def where(self) -> str:
        return f"at character {self._passed + self.at:,}"

    def sample(self) -> str:
        begin = self.text[self.at : self.at + 20]
        is_text = all(char >= " " or char in _SPACE for char in begin)
        return repr(begin) + ("" if is_text else ". Of protobufs only jax's *.xplane.pb is read")

    def cut_off(self) -> TraceFileError:
        end = self._passed + len(self.text)
        return TraceFileError(
            f"it was cut off: the text ends in the midst of a value, after {end:,} characters. "
            "The program that wrote it may have been stopped: write or copy it again"
        )

    def not_json(self, at: int) -> TraceFileError:
        near = repr(self.text[at : at + 20])
        return TraceFileError(f"it is not JSON: {near} at character {self._passed + at:,}")
