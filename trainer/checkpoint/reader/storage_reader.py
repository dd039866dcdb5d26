"""DCP's storage reader and planner: a checkpoint is checked before a byte of it is used."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner import LoadPlanner as Planner
from torch.distributed.checkpoint.planner_helpers import (
    _create_chunk_list,
    create_read_items_for_chunk_list,
)
from torch.distributed.tensor import DTensor
from torch.futures import Future

from trainer.checkpoint.manifest import check_sizes, metadata_digest, read_checked
from trainer.checkpoint.reader.metadata import (
    TensorKind,
    check_cover,
    compare,
    drop_aliases,
    load_metadata,
    remedy_of,
)
from trainer.checkpoint.reader.tensor_reads import TensorPiece, read_pieces
from trainer.errors import CheckpointError, MismatchError
from trainer.storage.root import StoragePath
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.manifest import DCP_METADATA, Manifest, ManifestFile
from trainyard.run.checkpoint_faults import CheckpointFault


class CheckedReader(FileSystemReader):
    """Reads a checkpoint's tensors, once `look` and `fit` have not rejected it."""

    manifest: Manifest
    """Manifest of the opened checkpoint."""
    metadata: Metadata
    """DCP metadata of the opened checkpoint."""

    def __init__(
        self,
        folder: StoragePath,
        *,
        root: StoragePath | None = None,
        tied: Mapping[str, str] | None = None,
        verifies: bool = False,
    ) -> None:
        """Read nothing yet.

        Args:
            folder: the checkpoint's.
            root: the storage root; no file may be a link out of it. The folder when absent.
            tied: second names of tied weights, each with the first one.
            verifies: whether this rank reads its share of the files whole while it loads, and
                compares their checksums. The shares of all such ranks are all files.
        """
        super().__init__(".")  # no inherited method that opens a path is used
        self.folder = folder
        self._root = folder if root is None else root
        self.bytes_read = 0
        """Bytes of the data files that this rank has read."""
        self._verifies, self._tied = verifies, tied or {}
        self._wanted: dict[str, list[TensorPiece]] = {}

    def fit(self, wanted: Mapping[str, TensorKind], *, parts: tuple[str, ...] = ("",)) -> None:
        """Check that the checkpoint, which `look` has read, holds the wanted tensors.

        Args:
            wanted: the tensors that all ranks read together, by name.
            parts: prefixes of the names that are read, such as `model.`; all when absent.

        Raises:
            MismatchError: its tensors in these parts are not exactly the wanted ones.
            CheckpointError: its chunks do not cover each tensor once, or lie outside of its files.
        """
        path = self.folder / DCP_METADATA
        comparison = compare(self.metadata, wanted, parts=parts)
        if not comparison.fits:
            text = f"{path} does not fit this job: {comparison}"
            raise MismatchError(text, path=str(path), remedy=remedy_of(comparison, self.manifest))
        _check_places(self.metadata, self.manifest.files, path)
        check_cover(self.metadata, path)

    def look(self, resume: ResumePoint) -> None:
        """Read manifest and metadata, and check that they agree and are those of `resume`.

        Raises:
            CheckpointError: it is not committed, not the one of `resume`, or damaged.
        """
        self.manifest = read_checked(self.folder, resume, root=self._root)
        check_sizes(self.folder, self.manifest.files)
        self.metadata = load_metadata(
            self.folder / DCP_METADATA, expected_digest=resume.metadata_digest
        )
        drop_aliases(self.metadata, self._tied)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Keep the plan of this rank; send rank 0 the number of needed bytes of each file."""
        self._wanted = self._by_file(plan)
        needs = {
            name: sum(piece.bytes_to_read for piece in pieces)
            for name, pieces in self._wanted.items()
        }
        return LoadPlan([], storage_data=needs if self._verifies else None)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Assign each file to one rank, which compares its checksum while it reads from it.

        This runs on rank 0, after `prepare_local_plan` of all ranks and before any `read_data`.
        """
        needs = [plan.storage_data for plan in plans]
        if not any(need is not None for need in needs):
            return plans
        # `.metadata` is left out: every rank has compared its digest in `look`.
        data = [file for file in self.manifest.files if file.path != DCP_METADATA]
        shares = share_out({file.path: file.size for file in data}, needs)
        return [LoadPlan([], storage_data=share) for share in shares]

    def read_data(self, plan: LoadPlan, planner: Planner) -> Future[None]:
        """Read the tensors of this rank, and verify its share of the files.

        Raises:
            CheckpointError: a byte of the share differs; the tensors then hold unusable values.
        """
        share = set(plan.storage_data or ())
        digests = {file.path: file.xxh3_128 for file in self.manifest.files}
        for name in sorted(self._wanted.keys() | share):
            path, pieces = self.folder / name, self._wanted.get(name, [])
            self.bytes_read += read_pieces(
                path, pieces, planner, digest=digests[name], verifies=name in share
            )
        read: Future[None] = Future()
        read.set_result(None)
        return read

    def _by_file(self, plan: LoadPlan) -> dict[str, list[TensorPiece]]:
        requests: dict[MetadataIndex, list[ReadItem]] = {}
        for request in plan.items:
            requests.setdefault(request.storage_index, []).append(request)
        by_file: dict[str, list[TensorPiece]] = {}
        for index, wanted in requests.items():
            place = self.metadata.storage_data[index]
            entry = self.metadata.state_dict_metadata[index.fqn]
            assert isinstance(entry, TensorStorageMetadata)
            assert index.index is not None, "DCP's read items name a chunk"
            dtype = entry.properties.dtype
            piece = TensorPiece(place, entry.chunks[index.index], dtype, wanted)
            by_file.setdefault(place.relative_path, []).append(piece)
        return by_file

    def read_alone(self, tensors: Mapping[str, Tensor]) -> None:
        """Load tensors of the opened checkpoint in this process, without a process group."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.load({}, storage_reader=self, planner=LoadPlanner(tensors), no_dist=True)

    def read_metadata(self, *_args: Any, **_options: Any) -> Metadata:
        """Return the metadata that `look` checked: DCP's own method unpickles without limits."""
        return self.metadata


