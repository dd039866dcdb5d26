"""Producers of tokens, which read the input of a token cache part by part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from trainer.data.files.corpus import InputFile
from trainer.data.files.places import shown
from trainer.data.files.reader import Part, Text, gathered
from trainer.data.files.sources import Source
from trainer.data.tokenizer import Tokenizer, dtype_of
from trainer.errors import DataError


@dataclass(frozen=True)
class TokenPiece:
    """Consecutive tokens of a part."""

    tokens: NDArray[Any]
    """Token ids `[n]`."""
    starts: NDArray[np.int64]
    """Indices of the tokens that start a document, in ascending order."""


class Producer(Protocol):
    """Source of a cache's tokens; it must be picklable."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens."""
        ...

    @property
    def limit(self) -> int | None:
        """Maximum number of tokens in the cache; None for no limit."""
        ...

    def parts(self) -> Iterator[Any]:
        """Yield the parts of the input; every call yields the same parts in the same order.

        Raises:
            DataError: the input does not match this cache; raised during or at the end of the
                iteration.
        """
        ...

    def pieces(self, part: Any) -> Iterator[TokenPiece]:
        """Yield the tokens of a part; they depend only on the part.

        Raises:
            DataError: the input is unreadable or damaged.
        """
        ...


@dataclass(frozen=True)
class InputTokens:
    """The tokens of an input: each document between the tokenizer's BOS and EOS."""

    source: Source
    tokenizer: Tokenizer
    limit: int | None
    identity: str
    """Identity of the input's files; the key of the cache was computed from this identity."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens."""
        return dtype_of(self.tokenizer)

    def parts(self) -> Iterator[Part]:
        """Yield parts of the input.

        Raises:
            DataError: a file is unreadable or damaged, or the files have changed since `identity`
                was computed.
        """
        identity = xxhash.xxh3_128()

        def add(file: InputFile) -> None:
            identity.update(file.identity)

        yield from self.source.parts(on_file=add)
        if identity.hexdigest() != self.identity:
            # Published under the old files' key, the cache would serve wrong tokens to later jobs.
            corpus = self.source.corpus
            raise DataError(
                f"{corpus.field}: files below {shown(corpus.top)} came, went or were written to "
                "while they were read; start again when the input is complete",
                path=shown(corpus.top),
            )

    def pieces(self, part: Part) -> Iterator[TokenPiece]:
        """Yield the tokens of a part; each piece covers about 1 MiB of text."""
        for texts in gathered(self.source.texts(part)):
            yield self._piece(texts)

    def _piece(self, texts: list[Text]) -> TokenPiece:
        bos, eos = self.tokenizer.bos, self.tokenizer.eos
        before = np.array([] if bos is None else [bos], dtype=self.dtype)
        after = np.array([eos], dtype=self.dtype)
        tokens: list[NDArray[Any]] = []
        starts: list[int] = []
        size = 0
        encoded = self.tokenizer.encode_batch([text.data for text in texts])
        for text, body in zip(texts, encoded, strict=True):
            if text.begins:
                starts.append(size)
                tokens.append(before)
                size += before.size
            tokens.append(body)
            size += body.size
            if text.ends:
                tokens.append(after)
                size += 1
        return TokenPiece(np.concatenate(tokens), np.array(starts, dtype=np.int64))
