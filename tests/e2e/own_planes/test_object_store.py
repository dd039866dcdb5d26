"""A job with checkpoints in a bucket, through the real parts: from first save to fork."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.control_plane import ControlPlane, assert_each_once, finished, spec, wait_for
from tests.objects.store import Server, serving
from trainer.checkpoint.manifest import committed_manifests
from trainer.storage.object_path import ObjectPath
from trainyard.client.sdk import Client
from trainyard.protocol.operations import OperationKind
from trainyard.protocol.rest.checkpoints import OperationView
from trainyard.protocol.states import JobState, OperationState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BUCKET = "checkpoints"
SECRET = "shown-nowhere"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """An S3 server, which this process may access too."""
    with serving() as made, pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture(scope="module")
def root(server: Server) -> ObjectPath:
    """The storage root, in a bucket."""
    return server.make_bucket(BUCKET) / "yard"


@pytest.fixture(scope="module")
def plane(
    server: Server, root: ObjectPath, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A separate control plane; the bucket is its node's root of checkpoints."""
    folder = tmp_path_factory.mktemp("bucket")
    made = ControlPlane(
        folder,
        TRAINYARD_CHECKPOINTS=str(root),
        TRAINYARD_SCRUB_INTERVAL_DAYS="0.00001",
    )
    try:
        yield made
    finally:
        made.end()


def ended(yard: Client, operation: OperationView) -> OperationView:
    """Return an operation that has succeeded."""
    done = yard.wait_for_operation(operation.id, timeout=200)
    assert done.state == OperationState.SUCCEEDED, done
    return done


def test_checkpoints_in_a_bucket_do_all_that_those_in_a_folder_do(
    plane: ControlPlane, yard: Client, root: ObjectPath
) -> None:
    section = {"interval_steps": 3, "async_mode": "async", "keep_latest_k": 2}
    job = yard.submit(spec("in-a-bucket", training={"steps": 9}, checkpoint=section))
    done = finished(yard, job.id)
    assert done.state == JobState.SUCCEEDED, done
    wait_for(lambda: len(list(yard.checkpoints(job.id))) == 2, "deletions")
    newest, older = yard.checkpoints(job.id)
    assert (newest.step, older.step, newest.place) == (9, 6, f"checkpoints:{job.id}/a1/step-9")

    # On three ranks, and saved while training stands still.
    changes = {"checkpoint": {"async_mode": "disabled", "interval_steps": 3, "keep_latest_k": 2}}
    reply = yard.resume(job.id, checkpoint_id=older.id, world_size=3, steps=12, overrides=changes)
    assert reply.preview.branch
    assert finished(yard, job.id).state == JobState.SUCCEEDED
    assert_each_once(yard, job.id, steps=12)
    second, _ = yard.attempts(job.id)
    assert second.continuity is not None
    assert (second.start_step, second.continuity.ok) == (6, True)

    last = next(yard.checkpoints(job.id))
    assert last.step == 12
    ended(yard, yard.verify(last.id))
    verified = yard.checkpoint(last.id).verification
    assert verified is not None
    assert (verified.ok, verified.loaded_at is not None) == (True, True)
    # A scrub of a checkpoint that is deleted meanwhile is cancelled.
    wait_for(lambda: OperationState.SUCCEEDED in scrubs(yard), "a scrub")
    assert OperationState.FAILED not in scrubs(yard)

    fork = yard.fork(last.id, name="fork", changes={"training": {"steps": 14}}).job
    assert fork is not None
    assert finished(yard, fork.id).state == JobState.SUCCEEDED
    assert {m.train_state.step for m in committed_manifests(root, fork.id)} >= {14}

    operations = yard.delete(fork.id, checkpoints="delete")
    for operation in operations:
        ended(yard, operation)
    assert list((root / fork.id).beneath()) == []
    assert list((root / job.id).beneath())
    assert_no_secret(plane)


def scrubs(yard: Client) -> set[OperationState]:
    """Return the outcomes of the scrubs."""
    return {
        operation.state for operation in yard.operations() if operation.kind == OperationKind.SCRUB
    }


def assert_no_secret(plane: ControlPlane) -> None:
    """Check that no file of the parts contains the credentials."""
    for path in plane.folders.root.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in Path(path).read_bytes(), path
