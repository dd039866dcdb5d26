"""The ranks that write, and each rank's plan of writes, which later saves reuse."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.checkpoint.chunks.divided_tensor import DividedTensor, TensorChunk, divided
from trainer.checkpoint.chunks.index_file import ChunkIndex, index_of
from trainer.checkpoint.chunks.ownership import WriteShare
from trainer.checkpoint.tensors import local_part
from trainer.distributed import on_every_rank
from trainer.errors import CheckpointError
from trainer.parallel.mesh import MeshCoordinates
from trainer.storage.root import StoragePath
from trainyard.spec.layout import Layout

Writers = Literal["auto", "all", "one_replica"] | int


@dataclass(frozen=True)
class SavePlan:
    """This rank's writes and sends; valid until the division of the tensors changes."""

    share: WriteShare
    index: ChunkIndex
    """Places of the chunks of all ranks."""
    tensors: Mapping[str, Tensor]
    """Tensors of this rank, by name."""

    def memory(self, chunk: TensorChunk) -> Tensor:
        """Return the memory that holds one of this rank's chunks."""
        return local_part(self.tensors[chunk.name])


class SavePlanner:
    """Plans saves of one set of tensors; the first save makes the plan, later saves reuse it."""

    def __init__(self, writers: Sequence[int], layout: Layout, group: dist.ProcessGroup) -> None:
        """Describe the planner; nothing is planned yet.

        Args:
            writers: ranks that write, in ascending order.
            layout: layout of all ranks.
            group: CPU group of all ranks.
        """
        self._writers = writers
        self._layout = layout
        self._group = group
        self._plan: SavePlan | None = None
        self.seconds = 0.0
        """Time, in seconds, that the last call of `plan` took on this rank."""

    def plan(self, tensors: dict[str, Tensor]) -> SavePlan:
        """Return the plan of this rank; all ranks must call this together.

        Args:
            tensors: tensors of this rank, by name; if every rank passes the same dictionary as
                before, the last plan is returned.

        Raises:
            CheckpointError: ranks of a pipeline stage hold different tensors, or the division of a
                tensor cannot be computed from rank numbers.
        """
        started = time.monotonic()
        changed = torch.tensor(self._plan is None or self._plan.tensors is not tensors)
        dist.all_reduce(changed, op=dist.ReduceOp.MAX, group=self._group)
        if changed or self._plan is None:
            self._plan = self._planned(tensors)
        self.seconds = time.monotonic() - started
        return self._plan

    def _planned(self, tensors: dict[str, Tensor]) -> SavePlan:
        rank, world_size = dist.get_rank(self._group), self._layout.world_size
        mine: list[tuple[DividedTensor, ...]] = []
        on_every_rank(self._group, lambda: mine.append(divided(tensors, rank=rank)))
        # One rank of each stage lists its tensors for all ranks. The plan follows from these lists
        # alone, so it is the same on all ranks.
        size = world_size // self._layout.pp
        stages = [self._named_by(first, mine[0]) for first in range(0, world_size, size)]
        on_every_rank(
            self._group, lambda: _check_same(mine[0], stages[rank // size], rank=rank, size=size)
        )
        if self._plan is not None and self._plan.index.ownership.divides(stages):
            return SavePlan(self._plan.share, self._plan.index, tensors)
        index = index_of(stages, world_size=world_size, writers=self._writers)
        return SavePlan(index.ownership.share(rank), index, tensors)

    def _named_by(self, rank: int, mine: tuple[DividedTensor, ...]) -> tuple[DividedTensor, ...]:
        named = [mine]
        dist.broadcast_object_list(named, group=self._group, group_src=rank)
        return named[0]


def _check_same(
    mine: Sequence[DividedTensor], stage: Sequence[DividedTensor], *, rank: int, size: int
) -> None:
    """Reject a rank whose tensors differ, in name or kind, from those of its stage's first rank."""
    if mine == stage:
        return
    first = rank // size * size
    here, there = ({tensor.name: tensor.kind for tensor in side} for side in (mine, stage))
    name = min(n for n in here.keys() | there.keys() if here.get(n) != there.get(n))
    raise CheckpointError(
        f"rank {rank} holds {name} as {here.get(name) or 'no tensor'}, and rank {first} of the "
        f"same pipeline stage as {there.get(name) or 'no tensor'}: all ranks of a stage must hold "
        "the same tensors"
    )


def writing_ranks(writers: Writers, layout: Layout, *, shared: bool) -> tuple[int, ...]:
    """Return the ranks that write, in ascending order.

    Args:
        writers: the choice in the spec.
        layout: layout of the attempt.
        shared: whether several machines share the storage; used for `auto`.
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
    # Spread evenly over the ranks, so that the nodes share the work.
    return tuple(number * world_size // writers for number in range(writers))


MOUNTS = Path("/proc/self/mountinfo")
SHARED = frozenset(
    {
        *("9p", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "gfs2", "glusterfs", "gpfs"),
        *("lustre", "nfs", "nfs3", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3"),
        *("smbfs", "vboxsf", "virtiofs", "wekafs"),
    }
)
"""Types of file systems that machines share, over a network or on a common device."""
LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.ntfs-3g"})
"""FUSE types on a local disk; storage of any other FUSE type is treated as shared."""


def is_shared(folder: StoragePath, *, mounts: Path = MOUNTS) -> bool:
    """Return whether several machines share the storage of a folder; the folder need not exist.

    Args:
        folder: path of the folder; symbolic links are followed.
        mounts: file with the mounts of this process, in the format of `mountinfo` (proc(5)).
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
        # The last mount at a mount point hides the earlier ones, so later lines win.
        if place.is_relative_to(point) and len(point.parts) >= len(found.parts):
            found, kind = point, rest.split(" ")[0]
    return kind


def _unescaped(text: str) -> str:
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        text = text.replace(f"\\{code}", character)
    return text
