"""The interface of tokenizers, and the byte tokenizer with 256 bytes and three special tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainyard.spec.rules import BYTE_VOCABULARY

BOS, EOS, PAD = 256, 257, 258
"""Special tokens of the byte tokenizer."""
TOKENS_PER_BOUNDARY = 2
"""Number of special tokens that the byte tokenizer adds per document."""


class Tokenizer(Protocol):
    """Converts text to token ids and token ids to text; it must be picklable."""

    @property
    def name(self) -> str:
        """Name of the tokenizer for the dataset's digest; equal names must mean equal tokens."""
        ...

    @property
    def vocab_size(self) -> int:
        """Largest token id plus 1."""
        ...

    @property
    def bos(self) -> int | None:
        """Token id before each document; None without one."""
        ...

    @property
    def eos(self) -> int:
        """Token id after each document."""
        ...

    def encode_batch(self, texts: Sequence[bytes]) -> list[NDArray[Any]]:
        """Return each text's tokens `[n]`, of dtype `dtype_of(self)`, without special tokens."""
        ...

    def decode(self, tokens: Iterable[int] | NDArray[np.integer]) -> str:
        """Return the text of tokens, without special tokens."""
        ...


def dtype_of(tokenizer: Tokenizer) -> np.dtype[Any]:
    """Return the dtype of a tokenizer's token cache: 16 or 32 bits, little-endian."""
    return np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")


class ByteTokenizer:
    """Maps each byte to the token with its value; it needs no file and can encode any text."""

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
        """Return the text of tokens, leaving out special tokens; invalid UTF-8 becomes U+FFFD."""
        return bytes(int(t) for t in tokens if 0 <= t < BOS).decode("utf-8", errors="replace")
