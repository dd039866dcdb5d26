"""Which rank writes which tensors: the writers, and DCP's save planner with cached plans."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from torch import Tensor
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from trainer.parallel.mesh import MeshCoordinates
from trainer.storage.root import StoragePath
from trainyard.spec.layout import Layout

FRAME_BYTES = 1536
"""Bytes of a file around the numbers of an item, about; most of a file of small tensors."""

_numbers = itertools.count()


@dataclass(frozen=True)
class RoutedPlan(SavePlan):
    """The items that a rank writes, and those that it receives and sends.

    All ranks send and receive in the order of the whole plan. That excludes deadlock: both ranks of
    the earliest open transfer have finished every transfer before it.
    """

    received_from: dict[MetadataIndex, int] = field(default_factory=dict)
    """Items of this plan that another rank holds, and that rank; the last items, in order."""
    sends: tuple[tuple[WriteItem, int], ...] = ()
    """Items that this rank holds and another rank writes, and that rank, in order."""


class SavePlanner(DefaultSavePlanner):
    """Plans for one set of tensors; the first save makes the plan and later ones reuse it.

    DCP caches plans by the name of the planner's class, so planners with other writers would share
    one plan: each planner gets a separate key here.
    """

    def __init__(self, writers: Sequence[int]) -> None:
        """Plan for these writing ranks."""
        super().__init__(enable_plan_caching=True)
        self._cached_plans_key = f"{type(self).__name__}-{next(_numbers)}"
        self._writers = writers
        self._tensors: dict[str, Any] = {}
        self._planned = False
        self._started = 0.0
        self.seconds = 0.0
        """Seconds that the last plan took, from this rank's list to its final plan."""

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        """Take the tensors; the plan stays if they are the same objects as before."""
        self._started = time.monotonic()
        # The same objects: DCP copies the dictionary itself.
        if state_dict.keys() == self._tensors.keys() and all(
            tensor is self._tensors[name] for name, tensor in state_dict.items()
        ):
            return
        self._tensors = state_dict
        self._planned = False
        super().set_up_planner(state_dict, storage_meta, is_coordinator)

    def create_local_plan(self) -> SavePlan:
        """Return this rank's items, or an unusable plan: nothing has changed since the last one."""
        if self._planned:
            return SavePlan([], usable=False)
        return super().create_local_plan()

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Return the plan of each rank, or unusable plans for all: nothing has changed."""
        plans, metadata = super().create_global_plan(all_plans)
        # DCP compares only the items of a plan and would leave a rank with its old routes.
        changed = any(plan.usable for plan in plans)
        return (self.global_plan if changed else plans), metadata

    def finish_plan(self, new_plan: SavePlan) -> RoutedPlan:
        """Return the final plan of this rank."""
        plan = super().finish_plan(new_plan)
        assert isinstance(plan, RoutedPlan)
        self._planned = True
        self.seconds = time.monotonic() - self._started
        return plan

    def tensor(self, item: WriteItem) -> Tensor:
        """Return this rank's memory of an item."""
        found = self.lookup_object(item.index)
        assert isinstance(found, Tensor)
        return found.detach()

    def _dedup_save_plans(self, all_plans: list[SavePlan]) -> list[SavePlan]:
        items: dict[MetadataIndex, WriteItem] = {}
        holders: dict[MetadataIndex, list[int]] = {}
        for rank, plan in enumerate(all_plans):
            for item in plan.items:
                items.setdefault(item.index, item)
                holders.setdefault(item.index, []).append(rank)
        sizes = {index: item_bytes(item) + FRAME_BYTES for index, item in items.items()}
        chosen = assign(holders, sizes, self._writers)
        # Of several holders the one that has sent the least so far sends.
        sent = [0] * len(all_plans)
        sources: dict[MetadataIndex, int] = {}
        for index, writer in chosen.items():
            if writer not in holders[index]:
                sources[index] = min(holders[index], key=lambda rank: (sent[rank], rank))
                sent[sources[index]] += sizes[index]
        return [_routed(rank, plan, items, chosen, sources) for rank, plan in enumerate(all_plans)]


def item_bytes(item: WriteItem) -> int:
    """Return the bytes of an item's numbers."""
    assert item.tensor_data is not None, "a checkpoint holds tensors only"
    return math.prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize


