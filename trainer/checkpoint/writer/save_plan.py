"""DCP's save planner, with a choice of writers and plans that are made once."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from trainer.checkpoint.writer.writing_ranks import assign

FRAME_BYTES = 1536
"""What a file holds of an item beside its numbers, about; most of the file where all is small."""

_numbers = itertools.count()


@dataclass(frozen=True)
class RoutedPlan(SavePlan):
    """What a rank writes, and what travels for it from rank to rank.

    All ranks send and receive in the same order, that of the whole plan: the earliest transfer
    that is not done has both its ends free, so none waits for ever.
    """

    received_from: dict[MetadataIndex, int] = field(default_factory=dict)
    """Items of this plan that another rank holds, and that rank; they stand last, in order."""
    sends: tuple[tuple[WriteItem, int], ...] = ()
    """Items that this rank holds and another one writes, and that one, in order."""


class SavePlanner(DefaultSavePlanner):
    """Plans for one set of tensors; a plan is made at the first save and used by all later ones.

    DCP caches plans by the name of the planner's class and so takes the plan of another choice of
    writers for its own: here each planner has a key of its own.
    """

    def __init__(self, writers: Sequence[int]) -> None:
        """Plan for the ranks that write."""
        super().__init__(enable_plan_caching=True)
        self._cached_plans_key = f"{type(self).__name__}-{next(_numbers)}"
        self._writers = writers
        self._tensors: dict[str, Any] = {}
        self._planned = False
        self._started = 0.0
        self.seconds = 0.0
        """Time that the last plan took, from this rank's part to what it has to write."""

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        """Take the tensors; the very same ones as before need nothing done."""
        self._started = time.monotonic()
        if _same(state_dict, self._tensors):
            return
        self._tensors = state_dict
        self._planned = False
        super().set_up_planner(state_dict, storage_meta, is_coordinator)

    def create_local_plan(self) -> SavePlan:
        """Return what this rank holds, or that nothing has changed since the last plan."""
        if self._planned:
            return SavePlan([], usable=False)
        return super().create_local_plan()

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Return what each rank writes, or for all ranks that nothing has changed."""
        plans, metadata = super().create_global_plan(all_plans)
        # DCP compares items alone and would leave a rank with its old routes.
        changed = any(plan.usable for plan in plans)
        return (self.global_plan if changed else plans), metadata

    def finish_plan(self, new_plan: SavePlan) -> RoutedPlan:
        """Return what this rank writes."""
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


def _same(some: dict[str, Any], others: dict[str, Any]) -> bool:
    """Return whether two dictionaries, of which DCP makes copies, hold the same objects."""
    return some.keys() == others.keys() and all(some[name] is others[name] for name in some)


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
