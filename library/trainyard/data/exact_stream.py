"""The samples of each rank in each step; global batches are the same at any world size."""

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
    micro-batches, so that all ranks join every collective. A rank without samples left gets the
    step's first sample again, with weight 0.

    Iteration starts at `step` directly, and does not change `step`: a loader fetches ahead, so
    fetched samples may not have been trained on. The training loop adds 1 after each optimizer
    step; then `state_dict` is exact at any time.

    Args:
        global_batch_size: samples in one optimizer step over all ranks.
        micro_batch_size: most samples in one micro-batch; fewer if a rank would otherwise have
            none. Default: as many as possible with work for every rank.
        step: number of steps trained so far.
        steps: the step at which iteration ends; when None it never ends.
        rank: rank of this process among those that divide the batch; with tensor or pipeline
            parallelism its data-parallel rank. Default, together with `world_size`: the values of
            `torch.distributed` if it is initialised, else `RANK` and `WORLD_SIZE`, as torchrun
            sets them, else 0 of 1.
        world_size: processes that divide the batch.

    Raises:
        ValueError: a number is out of its range, or not whole; the message has the range.
    """

    _kind: ClassVar = "ExactStream"
    """Kind of a state; subclasses share it unless they set their own."""

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
        """Number of trained steps; the training loop adds 1 after each."""
        self.steps = None if steps is None else whole_number("steps", steps, least=0)
        """The step at which iteration ends; when None it never ends."""
        # Of n ranks, n - 1 have full micro-batches and the last at least one sample.
        others = self.world_size - 1
        largest = (global_batch_size - 1) // others if others else global_batch_size
        size = largest if micro_batch_size is None else min(micro_batch_size, largest)
        partition = BatchPartition(global_batch_size, size, self.world_size)
        self._rounds = partition.for_rank(self.rank)
        self.weights = tuple(
            len(offsets) * self.world_size / global_batch_size for offsets in self._rounds
        )
        """Factor for the loss of each micro-batch of a step, which is a mean over its samples. With
        these factors, the mean over ranks of the summed gradients (which DDP and FSDP compute) is
        the gradient of the mean over the global batch."""

    @property
    def position(self) -> int:
        """The first untrained position: number of samples consumed so far, over all ranks."""
        return int(self.step) * self.global_batch_size

    def positions(self, step: int) -> tuple[int, ...]:
        """Return the positions that this rank consumes in a step, without those of weight 0."""
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

        Use it in the `__iter__` of an `IterableDataset`, with `DataLoader(..., batch_size=None)`.
        The loader's worker processes take turns, and the loader joins them in the same order. All
        ranks omit the items of an incomplete global batch at the end. All items of this rank in one
        global batch are in memory at the same time.

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
            # `rounds` first in `zip`: at its end no turn is consumed, so the next step continues.
            for offsets, own_turn in zip(self._rounds, turns, strict=False):
                if own_turn:
                    yield [kept[offset] for offset in offsets or range(1)]

    def state_dict(self) -> dict[str, int | str]:
        """Return the position, and the order that it refers to; the same on every rank."""
        return {"position": self.position, **self._order_facts()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of a state from any world size.

        Raises:
            ValueError: the state is not a mapping, is of another class, order or global batch size,
                has a missing or unknown field or one of another type, or its position is inside a
                batch.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"the state is {state!r:.200}; legal: what state_dict() returned")
        facts = self._order_facts()
        for name, value in facts.items():
            # States of former versions lack only the kind.
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

    The index at each position comes from `EpochOrder(length, seed)`; without `shuffle` it is the
    position modulo the length. A global batch may end one epoch and start the next.

    Args:
        length: samples in the data set.
        global_batch_size: samples in one optimizer step over all ranks.
        seed: seed of the order.
        shuffle: False for the order of the data set.
        micro_batch_size: see `ExactStream`, also for the following arguments.
        step: number of steps trained so far.
        steps: the step at which iteration ends; when None it never ends.
        rank: rank of this process among those that divide the batch.
        world_size: number of processes that divide the batch.

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
    # A training script has imported torch; this library does not.
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
    """Return for each worker process of a loader, in order, whether it is this process."""
    loaders = sys.modules.get("torch.utils.data")
    info = loaders.get_worker_info() if loaders is not None else None
    return [worker == info.id for worker in range(info.num_workers)] if info else [True]
