"""Event files as TensorBoard writes them, for tests."""

from __future__ import annotations

import struct

from trainyard.run.other_tools.event_files import masked_crc32c


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def framed(event: bytes) -> bytes:
    head = struct.pack("<Q", len(event))
    checksums = [struct.pack("<I", masked_crc32c(part)) for part in (head, event)]
    return head + checksums[0] + event + checksums[1]


def event(step: int, **values: float) -> bytes:
    """Return a record with some scalars, as TensorBoard writes it."""
    summary = b""
    for tag, value in values.items():
        name = tag.replace("__", "/").encode()
        inner = b"\x0a" + varint(len(name)) + name + b"\x15" + struct.pack("<f", value)
        summary += b"\x0a" + varint(len(inner)) + inner
    time = b"\x09" + struct.pack("<d", 1.7e9 + step)
    return framed(time + b"\x10" + varint(step % 2**64) + b"\x2a" + varint(len(summary)) + summary)


def session_start(step: int) -> bytes:
    """Return the record by which a writer with `purge_step` begins."""
    time = b"\x09" + struct.pack("<d", 1.7e9 + step)
    return framed(time + b"\x10" + varint(step % 2**64) + b"\x3a\x02\x08\x01")
