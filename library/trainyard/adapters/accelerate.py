"""Exact data for Hugging Face Accelerate, with a loader that `prepare` does not shard again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch.utils.data import DataLoader

from trainyard.data import ExactStream


class ExactLoader:
    """Yields this rank's micro-batches, each with its weight, on an accelerator's device.

    `Accelerator.prepare` shards the batches of a loader over the ranks even if the loader's sampler
    has already divided them. `prepare` returns an `ExactLoader` unchanged. A step has
    `len(sampler.weights)` micro-batches. The loader sets this number as
    `accelerator.gradient_accumulation_steps`, so that `accelerator.accumulate` and `sync_gradients`
    match.

    Iteration yields `(weight, batch)` for `accelerator.backward(weight * loss)`, where `loss` is
    the mean over the samples of the micro-batch. `backward` divides by the number of micro-batches,
    and the weight compensates for this division. Add 1 to `sampler.step` after each optimizer step.

    Args:
        accelerator: the accelerator; its `split_batches` and `dispatch_batches` have no effect
        here.
        loader: `DataLoader(..., batch_sampler=sampler)`, or a loader whose data set yields the
            batches of `sampler.deal(...)`.
        sampler: the sampler of this rank, created after the accelerator.

    Raises:
        ValueError: `sampler` has another rank or world size than the accelerator, or `loader` has
            another sampler.
    """

    def __init__(
        self, accelerator: Accelerator, loader: DataLoader[Any], sampler: ExactStream
    ) -> None:
        found = (sampler.rank, sampler.world_size)
        expected = (accelerator.process_index, accelerator.num_processes)
        if found != expected:
            raise ValueError(
                f"rank={found[0]}, world_size={found[1]} of the sampler: those of the accelerator "
                f"are {expected[0]} and {expected[1]}; create the sampler after the accelerator"
            )
        # A loader with `batch_size=None` has no batch sampler, because its data set forms the
        # batches.
        other = loader.batch_sampler
        if other is not None and other is not sampler:
            raise ValueError(
                f"the loader has a batch_sampler of type {type(other).__name__}: legal is "
                "DataLoader(..., batch_sampler=sampler), and the loader before it is prepared"
            )
        self.accelerator = accelerator
        self.loader = loader
        self.sampler = sampler
        accelerator.gradient_accumulation_steps = len(sampler.weights)

    def __iter__(self) -> Iterator[tuple[float, Any]]:
        weights = self.sampler.weights
        device = self.accelerator.device
        for number, batch in enumerate(self.loader):
            placed = send_to_device(batch, device, non_blocking=self.accelerator.non_blocking)
            yield weights[number % len(weights)] * len(weights), placed

    def __len__(self) -> int:
        """Return the number of micro-batches from the sampler's current step to the sampler's end.

        Raises:
            TypeError: the sampler has no end.
        """
        return len(self.loader)
