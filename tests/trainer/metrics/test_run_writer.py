"""The failure record of a run: the first failure is the cause, and both files name it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from tests.manifests import make_manifest, state_at
from trainer.errors import DataError
from trainer.metrics.run_writer import RunWriter
from trainyard.protocol.manifest import SaveFailed
from trainyard.protocol.record_parser import parse_record
from trainyard.run.directory import RunDirectory
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.records import Outcome


def words(run: Path) -> tuple[Failure, Outcome]:
    error = parse_record(Failure, (run / "error.json").read_bytes())
    return error, parse_record(Outcome, (run / "outcome.json").read_bytes())


def test_the_first_failure_is_the_cause(tmp_path: Path) -> None:
    for rank, text in ((1, "the cause"), (0, "its peer is gone")):
        RunWriter(RunDirectory(tmp_path), rank=rank, local_rank=rank).fail(DataError(text))
    error, outcome = words(tmp_path)
    assert (error.rank, error.message, error.reason) == (1, "the cause", FailureReason.DATA_ERROR)
    assert outcome.failure == error


def test_a_rank_that_ends_between_its_two_words_is_spoken_for(tmp_path: Path) -> None:
    RunWriter(RunDirectory(tmp_path), rank=0, local_rank=0).fail(DataError("the cause"))
    (tmp_path / "outcome.json").unlink()
    RunWriter(RunDirectory(tmp_path), rank=1, local_rank=1).fail(RuntimeError("its peer is gone"))
    error, outcome = words(tmp_path)
    assert outcome.outcome == "failed"
    assert outcome.failure == error
    assert error.message == "the cause"


def test_a_file_shows_that_a_save_may_have_a_commit_without_an_event(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    first, second = (RunWriter(run, rank=rank, local_rank=rank) for rank in (0, 1))
    second.save_begun()
    assert not run.committing.exists()
    now = datetime.now(UTC)
    failure = SaveFailed(
        kind="interval",
        message="disk full",
        tries=1,
        failing_since=now,
        next_try_at=now,
        give_up_at=now,
        saved_step=0,
        step=4,
    )
    manifest = make_manifest("job-1", 1, state_at(4))
    first.save_begun()
    assert run.committing.exists()
    first.save_failed(failure)
    assert not run.committing.exists()
    first.save_begun()
    first.committed(manifest)
    assert not run.committing.exists()
    assert first.checkpoint_id == manifest.checkpoint_id
