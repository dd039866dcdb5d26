"""A bucket that answers with 5xx for a while: training continues, and a later try saves."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.objects.store import Server
from tests.trainer.points import at_points
from tests.trainer.ranks import run_ranks
from tests.trainer.runs import JOB, Attempt, Meddling, SmallJob, train_rank
from trainer.checkpoint import save_retry
from trainer.checkpoint.manifest import committed_manifests
from trainer.checkpoint.save_folder import Point
from trainer.storage.object_path import ObjectPath
from trainyard.base.backoff import Backoff
from trainyard.protocol.manifest import SaveFailed
from trainyard.spec.layout import Layout

FAULT = {"method": "PUT", "match": "__1_0", "times": 100, "status": 500, "code": "InternalError"}


@dataclass(frozen=True)
class Healing(Meddling):
    """A bucket that works again once a failed save is recorded."""

    server: Server | None = None

    def after_step(self, run: Path, rank: int, step: int) -> None:
        if rank == 0 and "save_failed" in (run / "events.jsonl").read_text():
            assert self.server is not None
            self.server.fail()


def _train(run: str, healing: Healing) -> str:
    save_retry.BACKOFF = Backoff(first=0.0, longest=0.0, jitter=0.0)
    os.environ["AWS_MAX_ATTEMPTS"] = "1"

    def spoil(point: Point, path: Path) -> None:
        if os.environ["RANK"] == "0" and point is Point.BEGUN and path.name == "step-4":
            assert healing.server is not None
            healing.server.fail(FAULT)

    with at_points(spoil):
        return train_rank(run, healing)


def test_a_bucket_that_fails_for_a_while_costs_no_step(
    server: Server, bucket: ObjectPath, tmp_path: Path
) -> None:
    job = SmallJob(tmp_path).changed(
        tmp_path,
        training={"steps": 8},
        checkpoint={"interval_steps": 2, "preflight": False, "writers": "all"},
    )
    run = job.prepare(1, Layout(dp_shard=2), storage=bucket)
    run_ranks(2, _train, str(run), Healing(server=server), initialize=False)
    attempt = Attempt(run)
    assert attempt.outcome.outcome == "succeeded"
    (failed,) = [
        SaveFailed.model_validate(e.data) for e in attempt.events if e.kind == "save_failed"
    ]
    assert "the object store has failed (InternalError" in failed.message
    assert (failed.step, failed.saved_step) == (4, 2)
    steps = [m.train_state.step for m in committed_manifests(bucket, JOB)]
    assert steps == [2, 5, 6, 8]
