"""The byte tokenizer: one token for each byte, and three special ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

BOS, EOS, PAD = 256, 257, 258
TOKENS_PER_BOUNDARY = 2


class ByteTokenizer:
    """Maps bytes to themselves; needs no file and never meets an unknown character."""

    name = "byte"
    vocab_size = 259
    dtype = np.dtype("<u2")

    def encode(self, data: bytes) -> NDArray[np.uint16]:
        """Return the tokens `[len(data)]` of bytes, without special tokens."""
        return np.frombuffer(data, dtype=np.uint8).astype(self.dtype)

    def encode_document(self, chunks: Iterable[bytes]) -> Iterator[NDArray[np.uint16]]:
        """Yield the tokens of one document, piece by piece: BOS, its bytes, EOS."""
        yield np.array([BOS], dtype=self.dtype)
        for chunk in chunks:
            yield self.encode(chunk)
        yield np.array([EOS], dtype=self.dtype)

    def count(self, size: int) -> int:
        """Return the number of tokens of a document of `size` bytes."""
        return size + TOKENS_PER_BOUNDARY

    def decode(self, tokens: Iterable[int] | NDArray[np.integer]) -> str:
        """Return the text of tokens; special ones are left out, broken UTF-8 becomes U+FFFD."""
        return bytes(int(t) for t in tokens if 0 <= t < BOS).decode("utf-8", errors="replace")
