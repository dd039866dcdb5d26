"""The dataset of a job: an endless stream of fixed windows, equal on every rank."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from trainer.data.cache import token_cache
from trainer.data.cache.producer import InputTokens
from trainer.data.cache.token_cache import TokenCache
from trainer.data.files import reader
from trainer.data.files.places import shown
from trainer.data.files.sources import open_source
from trainer.data.open_tokenizer import open_tokenizer
from trainer.data.survey import refuse_short, survey
from trainer.data.windows import HeldOutOrder, Order, TrainingOrder
from trainyard.spec.job import JobSpec

FORMAT_VERSION = 1
"""Format version; raise it if a change of the code changes the windows of a file or their order."""

PROGRESS_SECONDS = 0.5


class Dataset:
    """Windows of a token file, in an order that depends only on seed and position.

    The token file contains all documents, each between the tokenizer's BOS and EOS. The tokens are
    cut into windows of `seq_len + 1` tokens. Adjacent windows share one token, so every token
    except the first is a target in exactly one window. Tokens after the last whole window are
    unused. Windows cross document boundaries; with `document_masks`, `segments` returns the
    document of each token.
    """

    def __init__(
        self,
        cache: TokenCache,
        order: Order,
        *,
        seq_len: int,
        document_masks: bool,
        digest: str,
        same_order: frozenset[str],
        validation: Dataset | None = None,
    ) -> None:
        self._tokens = cache.tokens
        self._starts = cache.starts
        self.order = order
        """Maps positions `[B]` in the stream to indices of windows in the token file."""
        self.seq_len = seq_len
        self.n_sequences = order.n_sequences
        """Number of windows in one epoch."""
        self.document_masks = document_masks
        """Whether attention is restricted to single documents; the model then needs `segments`."""
        self.digest = digest
        """Digest of tokens, number and length of windows, masks and format, but not of the seed."""
        self.same_order = same_order
        """Digests of this dataset with and without document masks; both have the same sequence
        order.
        """
        self.validation = validation
        """The held-out windows, in the same order in every epoch; None without a held-out split."""

    def windows(self, positions_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens `[B, seq_len + 1]` at positions in the endless stream."""
        windows_BT = np.empty((positions_B.size, self.seq_len + 1), dtype=np.int64)
        for row, start in enumerate((self.order(positions_B) * self.seq_len).tolist()):
            windows_BT[row] = self._tokens[start : start + self.seq_len + 1]
        return windows_BT

    def segments(self, positions_B: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the document index of each input token `[B, seq_len]`, from 0 in each window.

        Boundaries come from the cache's index, because a tokenizer may lack special tokens.
        """
        segments_BS = np.zeros((positions_B.size, self.seq_len), dtype=np.int32)
        first_B = self.order(positions_B) * self.seq_len
        # side="right": a document that starts at the window's first token is segment 0.
        low_B = np.searchsorted(self._starts, first_B, side="right")
        high_B = np.searchsorted(self._starts, first_B + self.seq_len, side="left")
        for row, (first, low, high) in enumerate(zip(first_B, low_B, high_B, strict=True)):
            segments_BS[row, self._starts[low:high] - first] = 1
        return segments_BS.cumsum(axis=1, dtype=np.int32)


def open_dataset(
    spec: JobSpec,
    *,
    roots: Mapping[str, str],
    cache_dir: Path,
    on_progress: Callable[[], None],
    processes: int | None = None,
) -> Dataset:
    """Open the dataset of a job; build its token cache first if this node has none.

    Args:
        spec: the job's spec.
        roots: absolute path of each root on this node, by name.
        cache_dir: folder of this node's token caches.
        on_progress: called at most every half second while this process lists the files, or while
            it or another one builds the cache.
        processes: number of processes that build the cache; None for one process per available
            core, but at most 64.

    Raises:
        DataError: the input is missing, outside of its root, unreadable, modified during the build,
            too short, or contradicts the spec; or the tokenizer cannot be used.
    """
    on_progress = _at_most_every(PROGRESS_SECONDS, on_progress)
    source, tokenizer = open_source(spec.data, roots), open_tokenizer(spec, roots)
    identity = survey(spec, source, tokenizer=tokenizer, on_progress=on_progress)
    producer = InputTokens(source, tokenizer, limit=spec.data.max_tokens, identity=identity)
    data = spec.data
    key = {
        "format_version": token_cache.FORMAT_VERSION,
        "input": shown(source.corpus.top),
        "source": data.source,
        "text_field": data.text_field,
        "documents": identity,
        "part_bytes": reader.PART_BYTES,
        "tokenizer": tokenizer.name,
        "max_tokens": data.max_tokens,
        # Tokens of older versions may start with a text's byte order mark; other formats never had
        # a mark.
        **({"marks": "left out"} if data.source == "text" else {}),
    }
    cache = token_cache.open_token_cache(
        cache_dir, _digest(key), producer, on_progress=on_progress, processes=processes
    )
    refuse_short(spec, source, tokens=cache.tokens.size, documents=cache.starts.size)
    return _dataset(spec, cache, tokenizer.name)


def _dataset(spec: JobSpec, cache: TokenCache, tokenizer: str) -> Dataset:
    seq_len, masks, fraction = (
        spec.training.seq_len,
        spec.data.document_masks,
        spec.data.validation_fraction,
    )
    windows = (cache.tokens.size - 1) // seq_len
    seed = spec.training.seed
    training = TrainingOrder(windows, seed=seed, fraction=fraction)
    held_out = HeldOutOrder(windows, seed=seed, fraction=fraction) if fraction else None
    fields: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "tokens_xxh3_128": cache.digest,
        "tokenizer": tokenizer,
        "seq_len": seq_len,
        "n_sequences": training.n_sequences,
    }
    if held_out:
        fields["held_out"] = held_out.n_sequences
    # Masks are an input of the model, so `digest` covers them and must be equal on all nodes. The
    # order does not depend on masks, so a fork may change them and continue the stream.
    masked = _digest(fields | {"documents_xxh3_128": cache.starts_digest})
    plain = _digest(fields)
    digest = masked if masks else plain

    def dataset(order: Order, validation: Dataset | None = None) -> Dataset:
        return Dataset(
            cache,
            order,
            seq_len=seq_len,
            document_masks=masks,
            digest=digest,
            same_order=frozenset({masked, plain}),
            validation=validation,
        )

    return dataset(training, dataset(held_out) if held_out else None)


def _digest(fields: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(fields, sort_keys=True).encode())


def _at_most_every(seconds: float, call: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls `call` at most once in `seconds` seconds."""
    last = -math.inf

    def limited() -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds:
            last = now
            call()

    return limited
