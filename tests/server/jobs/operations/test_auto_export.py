"""Automatic exports: which checkpoints are exported, in which order, and how often."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from server.core.context import Context
from server.core.database.rows import CheckpointHead
from server.core.database.tables import operations
from server.core.errors import ConflictError
from server.core.lifecycle import lock_job
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.checkpoints import deletion, service
from server.jobs.checkpoints.catalog import record_commits
from server.jobs.checkpoints.guards import protected
from server.jobs.checkpoints.queries import list_checkpoints
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import delete as delete_job
from server.jobs.jobs.service import stop
from server.jobs.operations.cancel import cancel, prune_ended
from server.telemetry.metrics.lineage_values import measure
from tests.actors import ADA
from tests.manifests import make_manifest, state_at
from tests.server.harness import AnyRow, Supervisor
from tests.server.jobs.operations.test_recovery import LOST, come_online
from tests.server.yard import Yard
from trainyard.protocol.manifest import DCP_METADATA, ManifestFile
from trainyard.protocol.operations import (
    AutoExportTask,
    ExportResult,
    OperationKind,
    OperationOutcome,
)
from trainyard.protocol.rest.checkpoints import AutoExportView
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import OperationState
from trainyard.run.checkpoint_faults import CheckpointFault

FILES = (ManifestFile(path=DCP_METADATA, size=9, xxh3_128="b" * 32),)
RESULT = ExportResult(
    place="checkpoints:there/hugging_face", path="/srv/there", dtype="float32", files=5, size=12
)
DONE = OperationOutcome(outcome="succeeded", message="5 files", export=RESULT)
FAILED = OperationOutcome(outcome="failed", message="No space left on device")


def start(yard: Yard, *, export: str = "safetensors", **section: Any) -> tuple[str, Supervisor]:
    """Return a running job that exports, and its supervisor."""
    job_id, (supervisor,) = yard.harness.running(
        step=9, checkpoint={"export": export, "interval_steps": 1, **section}
    )
    return job_id, supervisor


def commit(yard: Yard, job_id: str, *steps: int) -> None:
    """Accept the commits of some steps of the newest attempt, as a report does."""
    harness = yard.harness
    for step in steps:
        harness.clock.advance(1)
        attempt = harness.attempt(job_id)
        manifest = make_manifest(
            job_id, attempt.number, state_at(step, sequences=16, tokens=128), files=FILES
        )
        with harness.context.database.write() as connection:
            lock_job(connection, job_id)
            record_commits(
                harness.context,
                connection,
                attempt_id=attempt.id,
                manifests=[manifest],
                actor=ADA,
                measure=measure,
            )


def exports(yard: Yard, **where: Any) -> list[AnyRow]:
    return yard.operations(kind=OperationKind.AUTO_EXPORT.value, **where)


def exported(yard: Yard, job_id: str) -> list[str]:
    """Return step and state of each automatic export, in the order in which they were queued."""
    return [f"{row.checkpoint_id.rpartition('-')[2]} {row.state}" for row in exports(yard)]


def run(yard: Yard, outcome: OperationOutcome = DONE) -> str:
    """Claim the queued automatic export, report its outcome, and return its id."""
    yard.harness.clock.advance(1)
    (row,) = exports(yard, state="queued")
    assert yard.give() == [(row.id, "node-1")]
    reply = yard.claim(row.id)
    yard.report(row.id, fence=reply.fence, outcome=outcome)
    return str(row.id)


def shown(context: Context, job_id: str) -> dict[int, AutoExportView | None]:
    """Return the automatic exports that the catalog shows, by step."""
    return {
        view.step: view.auto_export
        for view in list_checkpoints(context, job_id, scope=SYSTEM_SCOPE)
    }


def test_a_kept_checkpoint_is_exported_and_the_catalog_shows_it(
    yard: Yard, context: Context
) -> None:
    job_id, _ = start(yard)
    commit(yard, job_id, 2)
    (row,) = exports(yard)
    task = row.task.read("task")
    assert task.auto_export == AutoExportTask(format="safetensors")
    assert (task.root, task.paths) == ("checkpoints", (f"{job_id}/a1/step-2",))
    assert (row.actor, row.reason) == ("exporting", "export=safetensors")
    operation_id = run(yard)
    view = shown(context, job_id)[2]
    assert view is not None
    assert (view.operation_id, view.state, view.result, view.message) == (
        operation_id,
        OperationState.SUCCEEDED,
        RESULT,
        None,
    )
    assert view.ended_at == yard.operation(operation_id).ended_at
    assert exported(yard, job_id) == ["2 succeeded"]


def test_a_job_without_the_setting_queues_nothing(yard: Yard) -> None:
    job_id, _ = start(yard, export="none")
    commit(yard, job_id, 2, 4)
    assert exports(yard) == []


def test_a_tokenizer_and_a_hub_model_are_exported_from_their_places(yard: Yard) -> None:
    data = {"source": "text", "path": "data:x", "tokenizer": "huggingface"}
    job_id, _ = yard.harness.running(
        step=9,
        data=data | {"tokenizer_path": "data:tokenizer"},
        model={"hugging_face": "data:model"},
        checkpoint={"export": "safetensors", "interval_steps": 1},
    )
    commit(yard, job_id, 2)
    task = exports(yard)[0].task.read("task")
    assert (task.auto_export.tokenizer, task.auto_export.hugging_face) == (
        "data:tokenizer",
        "data:model",
    )
    assert task.other_roots == {"data"}


def test_slow_exports_do_not_pile_up_and_the_newest_is_next(yard: Yard) -> None:
    job_id, _ = start(yard, keep_latest_k=0)
    commit(yard, job_id, 2, 4, 6)
    assert exported(yard, job_id) == ["2 queued"]
    run(yard)
    assert exported(yard, job_id) == ["2 succeeded", "6 queued"]
    commit(yard, job_id, 8)
    run(yard)
    run(yard)
    run(yard)
    assert [each.split()[0] for each in exported(yard, job_id)] == ["2", "6", "8", "4"]
    assert exports(yard, state="queued") == []


def test_retention_cancels_a_queued_export_but_waits_for_a_running_one(yard: Yard) -> None:
    job_id, _ = start(yard, keep_latest_k=1)
    commit(yard, job_id, 2, 4)
    assert exported(yard, job_id) == ["2 cancelled", "4 queued"]
    (row,) = exports(yard, state="queued")
    yard.do(yard.operations(kind="delete")[0].id)
    yard.give()
    reply = yard.claim(row.id)
    commit(yard, job_id, 6)
    assert yard.kept(job_id) == ["a1.step-4", "a1.step-6"]
    yard.report(row.id, fence=reply.fence, outcome=DONE)
    commit(yard, job_id, 8)
    assert yard.kept(job_id) == ["a1.step-8"]


def test_a_persons_deletion_ends_a_running_export(yard: Yard, context: Context) -> None:
    job_id, _ = start(yard)
    commit(yard, job_id, 2, 4)
    (row,) = exports(yard)
    yard.give()
    yard.claim(row.id)
    deletion.delete(context, f"{job_id}.a1.step-2", actor=ADA)
    assert exported(yard, job_id) == ["2 cancelled"]
    commit(yard, job_id, 6)
    assert exported(yard, job_id) == ["2 cancelled", "6 queued"]


def test_a_failed_export_is_tried_three_times_then_skipped(yard: Yard, context: Context) -> None:
    job_id, _ = start(yard)
    commit(yard, job_id, 2)
    for _ in range(2):
        run(yard, FAILED)
        view = shown(context, job_id)[2]
        assert view is not None
        assert (view.state, view.message) == (OperationState.QUEUED, "No space left on device")
        yard.harness.pass_time(61)
    run(yard, FAILED)
    view = shown(context, job_id)[2]
    assert view is not None
    assert (view.state, view.message) == (OperationState.FAILED, "No space left on device")
    assert "automatic export of" in yard.said(job_id, "operation_ended")[-1].message
    commit(yard, job_id, 4)
    run(yard)
    assert exported(yard, job_id) == ["2 failed", "4 succeeded"]
    commit(yard, job_id, 6)
    assert exported(yard, job_id)[2:] == ["6 queued"]


def test_an_export_whose_node_dies_three_times_is_skipped(yard: Yard, context: Context) -> None:
    job_id, _ = start(yard)
    commit(yard, job_id, 2)
    (row,) = exports(yard)
    for _ in range(3):
        yard.harness.clock.advance(120)  # longer than the pauses after failures
        yard.harness.keeper.run()
        yard.claim(row.id)
        yard.harness.pass_time(61)
        with context.database.write() as connection:
            connection.exec_driver_sql("UPDATE nodes SET offline_since = NULL")
        yard.harness.keeper.run()
    view = shown(context, job_id)[2]
    assert view is not None
    assert (view.state, view.message) == (OperationState.FAILED, "its node fell silent")
    commit(yard, job_id, 4)
    assert exported(yard, job_id) == ["2 failed", "4 queued"]


def test_a_failed_export_starts_no_chain_through_older_checkpoints(yard: Yard) -> None:
    job_id, _ = start(yard, keep_latest_k=0)
    commit(yard, job_id, 2, 4, 6)
    for _ in range(3):
        run(yard, FAILED)
        yard.harness.pass_time(61)
    assert exported(yard, job_id) == ["2 failed"]
    commit(yard, job_id, 8)
    assert exported(yard, job_id) == ["2 failed", "8 queued"]
    run(yard)
    assert exported(yard, job_id) == ["2 failed", "8 succeeded", "6 queued"]


def test_a_person_can_cancel_an_export_for_good(yard: Yard, context: Context) -> None:
    job_id, _ = start(yard)
    commit(yard, job_id, 2)
    (row,) = exports(yard)
    cancel(context, row.id, actor=ADA)
    commit(yard, job_id, 4)
    run(yard)
    assert exported(yard, job_id) == ["2 cancelled", "4 succeeded"]


def test_a_resume_changes_the_setting(yard: Yard, context: Context) -> None:
    job_id, supervisor = start(yard, export="none")
    commit(yard, job_id, 2)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    section = {"export": "dcp", "interval_steps": 1}
    request = ResumeRequest.model_validate({"overrides": {"checkpoint": section}})
    resume(context, job_id, request, actor=ADA)
    yard.harness.place()
    yard.harness.claim_all(job_id)[0].train(9)
    commit(yard, job_id, 4)
    run(yard)
    tasks = [row.task.read("task").auto_export for row in exports(yard)]
    assert [task.format for task in tasks] == ["dcp", "dcp"]
    assert exported(yard, job_id) == ["4 succeeded", "2 queued"]


def test_a_damaged_checkpoint_is_left_out(yard: Yard, context: Context) -> None:
    job_id, _ = start(yard)
    commit(yard, job_id, 2, 4)
    bad = f"{job_id}.a1.step-4"
    verification = service.verify(context, bad, actor=ADA)
    (first,) = exports(yard)
    yard.give()  # a person's verification is first
    yard.claim(verification)
    found = {"ok": False, "at": context.now(), "fault": CheckpointFault.FILE_DAMAGED}
    outcome = {"outcome": "succeeded", "message": "damaged", "verification": found}
    yard.report(verification, outcome=OperationOutcome.model_validate(outcome))
    assert run(yard) == first.id
    assert exported(yard, job_id) == ["2 succeeded"]


def test_only_the_newest_checkpoints_are_considered(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.jobs.checkpoints.queue_auto_export.MAX_CONSIDERED", 2)
    job_id, _ = start(yard, keep_latest_k=0)
    commit(yard, job_id, 2, 4, 6, 8)
    run(yard)
    run(yard)
    run(yard)
    assert exported(yard, job_id) == ["2 succeeded", "8 succeeded", "6 succeeded"]


def test_the_record_of_an_export_lives_as_long_as_its_checkpoint(
    yard: Yard, context: Context
) -> None:
    job_id, supervisor = start(yard)
    commit(yard, job_id, 2)
    run(yard)
    supervisor.end("succeeded")
    yard.harness.clock.advance(40 * 86_400)
    assert prune_ended(context) == 0
    assert shown(context, job_id)[2] is not None
    delete_job(context, job_id, actor=ADA, checkpoints="delete")
    assert prune_ended(context) == 1
    with context.database.read() as connection:
        assert CheckpointHead.all(connection, CheckpointHead.select()) == []


def lost_while_it_exports(yard: Yard) -> tuple[str, str, int]:
    """Return a lost job whose checkpoint is exported, and id and fence of the export."""
    checkpoint = {"export": "safetensors", "interval_steps": 1}
    job_id, _ = yard.harness.running(step=9, checkpoint=checkpoint, **LOST)
    commit(yard, job_id, 2)
    (export,) = exports(yard)
    assert yard.give() == [(export.id, "node-1")]
    fence = yard.claim(export.id).fence
    yard.harness.reconcile(seconds=61)
    come_online(yard.harness)
    assert not yard.report(export.id, fence=fence, done=5).ended
    return job_id, export.id, fence


def test_a_running_export_gives_way_to_the_search_for_which_a_job_waits(yard: Yard) -> None:
    """Each node runs one operation at a time, and an export may take an hour."""
    job_id, export_id, fence = lost_while_it_exports(yard)
    (search,) = yard.operations(kind=OperationKind.RECOVER.value)
    assert yard.give() == []
    assert exported(yard, job_id) == ["2 queued"]
    (event,) = [e for e in yard.said(job_id, "operation_queued") if "gives way" in e.message]
    assert "gives way to recover commits of tiny" in event.message
    with pytest.raises(ConflictError):
        yard.report(export_id, fence=fence, done=6)
    assert yard.give() == [(search.id, "node-1")]
    found = OperationOutcome(outcome="succeeded", message="found", commits=())
    yard.report(search.id, fence=yard.claim(search.id).fence, outcome=found)
    run(yard)
    assert exported(yard, job_id) == ["2 succeeded"]


def test_a_displaced_export_keeps_its_tries_and_its_checkpoint(yard: Yard) -> None:
    job_id, export_id, _ = lost_while_it_exports(yard)
    with yard.harness.context.database.write() as connection:
        mine = operations.c.id == export_id
        connection.execute(update(operations).where(mine).values(fence=3))
    yard.give()
    assert exported(yard, job_id) == ["2 queued"]
    with yard.harness.context.database.read() as connection:
        assert protected(connection, [f"{job_id}.a1.step-2"]) == {f"{job_id}.a1.step-2"}
    (search,) = yard.operations(kind=OperationKind.RECOVER.value)
    yard.give()
    found = OperationOutcome(outcome="succeeded", message="found", commits=())
    yard.report(search.id, fence=yard.claim(search.id).fence, outcome=found)
    for _ in range(2):
        run(yard, FAILED)
        assert exported(yard, job_id) == ["2 queued"]
        yard.harness.clock.advance(120)
        come_online(yard.harness)
    run(yard, FAILED)
    assert exported(yard, job_id) == ["2 failed"]


def test_a_running_export_stays_while_another_node_is_free(yard: Yard) -> None:
    job_id, _, _ = lost_while_it_exports(yard)
    yard.harness.add_node("node-2")
    (search,) = yard.operations(kind=OperationKind.RECOVER.value)
    assert yard.give() == [(search.id, "node-2")]
    assert exported(yard, job_id) == ["2 running"]
