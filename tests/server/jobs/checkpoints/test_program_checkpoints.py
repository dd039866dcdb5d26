"""Checkpoints of programs in the catalog: storing, retention, resumes, and unsupported actions."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import select, update

from server.core.context import Context
from server.core.database.tables import events, nodes
from server.core.errors import ConflictError, InvalidRequestError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.parent import parent_checkpoint
from server.jobs.checkpoints import service
from server.jobs.checkpoints.queries import list_checkpoints, read_checkpoint
from server.jobs.jobs.fork import fork
from server.jobs.jobs.resume import preview, resume
from server.jobs.jobs.service import cancel, stop
from tests.actors import ADA
from tests.server.harness import Harness, Supervisor
from tests.server.jobs.jobs.test_programs import sections
from tests.server.reports import chunk, kept_events, metric_lines, send
from tests.server.yard import Yard
from trainyard.protocol.operations import OperationOutcome
from trainyard.protocol.rest.checkpoints import ExportRequest, ForkRequest, SampleRequest
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import JobState
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.checkpoints.checkpoint_names import checkpoint_id
from trainyard.run.checkpoints.program_manifest import ProgramManifest, SavedFile
from trainyard.run.failures import BadWindow, Failure, FailureReason, LoadFailure
from trainyard.run.record_base import to_json
from trainyard.run.records import EventRecord, ExitRecord


@pytest.fixture(autouse=True)
def _node(yard: Yard) -> None:
    """One node, which the fixture of operations registers."""


@pytest.fixture
def allow_code() -> bool:
    """The server accepts jobs that bring code."""
    return True


def manifest(job_id: str, attempt: int, step: int, **fields: Any) -> ProgramManifest:
    """Return the manifest of a step, with some fields replaced."""
    usual = ProgramManifest(
        checkpoint_id=checkpoint_id(job_id, attempt, step),
        job_id=job_id,
        attempt=attempt,
        step=step,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        world_size=2,
        save_seconds=0.5,
        size=12,
        files=(
            SavedFile(path="rank-0.pt", size=5, checksum="0" * 64),
            SavedFile(path="shards/rank-1.pt", size=7, checksum="1" * 64),
        ),
    )
    return replace(usual, **fields)


class Reporter:
    """Reports commits of one attempt, like its supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.sent = 0

    def commit(self, *manifests: ProgramManifest) -> None:
        lines = "".join(
            to_json(
                EventRecord(time=1.0, kind="checkpoint_committed", step=one.step, data=vars(one))
            )
            + "\n"
            for one in manifests
        ).encode()
        context = self.supervisor.harness.context
        send(context, self.supervisor, chunk("events", lines, start=self.sent))
        self.sent += len(lines)


def launched(harness: Harness, **fields: Any) -> tuple[str, Reporter]:
    """A program that runs on two slots of a registered node and can resume."""
    given = {"resume": "any_world_size", "resume_arguments": ["--from", "{checkpoint}"]} | fields
    job_id, (supervisor,) = harness.launched(**sections(**given))
    supervisor.train(0)
    return job_id, Reporter(supervisor)


def test_a_commit_enters_the_catalog(context: Context, harness: Harness) -> None:
    job_id, reporter = launched(harness)
    one = manifest(job_id, 1, 40, kind="final")
    reporter.commit(one, one)
    (view,) = list_checkpoints(context, job_id, scope=SYSTEM_SCOPE)
    assert (view.step, view.kind, view.size, view.files) == (40, "final", 12, 2)
    assert (view.layout, view.dtype, view.writers) == ("2 slots", None, None)
    assert view.place == f"checkpoints:{job_id}/a1/step-40"
    assert view.on_lineage
    assert read_checkpoint(context, view.id, scope=SYSTEM_SCOPE).manifest == one
    assert harness.attempt(job_id).last_step == 40


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"checkpoint_id": "other.a1.step-4"}, "is not of attempt 1"),
        ({"attempt": 2}, "is not of attempt 1"),
        ({"job_id": "other"}, "is not of attempt 1"),
        ({"size": 13}, "size is 13, but its files have 12 bytes"),
        ({"kind": "Big Save"}, "is no kind of checkpoint"),
        ({"save_seconds": float("inf")}, "are not finite"),
        ({"created_at": datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"size": 1, "files": (SavedFile(path="../x", size=1, checksum="0" * 64),)}, "outside"),
        ({"size": 1, "files": (SavedFile(path="/x", size=1, checksum="0" * 64),)}, "outside"),
        ({"size": 1, "files": (SavedFile(path="x", size=1, checksum="0"),)}, "no sha256 checksum"),
        ({"size": 0, "files": (SavedFile(path="COMMITTED", size=0, checksum="0" * 64),)}, "commit"),
    ],
)
def test_a_forged_manifest_is_skipped(
    context: Context, harness: Harness, fields: dict[str, Any], words: str
) -> None:
    job_id, reporter = launched(harness)
    usual = manifest(job_id, 1, 4)
    reporter.commit(replace(usual, **fields))
    assert list_checkpoints(context, job_id, scope=SYSTEM_SCOPE) == []
    (skipped,) = kept_events(context, "line_skipped")
    assert words in skipped["error"]


