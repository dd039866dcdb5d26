"""Whether the stored chunks of each tensor cover it exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from trainer.errors import CheckpointError
from trainer.storage.root import StoragePath
from trainyard.run.checkpoint_faults import CheckpointFault


def check_cover(metadata: Metadata, path: StoragePath) -> None:
    """Refuse a tensor whose chunks leave a hole, overlap, lie outside of it or are stored nowhere.

    DCP would leave a hole as it was, and of an overlap take whichever chunk it reads last.

    Raises:
        CheckpointError: the first such tensor, by name; `path` is the metadata's.
    """
    known: dict[object, str | None] = {}  # layers are cut alike
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            continue  # no tensor: the comparison with what is to be filled refuses it
        pattern = (entry.size, tuple((chunk.offsets, chunk.sizes) for chunk in entry.chunks))
        if pattern not in known:
            known[pattern] = _flaw(tuple(entry.size), entry.chunks)
        flaw = known[pattern] or _unstored(name, entry, metadata)
        if flaw is not None:
            raise CheckpointError(
                f"{path}: {name} has {prod(entry.size):,} elements, but {flaw}",
                path=str(path),
                fault=CheckpointFault.TENSOR_INCOMPLETE,
            )


def _flaw(size: tuple[int, ...], chunks: Sequence[ChunkStorageMetadata]) -> str | None:
    """Return why boxes do not make up a tensor of this size exactly once; None if they do.

    Boxes that lie inside, of which no two overlap, and that hold as many elements in all.
    """
    if any(len(c.offsets) != len(size) or len(c.sizes) != len(size) for c in chunks):
        return f"a chunk has other dimensions than {size}"
    low = np.array([tuple(c.offsets) for c in chunks], dtype=np.int64).reshape(
        len(chunks), len(size)
    )
    sizes = np.array([tuple(c.sizes) for c in chunks], dtype=np.int64).reshape(
        len(chunks), len(size)
    )
    if (low < 0).any() or (sizes < 0).any() or (low + sizes > np.array(size, dtype=np.int64)).any():
        return "a chunk lies outside of it"
    filled = (sizes > 0).all(axis=1)
    low, high = low[filled], (low + sizes)[filled]
    for index in range(len(low) - 1):  # row by row: all pairs at once would take n x n memory
        ahead = (low[index] < high[index + 1 :]) & (low[index + 1 :] < high[index])
        if ahead.all(axis=1).any():
            return "two of its chunks overlap"
    held = sum(prod(c.sizes) for c in chunks)
    return None if held == prod(size) else f"its chunks hold {held:,}"


def _unstored(name: str, entry: TensorStorageMetadata, metadata: Metadata) -> str | None:
    stored = metadata.storage_data
    missing = [c for c in entry.chunks if MetadataIndex(name, c.offsets) not in stored]
    return f"its chunk at {tuple(missing[0].offsets)} is stored nowhere" if missing else None
