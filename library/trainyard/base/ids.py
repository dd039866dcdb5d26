"""Ids: 26 lower-case Crockford base-32 characters that sort by time of creation."""

from __future__ import annotations

import re

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
ID_PATTERN = r"^[0-7][0-9a-hjkmnp-tv-z]{25}$"
_ID = re.compile(ID_PATTERN)
_PAIRS = tuple(first + second for first in ALPHABET for second in ALPHABET)
"""Pair of characters for each ten-bit value. Encoding 128 bits by pairs takes half as many steps as
by single characters."""


def make_id(*, milliseconds: int, entropy: bytes) -> str:
    """Return a ULID (github.com/ulid/spec): 48 bits of Unix time, then 80 random bits.

    Args:
        milliseconds: Unix time.
        entropy: ten random bytes.
    """
    if len(entropy) != 10:
        raise ValueError(f"entropy holds {len(entropy)} bytes, needs 10")
    number = (milliseconds << 80) | int.from_bytes(entropy)
    return "".join([_PAIRS[(number >> shift) & 1023] for shift in range(120, -10, -10)])


def is_id(text: str) -> bool:
    """Return whether a text has the form of an id."""
    return _ID.fullmatch(text) is not None