def test_retention_keeps_what_the_job_names(context: Context, harness: Harness, yard: Yard) -> None:
    kept = {"keep_latest_k": 1, "keep_every_steps": 20, "keep_best_k": 1}
    more = {"checkpoint": kept | {"keep_best_metric": "train/loss"}}
    job_id, reporter = launched(harness, more=more)
    supervisor = reporter.supervisor
    lines = metric_lines(1, 50)  # the loss rises: the first one is the best
    send(context, supervisor, chunk("metrics", lines))
    for step in (5, 10, 20, 30, 40, 50):
        reporter.commit(manifest(job_id, 1, step))
    assert yard.kept(job_id) == ["a1.step-20", "a1.step-40", "a1.step-5", "a1.step-50"]


def test_the_next_attempt_resumes_from_the_newest(context: Context, harness: Harness) -> None:
    job_id, reporter = launched(harness)
    reporter.commit(manifest(job_id, 1, 10), manifest(job_id, 1, 20))
    stop(context, job_id, actor=ADA, reason="")
    reporter.supervisor.end("stopped")
    shown = preview(context, job_id, ResumeRequest(world_size=3), scope=SYSTEM_SCOPE)
    assert (shown.checkpoint_id, shown.step) == (f"{job_id}.a1.step-20", 20)
    assert shown.plan.name == "3 slots"
    assert "/program/resume" not in [warning.pointer for warning in shown.plan.warnings]
    assert ("step", "20", "20") in [(c.name, c.before, c.after) for c in shown.changes]
    resume(context, job_id, ResumeRequest(world_size=3), actor=ADA)
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(job_id)
    point = supervisor.reply.attempt.resume
    assert point is not None
    assert (point.checkpoint_id, point.path) == (shown.checkpoint_id, f"{job_id}/a1/step-20")
    supervisor.train(0)
    Reporter(supervisor).commit(manifest(job_id, 2, 30, world_size=3, parent=point.checkpoint_id))
    newest, *older = list_checkpoints(context, job_id, scope=SYSTEM_SCOPE)
    assert (newest.layout, newest.parent) == ("3 slots", point.checkpoint_id)
    assert all(view.on_lineage for view in (newest, *older))


def test_an_older_checkpoint_that_is_named_leaves_a_branch(
    context: Context, harness: Harness
) -> None:
    job_id, reporter = launched(harness)
    reporter.commit(manifest(job_id, 1, 10), manifest(job_id, 1, 20))
    reporter.supervisor.end("succeeded")
    first = f"{job_id}.a1.step-10"
    shown = preview(context, job_id, ResumeRequest(checkpoint_id=first), scope=SYSTEM_SCOPE)
    assert (shown.step, shown.branch) == (10, True)
    resume(context, job_id, ResumeRequest(checkpoint_id=first), actor=ADA)
    assert harness.place() == 1
    assert [view.on_lineage for view in list_checkpoints(context, job_id, scope=SYSTEM_SCOPE)] == [
        False,
        True,
    ]


def test_another_size_needs_a_program_that_takes_it(context: Context, harness: Harness) -> None:
    job_id, reporter = launched(harness, resume="same_world_size")
    reporter.commit(manifest(job_id, 1, 10))
    stop(context, job_id, actor=ADA, reason="")
    reporter.supervisor.end("stopped")
    with pytest.raises(InvalidRequestError, match="resumes only on the same number of slots"):
        preview(context, job_id, ResumeRequest(world_size=3), scope=SYSTEM_SCOPE)
    assert preview(context, job_id, ResumeRequest(), scope=SYSTEM_SCOPE).step == 10


def test_a_program_that_begins_again_has_no_parent(context: Context, harness: Harness) -> None:
    job_id, reporter = launched(harness, resume="never", resume_arguments=[])
    reporter.commit(manifest(job_id, 1, 10))
    stop(context, job_id, actor=ADA, reason="")
    reporter.supervisor.end("stopped")
    with context.database.read() as connection:
        assert parent_checkpoint(connection, job_id).id is None
    shown = preview(context, job_id, ResumeRequest(), scope=SYSTEM_SCOPE)
    assert shown.step == 0
    assert shown.plan.warnings[0].detail.startswith("resume='never': the program begins again")
    assert [view.step for view in list_checkpoints(context, job_id, scope=SYSTEM_SCOPE)] == [10]


@pytest.mark.parametrize(
    ("last", "words"),
    [(0, "what the program did since step-10"), (17, "7 steps since step-10")],
)
def test_a_cancel_loses_what_came_after_the_checkpoint(
    context: Context, harness: Harness, last: int, words: str
) -> None:
    job_id, reporter = launched(harness)
    if last:
        send(context, reporter.supervisor, chunk("metrics", metric_lines(1, last)))
    reporter.commit(manifest(job_id, 1, 10))
    assert cancel(context, job_id, actor=ADA, reason="") == words


