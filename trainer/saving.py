"""The saves of an attempt as its training loop sees them: begun, staged, told, settled."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch.distributed as dist

from trainer.assembly import Assembly
from trainer.checkpoint.checkpointer import Checkpointer
from trainer.checkpoint.retry import SaveRetry
from trainer.checkpoint.save import Save
from trainer.checkpoint.saver import PREFLIGHT
from trainer.checkpoint.together import on_rank_0
from trainer.control import Control
from trainer.errors import CheckpointError, RunError
from trainer.record import HEARTBEAT_SECONDS, Recorder
from trainer.report import Report
from trainyard.protocol.manifest import Manifest, SaveFailed, SaveSettled, TrainState
from trainyard.protocol.rundir import Phase

logger = logging.getLogger("trainer")


class Saving:
    """Saves of one attempt; every rank calls every method at the same place of the same step.

    With `async_mode` a save goes on while the next steps run. Rank 0 sees that it has ended and
    tells the others with what it decides between steps; all of them then settle it at the same
    step. What failed is raised on every rank, unless it may pass: then training goes on, and rank 0
    decides when the next try is due.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        assembly: Assembly,
        retry: SaveRetry,
        *,
        recorder: Recorder,
        control: Control,
        report: Report,
        group: dist.ProcessGroup,
        saved_step: int,
    ) -> None:
        self._checkpointer = checkpointer
        self._assembly = assembly
        self._recorder = recorder
        self._control = control
        self._report = report
        self._retry = retry
        self._group = group
        self._saved_step = saved_step  # the start counts: it is that of a checkpoint, or of nothing
        self.failed_kind: str | None = None
        """Why the save was due that failed and is to be tried again; None while saves succeed."""
        self._save: Save | None = None
        self._begun_at_step: int | None = None
        self._stalled = 0.0

    @property
    def under_way(self) -> bool:
        """Whether a save is not settled yet; alike on all ranks, between two steps."""
        return self._save is not None

    @property
    def ended(self) -> bool:
        """Whether a save has ended, on this rank, that is not settled yet."""
        return self._save is not None and self._save.ended

    @property
    def retry_due(self) -> bool:
        """Whether a save that failed is to be tried again, by the clock of this rank."""
        return self._save is None and self._retry.due

    def begin(self, state: TrainState, kind: str) -> None:
        """Begin to save this step, after the save before has ended.

        If that one fails for a passing reason, none begins: its next try comes later.

        Raises:
            RunError: a save has failed for good.
        """
        under_way = self.under_way
        self.settle()
        if under_way and self.failed_kind is not None:
            return
        with self._blocking():
            self._control.save_begun()
            self._save = self._checkpointer.begin(
                self._assembly.model,
                self._assembly.optimizer,
                state,
                kind=kind,
                on_commit=self._tell,
            )
            self._begun_at_step = state.step
        if self._save.ended:
            self.settle()

    def save(self, state: TrainState, kind: str) -> None:
        """Save this step, unless that has been done, and wait until it is saved.

        Raises:
            RunError: it has failed for good.
        """
        self.settle()
        if self._begun_at_step == state.step:
            return
        self.begin(state, kind)
        self.settle()
        while self.failed_kind is not None:
            self._wait_for_retry()
            self.begin(state, kind)
            self.settle()

    def _wait_for_retry(self) -> None:
        """Wait, on all ranks, until the next try is due; the heartbeat shows that this is a save.

        Whoever wants the attempt gone ends its processes.
        """
        while not on_rank_0(self._group, partial(self._retry.wait, HEARTBEAT_SECONDS)):
            self._recorder.beat(Phase.SAVING)

    def wait_staged(self) -> None:
        """Wait until the tensors may change: comes right before the update of a step."""
        if self._save is not None and not self._save.staged:
            with self._blocking():
                self._save.wait_staged()

    def settle(self) -> None:
        """Wait for the save that is under way, if one is.

        Raises:
            RunError: it has failed for good.
        """
        save, self._save = self._save, None
        if save is None:
            return
        try:
            with self._blocking():
                self._checkpointer.finish()
        except CheckpointError as error:
            self._failed(save, error)
            return
        manifest = save.result()
        self._retry.succeeded()
        self.failed_kind, self._saved_step = None, save.state.step
        self._control.saved(manifest.checkpoint_id)
        self._report.keep(
            {
                "checkpoint/save_seconds": manifest.save_seconds,
                "checkpoint/stall_seconds": self._stalled,
            }
        )
        settled = SaveSettled(checkpoint_id=manifest.checkpoint_id, stall_seconds=self._stalled)
        self._recorder.event("checkpoint_settled", settled.model_dump(mode="json"))
        self._stalled = 0.0
        logger.info("saved %s (%s)", manifest.checkpoint_id, manifest.kind)

    def _failed(self, save: Save, error: CheckpointError) -> None:
        """Take note, alike on all ranks, of a save that is tried again.

        Raises:
            CheckpointError: it is not: the reason does not pass, or has not for too long.
        """
        self._begun_at_step = None
        if not error.transient or save.kind == PREFLIGHT:
            raise error
        if not on_rank_0(self._group, self._retry.failed):
            raise CheckpointError(
                f"{error}; no save has succeeded since step {self._saved_step}, for longer than "
                "checkpoint.give_up_after_seconds",
                path=error.path,
                remedy=error.remedy,
                of_storage=error.of_storage,
            ) from error
        self.failed_kind = save.kind
        logger.warning("a save failed and is tried again: %s", error)
        if dist.get_rank(self._group) == 0:
            self._recorder.event("save_failed", self._failure(save, error).model_dump(mode="json"))

    def _failure(self, save: Save, error: CheckpointError) -> SaveFailed:
        return SaveFailed(
            kind=save.kind,
            message=str(error)[:2_000],
            tries=self._retry.tries,
            failing_since=self._retry.failing_since,
            next_try_at=self._retry.next_try_at,
            give_up_at=self._retry.give_up_at,
            saved_step=self._saved_step,
            step=self._recorder.step,
        )

    @contextmanager
    def not_losing_the_last(self) -> Iterator[None]:
        """When a run ends for a reason of its own, let the save that is under way end first."""
        try:
            yield
        except RunError:
            self._finish_whatever_comes()
            raise

    def _finish_whatever_comes(self) -> None:
        if self._save is None:
            return
        self._recorder.beat(Phase.SAVING)
        try:
            self._checkpointer.finish()
        except RunError as error:
            logger.warning("the save under way has failed too: %s", error)

    def _tell(self, manifest: Manifest) -> None:
        """Record a commit, as soon as it is one; called in the thread that saves."""
        self._recorder.checkpoint_id = manifest.checkpoint_id
        self._recorder.event("checkpoint_committed", manifest.model_dump(mode="json"))

    @contextmanager
    def _blocking(self) -> Iterator[None]:
        """Count the time of this block as one in which saving holds up training."""
        self._recorder.beat(Phase.SAVING)
        started = time.perf_counter()
        with self._report.pace.pausing():
            yield
        self._stalled += time.perf_counter() - started
