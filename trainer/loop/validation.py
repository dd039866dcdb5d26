"""The loss on held-out sequences: equal with any layout, and without effect on training."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist

from trainer.data.batches import NO_LABEL, MicroBatch, micro_batches
from trainer.data.dataset import Dataset
from trainer.distributed import Ranks
from trainer.metrics.run_writer import RunWriter
from trainer.parallel.mesh import MeshCoordinates
from trainer.run import TrainerRun
from trainyard.run.directory import Phase

logger = logging.getLogger("trainer")

Evaluate = Callable[[Sequence[MicroBatch]], torch.Tensor]
"""Returns the summed loss of a rank's micro-batches, float32 `[]`, computed without gradients."""


class Validation:
    """The loss on the first sequences of the held-out split, which are always the same.

    Global batches are partitioned as in training. A split with fewer sequences than
    `validation.batches` needs is used once, completely. Padding in the last batch does not count.
    """

    def __init__(
        self,
        held_out: Dataset,
        run: TrainerRun,
        *,
        ranks: Ranks,
        writer: RunWriter,
        evaluate: Evaluate,
        owed: bool = False,
    ) -> None:
        self._held_out = held_out
        self._partition = run.partition
        self._layout = run.attempt.layout
        self._dp_rank = MeshCoordinates.of(ranks.rank, self._layout).dp
        self._device = ranks.device
        self._writer = writer
        self._evaluate = evaluate
        self.owed = owed
        """Whether a stop at the present step left no time for the step's validation."""
        section, batch = run.spec.validation, run.spec.training.global_batch_size
        self._interval, self._last = section.interval_steps, run.spec.training.steps
        requested = section.batches * batch
        self._sequences = min(requested, held_out.n_sequences)
        if self._sequences < requested and ranks.leads:
            logger.warning(
                "validation.batches=%d needs %d sequences, but only %d are held out: using these",
                section.batches,
                requested,
                held_out.n_sequences,
            )

    def is_due(self, step: int) -> bool:
        """Return whether to validate after this step: every `interval_steps`, and at the end."""
        return step % self._interval == 0 or step == self._last

    def owes(self, step: int) -> bool:
        """Return whether a stop omitted the validation after this step."""
        return self.owed and self.is_due(step)

    def run(self) -> dict[str, float]:
        """Return mean loss per token, in nats, and duration in seconds; this is a collective.

        The host waits for the device once, at the end.
        """
        started = time.perf_counter()
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for batch in self._batches():
            self._writer.beat(Phase.VALIDATING)
            total += self._evaluate(batch)
        # Every tensor-parallel rank has the whole loss, so divide by tp; ranks on the other axes
        # have parts of it.
        total /= self._layout.tp
        dist.all_reduce(total)
        loss = total.item() / (self._sequences * self._held_out.seq_len)
        seconds = time.perf_counter() - started
        logger.info("validation loss %.4f in %.1f s", loss, seconds)
        return {"validation/loss": loss, "validation/seconds": seconds}

    def _batches(self) -> Iterator[list[MicroBatch]]:
        """Yield this rank's part of each global batch."""
        for position in range(0, self._sequences, self._partition.global_batch_size):
            yield [
                self._without_repeats(batch)
                for batch in micro_batches(
                    self._held_out,
                    position=position,
                    partition=self._partition,
                    dp_rank=self._dp_rank,
                )
            ]

    def _without_repeats(self, batch: MicroBatch) -> MicroBatch:
        """Return the batch with no labels for repeated sequences, so that the loss ignores them.

        The batch keeps its size, because pipelines and compiled blocks need a fixed shape.
        """
        if batch.positions[-1] < self._sequences:
            return batch
        labels_BS = batch.labels.copy()
        labels_BS[batch.positions >= self._sequences] = NO_LABEL
        return replace(batch, labels=labels_BS)