def _routed(
    rank: int,
    plan: SavePlan,
    items: dict[MetadataIndex, WriteItem],
    chosen: dict[MetadataIndex, int],
    sources: dict[MetadataIndex, int],
) -> RoutedPlan:
    own: Iterable[WriteItem] = (
        item for item in plan.items if chosen[item.index] == rank and item.index not in sources
    )
    received = {index: source for index, source in sources.items() if chosen[index] == rank}
    return RoutedPlan(
        items=[*own, *(items[index] for index in received)],
        storage_data=plan.storage_data,
        planner_data=plan.planner_data,
        usable=plan.usable,
        received_from=received,
        sends=tuple(
            (items[index], chosen[index]) for index, source in sources.items() if source == rank
        ),
    )


Writers = Literal["auto", "all", "one_replica"] | int
Piece = TypeVar("Piece", bound=Hashable)


def writing_ranks(writers: Writers, layout: Layout, *, shared: bool) -> tuple[int, ...]:
    """Return the ranks that write, in order.

    Args:
        writers: the spec's choice.
        layout: layout of the attempt.
        shared: whether several machines share the storage; it decides `auto`.
    """
    world_size = layout.world_size
    if writers == "auto":
        writers = "one_replica" if shared else "all"
    if writers == "all":
        return tuple(range(world_size))
    if writers == "one_replica":
        return tuple(
            r for r in range(world_size) if MeshCoordinates.of(r, layout).dp < layout.dp_shard
        )
    # Spread evenly, so that the nodes share the work.
    return tuple(number * world_size // writers for number in range(writers))


def assign(
    holders: Mapping[Piece, Sequence[int]], sizes: Mapping[Piece, int], writers: Sequence[int]
) -> dict[Piece, int]:
    """Return the writer of each piece: largest pieces first, to the writer with the least bytes.

    A writer that holds a piece comes before one that does not. A piece that no writer holds is
    streamed to the writer with the least bytes by then.

    Args:
        holders: ranks that hold each piece.
        sizes: bytes of each piece.
        writers: ranks that write.
    """
    writing = set(writers)
    load = dict.fromkeys(writers, 0)
    chosen: dict[Piece, int] = {}
    largest_first = sorted(holders, key=lambda piece: -sizes[piece])
    streamed = []
    for piece in largest_first:
        held_by = [rank for rank in holders[piece] if rank in writing]
        if not held_by:
            streamed.append(piece)
            continue
        chosen[piece] = min(held_by, key=lambda rank: (load[rank], rank))
        load[chosen[piece]] += sizes[piece]
    least = [(bytes_, rank) for rank, bytes_ in load.items()]
    heapq.heapify(least)
    for piece in streamed:
        bytes_, rank = heapq.heappop(least)
        chosen[piece] = rank
        heapq.heappush(least, (bytes_ + sizes[piece], rank))
    return chosen


MOUNTS = Path("/proc/self/mountinfo")
SHARED = frozenset(
    {
        *("9p", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "gfs2", "glusterfs", "gpfs"),
        *("lustre", "nfs", "nfs3", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3"),
        *("smbfs", "vboxsf", "virtiofs", "wekafs"),
    }
)
"""Types of file systems that several machines share, over a network or a common device."""
LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.ntfs-3g"})
"""FUSE types on a local disk; every other FUSE type counts as a bucket or a server."""


def is_shared(folder: StoragePath, *, mounts: Path = MOUNTS) -> bool:
    """Return whether a folder, which need not exist yet, lies on storage that machines share.

    Args:
        folder: the folder; symbolic links are followed.
        mounts: the mounts of this process, in the format of `mountinfo` (proc(5)).
    """
    if not isinstance(folder, Path):
        return True  # an object store
    kind = filesystem_type(folder, mounts=mounts)
    in_user_space = kind == "fuse" or kind.startswith("fuse.")
    return kind in SHARED or (in_user_space and kind not in LOCAL_FUSE)


def filesystem_type(folder: Path, *, mounts: Path = MOUNTS) -> str:
    """Return the type of the file system that holds a folder, such as `ext4` or `nfs4`."""
    place = folder.resolve()
    found, kind = Path("/"), ""
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        fields, _, rest = line.partition(" - ")
        point = Path(_unescaped(fields.split(" ")[4]))
        # The last mount at a point hides those before it, so later lines win.
        if place.is_relative_to(point) and len(point.parts) >= len(found.parts):
            found, kind = point, rest.split(" ")[0]
    return kind


def _unescaped(text: str) -> str:
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        text = text.replace(f"\\{code}", character)
    return text
