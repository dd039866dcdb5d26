"""The records of saves: events, answers, metrics, and the time for which training waited."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trainer.checkpoint.pending_save import SaveObserver
from trainer.loop.requests import RequestChannel
from trainer.metrics.metrics_logger import MetricsLogger
from trainer.metrics.run_writer import RunWriter
from trainyard.protocol.manifest import Manifest, SaveFailed, SaveSettled
from trainyard.run.directory import Phase


class SaveRecords(SaveObserver):
    """Writes what becomes of each save into the run directory."""

    def __init__(self, recorder: RunWriter, control: RequestChannel, report: MetricsLogger) -> None:
        self._recorder = recorder
        self._control = control
        self._report = report

    @property
    def step(self) -> int:  # type: ignore[override]
        """Completed steps of training by now."""
        return self._recorder.step

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Show in the heartbeat that this is a save, and keep its time out of the step's."""
        self._recorder.beat(Phase.SAVING)
        with self._report.pace.pausing():
            yield

    def begun(self) -> None:
        """Take the requests so far as those that this save answers."""
        self._control.save_begun()

    def committed(self, manifest: Manifest) -> None:
        """Record a commit."""
        self._recorder.checkpoint_id = manifest.checkpoint_id
        self._recorder.event("checkpoint_committed", manifest.model_dump(mode="json"))

    def settled(self, manifest: Manifest, settled: SaveSettled) -> None:
        """Answer requests, and record the times, which are known only now."""
        self._control.saved(manifest.checkpoint_id)
        self._report.keep(
            {
                "checkpoint/save_seconds": manifest.save_seconds,
                "checkpoint/stall_seconds": settled.stall_seconds,
            }
        )
        self._recorder.event("checkpoint_settled", settled.model_dump(mode="json"))

    def failed(self, failure: SaveFailed) -> None:
        """Record why a save failed, and when it is tried again."""
        self._recorder.event("save_failed", failure.model_dump(mode="json"))
