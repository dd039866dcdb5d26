"""A bucket as a node's storage root: its UUID, its environment, and unsupported uses."""

from __future__ import annotations

import pytest

from tests.objects.store import Server
from trainer.data.files.places import resolve
from trainer.errors import DataError, LaunchError
from trainer.identify import identity
from trainer.storage.object_path import ObjectPath
from trainer.storage.root import is_beneath, storage_root
from trainyard.spec.job import JobSpec
from worker.launchers.rank_environment import inherited_environment
from worker.upkeep.roots import identify_roots


def test_a_worker_learns_the_uuid_of_a_bucket(bucket: ObjectPath) -> None:
    roots = {"checkpoints": str(bucket / "prefix")}
    found = identify_roots(roots)
    assert found == identify_roots(roots) == {"checkpoints": identity(bucket / "prefix")}


def test_a_worker_reports_why_a_bucket_cannot_be_used(server: Server) -> None:
    with pytest.raises(ValueError, match="there is no such bucket") as refused:
        identify_roots({"checkpoints": "s3://nowhere/prefix"})
    assert server.environment["AWS_SECRET_ACCESS_KEY"] not in str(refused.value)


def test_ranks_inherit_what_names_the_store_and_jobs_cannot_change_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    assert server.environment.items() <= inherited_environment().items()
    for name in server.environment:
        with pytest.raises(ValueError, match=f"{name} is set by the launcher"):
            JobSpec(env={name: "http://elsewhere"})


def test_a_place_beneath_another_root_is_no_place_of_this_one() -> None:
    root = storage_root("s3://books/prefix")
    assert is_beneath(root / "job/a1", root)
    assert not is_beneath(root / "../other", root)
    with pytest.raises(LaunchError, match="without credentials"):
        storage_root("s3://key:secret@books")


def test_data_needs_a_folder(bucket: ObjectPath) -> None:
    with pytest.raises(DataError, match="object stores hold checkpoints only"):
        resolve("data:books", "data.path", {"data": str(bucket)})
