"""Checkpoints in a bucket: saved, committed, fenced, resumed on other ranks, read, deleted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.objects.store import Server
from tests.trainer.checkpoint.toy import (
    JOB,
    Refusal,
    build,
    full_tensors,
    load,
    manager,
    refusal,
    resume_point,
    save_trained,
    state_at,
)
from tests.trainer.ranks import run_ranks
from trainer.checkpoint.manifest import check_contents, committed_manifests, read_manifest
from trainer.checkpoint.save_folder import collect_leftovers
from trainer.checkpoint.writer.checkpoint_writer import check_room
from trainer.checkpoint.writer.save_plan import is_shared
from trainer.errors import CheckpointError, RunError
from trainer.identify import identity
from trainer.operations.__main__ import main
from trainer.storage import s3_client
from trainer.storage.object_path import ObjectPath
from trainyard.protocol.manifest import DCP_METADATA, INDEX, Manifest
from trainyard.protocol.operations import (
    OUTCOME,
    TASK,
    AutoExportTask,
    OperationKind,
    OperationOrder,
    OperationOutcome,
    OperationTask,
)
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.checkpoints.checkpoint_names import COMMITTED, FENCE, MANIFEST
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.checkpoint import CheckpointSection

LAYOUT = Layout(dp_shard=2)


@dataclass(frozen=True)
class Kept:
    """The save of two ranks."""

    objects: dict[str, bytes]
    """Content by the path below the root."""
    tensors: dict[str, Tensor]
    """What was saved, unsharded."""


@pytest.fixture(scope="module")
def kept(running: Server) -> Kept:
    """A checkpoint; it takes seconds, so it is saved once."""
    root = running.make_bucket("kept") / "some/prefix"
    (one, tensors), (other, _) = run_ranks(2, save_trained, root, LAYOUT, 2)
    assert committed_manifests(root, JOB) == [one] == [other]
    assert not root.uploads()
    found = {path.key.removeprefix("some/prefix/"): path.read_bytes() for path in root.beneath()}
    return Kept(found, tensors)


@pytest.fixture
def saved(kept: Kept, bucket: ObjectPath) -> Manifest:
    """The same in the bucket of a test."""
    for name, content in kept.objects.items():
        (bucket / name).put(content)
    return read_manifest(bucket / JOB / "a1" / "step-2")


def do(
    root: ObjectPath, folder: Path, *, kind: OperationKind, manifest: Manifest, **task: Any
) -> OperationOutcome:
    """Run an operation on a checkpoint in this process, like a worker's process."""
    point = resume_point(manifest)
    described = OperationTask(
        kind=kind, job_id=JOB, root="r", paths=(point.path,), checkpoint=point, **task
    )
    order = OperationOrder(task=described, root_path=str(root), root_id=identity(root))
    (folder / TASK).write_text(order.model_dump_json())
    main(folder)
    return OperationOutcome.model_validate_json((folder / OUTCOME).read_bytes())


def test_a_checkpoint_from_its_save_to_its_deletion(
    saved: Manifest, bucket: ObjectPath, tmp_path: Path
) -> None:
    folder = bucket / JOB / "a1" / "step-2"
    files = {file.path for file in saved.files}
    assert files == {DCP_METADATA, INDEX, "__0_0.distcp", "__1_0.distcp"}
    assert {path.name for path in folder.beneath()} == files | {MANIFEST, COMMITTED}
    check_contents(folder, saved.files)
    assert b"s3:" not in (folder / DCP_METADATA).read_bytes()

    looked = do(bucket, tmp_path, kind=OperationKind.SCRUB, manifest=saved).verification
    assert looked is not None
    assert looked.ok
    looked = do(bucket, tmp_path, kind=OperationKind.VERIFY, manifest=saved).verification
    assert looked is not None
    assert (looked.ok, looked.loaded_on, looked.tensors) == (True, 1, 24)

    gone = do(bucket, tmp_path, kind=OperationKind.DELETE, manifest=saved)
    assert (gone.outcome, gone.files) == ("succeeded", 6)
    assert [path.key for path in bucket.beneath()] == [".trainyard-root", f"{JOB}/{FENCE}/1"]
    assert (
        do(bucket, tmp_path, kind=OperationKind.DELETE, manifest=saved, whole_job=True).files == 0
    )
    assert [path.key for path in bucket.beneath()] == [".trainyard-root"]


def test_automatic_exports_into_a_bucket(
    saved: Manifest, bucket: ObjectPath, tmp_path: Path
) -> None:
    identity(bucket)  # writes the file with the UUID of the root
    before = set(bucket.beneath())
    index = do(
        bucket,
        tmp_path,
        kind=OperationKind.AUTO_EXPORT,
        manifest=saved,
        auto_export=AutoExportTask(format="dcp"),
    )
    assert index.export is not None, index.message
    assert index.export.path == str(bucket / resume_point(saved).path)
    weights = do(
        bucket,
        tmp_path,
        kind=OperationKind.AUTO_EXPORT,
        manifest=saved,
        auto_export=AutoExportTask(format="safetensors"),
    )
    assert weights.outcome == "failed"
    assert "a bucket, and the files of safetensors are written into folders" in weights.message
    assert set(bucket.beneath()) == before


