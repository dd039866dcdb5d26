"""Exports: requests, legal nodes, and checkpoints kept while they are read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from server.core.context import Context
from server.core.errors import ConflictError, InvalidRequestError
from server.core.subject import Actor
from server.jobs.checkpoints import deletion, service
from server.jobs.jobs.service import delete as delete_job
from server.jobs.jobs.service import stop
from tests.actors import ADA, EVE
from tests.server.harness import Harness, Supervisor
from tests.server.yard import Yard
from trainyard.protocol.operations import ExportResult, ExportTask, OperationKind, OperationOutcome
from trainyard.protocol.rest.checkpoints import ExportRequest
from trainyard.protocol.states import OperationState
from trainyard.run.checkpoint_faults import CheckpointFault

DONE = OperationOutcome(outcome="succeeded", message="done")


def saved(yard: Yard, *steps: int, **sections: Any) -> tuple[str, list[str], Supervisor]:
    """Return a running job, the ids of its checkpoints, and its supervisor."""
    job_id, (supervisor,) = yard.harness.running(step=9, **sections)
    found = [yard.harness.commit_checkpoint(job_id, step) for step in steps]
    return job_id, found, supervisor


def export(context: Context, checkpoint: str, *, actor: Actor = ADA, **request: Any) -> str:
    return service.export(context, checkpoint, ExportRequest(**request), actor=actor)


def test_an_export_from_the_request_to_its_result(yard: Yard, context: Context) -> None:
    job_id, (checkpoint,), _ = saved(yard, 4)
    operation_id = export(context, checkpoint)
    assert yard.give() == [(operation_id, "node-1")]
    task = yard.claim(operation_id).task
    name = f"{checkpoint}-float32"
    assert task.export == ExportTask(root="checkpoints", name=name, dtype="float32")
    assert task.paths == (f"{job_id}/a1/step-4",)
    assert task.checkpoint is not None
    assert task.checkpoint.metadata_digest == "m" * 32
    result = ExportResult(
        place=task.export.place, path=f"/srv/{name}", dtype="float32", files=5, size=12
    )
    yard.report(operation_id, outcome=DONE.model_copy(update={"export": result}))
    view = yard.operation(operation_id)
    assert view.outcome is not None
    assert (view.state, view.outcome.export) == (OperationState.SUCCEEDED, result)
    assert view.reason == f"as float32 to checkpoints:exports/{name}"


def test_the_same_is_the_open_one_and_another_goes_elsewhere(yard: Yard, context: Context) -> None:
    _, (one, two), _ = saved(yard, 4, 8)
    first = export(context, one, name="mine")
    yard.harness.clock.advance(1)
    assert export(context, one, name="mine", dtype="float32", actor=EVE) == first
    with pytest.raises(ConflictError, match=rf"operation {first} writes another export to"):
        export(context, one, name="mine", dtype="bfloat16")
    with pytest.raises(ConflictError, match="name another folder"):
        export(context, two, name="mine")
    assert export(context, one, dtype="bfloat16") != first
    assert export(context, two) not in {first, export(context, one, name="other")}
    yard.give()
    yard.claim(first)
    yard.report(first, outcome=DONE)
    assert export(context, one, name="mine") != first  # which finds it there


def test_it_stays_while_it_is_exported(yard: Yard, context: Context) -> None:
    section = {"keep_latest_k": 1, "interval_steps": 1}
    job_id, (supervisor,) = yard.harness.running(step=9, checkpoint=section)
    yard.commit(job_id, 2)
    checkpoint = f"{job_id}.a1.step-2"
    operation_id = export(context, checkpoint)
    yard.commit(job_id, 4)
    assert yard.kept(job_id) == ["a1.step-2", "a1.step-4"]
    with pytest.raises(
        ConflictError, match=rf"operation {operation_id} \(export, .* is queued; wait"
    ):
        deletion.delete(context, checkpoint, actor=ADA)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    with pytest.raises(ConflictError, match=rf"operation {operation_id} \(export"):
        delete_job(context, job_id, actor=ADA, checkpoints="delete")
    assert yard.kept(job_id) == ["a1.step-2", "a1.step-4"]
    yard.give()
    yard.claim(operation_id)
    yard.report(operation_id, outcome=DONE)
    deletion.delete(context, checkpoint, actor=ADA)
    assert yard.kept(job_id) == ["a1.step-4"]


def test_what_cannot_be_exported_is_refused_with_the_reason(yard: Yard, context: Context) -> None:
    job_id, (good, bad), _ = saved(yard, 4, 8)
    yard.do(service.verify(context, bad, actor=ADA), fault=CheckpointFault.FILE_DAMAGED)
    with pytest.raises(ConflictError, match=r"is damaged \(file_damaged\)"):
        export(context, bad)
    with pytest.raises(InvalidRequestError, match=r"'attic' is no root .* checkpoints, data"):
        export(context, good, root="attic")
    deletion.delete(context, bad, actor=ADA)
    with pytest.raises(ConflictError, match="is being deleted"):
        export(context, bad)
    assert {row.kind for row in yard.operations(job_id=job_id)} == {"verify", "delete"}


def test_an_own_model_has_no_names_that_others_know(yard: Yard, context: Context) -> None:
    settings = context.settings.model_copy(update={"allow_code": True})
    allowing = Yard(Harness(replace(context, settings=settings), yard.harness.clock))
    own = {"factory": "gpt:build", "code": "data:own"}
    _, (checkpoint,), _ = saved(allowing, 4, model=own)
    with pytest.raises(ConflictError, match="holds gpt:build: only models of a known family"):
        export(context, checkpoint)


def test_a_hub_model_is_exported_where_its_folder_lies(yard: Yard, context: Context) -> None:
    _, (checkpoint,), _ = saved(yard, 4, model={"hugging_face": "data:model"})
    export(context, checkpoint)
    task = yard.operations()[0].task.read("task")
    assert (task.export.hugging_face, task.other_roots) == ("data:model", {"data"})


def test_only_a_node_that_sees_all_roots_is_given_it(yard: Yard, context: Context) -> None:
    data = {"source": "text", "path": "data:x", "tokenizer": "huggingface"}
    _, (checkpoint,), _ = saved(yard, 4, data=data | {"tokenizer_path": "data:tokenizer"})
    operation_id = export(context, checkpoint)
    task = yard.operations()[0].task.read("task")
    assert task.export.tokenizer == "data:tokenizer"
    assert task.other_roots == {"data"}
    yard.harness.add_node("node-0", roots={"checkpoints": "root-1"})  # the quieter one
    assert yard.give() == [(operation_id, "node-1")]
    assert yard.operation(operation_id).kind == OperationKind.EXPORT
