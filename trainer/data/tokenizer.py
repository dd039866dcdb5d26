"""What a tokenizer is, and the one that needs no file: a token for each byte, and three more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainyard.spec.rules import BYTE_VOCABULARY

BOS, EOS, PAD = 256, 257, 258
"""Special tokens of the byte tokenizer."""
TOKENS_PER_BOUNDARY = 2
"""Special tokens of each document."""


class Tokenizer(Protocol):
    """Turns text into token ids and back. It crosses to other processes."""

    @property
    def name(self) -> str:
        """Part of the dataset's digest: where it differs, tokens may differ."""
        ...

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        ...

    @property
    def bos(self) -> int | None:
        """Token before each document, if any."""
        ...

    @property
    def eos(self) -> int:
        """Token behind each document."""
        ...

    def encode_batch(self, texts: Sequence[bytes]) -> list[NDArray[Any]]:
        """Return the tokens `[n]` of each text as `dtype_of(self)`, without special ones."""
        ...

    def decode(self, tokens: Iterable[int] | NDArray[np.integer]) -> str:
        """Return the text of tokens; special ones are left out."""
        ...


def dtype_of(tokenizer: Tokenizer) -> np.dtype[Any]:
    """Return the smallest type that the token cache may have: 16 or 32 bits, little-endian."""
    return np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")


class ByteTokenizer:
    """Maps bytes to themselves; needs no file and never meets an unknown character."""

    name = "byte"
    vocab_size = BYTE_VOCABULARY
    bos = BOS
    eos = EOS

    def encode(self, data: bytes) -> NDArray[np.uint16]:
        """Return the tokens `[len(data)]` of bytes, without special tokens."""
        return np.frombuffer(data, dtype=np.uint8).astype(np.dtype("<u2"))

    def encode_batch(self, texts: Sequence[bytes]) -> list[NDArray[Any]]:
        """Return the tokens of each text."""
        return [self.encode(text) for text in texts]

    def decode(self, tokens: Iterable[int] | NDArray[np.integer]) -> str:
        """Return the text of tokens; special ones are left out, broken UTF-8 becomes U+FFFD."""
        return bytes(int(t) for t in tokens if 0 <= t < BOS).decode("utf-8", errors="replace")
