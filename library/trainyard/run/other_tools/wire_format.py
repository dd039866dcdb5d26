"""Parse the parts of protocol buffers that records of other tools use; never read beyond a buffer's
end.

Definition of the format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Numbers of the wire types."""
LONGEST_VARINT = 10

Value = int | memoryview
"""Value of a field: an int for a varint, otherwise the bytes."""


class WireError(ValueError):
    """The bytes are not a message."""


def fields(message: bytes | memoryview) -> Iterator[tuple[int, Value]]:
    """Yield the number and value of each field of a message, in order.

    The value of a varint is an unsigned int. Other values are bytes: 4 or 8 for a fixed type.

    Raises:
        WireError: the bytes are not a message.
    """
    view, place = memoryview(message), 0
    while place < len(view):
        key, place = _varint(view, place)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, place = _varint(view, place)
            yield number, value
            continue
        if kind == BYTES:
            size, place = _varint(view, place)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise WireError(f"wire type {kind} at byte {place} is not 0, 1, 2 or 5")
        if size > len(view) - place:
            raise WireError(f"a field of {size} bytes at byte {place} goes over the end")
        yield number, view[place : place + size]
        place += size


def as_bytes(value: Value) -> memoryview:
    """Return the bytes of a field.

    Raises:
        WireError: the field is a varint.
    """
    if isinstance(value, int):
        raise WireError("a number stands where bytes belong")
    return value


def as_text(value: Value) -> str:
    """Return the text of a field; invalid UTF-8 is replaced.

    Raises:
        WireError: the field is a varint.
    """
    return str(as_bytes(value), "utf-8", errors="replace")


def as_signed(value: Value) -> int:
    """Return the value of a field of type int64.

    Raises:
        WireError: the field is not a varint.
    """
    if not isinstance(value, int):
        raise WireError("bytes stand where a number belongs")
    return value - 2**64 if value >= 2**63 else value


def as_double(value: Value) -> float:
    """Return the value of a field of type double or float.

    Raises:
        WireError: the field has neither 4 nor 8 bytes.
    """
    given = as_bytes(value)
    if len(given) not in (4, 8):
        raise WireError(f"{len(given)} bytes stand where a float or a double belongs")
    number: float = struct.unpack("<d" if len(given) == 8 else "<f", given)[0]
    return number


def varints(packed: memoryview) -> Iterator[int]:
    """Yield the numbers in a packed field.

    Raises:
        WireError: the field ends within a number.
    """
    place = 0
    while place < len(packed):
        value, place = _varint(packed, place)
        yield value


def _varint(view: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(view[place : place + LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & (2**64 - 1), place + index + 1
    raise WireError(f"the number at byte {place} has no end")
