"""Fields of a node's failure record, and the parsing of the trainer's last output."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from server.api.http.request_body import parse_json
from server.cluster.nodes.health import is_of_the_node
from tests.worker.conftest import Place
from trainyard.protocol.record_parser import parse_record
from trainyard.protocol.states import DesiredState
from trainyard.protocol.worker_messages import MAX_REPORT_BYTES, PROTOCOL, Identity, Report
from trainyard.run.failures import REMEDIES, Failure, FailureReason
from trainyard.run.record_base import to_json, to_plain
from trainyard.run.records import ExitRecord, Outcome, RankExit
from worker.node.node_store import WorkerRun
from worker.supervisor.exit_classification import Findings, judge, last_words, record_exit

SEEN = Findings(node="n", started=True)
SAVED = Outcome(outcome="stopped", step=7, checkpoint_id="a1.step-7")
LATE = Outcome(outcome="stopped", step=9, checkpoint_id="a1.step-7")
UNSAVED = Outcome(outcome="stopped", step=7, checkpoint_id=None)
NAN = Failure(reason=FailureReason.NON_FINITE_LOSS, message="NaN", rank=1, step=4)


def end(rank: int, *, code: int | None = None, signal: str | None = None) -> RankExit:
    return RankExit(rank=rank, pid=rank + 100, exit_code=code, signal=signal, time=float(rank))


FORWARD = "own model: forward must return logits"
WRONG_LOGITS = """
from torch import nn


class Block(nn.Linear):
    pass


class Net(nn.Module):
    def __init__(self, vocab_size, seq_len):
        super().__init__()
        self.embedding, self.block = nn.Embedding(vocab_size, 8), Block(8, 8)

    def forward(self, tokens):
        return self.block(self.embedding(tokens))
