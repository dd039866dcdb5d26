"""Reads a checkpoint's tensors, after checks of manifest, index and contents."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.checkpoint.chunks.divided_tensor import DTYPES, DividedKind, Sizes, TensorKind, divided
from trainer.checkpoint.chunks.index_file import rank_of_file
from trainer.checkpoint.manifest import WHOLE, FilePart, check_sizes, metadata_digest, read_checked
from trainer.checkpoint.reader.metadata import compare, remedy_of, without_aliases
from trainer.checkpoint.reader.stored_tensors import StoredTensors, open_index
from trainer.checkpoint.reader.tensor_reads import TensorPiece, read_pieces
from trainer.checkpoint.tensors import local_part
from trainer.errors import CheckpointError, MismatchError
from trainer.parallel.mesh import MeshCoordinates
from trainer.storage.root import StoragePath
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.manifest import Manifest
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.spec.layout import Layout


class CheckedReader:
    """Reads a checkpoint's tensors, after `open` and `fit` have accepted the checkpoint."""

    manifest: Manifest
    """Manifest of the opened checkpoint."""
    stored: StoredTensors
    """Tensors of the opened checkpoint."""

    def __init__(
        self,
        folder: StoragePath,
        *,
        root: StoragePath | None = None,
        tied: Mapping[str, str] | None = None,
        part: FilePart = WHOLE,
    ) -> None:
        """Describe the reader; nothing is read yet.

        Args:
            folder: folder of the checkpoint.
            root: storage root, by default `folder`; no file may be a link to a target outside of
                this root.
            tied: additional names of tied weights, each with its first name.
            part: files for which this process checks links and sizes; the parts of all processes
                together must cover all files.
        """
        self.folder = folder
        self._root = folder if root is None else root
        self._part, self._tied = part, tied or {}
        self.bytes_read = 0
        """Number of bytes that this process has read from data files."""

    def open(self, resume: ResumePoint) -> None:
        """Read manifest and index; check that they agree with each other and with `resume`.

        Raises:
            CheckpointError: the checkpoint is not committed, is damaged, or is not the one in
                `resume`.
        """
        self.manifest = read_checked(self.folder, resume, root=self._root, part=self._part)
        check_sizes(self.folder, self.manifest.files[self._part.number :: self._part.of])
        self.stored = open_index(self.folder, self.manifest, expected_digest=resume.metadata_digest)

    @property
    def kinds(self) -> dict[str, TensorKind | None]:
        """Dtype and shape of each stored tensor, by name; None for an object."""
        return without_aliases(self.stored.kinds, self._tied)

    def fit(self, wanted: Mapping[str, TensorKind], *, parts: tuple[str, ...] = ("",)) -> None:
        """Check that the opened checkpoint holds the wanted tensors.

        Args:
            wanted: tensors that all ranks together read, by name.
            parts: prefixes of the names to read, such as `model.`; by default, all names are read.

        Raises:
            MismatchError: the checkpoint's tensors in these parts are not exactly the wanted
                tensors.
            CheckpointError: the chunks do not cover each tensor exactly once, or lie outside of
                their files.
        """
        path = self.folder / self.manifest.index
        comparison = compare(self.kinds, wanted, parts=parts)
        if not comparison.fits:
            text = f"{path} does not fit this job: {comparison}"
            raise MismatchError(text, path=str(path), remedy=remedy_of(comparison, self.manifest))
        self.stored.check(self.manifest.data_files, self._part)

    def read(
        self, tensors: Mapping[str, Tensor], *, verified: frozenset[str] = frozenset()
    ) -> None:
        """Read this process's shards of stored tensors, in place.

        Args:
            tensors: target tensors by name; for a DTensor, this rank's shard is read.
            verified: files to read whole and compare with their checksums.

        Raises:
            CheckpointError: a file is unreadable or damaged; the values of the tensors are then
                undefined.
        """
        by_file = self._pieces(tensors)
        digests = {file.path: file.xxh3_128 for file in self.manifest.data_files}
        for name in sorted(by_file.keys() | verified):
            self.bytes_read += read_pieces(
                self.folder / name,
                by_file.get(name, []),
                digest=digests[name],
                verifies=name in verified,
            )

    def _pieces(self, tensors: Mapping[str, Tensor]) -> dict[str, list[TensorPiece]]:
        """Return the pieces of stored chunks that the tensors need, by file."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        sizes = {file.path: file.size for file in self.manifest.data_files}
        boxes: dict[DividedKind, tuple[Sizes, Sizes]] = {}
        by_file: dict[str, list[TensorPiece]] = {}
        for name, kind in ((t.name, t.kind) for t in divided(tensors, rank=rank)):
            if kind not in boxes:
                boxes[kind] = kind.box_of(rank)
            local = local_part(tensors[name])
            if not local.numel():
                continue
            for piece in self._pieces_of(name, local, dtype=DTYPES[kind.dtype], box=boxes[kind]):
                chunk = piece.chunk
                if chunk.offset + chunk.length > sizes.get(chunk.file, -1):
                    raise CheckpointError(
                        f"{self.folder / self.manifest.index} names a place that is not there: "
                        f"{chunk}",
                        path=str(self.folder / self.manifest.index),
                        fault=CheckpointFault.METADATA_REFUSED,
                    )
                by_file.setdefault(chunk.file, []).append(piece)
        return by_file

    def _pieces_of(
        self, name: str, local: Tensor, *, dtype: torch.dtype, box: tuple[Sizes, Sizes]
    ) -> list[TensorPiece]:
        offsets, sizes = box
        pieces = []
        for chunk in self.stored.chunks(name, offsets, sizes):
            target, start, lengths = local, [], []
            dims = zip(offsets, sizes, chunk.offsets, chunk.sizes, strict=True)
            for dim, (low, size, stored_low, stored_size) in enumerate(dims):
                first = max(low, stored_low)
                length = min(low + size, stored_low + stored_size) - first
                start.append(first - stored_low)
                lengths.append(length)
                target = target.narrow(dim, first - low, length)
            pieces.append(
                TensorPiece(chunk, dtype, start=tuple(start), lengths=tuple(lengths), target=target)
            )
        return pieces


def point_at(manifest: Manifest, folder: StoragePath) -> ResumePoint:
    """Return the resume point of a checkpoint; its manifest must have been read just before."""
    return ResumePoint(
        checkpoint_id=manifest.checkpoint_id,
        path=str(folder),
        step=manifest.train_state.step,
        metadata_digest=metadata_digest(manifest),
    )


def files_to_verify(manifest: Manifest, *, rank: int, layout: Layout) -> frozenset[str]:
    """Return the data files that a rank verifies; one rank of the first replica verifies each file.

    Files are ordered by their content, and ranks by the content that they need. Each rank gets an
    equal part of the files. If the same layout wrote the checkpoint, a rank thus verifies the files
    that it needs, and reads no byte twice.

    Args:
        manifest: manifest of the checkpoint.
        rank: global rank that reads.
        layout: layout of the ranks that read.
    """
    per_stage = layout.dp_shard * layout.cp * layout.tp
    position, replica = _position(rank, layout)
    assert replica == 0, "only the first replica reads"
    readers = layout.pp * per_stage
    names = [file.path for file in manifest.data_files]
    names.sort(key=lambda name: (*_position(rank_of_file(name) or 0, manifest.layout), name))
    first = -(-position * len(names) // readers)
    return frozenset(names[first : -(-(position + 1) * len(names) // readers)])


def _position(rank: int, layout: Layout) -> tuple[int, int]:
    """Return a rank's position within its replica, and the number of this replica."""
    per_stage = layout.dp_shard * layout.cp * layout.tp
    stage = MeshCoordinates.of(rank, layout).pp
    replica, place = divmod(rank - stage * per_stage * layout.dp_replicate, per_stage)
    # Tensor parallelism usually divides rows first, and FSDP divides the result.
    shard, part = divmod(place, layout.tp)
    return stage * per_stage + part * (per_stage // layout.tp) + shard, replica
