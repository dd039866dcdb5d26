"""Exact data for Lightning: a callback that keeps sampler and steps aligned, and a logger."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.data import ExactStream
from trainyard.run.session import Run, init

# `lightning` contains copies of the classes of `pytorch_lightning`, and the trainer of each package
# accepts only the classes of that package.
if TYPE_CHECKING:
    from pytorch_lightning import Callback, LightningModule, Trainer
    from pytorch_lightning.loggers import Logger
else:
    _name = "lightning.pytorch" if "lightning.pytorch" in sys.modules else "pytorch_lightning"
    Callback = importlib.import_module(_name).Callback
    Logger = importlib.import_module(f"{_name}.loggers").Logger

CHECKPOINT_FILE = "lightning.ckpt"
"""File that the callback writes to the folder of a checkpoint."""
PROGRESS = "epoch_loop.batch_progress"
"""Key of the micro-batch count in a Lightning checkpoint."""


class ExactCallback(Callback):
    """Aligns the steps of a Lightning trainer with the steps of an exact sampler.

    The trainer needs `max_steps`, and `use_distributed_sampler=False` because it would otherwise
    shard the samples again. The trainer's loader is `DataLoader(..., batch_sampler=sampler)` with
    an endless sampler. The callback sets `accumulate_grad_batches`, advances `sampler.step`, and
    saves and loads the sampler's state with the trainer's checkpoints. Every `log_every_n_steps`
    steps the callback logs `train/loss`, the mean over the global batch.

    At the end of `training_step`, after logging values, multiply the loss by the weight of the
    micro-batch: `return exact.weight(batch_idx) * loss`.

    Args:
        sampler: the sampler of this rank.
        ids: function that returns the ids of the samples in a batch of the loader. The callback
            collects them in `consumed`, and the server compares the digests of the attempts.
            Without `ids` there is no digest.
        run: receives progress and digests, and decides about stops and saves; by default the run of
            `trainyard.init`.
        save_every: steps between two checkpoints; the last step is saved too. By default, a
            checkpoint is saved only when the job stops or when a person requests one.
    """

    def __init__(
        self,
        sampler: ExactStream,
        ids: Callable[[Any], Iterable[int]] | None = None,
        run: Run | None = None,
        save_every: int | None = None,
    ) -> None:
        self.sampler = sampler
        self.save_every = save_every
        self.run = init() if run is None else run
        self.ids = ids
        self.consumed: list[int] = []
        """Ids of this rank's samples in the current step."""
        self._loss: Any = 0.0

    @property
    def state_key(self) -> str:
        """Key of the callback's state in a checkpoint; subclasses use the same key."""
        return "trainyard.ExactCallback"

    def weight(self, batch_idx: int) -> float:
        """Return the factor for the mean loss of a micro-batch.

        The trainer divides by the number of micro-batches, and the weight compensates for this.
        """
        weights = self.sampler.weights
        return weights[batch_idx % len(weights)] * len(weights)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the settings that affect the samples of a step.

        Raises:
            ValueError: a setting of the trainer or of the sampler does not allow exact steps.
        """
        if stage != "fit":
            return
        # Lightning has no public attribute for this setting.
        if trainer._accelerator_connector.use_distributed_sampler:
            raise ValueError(
                "use_distributed_sampler=True of the trainer would shard the samples again: legal "
                "is Trainer(use_distributed_sampler=False)"
            )
        found = (self.sampler.rank, self.sampler.world_size)
        expected = (trainer.global_rank, trainer.world_size)
        if found != expected:
            raise ValueError(
                f"rank={found[0]}, world_size={found[1]} of the sampler: those of the trainer are "
                f"{expected[0]} and {expected[1]}"
            )
        if self.sampler.steps is not None or trainer.max_steps < 1:
            raise ValueError(
                f"steps={self.sampler.steps} of the sampler and max_steps={trainer.max_steps} of "
                "the trainer: legal is a sampler without steps and a trainer with max_steps"
            )
        count = len(self.sampler.weights)
        if trainer.accumulate_grad_batches not in (1, count):
            raise ValueError(
                f"accumulate_grad_batches={trainer.accumulate_grad_batches}: a step has {count} "
                "micro-batches at this world size; legal is to leave it out"
            )
        trainer.accumulate_grad_batches = count

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Count consumed samples; after the last micro-batch of a step, count the step."""
        number = batch_idx % len(self.sampler.weights)
        if number == 0:
            self.consumed, self._loss = [], 0.0
        if self.ids is not None and self.sampler.weights[number]:
            self.consumed += self.ids(batch)
        self._loss = self._loss + outputs["loss"].detach()
        if number == len(self.sampler.weights) - 1:
            positions = self.sampler.positions(self.sampler.step)
            self.sampler.step = trainer.global_step
            every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by a connector
            if trainer.global_step % every == 0:
                mean = trainer.strategy.reduce(self._loss, reduce_op="mean")
                pl_module.log("train/loss", mean, on_step=True, on_epoch=False)
            self._end_step(trainer, positions)

    def _end_step(self, trainer: Trainer, positions: Iterable[int]) -> None:
        step, run = trainer.global_step, self.run
        run.progress(step, total=trainer.max_steps)
        if self.ids is not None and run.in_job:  # elsewhere a process may train more than once
            run.consumed(step, self.consumed, positions)
        # All ranks get the same results.
        stop, save = run.should_stop(), run.should_save(step)
        if self.save_every is not None:
            save |= step % self.save_every == 0 or step == trainer.max_steps
        if stop or save:
            with run.checkpoint(step) as folder:
                trainer.save_checkpoint(folder / CHECKPOINT_FILE)
        trainer.should_stop |= stop

    def checkpoint_to_load(self, folder: Path | None = None) -> Path | None:
        """Return the file for `trainer.fit(..., ckpt_path=)`; None to start from scratch.

        Args:
            folder: folder of a checkpoint to use when the run has no checkpoint to resume from.
        """
        found = self.run.resume_from or folder
        return None if found is None else found / CHECKPOINT_FILE

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state, which is the same on every rank."""
        return self.sampler.state_dict()

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Continue at the position in a checkpoint of any world size.

        Raises:
            ValueError: the checkpoint has another data set, seed or global batch size, or has no
                state of the callback.
        """
        state = checkpoint["callbacks"].get(self.state_key)
        if state is None:
            raise ValueError(
                f"the checkpoint has no state of {self.state_key}: legal is one saved with the "
                "callback"
            )
        self.sampler.load_state_dict(state)
        # The trainer continues its count of micro-batches, but an earlier step may have had another
        # number of micro-batches.
        count = self.sampler.step * len(self.sampler.weights)
        progress = checkpoint["loops"]["fit_loop"][PROGRESS]
        for counts in (progress["total"], progress["current"]):
            incomplete = counts["processed"] - counts["completed"]
            counts |= dict.fromkeys(("ready", "started", "processed"), count)
            counts["completed"] = count - incomplete


class RunLogger(Logger):
    """Sends the values that modules log to the run: `Trainer(logger=RunLogger(exact))`.

    A logged step is the number of completed optimizer steps; Lightning's own count starts at 0.

    Args:
        exact: the callback of the same trainer.
    """

    def __init__(self, exact: ExactCallback) -> None:
        super().__init__()
        self._exact = exact

    @property
    def name(self) -> str:
        """Name of the job; empty outside a job."""
        return self._exact.run.name or ""

    @property
    def version(self) -> int:
        """Number of the attempt; 0 outside a job."""
        return self._exact.run.attempt or 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Log the values of rank 0; with `sync_dist=True`, they are averages over the ranks."""
        if self._exact.run.rank == 0:
            self._exact.run.log(metrics, step=self._exact.sampler.step)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing, because the arguments of a job are in the job's spec."""