def change(path: ObjectPath, content: bytes | None) -> None:
    path.unlink(missing_ok=True)
    if content is not None:
        path.put(content)


def test_what_is_wrong_is_said_by_name(saved: Manifest, bucket: ObjectPath, tmp_path: Path) -> None:
    folder = bucket / resume_point(saved).path
    file = folder / "__0_0.distcp"
    whole = file.read_bytes()
    damages = {
        CheckpointFault.FILE_DAMAGED: (file, whole[:-1] + bytes([whole[-1] ^ 1])),
        CheckpointFault.FILE_SIZE: (file, whole[:-1]),
        CheckpointFault.FILE_MISSING: (file, None),
        CheckpointFault.MANIFEST_DAMAGED: (folder / MANIFEST, b"{}"),
        CheckpointFault.NOT_COMMITTED: (folder / COMMITTED, None),
    }
    for fault, (path, content) in damages.items():
        change(path, content)
        found = do(bucket, tmp_path, kind=OperationKind.SCRUB, manifest=saved).verification
        assert found is not None
        assert (found.ok, found.fault) == (False, fault)
    assert committed_manifests(bucket, JOB) == []


def test_another_storage_is_not_touched(
    saved: Manifest, bucket: ObjectPath, tmp_path: Path
) -> None:
    identity(bucket)
    before = list(bucket.beneath())
    point = resume_point(saved)
    task = OperationTask(kind=OperationKind.DELETE, job_id=JOB, root="r", paths=(point.path,))
    order = OperationOrder(task=task, root_path=str(bucket), root_id="another")
    (tmp_path / TASK).write_text(order.model_dump_json())
    assert main(tmp_path) == 1
    order = OperationOrder(
        task=task.model_copy(update={"paths": (f"{JOB}/../{JOB}",)}), root_path=str(bucket)
    )
    (tmp_path / TASK).write_text(order.model_dump_json())
    assert main(tmp_path) == 1
    assert list(bucket.beneath()) == before


def test_nodes_that_come_at_once_see_the_same_storage(bucket: ObjectPath) -> None:
    found = {identity(bucket / "prefix") for _ in range(3)}
    assert len(found) == 1
    assert found != {identity(bucket / "another")}


def test_leftovers_of_attempts_that_are_over_are_collected(
    saved: Manifest, bucket: ObjectPath
) -> None:
    job = bucket / JOB
    begun = [job / "a1/step-4/__0_0.distcp", job / "a2/step-6/__0_0.distcp"]
    for path in begun:
        s3_client.call("create_multipart_upload", str(path), Bucket=path.bucket, Key=path.key)
    (job / "a1/step-6/__0_0.distcp").put(b"half of it")
    (job / "a3/step-6/__0_0.distcp").put(b"of a newer attempt")
    gone = collect_leftovers(bucket, JOB, attempt=2)
    assert {str(path.parent.name + "/" + path.name) for path in gone} == {
        *("a1/step-4", "a1/step-6", "a2/step-6"),
    }
    assert bucket.uploads() == []
    assert committed_manifests(bucket, JOB) == [saved]
    assert (job / "a3/step-6/__0_0.distcp").exists()


def test_a_bucket_is_shared_and_knows_no_free_space(bucket: ObjectPath) -> None:
    assert is_shared(bucket)
    check_room(bucket, size=2**80, state=state_at(0), spec=JobSpec())


ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "no right to write": (
        {"method": "PUT", "match": "distcp", "status": 403, "code": "AccessDenied"},
        "rank 0: cannot write {root}/toy/a1/step-2/__0_0.distcp: access denied (AccessDenied",
    ),
    "no right to commit": (
        {"method": "PUT", "match": "COMMITTED", "status": 403, "code": "AccessDenied"},
        "cannot write {root}/toy/a1/step-2/COMMITTED: access denied (AccessDenied",
    ),
    "no right to list": (
        {"method": "GET", "match": "FENCE", "status": 403, "code": "AccessDenied"},
        "cannot read {root}/toy/FENCE: access denied (AccessDenied",
    ),
    "throttled for good": (
        {"method": "PUT", "match": "__1_0.distcp", "status": 503, "code": "SlowDown"},
        "rank 1: cannot write {root}/toy/a1/step-2/__1_0.distcp: the object store refuses",
    ),
    "hung up for good": (
        {"method": "PUT", "match": "manifest", "drop": True},
        "cannot write {root}/toy/a1/step-2/manifest.json: the object store does not answer",
    ),
}


