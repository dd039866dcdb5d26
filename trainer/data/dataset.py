"""The dataset of a job: an endless stream of fixed windows, the same on every rank."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from specs.job import JobSpec
from trainer.data import token_cache
from trainer.data.corpus import Corpus, open_corpus, shown, survey
from trainer.data.permutation import Permutation
from trainer.data.token_cache import Piece, TokenCache
from trainer.data.tokenizer import ByteTokenizer
from trainer.errors import DataError

FORMAT_VERSION = 1
"""Changes whenever the same files would give other windows or another order."""

PROGRESS_SECONDS = 0.5


class Dataset:
    """Windows of a token file, in an order that depends on the seed and the position alone.

    The documents lie one after another, each between BOS and EOS, and are cut into windows of
    `seq_len + 1` tokens. Neighbours share one token, so that every token but the first is a target
    once an epoch; what is left at the end is shorter than a window and not used. Windows cross the
    boundaries of documents; with `document_masks` they come with the number of the document that
    each token belongs to.
    """

    def __init__(
        self,
        cache: TokenCache,
        *,
        seq_len: int,
        seed: int,
        tokenizer: str,
        document_masks: bool = False,
    ) -> None:
        self._tokens = cache.tokens
        self._starts = cache.starts
        self.document_masks = document_masks
        """Whether documents are to be kept apart: `segments` then tells them apart."""
        self.seq_len = seq_len
        self.n_sequences = (cache.tokens.size - 1) // seq_len
        """Windows in one epoch."""
        self.digest = _digest(
            {
                "format_version": FORMAT_VERSION,
                "tokens_xxh3_128": cache.digest,
                "tokenizer": tokenizer,
                "seq_len": seq_len,
                "n_sequences": self.n_sequences,
                **({"documents_xxh3_128": cache.starts_digest} if document_masks else {}),
            }
        )
        """Covers all that the model is given, and the format: equal on every node."""
        self._permutation = lru_cache(maxsize=2)(
            lambda epoch: Permutation(self.n_sequences, seed, epoch)
        )

    def window(self, position: int) -> NDArray[np.int64]:
        """Return the tokens `[seq_len + 1]` at a position of the endless stream, from 0."""
        return self.windows(np.array([position]))[0]

    def windows(self, positions_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens `[B, seq_len + 1]` at positions of the endless stream.

        Position p is entry `p % n_sequences` of the permutation of epoch `p // n_sequences`.
        """
        windows_BT = np.empty((positions_B.size, self.seq_len + 1), dtype=np.int64)
        for row, start in enumerate(self.order(positions_B) * self.seq_len):
            windows_BT[row] = self._tokens[start : start + self.seq_len + 1]
        return windows_BT

    def segments(self, positions_B: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the document of each input token `[B, seq_len]`, numbered from 0 in each window.

        Boundaries come from the index of the token cache, so they do not depend on which tokens
        the tokenizer puts between documents.
        """
        segments_BS = np.zeros((positions_B.size, self.seq_len), dtype=np.int32)
        first_B = self.order(positions_B) * self.seq_len
        # A document that begins with the window's first token begins no further segment.
        low_B = np.searchsorted(self._starts, first_B, side="right")
        high_B = np.searchsorted(self._starts, first_B + self.seq_len, side="left")
        for row, (first, low, high) in enumerate(zip(first_B, low_B, high_B, strict=True)):
            segments_BS[row, self._starts[low:high] - first] = 1
        return segments_BS.cumsum(axis=1, dtype=np.int32)

    def order(self, positions_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which window of the token file stands at each position `[B]`."""
        epochs_B, within_B = np.divmod(positions_B, self.n_sequences)
        order_B = np.empty_like(within_B)
        for epoch in np.unique(epochs_B):
            chosen = epochs_B == epoch
            order_B[chosen] = self._permutation(int(epoch))(within_B[chosen])
        return order_B


def open_dataset(
    spec: JobSpec,
    *,
    roots: Mapping[str, str],
    cache_dir: Path,
    on_progress: Callable[[], None],
) -> Dataset:
    """Open the dataset of a job, after building its token cache when this node has none.

    Args:
        spec: the job's spec.
        roots: absolute path on this node of each named root.
        cache_dir: folder of this node's token caches.
        on_progress: called about every half second while this or another process builds.

    Raises:
        DataError: the input is missing, outside its root, unreadable, changing or too short.
    """
    on_progress = _at_most_every(PROGRESS_SECONDS, on_progress)
    corpus = open_corpus(spec.data, roots)
    tokenizer = ByteTokenizer()
    identity = survey(spec, corpus, on_progress)
    key = {
        "format_version": token_cache.FORMAT_VERSION,
        "input": shown(corpus.top),
        "documents": identity,
        "tokenizer": tokenizer.name,
        "max_tokens": spec.data.max_tokens,
    }
    cache = token_cache.open_token_cache(
        cache_dir,
        _digest(key),
        dtype=tokenizer.dtype,
        produce=lambda: _tokens(spec, corpus, tokenizer, identity),
        on_progress=on_progress,
    )
    return Dataset(
        cache,
        seq_len=spec.training.seq_len,
        seed=spec.training.seed,
        tokenizer=tokenizer.name,
        document_masks=spec.data.document_masks,
    )


def _tokens(
    spec: JobSpec, corpus: Corpus, tokenizer: ByteTokenizer, identity: str
) -> Iterator[Piece]:
    """Yield the tokens of all documents, up to `max_tokens` of them, in pieces."""
    left = spec.data.max_tokens or sys.maxsize
    read = xxhash.xxh3_128()
    for document in corpus.documents():
        read.update(document.identity)
        if left <= 0:
            continue
        begins = True
        for tokens in tokenizer.encode_document(corpus.read(document)):
            yield Piece(tokens[:left], begins)
            begins = False
            left -= tokens.size
            if left <= 0:
                break
    if read.hexdigest() != identity:
        # Stored under the key of the files that were seen first, it would mislead every later job.
        raise DataError(
            f"{corpus.field}: files below {shown(corpus.top)} came, went or were written to while "
            "they were read; start again when the input is complete",
            path=shown(corpus.top),
        )


def _digest(fields: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(fields, sort_keys=True).encode())


def _at_most_every(seconds: float, call: Callable[[], None]) -> Callable[[], None]:
    """Return a function that passes on the first call, and later ones after a pause."""
    last = -math.inf

    def limited() -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds:
            last = now
            call()

    return limited
