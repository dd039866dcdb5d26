"""A digest of the samples of a step and their order, the same for any world size.

Each rank digests its own samples with their positions in the stream, and the digests of the ranks
are added. So a rank needs no collective and no samples of other ranks. The sum does not depend on
the division into ranks, but on the order, because each term includes a sample and its position. It
detects mistakes, not forgery.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from operator import index
from typing import SupportsIndex

_MODULUS = 1 << 128


def order_digest(
    positions: Iterable[SupportsIndex], ids: Iterable[SupportsIndex | str | bytes]
) -> str:
    """Return the digest of samples at their positions, as 32 hexadecimal digits.

    It is the sum modulo 2**128 of a BLAKE2b-128 for each sample, read as a little-endian number.
    The input of the hash is `<position>:i<id>` for a whole number, both in decimal, or
    `<position>:s` or `<position>:b` and the UTF-8 text or the bytes.

    Args:
        positions: the position of each sample in the stream.
        ids: id of each sample in the data: an index, a name or a hash of its content.

    Raises:
        ValueError: the numbers of positions and ids differ.
        TypeError: a position is no whole number, or an id is neither one, nor text, nor bytes.
    """
    terms = (_term(position, name) for position, name in zip(positions, ids, strict=True))
    return _hexadecimal(sum(terms))


def merge_digests(digests: Iterable[str]) -> str:
    """Return the digest of all samples from the digests of parts of them.

    Raises:
        ValueError: a digest is not 32 hexadecimal digits.
    """
    return _hexadecimal(sum(map(_number, digests)))


def _term(position: SupportsIndex, name: SupportsIndex | str | bytes) -> int:
    if isinstance(name, str):
        content = b"s" + name.encode()
    elif isinstance(name, bytes):
        content = b"b" + name
    else:
        content = b"i%d" % index(name)
    hashed = blake2b(b"%d:" % index(position) + content, digest_size=16)
    return int.from_bytes(hashed.digest(), "little")


def _number(digest: str) -> int:
    if len(digest) != 32 or not set(digest) <= set("0123456789abcdef"):
        raise ValueError(f"digest {digest[:40]!r} is not 32 hexadecimal digits")
    return int(digest, 16)


def _hexadecimal(number: int) -> str:
    return f"{number % _MODULUS:032x}"
