"""How many messages a protobuf file holds, before a parser makes objects of them.

An empty message takes two bytes in a file and a hundred or more in memory, so that a small file
could fill it. Lengths are held against the file's real size: nothing here allocates by them.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["Damaged", "fields_of"]

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5  # how a field is written
_LONGEST = 10  # bytes of a number of 64 bits


class Damaged(ValueError):
    """The bytes are no protobuf message; the parser says more."""


def fields_of(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The texts and messages between two places: the field's number, and where its bytes lie.

    Raises:
        Damaged: a number has no end, or a length reaches beyond what is there.
    """
    at = start
    while at < stop:
        tag, at = _number(data, at, stop)
        kind = tag & 7
        if kind == _BYTES:
            length, at = _number(data, at, stop)
            if length > stop - at:
                raise Damaged
            yield tag >> 3, at, at + length
            at += length
        elif kind == _VARINT:
            _, at = _number(data, at, stop)
        elif kind in (_FIXED_64, _FIXED_32):
            at += 8 if kind == _FIXED_64 else 4
        else:
            raise Damaged


def _number(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """The number that begins there, and where the next begins."""
    value = 0
    for shift in range(0, 7 * _LONGEST, 7):
        if at >= stop:
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise Damaged
