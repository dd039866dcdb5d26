"""The last words of a run: the first failure is the cause, and both files name it."""

from __future__ import annotations

from pathlib import Path

from trainer.errors import DataError
from trainer.metrics.run_writer import RunWriter
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
