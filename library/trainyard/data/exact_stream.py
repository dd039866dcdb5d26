"""Samples of each rank in each step; global batches do not depend on the world size."""

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
    """One rank's micro-batches of positions in an endless stream; it serves as a batch sampler.

    Step k consumes `global_batch_size` positions from `k * global_batch_size` on, at any world
    size. The built-in trainer's `BatchPartition` divides them over the ranks. In every step each
    rank gets `len(weights)` micro-batches, so that all ranks join every collective. A rank
    without remaining samples gets the first sample of the step again, with weight 0.

    Iteration starts at `step` but does not change `step`, because a loader reads samples long
    before the training loop trains on them. The training loop must add 1 to `step` after each
    optimizer step; then `state_dict` is exact at any time.

    Args:
        global_batch_size: number of samples in one optimizer step, over all ranks.
        micro_batch_size: maximum number of samples in one micro-batch; it is reduced if a rank
            would otherwise have no sample. By default, the largest size with work for each rank.
        step: number of completed steps.
        steps: step at which iteration ends; None for endless iteration.
        rank: rank of this process among the processes that divide the batch; with tensor or
            pipeline parallelism, the data-parallel rank. By default, rank and world size come from
            `torch.distributed` if it is initialised, else from torchrun's variables `RANK` and
            `WORLD_SIZE`; otherwise the rank is 0 and the world size is 1.
        world_size: number of processes that divide the batch; given only with `rank`.

    Raises:
        ValueError: a number is not an integer or is out of range, or only one of rank and world
            size is given; the message gives the legal values.
    """

    _kind: ClassVar = "ExactStream"
    """Kind of the state; subclasses have the same kind unless they set their own."""

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
        """Number of completed steps; the training loop adds 1 after each step."""
        self.steps = None if steps is None else whole_number("steps", steps, least=0)
        """Step at which iteration ends; None for endless iteration."""
        # Of n ranks, n - 1 have full micro-batches, and the last rank has at least one sample.
        others = self.world_size - 1
        largest = (global_batch_size - 1) // others if others else global_batch_size
        size = largest if micro_batch_size is None else min(micro_batch_size, largest)
        partition = BatchPartition(global_batch_size, size, self.world_size)
        self._rounds = partition.for_rank(self.rank)
        self.weights = tuple(
            len(offsets) * self.world_size / global_batch_size for offsets in self._rounds
        )
        """Factors for the loss of each micro-batch in a step; the loss is a mean over samples. DDP
        and FSDP compute the mean over ranks of the summed gradients. With these factors, that mean
        is the gradient of the mean loss over the global batch."""

    @property
    def position(self) -> int:
        """First position that is not trained on yet, which is the number of samples consumed so far
        over all ranks."""
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
            TypeError: the stream is endless.
        """
        if self.steps is None:
            raise TypeError(f"{type(self).__name__} without steps=... never ends: it has no length")
        return max(0, self.steps - self.step) * len(self._rounds)

    def deal(self, items: Iterable[Item]) -> Iterator[list[Item]]:
        """Yield this rank's micro-batches of items that can only be read in order.

        Use it in the `__iter__` of an `IterableDataset`, with `DataLoader(..., batch_size=None)`.
        The worker processes of the loader take turns, and the loader reads from them in the same
        order. All ranks omit the items of an incomplete global batch at the end. All items of this
        rank in one global batch are in memory at the same time.

        Args:
            items: items of the stream from `position` on, the same on all ranks.
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
            # `rounds` is first in `zip`, so its end consumes no turn and the next step continues.
            for offsets, own_turn in zip(self._rounds, turns, strict=False):
                if own_turn:
                    yield [kept[offset] for offset in offsets or range(1)]

    def state_dict(self) -> dict[str, int | str]:
        """Return the position and the parameters of the order; the result is equal on all ranks."""
        return {"position": self.position, **self._order_facts()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of a state, which may come from another world size.

        Raises:
            ValueError: the state is not a mapping; its class, order or global batch size differs;
                a field is missing, unknown or of another type; or the position is inside a global
                batch.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"the state is {state!r:.200}; legal: what state_dict() returned")
        facts = self._order_facts()
        for name, value in facts.items():
            # States of earlier versions lack the kind and nothing else.
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
    """One rank's micro-batches of indices in a data set, for `DataLoader(batch_sampler=...)`.

    `EpochOrder(length, seed)` gives the index at each position; without `shuffle`, the index is
    the position modulo the length. A global batch may end one epoch and start the next.

    Args:
        length: number of samples in the data set.
        global_batch_size: number of samples in one optimizer step, over all ranks.
        seed: seed of the order.
        shuffle: whether to permute each epoch; if False, the order of the data set is kept.
        micro_batch_size: as in `ExactStream`.
        step: number of completed steps.
        steps: step at which iteration ends; None for endless iteration.
        rank: as in `ExactStream`.
        world_size: as in `ExactStream`.

    Raises:
        ValueError: as in `ExactStream`.
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
        """Number of samples in the data set."""
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
    # A training script has already imported torch; this library does not import it.
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
    """For each worker process of the data loader, return whether it is this process."""
    loaders = sys.modules.get("torch.utils.data")
    info = loaders.get_worker_info() if loaders is not None else None
    return [worker == info.id for worker in range(info.num_workers)] if info else [True]
