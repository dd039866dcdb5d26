"""DCP's file reader, for a checkpoint that was checked before a byte of it is used."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.futures import Future

from specs.attempt import ResumePoint
from specs.checkpoint import DCP_METADATA, Manifest, ManifestFile
from trainer.checkpoint.comparison import TensorKind, compare, refuse_unless_it_fits
from trainer.checkpoint.pieces import Piece, read_pieces
from trainer.checkpoint.store import check_contents, check_sizes, metadata_digest, read_manifest
from trainer.checkpoint.unpickler import load_metadata
from trainer.errors import CheckpointError


class CheckedReader(FileSystemReader):
    """Reads a checkpoint's tensors; `open` comes first and decides whether it may be read."""

    manifest: Manifest
    """Manifest of the opened checkpoint."""
    metadata: Metadata
    """DCP metadata of the opened checkpoint."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self._share: dict[str, str] = {}

    def open(
        self,
        resume: ResumePoint,
        wanted: Mapping[str, TensorKind],
        *,
        parts: tuple[str, ...] = ("",),
    ) -> None:
        """Check all but the contents of the data files.

        Args:
            resume: which checkpoint it must be.
            wanted: what all ranks will read together.
            parts: beginnings of the names that are read, such as `model.`; all without.

        Raises:
            MismatchError: it does not hold exactly what will be read in these parts.
            CheckpointError: it is not committed, not the one of `resume`, or damaged.
        """
        self.look(resume)
        path = self.folder / DCP_METADATA
        comparison = compare(self.metadata, wanted, parts=parts)
        refuse_unless_it_fits(comparison, self.manifest, path)
        _check_places(self.metadata, self.manifest.files, path)

    def look(self, resume: ResumePoint) -> None:
        """Read manifest and metadata, and check that they are whole and those of `resume`.

        Raises:
            CheckpointError: it is not committed, not the one of `resume`, or damaged.
        """
        self.manifest = read_manifest(self.folder)
        _check_identity(self.manifest, resume, self.folder)
        check_sizes(self.folder, self.manifest.files)
        self.metadata = load_metadata(
            self.folder / DCP_METADATA, expected_digest=resume.metadata_digest
        )

    def check_share(self, rank: int, world_size: int) -> None:
        """Check the contents of a rank's share of the files, before anything of them is read.

        Raises:
            CheckpointError: a byte differs.
        """
        by_size = sorted(self.manifest.files, key=lambda file: (-file.size, file.path))
        check_contents(self.folder, by_size[rank::world_size])

    def take_share(self, rank: int, world_size: int) -> None:
        """Take a rank's share of the files: their checksums are checked while they are read.

        Each file has one rank, so that the ranks together check the checkpoint once, however many
        of them need a part of the same file. On the layout that wrote it, it is the rank that needs
        all of it.
        """
        data = [file for file in self.manifest.files if file.path != DCP_METADATA]  # it was checked
        data.sort(key=lambda file: (len(file.path), file.path))
        self._share = {file.path: file.xxh3_128 for file in data[rank::world_size]}

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan wants, and check this rank's share of the files.

        Raises:
            CheckpointError: a byte of the share differs; what was read is of no use then.
        """
        wanted: dict[str, dict[MetadataIndex, Piece]] = {name: {} for name in self._share}
        for request in plan.items:
            index = request.storage_index
            place = self.metadata.storage_data[index]
            pieces = wanted.setdefault(place.relative_path, {})
            if index not in pieces:
                pieces[index] = Piece(place, *self._chunk(index))
            pieces[index].requests.append(request)
        for name, pieces in sorted(wanted.items()):
            path, digest = self.folder / name, self._share.get(name)
            read_pieces(path, pieces.values(), planner, digest=digest)
        read: Future[None] = Future()
        read.set_result(None)
        return read

    def _chunk(self, index: MetadataIndex) -> tuple[ChunkStorageMetadata, torch.dtype]:
        entry = self.metadata.state_dict_metadata[index.fqn]
        assert isinstance(entry, TensorStorageMetadata)
        chunk = next(chunk for chunk in entry.chunks if chunk.offsets == index.offset)
        return chunk, entry.properties.dtype

    def read_alone(self, tensors: Mapping[str, Tensor]) -> None:
        """Fill tensors of the opened checkpoint in this process, which is no rank of any launch."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.load(dict(tensors), storage_reader=self, no_dist=True)

    def read_metadata(self, *_args: Any, **_options: Any) -> Metadata:
        """Return the metadata that `open` checked: DCP's own version unpickles anything."""
        return self.metadata


def point_at(manifest: Manifest, folder: Path) -> ResumePoint:
    """Return the resume point of a checkpoint whose manifest was just read."""
    return ResumePoint(
        checkpoint_id=manifest.checkpoint_id,
        path=str(folder),
        step=manifest.train_state.step,
        metadata_digest=metadata_digest(manifest),
    )


def _check_identity(manifest: Manifest, resume: ResumePoint, folder: Path) -> None:
    found = (manifest.checkpoint_id, manifest.train_state.step, metadata_digest(manifest))
    wanted = (resume.checkpoint_id, resume.step, resume.metadata_digest)
    for name, is_, should in zip(("id", "step", "metadata digest"), found, wanted, strict=True):
        if is_ != should:
            raise CheckpointError(
                f"{folder} is another checkpoint: its {name} is {is_}, asked for was {should}",
                path=str(folder),
            )


def _check_places(metadata: Metadata, files: Iterable[ManifestFile], path: Path) -> None:
    """Refuse entries that lie outside the files of the manifest, or are transformed."""
    sizes = {file.path: file.size for file in files}
    for place in metadata.storage_data.values():
        inside = (
            0 <= place.offset <= place.offset + place.length <= sizes.get(place.relative_path, -1)
        )
        if not inside or place.transform_descriptors:
            raise CheckpointError(
                f"{path} names a place that is not there: {place}", path=str(path)
            )
