"""Checks an input before its token cache is built: its files, identity and length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

import xxhash

from trainer.data.files.places import shown
from trainer.data.files.sources import Source, open_source
from trainer.data.open_tokenizer import open_tokenizer
from trainer.data.tokenizer import TOKENS_PER_BOUNDARY, ByteTokenizer, Tokenizer
from trainer.data.windows import split_windows
from trainer.errors import DataError
from trainyard.spec.job import JobSpec


def check_input(spec: JobSpec, roots: Mapping[str, str]) -> None:
    """Reject an input that is unsuitable for training; of its texts, read only the first one.

    Args:
        spec: the job's spec.
        roots: absolute path of each root on this node, by name.

    Raises:
        DataError: the input is outside of its root, missing, empty, of another format than in the
            spec, or too short (as far as file sizes determine the number of tokens); or the
            tokenizer cannot be used.
    """
    source, tokenizer = open_source(spec.data, roots), open_tokenizer(spec, roots)
    survey(spec, source, tokenizer=tokenizer)
    for part in islice(source.parts(), 1):
        for _ in islice(source.texts(part), 1):
            pass


def survey(
    spec: JobSpec,
    source: Source,
    *,
    tokenizer: Tokenizer,
    on_progress: Callable[[], None] = lambda: None,
) -> str:
    """Return the identity of all files of an input, in hexadecimal.

    The identity covers names, sizes and times, but not contents. It changes with every added,
    removed or modified file. A file is read only if it is small enough to be a pointer of Git LFS.

    Raises:
        DataError: a file is not readable or is a pointer of Git LFS, the input has no file, or all
            files together are too short.
    """
    identity = xxhash.xxh3_128()
    files = size = 0
    for file in source.corpus.files():
        identity.update(file.identity)
        source.corpus.refuse_pointer(file)
        files += 1
        size += file.size
        on_progress()
    if not files:
        _refuse_empty(spec, source)
    if isinstance(tokenizer, ByteTokenizer) and spec.data.source in {"corpus", "text"}:
        tokens = size + files * TOKENS_PER_BOUNDARY
        refuse_short(spec, source, tokens=tokens, documents=files)
    return identity.hexdigest()


def refuse_short(spec: JobSpec, source: Source, *, tokens: int, documents: int) -> None:
    """Reject an input that has too few tokens for the windows that the spec requires.

    Raises:
        DataError: the input is too short; the message contains the number of tokens.
    """
    corpus, seq_len, limit = source.corpus, spec.training.seq_len, spec.data.max_tokens
    path = shown(corpus.top)
    used = tokens if limit is None else min(tokens, limit)
    limited = "" if used == tokens else f", of which data.max_tokens={limit} leaves {used}"
    held = f"{corpus.field}: {path} holds {tokens} tokens in {documents} documents{limited}"
    if used <= seq_len:
        raise DataError(
            f"{held}; one sequence of training.seq_len={seq_len} needs {seq_len + 1}: give more "
            "text or a smaller seq_len",
            path=path,
        )
    windows = (used - 1) // seq_len
    fraction = spec.data.validation_fraction
    training, held_out = split_windows(windows, fraction)
    if fraction and not (training and held_out):
        raise DataError(
            f"{held}: {windows} sequences of training.seq_len={seq_len}, of which "
            f"data.validation_fraction={fraction} leaves {training} for training and {held_out} "
            f"for validation; {_legal_fractions(windows)}",
            path=path,
        )


def _refuse_empty(spec: JobSpec, source: Source) -> None:
    path, needed = shown(source.corpus.top), spec.training.seq_len + 1
    kinds = {
        "jsonl": "no file of JSON lines (.jsonl, .ndjson or .json, or these with .gz or .zst)",
        "parquet": "no .parquet file",
        "huggingface": "no .arrow, .parquet or .jsonl file",
    }
    what = kinds.get(spec.data.source, "no file")
    raise DataError(
        f"{source.corpus.field}: {path} is empty: {what} with content; one sequence of "
        f"training.seq_len={needed - 1} needs {needed} tokens",
        path=path,
    )


def _legal_fractions(windows: int) -> str:
    if windows == 1:
        return "one sequence cannot be divided: give more text or a smaller seq_len"
    return f"legal: from {1.01 / windows:.3g} to below 1"  # larger than a rounding error
