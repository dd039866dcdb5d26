"""Which samples each rank takes in each step: the same global batches at any world size."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from trainyard.base.whole_numbers import whole_number
from trainyard.data.sample_orders import EpochOrder
from trainyard.training.batch_partition import BatchPartition

Item = TypeVar("Item")


class ExactStream:
    """One rank's micro-batches of the positions of an endless stream: a batch sampler.

    Step k consumes the positions from `k * global_batch_size` on, at any world size; the built-in
    trainer's `BatchPartition` divides them. In every step each rank gets `len(weights)`
    micro-batches, so that all ranks join every collective; one without samples left gets the
    step's first sample again, with weight 0.

    Iteration begins at `step`, without a walk over what comes before, and does not change `step`:
    a loader fetches ahead, so what it fetched is not what was trained on. The training loop adds 1
    after each optimizer step, and what `state_dict` returns is then exact at any moment.

    Args:
        global_batch_size: samples in one optimizer step over all ranks.
        micro_batch_size: at most so many samples in one micro-batch; fewer where some rank would
            have none. Default: as many as give every rank work.
        step: steps that were trained before.
        steps: the step at which iteration ends; None: it never ends.
        rank: this process among those that divide the batch; with tensor or pipeline parallelism
            its data-parallel rank. Default, together with `world_size`: those of
            `torch.distributed` if that is initialised, else `RANK` and `WORLD_SIZE`, as torchrun
            sets them, else 0 of 1.
        world_size: processes that divide the batch.

    Raises:
        ValueError: a number is out of its range, or not whole; the message has the range.
    """

    _kind: ClassVar = "ExactStream"
    """What a state is of; that of subclasses too."""

    def __init__(
        self,
        global_batch_size: int,
        *,
        micro_batch_size: int | None = None,
        step: int = 0,
        steps: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        global_batch_size = whole_number("global_batch_size", global_batch_size, least=1)
        if micro_batch_size is not None:
            micro_batch_size = whole_number("micro_batch_size", micro_batch_size, least=1)
        self.rank, self.world_size = _ranks(rank, world_size)
        self.global_batch_size = global_batch_size
        if not 1 <= self.world_size <= global_batch_size:
            raise ValueError(
                f"world_size={self.world_size} does not fit global_batch_size={global_batch_size}: "
                f"legal is from 1 to {global_batch_size}, so that every rank has work"
            )
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank={self.rank} must be from 0 to {self.world_size - 1}")
        self.step = whole_number("step", step, least=0)
        """Steps that were trained; the training loop adds 1 after each."""
        self.steps = None if steps is None else whole_number("steps", steps, least=0)
        """The step at which iteration ends; None: it never ends."""
        # Of n ranks, n - 1 have full micro-batches and the last at least one sample.
        others = self.world_size - 1
        largest = (global_batch_size - 1) // others if others else global_batch_size
        size = largest if micro_batch_size is None else min(micro_batch_size, largest)
        partition = BatchPartition(global_batch_size, size, self.world_size)
        self._rounds = partition.for_rank(self.rank)
        self.weights = tuple(
            len(offsets) * self.world_size / global_batch_size for offsets in self._rounds
        )
        """What to multiply the loss of each micro-batch of a step with, itself a mean over its
        samples: the mean over ranks of the summed gradients (which DDP and FSDP compute) is then
        the gradient of the mean over the global batch."""

    @property
    def position(self) -> int:
        """The first position that was not trained on: samples consumed so far, over all ranks."""
        return int(self.step) * self.global_batch_size

    def positions(self, step: int) -> tuple[int, ...]:
        """Return the positions that this rank consumes in a step, those of weight 0 left out."""
        first = step * self.global_batch_size
        return tuple(first + offset for offsets in self._rounds for offset in offsets)

    def __iter__(self) -> Iterator[list[int]]:
        for step in self._remaining():
            first = step * self.global_batch_size
            for offsets in self._rounds:
                yield [self._sample(first + offset) for offset in offsets or range(1)]

    def __len__(self) -> int:
        """Return the number of micro-batches from `step` to the end.

        Raises:
            TypeError: the stream has no end.
        """
        if self.steps is None:
            raise TypeError(f"{type(self).__name__} without steps=... never ends: it has no length")
        return max(0, self.steps - self.step) * len(self._rounds)

    def deal(self, items: Iterable[Item]) -> Iterator[list[Item]]:
        """Yield this rank's micro-batches of items that can only be read in order.

        For the `__iter__` of an `IterableDataset`, with `DataLoader(..., batch_size=None)`. The
        worker processes of the loader take turns, and the loader joins them in the same order.
        Items of an incomplete global batch at the end are left out, on all ranks alike. The items
        of this rank in one global batch are in memory at once.

        Args:
            items: the items of the stream from `position` on, the same on every rank.
        """
        turns = itertools.cycle(_turns_of_this_worker())
        own = {0}.union(*self._rounds)
        source = iter(items)
        for _ in self._remaining():
            kept, count = {}, 0
            for offset, item in enumerate(itertools.islice(source, self.global_batch_size)):
                count += 1
                if offset in own:
                    kept[offset] = item
            if count < self.global_batch_size:
                return
            # Rounds first: at their end no turn is used up, which the next step continues with.
            for offsets, own_turn in zip(self._rounds, turns, strict=False):
                if own_turn:
                    yield [kept[offset] for offset in offsets or range(1)]

    def state_dict(self) -> dict[str, int | str]:
        """Return the position, and all that it refers to; the same on every rank."""
        return {"position": self.position, **self._order_facts()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of a state, that of any world size.

        Raises:
            ValueError: the state is no mapping, or of another class, order or global batch size, a
                field is missing, unknown or of another type, or the position divides a batch.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"the state is {state!r:.200}; legal: what state_dict() returned")
        facts = self._order_facts()
        for name, value in facts.items():
            # States of former versions have no kind, and all else that they refer to.
            found = state.get(name, value if name == "kind" else None)
            if type(found) is not type(value) or found != value:
                raise ValueError(
                    f"{name}={value!r} differs from {name}={found!r} of the state: its position "
                    "would refer to other samples"
                )
        if unknown := sorted(map(str, state.keys() - facts.keys() - {"position"})):
            raise ValueError(
                f"{unknown[0]!r} of the state is unknown; legal: position, {', '.join(facts)}"
            )
        position = state.get("position")
        if type(position) is not int or position < 0 or position % self.global_batch_size:
            raise ValueError(
                f"position={position!r} of the state is no multiple of "
                f"global_batch_size={self.global_batch_size}"
            )
        self.step = position // self.global_batch_size

    def _sample(self, position: int) -> int:
        return position

    def _order_facts(self) -> dict[str, int | str]:
        return {"kind": self._kind, "global_batch_size": self.global_batch_size}

    def _remaining(self) -> Iterable[int]:
        if self.steps is None:
            return itertools.count(self.step)
        return range(self.step, self.steps)


class ExactSampler(ExactStream):
    """One rank's micro-batches of the indices of a data set, for `DataLoader(batch_sampler=...)`.

    The index at each position is that of `EpochOrder(length, seed)`, or without `shuffle` the
    position modulo the length. A global batch may end one epoch and begin the next.

    Args:
        length: samples in the data set.
        global_batch_size: samples in one optimizer step over all ranks.
        seed: of the order.
        shuffle: False for the order of the data set.
        micro_batch_size: see `ExactStream`, as the others.
        step: steps that were trained before.
        steps: the step at which iteration ends; None: it never ends.
        rank: this process among those that divide the batch.
        world_size: processes that divide the batch.

    Raises:
        ValueError: a number is out of its range, or not whole; the message has the range.
    """

    _kind = "ExactSampler"

    def __init__(
        self,
        length: int,
        global_batch_size: int,
        seed: int,
        *,
        shuffle: bool = True,
        micro_batch_size: int | None = None,
        step: int = 0,
        steps: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__(
            global_batch_size,
            micro_batch_size=micro_batch_size,
            step=step,
            steps=steps,
            rank=rank,
            world_size=world_size,
        )
        self._order = EpochOrder(length, seed, shuffle=shuffle)
        self.length = int(length)
        """Samples in the data set."""
        self._facts = {"length": self.length, "seed": int(seed), "shuffle": int(shuffle)}

    def _sample(self, position: int) -> int:
        return self._order(position)

    def _order_facts(self) -> dict[str, int | str]:
        return {**super()._order_facts(), **self._facts}


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if rank is not None and world_size is not None:
        return whole_number("rank", rank, least=0), whole_number("world_size", world_size, least=0)
    if rank is not None or world_size is not None:
        raise ValueError(f"rank={rank} and world_size={world_size}: give both, or neither")
    # A script that trains has imported torch; this library does not import it.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    found = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if name in os.environ}
    if not found:
        return 0, 1
    if len(found) == 1:
        raise ValueError(f"of RANK and WORLD_SIZE only {found} is set; needed: both, or neither")
    return int(found["RANK"]), int(found["WORLD_SIZE"])


def _turns_of_this_worker() -> list[bool]:
    """Return for each worker process of a loader, in turn, whether it is this process."""
    loaders = sys.modules.get("torch.utils.data")
    info = loaders.get_worker_info() if loaders is not None else None
    return [worker == info.id for worker in range(info.num_workers)] if info else [True]