def point_at(manifest: Manifest, folder: StoragePath) -> ResumePoint:
    """Return the resume point of a checkpoint whose manifest was just read."""
    return ResumePoint(
        checkpoint_id=manifest.checkpoint_id,
        path=str(folder),
        step=manifest.train_state.step,
        metadata_digest=metadata_digest(manifest),
    )


def _check_places(metadata: Metadata, files: Iterable[ManifestFile], path: StoragePath) -> None:
    """Reject entries that lie outside the files of the manifest, or are transformed."""
    sizes = {file.path: file.size for file in files}
    for place in metadata.storage_data.values():
        inside = (
            0 <= place.offset <= place.offset + place.length <= sizes.get(place.relative_path, -1)
        )
        if not inside or place.transform_descriptors:
            raise CheckpointError(
                f"{path} names a place that is not there: {place}",
                path=str(path),
                fault=CheckpointFault.METADATA_REFUSED,
            )


class LoadPlanner(DefaultLoadPlanner):
    """DCP's load planner that computes the chunks of a shard once for each shape and sharding.

    Weights and moments are sharded alike, and so are all layers. `dcp.load` gets an empty
    dictionary: for each entry it would check whether the object loads itself, which takes longer
    than the plan.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Plan for these tensors, which the checkpoint holds (`CheckedReader.fit`)."""
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._tensors = dict(tensors)
        self._chunks: dict[Hashable, list[ChunkStorageMetadata]] = {}

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Take the tensors of this planner in place of DCP's empty dictionary."""
        assert not state_dict
        super().set_up_planner(self._tensors, metadata, is_coordinator)

    def create_local_plan(self) -> LoadPlan:
        """Return which slice of which stored chunk this rank reads."""
        assert self.metadata is not None
        items = []
        for name, tensor in self._tensors.items():
            entry = self.metadata.state_dict_metadata[name]
            assert isinstance(entry, TensorStorageMetadata)
            items += create_read_items_for_chunk_list(name, entry, self._chunks_of(tensor))
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """Return this rank's shard of a tensor, as plain memory."""
        tensor = self._tensors[index.fqn]
        return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()

    def _chunks_of(self, tensor: Tensor) -> list[ChunkStorageMetadata]:
        if not isinstance(tensor, DTensor):
            return _create_chunk_list(tensor)
        key = (tensor.shape, tensor.device_mesh, tensor.placements)
        if key not in self._chunks:
            self._chunks[key] = _create_chunk_list(tensor)
        return self._chunks[key]


def share_out(
    sizes: Mapping[str, int], needs: Sequence[Mapping[str, int] | None]
) -> list[tuple[str, ...]]:
    """Return for each rank the files that it reads whole; each file has one rank.

    A file goes to the rank whose total is then the least: of those that need bytes of it, or the
    rank with the least so far. On the layout that wrote the checkpoint each rank gets its own file
    and no byte is read twice; on other layouts the ranks end at about the same time.

    Args:
        sizes: bytes of each file.
        needs: for each rank, the bytes that it needs of each file; None for one that reads nothing.
    """
    load = {rank: sum(need.values()) for rank, need in enumerate(needs) if need is not None}
    shares: list[list[str]] = [[] for _ in needs]
    needed_by: dict[str, list[int]] = {name: [] for name in sizes}
    for rank, need in enumerate(needs):
        for name in need or ():
            needed_by[name].append(rank)
    # The largest first: the small ones then even out the totals.
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        idlest = min(load, key=load.__getitem__)

        def with_it(rank: int, name: str = name) -> int:
            return load[rank] + sizes[name] - (needs[rank] or {}).get(name, 0)

        chosen = min([idlest, *needed_by[name]], key=lambda rank: (with_it(rank), rank))
        load[chosen] = with_it(chosen)
        shares[chosen].append(name)
    return [tuple(share) for share in shares]