def _save(root: ObjectPath, mode: Any) -> Refusal | None:
    model, optimizer = build(LAYOUT, seed=1)
    saver = manager(root, LAYOUT, section=CheckpointSection(async_mode=mode, writers="all"))
    try:
        saver.raise_fence()
        saver.save(model, optimizer, state_at(2), kind="interval")
    except RunError as error:
        return (*refusal(error)[:3], "")
    return None


def _fail(server: Server, *faults: dict[str, Any]) -> None:
    """Set faults from one rank, between collective steps of all ranks."""
    dist.barrier()
    if dist.get_rank() == 0:
        server.fail(*faults)
    dist.barrier()


def _save_with_each_error(server: Server, bucket: ObjectPath, mode: Any) -> list[Refusal | None]:
    """Save under each fault, and then without one at the same place; return the results."""
    found = []
    for number, (fault, _) in enumerate(ERRORS.values()):
        _fail(server, {"times": 100, **fault})
        found.append(_save(bucket / str(number), mode))
        _fail(server)
        if found[-1] is not None and dist.get_rank() == 0:
            left = [p.key for p in (bucket / str(number)).beneath() if FENCE not in p.parts]
            assert left == []
            assert bucket.uploads() == []
    dist.barrier()
    found.append(_save(bucket / "0", mode))
    return found


@pytest.mark.parametrize("mode", ["async", pytest.param("disabled", marks=pytest.mark.slow)])
def test_an_error_of_the_store_is_every_ranks(
    server: Server, bucket: ObjectPath, mode: Any
) -> None:
    one, other = run_ranks(2, _save_with_each_error, server, bucket, mode)
    assert one == other
    *refused, last = one
    assert last is None
    assert len(committed_manifests(bucket / "0", JOB)) == 1
    for number, (_, words) in enumerate(ERRORS.values()):
        kind, text, path, _ = refused[number]
        assert kind == "CheckpointError"
        assert text.startswith(words.format(root=bucket / str(number))), text
        assert path in text
        assert committed_manifests(bucket / str(number), JOB) == [] or number == 0


LOAD_ERRORS: list[tuple[dict[str, Any], str]] = [
    (
        {"method": "GET", "match": "__1_0", "status": 403, "code": "AccessDenied"},
        "a1/step-2/__1_0.distcp: access denied (AccessDenied",
    ),
    (
        {"method": "HEAD", "match": "COMMITTED", "status": 503, "code": "SlowDown"},
        "a1/step-2/COMMITTED: the object store refuses so many requests",
    ),
]


def _load(
    server: Server, bucket: ObjectPath, manifest: Manifest
) -> tuple[list[str], dict[str, Tensor]]:
    """Load under each fault, then without one."""
    layout = Layout(dp_shard=3)
    told = []
    model, optimizer = build(layout, seed=7)
    for fault, _ in LOAD_ERRORS:
        _fail(server, {"times": 100, **fault})
        with pytest.raises(CheckpointError) as refused:
            load(bucket, layout, model=model, optimizer=optimizer, resume=resume_point(manifest))
        told.append(str(refused.value))
    # Transient errors are retried: one rank's answers break off, another's are refused.
    _fail(
        server,
        {"method": "GET", "match": "__0_0", "drop": True, "after": 100, "times": 2},
        {"method": "GET", "match": "__1_0", "status": 503, "code": "SlowDown", "times": 1},
    )
    loaded = load(bucket, layout, model=model, optimizer=optimizer, resume=resume_point(manifest))
    assert loaded.manifest == manifest
    return told, full_tensors(model, optimizer)


def test_three_ranks_load_what_two_saved(
    server: Server, kept: Kept, saved: Manifest, bucket: ObjectPath
) -> None:
    (told, tensors), *others = run_ranks(3, _load, server, bucket, saved)
    assert all(other == told for other, _ in others)
    for text, (_, words) in zip(told, LOAD_ERRORS, strict=True):
        assert words in text
    torch.testing.assert_close(tensors, kept.tensors, rtol=0, atol=0)


NOT_THERE: list[tuple[dict[str, str], str]] = [
    ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no credentials"),
    ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "the object store does not answer"),
    ({}, "there is no such bucket"),
]


def _begin_with_nothing_there() -> list[str]:
    """Start attempts without a usable store; return the errors of each rank."""
    told = []
    for changes, _ in NOT_THERE:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in changes.items():
                patch.setenv(name, value)
            s3_client._system.cache_clear()
            with pytest.raises(CheckpointError) as refused:
                manager(ObjectPath("nowhere"), LAYOUT).raise_fence()
        told.append(str(refused.value))
    return told


@pytest.mark.usefixtures("server")
def test_what_is_not_there_is_said_before_the_first_step() -> None:
    one, other = run_ranks(2, _begin_with_nothing_there)
    assert one == other
    for text, (_, words) in zip(one, NOT_THERE, strict=True):
        assert words in text
