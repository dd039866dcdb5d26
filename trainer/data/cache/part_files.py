"""The files of one part of a token cache; one process writes them and another joins them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from trainer.data.cache.producer import TokenPiece
from trainyard.base.model_base import RecordModel
from trainyard.run.atomic import replace_file

START = np.dtype("<i8")
WRITE_BUFFER_BYTES = 1 << 20
READ_BYTES = 4 << 20


class PartRecord(RecordModel):
    """`<number>.json`: counts and digests of a finished part."""

    tokens: Annotated[int, Field(ge=0)]
    """Number of tokens in the part."""
    documents: Annotated[int, Field(ge=0)]
    """Number of documents that start in the part."""
    tokens_xxh3_128: str
    """Digest of the tokens."""
    starts_xxh3_128: str
    """Digest of the starts of documents, relative to the part's first token."""


@dataclass(frozen=True)
class PartFiles:
    """The files of one part; the record is written last and marks the other files as complete."""

    folder: Path
    number: int
    dtype: np.dtype[Any]

    @property
    def tokens(self) -> Path:
        """File of the part's tokens; removed once the part is joined."""
        return self.folder / f"{self.number}.tokens"

    @property
    def starts(self) -> Path:
        """File of the indices at which documents start; removed once the part is joined."""
        return self.folder / f"{self.number}.starts"

    def record(self) -> PartRecord | None:
        """Return the record of a finished part; None if the part is not finished."""
        try:
            return PartRecord.model_validate_json(self._record.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def is_joined(self) -> bool:
        """Return whether the part is finished and joined; then only its record is left."""
        return self._record.exists() and not self.tokens.exists()

    def write(
        self, pieces: Iterator[TokenPiece], limit: int | None, beat: Callable[[], None]
    ) -> None:
        """Write a part of at most `limit` tokens; `beat` is called for each piece."""
        tokens_hash, starts_hash = xxhash.xxh3_128(), xxhash.xxh3_128()
        tokens = documents = 0
        # Written in place, not by rename: files without a record are ignored.
        self._record.unlink(missing_ok=True)
        with (
            self.tokens.open("wb", buffering=WRITE_BUFFER_BYTES) as tokens_file,
            self.starts.open("wb", buffering=WRITE_BUFFER_BYTES) as starts_file,
        ):
            for piece in cut(pieces, limit):
                assert piece.tokens.dtype == self.dtype
                starts = (piece.starts + tokens).astype(START)
                tokens_file.write(piece.tokens.data)
                starts_file.write(starts.data)
                tokens_hash.update(piece.tokens.data)
                starts_hash.update(starts.data)
                tokens += piece.tokens.size
                documents += starts.size
                beat()
        record = PartRecord(
            tokens=tokens,
            documents=documents,
            tokens_xxh3_128=tokens_hash.hexdigest(),
            starts_xxh3_128=starts_hash.hexdigest(),
        )
        replace_file(self._record, record.model_dump_json(), durable=False)

    def remove_content(self) -> None:
        """Remove the starts and then the tokens, because `is_joined` tests only for the tokens."""
        self.starts.unlink(missing_ok=True)
        self.tokens.unlink(missing_ok=True)

    @property
    def _record(self) -> Path:
        return self.folder / f"{self.number}.json"


def cut(pieces: Iterator[TokenPiece], limit: int | None) -> Iterator[TokenPiece]:
    """Yield pieces until they have `limit` tokens in total."""
    left = limit
    for piece in pieces:
        if left is None:
            yield piece
            continue
        yield TokenPiece(piece.tokens[:left], piece.starts[piece.starts < left])
        left -= piece.tokens.size
        if left <= 0:
            return


def blocks(path: Path, dtype: np.dtype[Any], *, start: int, count: int) -> Iterator[NDArray[Any]]:
    """Yield at most `count` values of a file, in blocks, from index `start` on."""
    with path.open("rb") as file:
        file.seek(start * dtype.itemsize)
        left = count * dtype.itemsize
        while left and (data := file.read(min(left, READ_BYTES))):
            left -= len(data)
            yield np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype=dtype)
