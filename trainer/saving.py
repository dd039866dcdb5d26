"""The saves of an attempt as its training loop sees them: begun, staged, told, settled."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from specs.checkpoint import Manifest, SaveSettled, TrainState
from specs.rundir import Phase
from trainer.assembly import Assembly
from trainer.checkpoint.checkpointer import Checkpointer
from trainer.checkpoint.save import Save
from trainer.control import Control
from trainer.errors import RunError
from trainer.record import Recorder
from trainer.report import Report

logger = logging.getLogger("trainer")


class Saving:
    """Saves of one attempt; every rank calls every method at the same place of the same step.

    With `async_mode` a save goes on while the next steps run. Rank 0 sees that it has ended and
    tells the others with what it decides between steps; all of them then settle it at the same
    step: what failed is raised on every rank.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        assembly: Assembly,
        *,
        recorder: Recorder,
        control: Control,
        report: Report,
    ) -> None:
        self._checkpointer = checkpointer
        self._assembly = assembly
        self._recorder = recorder
        self._control = control
        self._report = report
        self._save: Save | None = None
        self._begun_at_step: int | None = None
        self._stalled = 0.0

    @property
    def ended(self) -> bool:
        """Whether a save has ended, on this rank, that is not settled yet."""
        return self._save is not None and self._save.ended

    def begin(self, state: TrainState, kind: str) -> None:
        """Begin to save this step, after the save before has ended.

        Raises:
            RunError: the save before has failed.
        """
        self.settle()
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
        """Save this step, unless that has been done, and wait for the end of it.

        Raises:
            RunError: it has failed.
        """
        if self._begun_at_step != state.step:
            self.begin(state, kind)
        self.settle()

    def wait_staged(self) -> None:
        """Wait until the tensors may change: comes right before the update of a step."""
        if self._save is not None and not self._save.staged:
            with self._blocking():
                self._save.wait_staged()

    def settle(self) -> None:
        """Wait for the save that is under way, if one is.

        Raises:
            RunError: it has failed.
        """
        save = self._save
        if save is None:
            return
        with self._blocking():
            self._checkpointer.finish()
        manifest = save.result()
        self._save = None
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