"""


@pytest.mark.parametrize(
    ("factory", "rank", "message"),
    [("wrong:Net", 0, FORWARD), ("wrong:Missing", None, "model.factory")],
    ids=["rank", "check"],
)
def test_the_launch_error_of_a_rank_or_of_the_check_does_not_count_against_the_node(
    place: Place, factory: str, rank: int | None, message: str
) -> None:
    code = place.folder / "data" / "own"
    code.mkdir()
    (code / "wrong.py").write_text(WRONG_LOGITS)
    place.local = replace(place.local, allow_code=True)
    model = {"factory": factory, "code": "data:own", "block_classes": ["Block"]}
    failure = place.start(ranks=1, spec={"model": model}).exit().failure
    assert failure is not None
    assert message in failure.message
    assert (failure.reason, failure.rank, failure.node) == ("launch_error", rank, "node-1")
    assert not is_of_the_node(failure)
    assert "Change what the message names" in failure.remedy.text


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (
            {"outcome": SAVED, "preempted": True},
            {
                "reason": FailureReason.PREEMPTED,
                "message": "node n was told to end its work; saved as a1.step-7",
                "node": "n",
                "step": 7,
            },
        ),
        (
            {"outcome": UNSAVED, "preempted": True},
            {
                "reason": FailureReason.PREEMPTED,
                "message": "node n was told to end its work; nothing was saved",
                "node": "n",
                "step": 7,
            },
        ),
        (
            {"outcome": LATE, "preempted": True},
            {
                "reason": FailureReason.PREEMPTED,
                "message": "node n was told to end its work; no save of step 9 fitted into the "
                "time; the last one is a1.step-7",
                "node": "n",
                "step": 9,
            },
        ),
        (
            {"started": False, "preempted": True},
            {
                "reason": FailureReason.PREEMPTED,
                "message": "node n was told to end its work; nothing was saved",
                "node": "n",
            },
        ),
        (
            {},
            {
                "reason": FailureReason.TRAINER_ERROR,
                "message": "the ranks ended without an outcome",
                "node": "n",
            },
        ),
        (
            {"ranks": (end(0, signal="SIGKILL"),)},
            {
                "reason": FailureReason.TRAINER_ERROR,
                "message": "rank 0 (pid 100) was ended by SIGKILL",
                "rank": 0,
                "node": "n",
                "signal": "SIGKILL",
            },
        ),
        (
            {"ranks": (end(0, signal="SIGKILL"),), "memory_ran_out": True},
            {
                "reason": FailureReason.OUT_OF_MEMORY,
                "message": "rank 0 (pid 100) was ended by SIGKILL while the kernel ended "
                "processes for want of memory",
                "rank": 0,
                "node": "n",
                "signal": "SIGKILL",
            },
        ),
        (
            {"ranks": (end(0, signal="SIGABRT"),), "flight_record": "/run/f"},
            {
                "reason": FailureReason.HANG,
                "message": "rank 0 (pid 100) was ended by SIGABRT by NCCL's watchdog: a "
                "collective had timed out or failed",
                "rank": 0,
                "node": "n",
                "signal": "SIGABRT",
                "path": "/run/f",
            },
        ),
        (  # the record of another failure than an abort is not its cause
            {"ranks": (end(0, signal="SIGSEGV"),), "flight_record": "/run/f"},
            {
                "reason": FailureReason.TRAINER_ERROR,
                "message": "rank 0 (pid 100) was ended by SIGSEGV",
                "rank": 0,
                "node": "n",
                "signal": "SIGSEGV",
            },
        ),
        (
            {"ranks": (end(2, code=5),)},
            {
                "reason": FailureReason.TRAINER_ERROR,
                "message": "rank 2 (pid 102) ended with exit code 5",
                "rank": 2,
                "node": "n",
                "exit_code": 5,
            },
        ),
        (  # SIGTERM without a notice is a failure, and a notice without SIGTERM is not its cause
            {"ranks": (end(0, signal="SIGTERM"),)},
            {
                "reason": FailureReason.TRAINER_ERROR,
                "message": "rank 0 (pid 100) was ended by SIGTERM",
                "rank": 0,
                "node": "n",
                "signal": "SIGTERM",
            },
        ),
        (
            {"ranks": (end(0, signal="SIGSEGV"),), "preempted": True},
            {
                "reason": FailureReason.TRAINER_ERROR,
                "message": "rank 0 (pid 100) was ended by SIGSEGV",
                "rank": 0,
                "node": "n",
                "signal": "SIGSEGV",
            },
        ),
    ],
)
def test_a_failure_names_what_ended_and_how(seen: dict[str, Any], expected: dict[str, Any]) -> None:
    failure = judge(replace(SEEN, **seen), time=1.0).failure
    assert failure is not None
    assert failure.remedy == REMEDIES[expected["reason"]]
    assert failure == Failure(**expected)  # the rest of its fields is absent


def test_the_exit_code_of_another_rank_is_not_that_of_the_error() -> None:
    """Rank 0 ended first, but rank 1 wrote the error: its exit code was not known yet."""
    failure = judge(replace(SEEN, ranks=(end(0, code=9),), error=NAN), time=1.0).failure
    assert failure == replace(NAN, node="n", exit_code=None)
    own = judge(replace(SEEN, ranks=(end(1, code=9),), error=NAN), time=1.0).failure
    assert own == replace(NAN, node="n", exit_code=9)


def test_an_error_without_an_abnormal_end_is_the_failure() -> None:
    failure = judge(replace(SEEN, ranks=(end(1, code=0),), error=NAN), time=1.0).failure
    assert failure == replace(NAN, node="n")


@pytest.mark.parametrize("reason", FailureReason)
def test_a_rank_decides_neither_about_a_node_nor_about_retries(
    tmp_path: Path, reason: FailureReason
) -> None:
    run = WorkerRun(tmp_path)
    forged = Failure(
        reason=reason, message="m", rank=0, node="other", node_at_fault=True, free_retry=True
    )
    Path(run.error).write_text(to_json(forged))
    for ranks in ((), (end(0, code=1),)):
        found = judge(replace(SEEN, error=last_words(run)[1], ranks=ranks), time=1.0).failure
        assert found is not None
        assert found.node == "n"
        assert not found.is_free
        assert not is_of_the_node(found)
        forgeable = reason not in ("node_lost", "preempted")
        shown = reason if forgeable else FailureReason.TRAINER_ERROR
        assert (found.reason, found.remedy) == (shown, REMEDIES[shown])


@pytest.mark.parametrize("reason", FailureReason)
def test_a_program_reports_its_own_error_as_that_of_a_program(
    tmp_path: Path, reason: FailureReason
) -> None:
    run = WorkerRun(tmp_path)
    forged = Failure(reason=reason, message="m", rank=0, signal="SIGKILL", free_retry=True)
    Path(run.error).write_text(to_json(forged))
    error = last_words(run, of_program=True)[1]
    of_program = replace(SEEN, error=error, ranks=(end(0, code=1),), program_ranks=1)
    found = judge(of_program, time=1.0).failure
    assert found is not None
    own = reason in ("non_finite_loss", "loss_spike", "checkpoint_error")
    shown = reason if own else FailureReason.PROGRAM_ERROR
    assert (found.reason, found.remedy) == (shown, REMEDIES[shown])
    assert (found.message, found.signal, found.free_retry) == ("m", None, False)


def test_a_cancel_outlasts_a_save() -> None:
    record = judge(replace(SEEN, outcome=SAVED, desired=DesiredState.CANCEL), time=3.5)
    assert (record.outcome, record.failure, record.time) == ("cancelled", None, 3.5)


def test_an_exit_is_recorded_once_with_the_error_of_the_trainer(tmp_path: Path) -> None:
    run = WorkerRun(tmp_path)
    record = record_exit(run, replace(SEEN, ranks=(end(1, code=9),), error=NAN))
    assert (record.outcome, record.failure) == ("failed", replace(NAN, node="n", exit_code=9))
    assert parse_record(ExitRecord, Path(run.exit).read_bytes()) == record
    assert record_exit(run, replace(SEEN, outrun=True)) == record  # of a former supervisor


def test_an_exit_that_cannot_be_written_is_returned(tmp_path: Path) -> None:
    run = WorkerRun(tmp_path)
    Path(run.exit).mkdir()
    assert record_exit(run, replace(SEEN, outrun=True)).outcome == "cancelled"


def test_last_words_are_those_of_the_run(tmp_path: Path) -> None:
    run = WorkerRun(tmp_path)
    assert last_words(run) == (None, None)
    Path(run.outcome).write_text(to_json(SAVED))
    Path(run.error).write_text(to_json(NAN))
    assert last_words(run) == (SAVED, NAN)


def test_last_words_count_only_from_the_user_of_the_ranks(run_of_another_user: WorkerRun) -> None:
    run = run_of_another_user
    Path(run.outcome).write_text(to_json(SAVED))
    Path(run.error).write_text(to_json(NAN))
    assert last_words(run) == (None, None)


@pytest.mark.parametrize(
    "written",
    [
        {"message": "x" * 5_000_000, "traceback": "y" * 5_000_000},
        {"message": "a NUL\0 of the data", "path": "data/\0"},
        {"message": "a count", "exit_code": 10**30},
        {"message": "a step", "step": 10**400},
    ],
    ids=["long", "nul", "exit code", "step"],
)
def test_an_exit_is_taken_whatever_a_rank_wrote(tmp_path: Path, written: dict[str, Any]) -> None:
    run = WorkerRun(tmp_path)
    error = json.dumps({"reason": "data_error", "rank": 0, **written})
    Path(run.error).write_text(error)
    Path(run.outcome).write_text(f'{{"outcome": "failed", "step": 3, "failure": {error}}}')
    outcome, failure = last_words(run)
    record = judge(replace(SEEN, outcome=outcome, error=failure, ranks=(end(0, code=1),)), time=1.0)
    identity = Identity(boot_id="b", pid_namespace="n", pid=1, start_time=1)
    content = Report(protocol=PROTOCOL, node="n", identity=identity, exit=record).model_dump_json()
    assert len(content) < MAX_REPORT_BYTES
    taken = parse_json(Report, content.encode()).exit
    assert taken is not None
    assert taken.failure is not None
    orjson.dumps(to_plain(taken.failure))  # as its event is stored


def test_a_preempted_program_loses_what_came_after_its_last_checkpoint() -> None:
    found = replace(
        SEEN,
        preempted=True,
        program_ranks=1,
        stopped_in_time=True,
        ranks=(end(0, code=0),),
    )
    failure = judge(found, time=1.0).failure
    assert failure is not None
    assert failure.reason == FailureReason.PREEMPTED
    assert failure.message == (
        "node n was told to end its work; what the program did since its last checkpoint is lost"
    )
