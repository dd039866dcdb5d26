"""The records of saves: events, answers, metrics, and the stall of training."""

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
    """Writes progress and result of each save into the run directory."""

    def __init__(
        self, writer: RunWriter, requests: RequestChannel, metrics_logger: MetricsLogger
    ) -> None:
        self._writer = writer
        self._requests = requests
        self._metrics_logger = metrics_logger

    @property
    def step(self) -> int:  # type: ignore[override]
        """Completed steps of training."""
        return self._writer.step

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Show a save in the heartbeat, and exclude its time from the step's."""
        self._writer.beat(Phase.SAVING)
        with self._metrics_logger.timers.pausing():
            yield

    def begun(self) -> None:
        """Assign the pending save requests to this save."""
        self._requests.save_begun()

    def committed(self, manifest: Manifest) -> None:
        """Record a commit."""
        self._writer.checkpoint_id = manifest.checkpoint_id
        self._writer.event("checkpoint_committed", manifest.model_dump(mode="json"))

    def settled(self, manifest: Manifest, settled: SaveSettled) -> None:
        """Answer requests, and record the durations, which are known only now."""
        self._requests.saved(manifest.checkpoint_id)
        self._metrics_logger.keep(
            {
                "checkpoint/save_seconds": manifest.save_seconds,
                "checkpoint/stall_seconds": settled.stall_seconds,
            }
        )
        self._writer.event("checkpoint_settled", settled.model_dump(mode="json"))

    def failed(self, failure: SaveFailed) -> None:
        """Record why a save failed, and when the next try is due."""
        self._writer.event("save_failed", failure.model_dump(mode="json"))
