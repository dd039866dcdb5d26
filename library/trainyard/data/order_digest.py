"""Digest of the samples in a step and their order, the same for any world size.

Each rank digests its own samples with their positions in the stream, and the digests of all ranks
are added. So a rank needs neither a collective nor samples of other ranks. The sum does not depend
on the division into ranks. It depends on the order, because each term contains a sample and its
position. The digest detects mistakes, not forgery.
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

    The digest is a sum modulo 2**128 over the samples. Each term is a BLAKE2b-128, read as a
    little-endian number. The input of the hash is `<position>:i<id>` for an integer id, both in
    decimal; for a text it is `<position>:s` and the UTF-8 text, for bytes `<position>:b` and the
    bytes.

    Args:
        positions: position of each sample in the stream.
        ids: id of each sample: its index, its name or a hash of its content.

    Raises:
        ValueError: the numbers of positions and ids differ.
        TypeError: a position is not an integer, or an id is not an integer, text or bytes.
    """
    terms = (_term(position, name) for position, name in zip(positions, ids, strict=True))
    return _hexadecimal(sum(terms))


def merge_digests(digests: Iterable[str]) -> str:
    """Return the digest of all samples, given the digests of parts of the samples.

    Raises:
        ValueError: a digest is not 32 hexadecimal digits in lower case.
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
