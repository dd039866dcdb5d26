"""DCP's metadata: unpickles it safely, checks each tensor, and compares it with a job's tensors."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from trainer.checkpoint.chunks.divided_tensor import TensorKind
from trainer.checkpoint.tensors import OPTIMIZER, WEIGHTS
from trainer.errors import CheckpointError
from trainer.storage.root import StoragePath
from trainyard.protocol.manifest import Manifest
from trainyard.run.checkpoint_faults import CheckpointFault

SHOWN = 8
"""Maximum number of tensors that an error names for each kind of difference; further tensors are
only counted.
"""

# A pickle names functions, and reading the pickle calls them. Only the names that DCP writes are
# accepted; these functions only store their arguments.
_CLASSES: tuple[Any, ...] = (
    metadata.BytesStorageMetadata,
    metadata.ChunkStorageMetadata,
    metadata.Metadata,
    metadata.MetadataIndex,
    metadata.StorageMeta,
    metadata.TensorProperties,
    metadata.TensorStorageMetadata,
    metadata._MEM_FORMAT_ENCODING,
    filesystem._StorageInfo,
    torch.Size,
    torch.serialization._get_layout,
)
_ALLOWED: dict[tuple[str, str], Any] = {
    (allowed.__module__, allowed.__qualname__): allowed for allowed in _CLASSES
} | {
    ("torch", name): value for name, value in vars(torch).items() if isinstance(value, torch.dtype)
}
# DCP's own writer stores the path of the folder. A pure path has no access to the file system.
_ALLOWED |= {(module, "PosixPath"): PurePosixPath for module in ("pathlib", "pathlib._local")}


def read_metadata(content: bytes, path: StoragePath) -> metadata.Metadata:
    """Return the DCP metadata in `content`; errors name `path`.

    Raises:
        CheckpointError: the content is not a pickle, or names an object that checkpoint metadata
            does not contain.
    """
    refused = partial(CheckpointError, path=str(path), fault=CheckpointFault.METADATA_REFUSED)
    try:
        _check_memo(content)
        found = _Unpickler(io.BytesIO(content)).load()
    except Exception as error:  # a damaged pickle can raise any exception
        raise refused(f"{path} is refused: {error}") from error
    if not isinstance(found, metadata.Metadata):
        raise refused(f"{path} holds no checkpoint metadata")
    return found


def _check_memo(content: bytes) -> None:
    """Refuse a memo index that no pickler writes; reading it would allocate 64 GiB."""
    memoized = 0
    for opcode, place, _ in pickletools.genops(content):
        if opcode.name == "MEMOIZE":
            memoized += 1
        elif opcode.name in {"PUT", "BINPUT", "LONG_BINPUT"}:
            if not isinstance(place, int) or place > memoized:
                raise pickle.UnpicklingError(f"{opcode.name} {place} after {memoized} objects")
            memoized += 1


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}") from None


def check_cover(metadata: Metadata, path: StoragePath) -> None:
    """Reject tensors whose chunks leave a hole, overlap, lie outside, or are not stored.

    DCP would leave a hole unread. Where chunks overlap, it would keep the chunk that it reads last.

    Raises:
        CheckpointError: an invalid tensor; the message names the first such tensor and `path`.
    """
    known: dict[object, str | None] = {}  # layers have the same chunks, checked once
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            continue  # an object, which `compare` reports
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
    """Return why the chunks do not cover a tensor exactly once; None if they do.

    Chunks cover a tensor exactly once if they lie inside of it, do not overlap, and together hold
    all of its elements.
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
    for index in range(len(low) - 1):  # by rows: all pairs would take n x n memory
        ahead = (low[index] < high[index + 1 :]) & (low[index + 1 :] < high[index])
        if ahead.all(axis=1).any():
            return "two of its chunks overlap"
    held = sum(prod(c.sizes) for c in chunks)
    return None if held == prod(size) else f"its chunks hold {held:,}"


def _unstored(name: str, entry: TensorStorageMetadata, metadata: Metadata) -> str | None:
    stored = metadata.storage_data
    missing = [c for c in entry.chunks if MetadataIndex(name, c.offsets) not in stored]
    return f"its chunk at {tuple(missing[0].offsets)} is stored nowhere" if missing else None