def test_what_needs_the_model_is_refused(context: Context, harness: Harness) -> None:
    job_id, reporter = launched(harness)
    reporter.commit(manifest(job_id, 1, 10))
    one = f"{job_id}.a1.step-10"
    with pytest.raises(ConflictError, match="only the program knows"):
        service.export(context, one, ExportRequest(), actor=ADA)
    with pytest.raises(ConflictError, match="only the program knows"):
        service.sample(context, one, SampleRequest(), actor=ADA)
    with pytest.raises(ConflictError, match="submit a new job that reads its folder"):
        fork(context, one, ForkRequest(), actor=ADA)


def test_it_is_pinned_verified_and_deleted_as_any_other(
    context: Context, harness: Harness, yard: Yard
) -> None:
    job_id, reporter = launched(harness)
    reporter.commit(manifest(job_id, 1, 10), manifest(job_id, 1, 20))
    one = f"{job_id}.a1.step-10"
    service.set_pin(context, one, pinned=True, actor=ADA)
    operation = service.verify(context, one, actor=ADA)
    (row,) = yard.operations(kind="verify")
    assert row.id == operation
    point = row.task.read("task").checkpoint
    assert point.metadata_digest == manifest(job_id, 1, 10).metadata_digest
    assert list_checkpoints(context, job_id, scope=SYSTEM_SCOPE)[1].pinned_by == ADA.name


def test_commits_of_a_lost_attempt_are_recovered(
    context: Context, harness: Harness, yard: Yard
) -> None:
    more = {"retry": {"node_lost_after_seconds": 60.0}}
    job_id, _ = launched(harness, more=more)
    harness.reconcile(seconds=61)
    (search,) = yard.operations(kind="recover")
    with context.database.write() as connection:
        texts = connection.scalars(select(events.c.message).where(events.c.kind.contains("queued")))
        assert any("recover commits of" in text for text in texts)
        values = {"offline_since": None, "heartbeat_at": harness.clock.now()}
        connection.execute(update(nodes).values(values))
    assert yard.give() == [(search.id, "node-1")]
    yard.claim(search.id)
    found = (to_json(manifest(job_id, 1, 10)), to_json(manifest(job_id, 2, 11)), "{}")
    outcome = OperationOutcome(outcome="succeeded", message="1 found", commits=found)
    yard.report(search.id, outcome=outcome)
    assert [view.step for view in list_checkpoints(context, job_id, scope=SYSTEM_SCOPE)] == [10]
    with context.database.read() as connection:
        assert parent_checkpoint(connection, job_id).id == f"{job_id}.a1.step-10"


def bad_loss() -> Failure:
    window = BadWindow(start=15, end=17, first_step=16)
    message = "train/loss is nan at step 17"
    reason = FailureReason.NON_FINITE_LOSS
    return Failure(reason=reason, message=message, rank=0, step=17, bad_window=window)


def test_a_bad_loss_goes_back_to_the_checkpoint_before_it_once(
    context: Context, harness: Harness
) -> None:
    more = {"retry": {"backoff_seconds": 0}}
    job_id, reporter = launched(harness, more=more)
    reporter.commit(manifest(job_id, 1, 10), manifest(job_id, 1, 15), manifest(job_id, 1, 16))
    record = ExitRecord(outcome="failed", failure=bad_loss(), ranks=(), time=1.0)
    reporter.supervisor.report(exit_record=record)
    (event,) = kept_events(context, "rolled_back")
    assert (event["step"], event["window"]) == (15, [15, 17])
    assert harness.place() == 1
    (again,) = harness.claim_all(job_id)
    assert again.reply.attempt.resume is not None
    assert again.reply.attempt.resume.step == 15
    again.train(0)
    again.report(exit_record=record)
    job = harness.job(job_id)
    assert job.state == JobState.FAILED
    assert "A rollback left this window out before" in job.reason


def test_a_parent_that_cannot_be_used_gives_way_to_an_older_one(
    context: Context, harness: Harness
) -> None:
    job_id, reporter = launched(harness, more={"retry": {"backoff_seconds": 0}})
    reporter.commit(manifest(job_id, 1, 10), manifest(job_id, 1, 20))
    reporter.supervisor.end("failed", FailureReason.TRAINER_ERROR)
    assert harness.place() == 1
    (second,) = harness.claim_all(job_id)
    failure = Failure(
        reason=FailureReason.CHECKPOINT_ERROR,
        message="rank-0.pt has 0 bytes instead of 5",
        rank=0,
        load=LoadFailure(checkpoint_id=f"{job_id}.a1.step-20", fault=CheckpointFault.FILE_SIZE),
    )
    second.train(0)
    second.report(exit_record=ExitRecord(outcome="failed", failure=failure, ranks=(), time=1.0))
    assert harness.place() == 1
    assert harness.attempt(job_id).start_step == 10
    damaged, _ = list_checkpoints(context, job_id, scope=SYSTEM_SCOPE)
    assert damaged.verification is not None
    assert damaged.verification.fault == CheckpointFault.FILE_SIZE
