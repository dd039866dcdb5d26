"""Retention, verification, pins and deletions through the real parts: rows, files, and a resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.control_plane import ControlPlane, finished, spec, wait_for
from trainyard.client.errors import ConflictError
from trainyard.client.sdk import Client
from trainyard.protocol.rest.checkpoints import OperationView
from trainyard.protocol.states import JobState, OperationState
from trainyard.run.checkpoint_faults import CheckpointFault

pytestmark = pytest.mark.timeout(400)


def folder_of(plane: ControlPlane, checkpoint_id: str) -> Path:
    """Return the folder of a checkpoint on the node's storage."""
    job_id, attempt, step = checkpoint_id.split(".")
    found = [p for p in plane.folders.root.rglob(f"{job_id}/{attempt}") if "runs" not in p.parts]
    return (found[0] if found else plane.folders.root / "gone") / step


def ended(yard: Client, operation: OperationView) -> OperationView:
    """Return an operation that has succeeded."""
    done = yard.wait_for_operation(operation.id, timeout=120)
    assert done.state == OperationState.SUCCEEDED, done
    return done


def settled(yard: Client, job_id: str) -> bool:
    return not any(yard.operations(job_id=job_id, open_only=True))


def is_sampled_and_exported(yard: Client, checkpoint_id: str) -> None:
    """Sample from a checkpoint, and export it."""
    asked = yard.sample(checkpoint_id, "def ", max_tokens=20, temperature=0)
    exported = ended(yard, yard.export(checkpoint_id, name="keeper")).outcome
    assert exported is not None
    assert exported.export is not None
    folder = Path(exported.export.path)
    assert (folder.parent.name, folder.name) == ("exports", "keeper")
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} < sizes.keys()
    del sizes["export.json"]
    assert (exported.export.files, exported.export.size) == (len(sizes), sum(sizes.values()))
    drawn = ended(yard, asked).outcome
    assert drawn is not None
    assert drawn.sample is not None
    assert drawn.sample.text.startswith("def ")


def test_checkpoints_from_retention_to_the_last_deletion(plane: ControlPlane, yard: Client) -> None:
    section = {"interval_steps": 2, "preflight": True, "keep_latest_k": 2}
    job = yard.submit(spec("keeper", training={"steps": 10}, checkpoint=section))
    assert finished(yard, job.id).state == JobState.SUCCEEDED
    wait_for(lambda: settled(yard, job.id), "deletions")
    kept = list(yard.checkpoints(job.id))
    assert [c.step for c in kept] == [10, 8]
    attempt = folder_of(plane, kept[0].id).parent
    assert sorted(p.name for p in attempt.iterdir()) == ["step-10", "step-8"]
    gone = list(yard.operations(job_id=job.id))
    assert {(c.kind, c.actor, c.state) for c in gone} == {("delete", "retention", "succeeded")}
    assert len(gone) == 4

    newest, older = kept
    done = ended(yard, yard.verify(newest.id))
    assert done.outcome is not None
    assert done.outcome.verification is not None
    found = yard.checkpoint(newest.id).verification
    assert found is not None
    assert (found.ok, found.loaded_on) == (True, 1)  # two ranks wrote it
    is_sampled_and_exported(yard, newest.id)
    assert yard.pin(older.id).pinned_by is not None
    with pytest.raises(ConflictError, match="unpin it first"):
        yard.delete_checkpoint(older.id)

    again = yard.resume(job.id, steps=14, world_size=1)
    assert again.preview.checkpoint_id == newest.id
    assert finished(yard, job.id).state == JobState.SUCCEEDED
    wait_for(lambda: settled(yard, job.id), "deletions")
    assert (folder_of(plane, older.id) / "COMMITTED").exists()
    # The only verified one stays, even if it is no longer among the newest.
    assert {c.id for c in yard.checkpoints(job.id)} >= {newest.id, older.id}
    assert len(list(yard.checkpoints(job.id))) == 4

    data = next(folder_of(plane, older.id).glob("*.distcp"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    ended(yard, yard.verify(older.id))
    damage = yard.checkpoint(older.id).verification
    assert damage is not None
    assert (damage.ok, damage.fault) == (False, CheckpointFault.FILE_DAMAGED)
    yard.unpin(older.id)
    ended(yard, yard.delete_checkpoint(older.id))
    assert not folder_of(plane, older.id).exists()

    operations = yard.delete(job.id, checkpoints="delete")
    assert len(operations) == 1
    ended(yard, operations[0])
    assert list(plane.folders.root.glob(f"**/checkpoints/{job.id}")) == []


@pytest.mark.slow
def test_a_pinned_checkpoint_still_loads(plane: ControlPlane, yard: Client) -> None:
    section = {"interval_steps": 2, "preflight": False, "keep_latest_k": 1}
    job = yard.submit(spec("pinned", training={"steps": 40}, checkpoint=section))
    plane.run(job.id).hold_at(3)
    first = wait_for(lambda: next(yard.checkpoints(job.id), None), "a checkpoint")
    yard.pin(first.id)
    plane.run(job.id).go_on()
    assert finished(yard, job.id).state == JobState.SUCCEEDED
    wait_for(lambda: settled(yard, job.id), "deletions")
    assert [c.step for c in yard.checkpoints(job.id)] == [40, first.step]
    reply = yard.resume(job.id, checkpoint_id=first.id, steps=6, world_size=1)
    assert reply.preview.branch
    assert finished(yard, job.id).state == JobState.SUCCEEDED
    second, _ = yard.attempts(job.id)
    assert (second.start_step, second.continuity is not None) == (first.step, True)