@dataclass(frozen=True)
class Comparison:
    """The differences between the tensors of a checkpoint and those of a job."""

    alike: int
    """Number of tensors that agree in name, shape and dtype."""
    missing: tuple[tuple[str, TensorKind], ...]
    """Tensors of the job that the checkpoint lacks."""
    unexpected: tuple[tuple[str, TensorKind | None], ...]
    """Tensors of the checkpoint that the job lacks."""
    changed: tuple[tuple[str, TensorKind | None, TensorKind], ...]
    """Tensors whose shape or dtype differs: name, stored kind (None for an object), wanted kind."""

    @property
    def fits(self) -> bool:
        """Whether the checkpoint holds exactly the tensors of the job."""
        return not (self.missing or self.unexpected or self.changed)

    def __str__(self) -> str:
        lines = [
            f"{self.alike} tensors alike, {len(self.missing)} missing, "
            f"{len(self.unexpected)} unexpected, {len(self.changed)} changed"
        ]
        differences = {
            "missing in the checkpoint": [f"{n}: {k}" for n, k in self.missing],
            "unexpected in the checkpoint": [
                f"{n}: {k or 'no tensor'}" for n, k in self.unexpected
            ],
            "changed": [
                f"{n} is {t or 'no tensor'} there and {h} here" for n, t, h in self.changed
            ],
        }
        for title, tensors in differences.items():
            if tensors:
                lines += [f"  {title}:", *(f"    {tensor}" for tensor in tensors[:SHOWN])]
            if len(tensors) > SHOWN:
                lines.append(f"    and {len(tensors) - SHOWN} more")
        return "\n".join(lines)


def kinds_of(tensors: Mapping[str, Tensor]) -> dict[str, TensorKind]:
    """Return dtype and shape of each tensor; for a sharded tensor, the shape of the whole."""
    return {
        name: TensorKind(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in tensors.items()
    }


def without_aliases(
    stored: Mapping[str, TensorKind | None], tied: Mapping[str, str]
) -> dict[str, TensorKind | None]:
    """Return stored tensors without the additional names of tied weights in old checkpoints.

    A name with optimizer state belonged to an untied weight when the checkpoint was written. Such a
    name is kept, so the checkpoint does not fit the model.

    Args:
        stored: tensors of the checkpoint, by name.
        tied: additional names of tied weights, each with its first name (`tied_weights`).
    """

    def is_alias(name: str) -> bool:
        moment = f"{OPTIMIZER}{name.removeprefix(WEIGHTS)}.exp_avg"
        return name in tied and tied[name] in stored and moment not in stored

    return {name: kind for name, kind in stored.items() if not is_alias(name)}


def compare(
    stored: Mapping[str, TensorKind | None],
    wanted: Mapping[str, TensorKind],
    *,
    parts: tuple[str, ...] = ("",),
) -> Comparison:
    """Compare the tensors of a checkpoint with the tensors of all ranks together.

    Args:
        stored: tensors of the checkpoint, by name; None for an object.
        wanted: tensors to load, by name.
        parts: name prefixes to load, such as `model.`; other names are not compared.
    """
    stored = {name: kind for name, kind in stored.items() if name.startswith(parts)}
    both = sorted(stored.keys() & wanted.keys())
    changed = tuple((n, stored[n], wanted[n]) for n in both if stored[n] != wanted[n])
    return Comparison(
        alike=len(both) - len(changed),
        missing=tuple((n, wanted[n]) for n in sorted(wanted.keys() - stored.keys())),
        unexpected=tuple((n, stored[n]) for n in sorted(stored.keys() - wanted.keys())),
        changed=changed,
    )


def remedy_of(comparison: Comparison, manifest: Manifest) -> str:
    """Return the settings that would make the job fit the checkpoint."""
    found = (comparison.missing, comparison.unexpected, comparison.changed)
    if all(different[0].startswith("optimizer.") for kind in found for different in kind):
        return "The weights fit: set optimizer as it was when the checkpoint was written."
    if not (comparison.missing or comparison.unexpected) and all(
        kind is not None and kind.shape == wanted.shape for _, kind, wanted in comparison.changed
    ):
        kept = manifest.param_dtype
        return f"Set training.weight_dtype={kept!r}, in which the checkpoint's weights are kept."
    if manifest.model is None:
        return "Give the job the model of the one that wrote it."
    model = manifest.model
    fields = {"family": model.family, "size": model.size, **model.model_dump(exclude_defaults=True)}
    words = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    return f"Set model as it was when the checkpoint was written: {words}."
