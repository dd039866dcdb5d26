"""Environments of locks on a node: requested by a launch, built by an operation, used by others."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.wheels import project, requirements
from tests.worker.conftest import wait_for
from tests.worker.environments.conftest import Site
from trainyard.run.failures import FailureReason


def test_a_lock_is_built_once_and_used_without_a_network(site: Site) -> None:
    (site.code / "requirements.txt").write_text(requirements(site.digest))
    missing = site.failure("requirements.txt")
    digest = missing.environment
    assert (missing.reason, missing.free_retry) == (FailureReason.LAUNCH_ERROR, True)
    assert digest is not None
    assert f"environment {digest[:12]} of environment.lock='requirements.txt' is not built" in (
        missing.message
    )
    outcome = site.build(digest)
    assert outcome.outcome == "succeeded", outcome.message
    assert f"environment {digest[:12]}: the packages were installed in" in outcome.message
    path = site.store.folder / digest
    assert site.store.read_request(digest) is None
    assert [each.name for each in site.store.folder.iterdir() if each.name.startswith(".")] == []
    site.away()
    assert site.build(digest).message == "it is in place already"  # for another job
    attempt = site.launch("requirements.txt")
    assert attempt.exit().outcome == "succeeded"
    assert f"length 91 in {path}" in attempt.log(0)
    for each in (path, *path.rglob("*")):
        mode = each.lstat().st_mode
        assert stat.S_ISLNK(mode) or not mode & 0o022, each
    other = site.launch("requirements.txt", python=f"3.{sys.version_info.minor}")
    assert other.exit().outcome == "succeeded"


def test_a_lock_of_uv_is_installed_without_its_project(site: Site) -> None:
    (site.code / "inner").mkdir()
    (site.code / "inner" / "pyproject.toml").write_text(project())
    uv = [sys.executable, "-m", "uv", "--quiet", "lock"]
    subprocess.run(uv, cwd=site.code / "inner", check=True)
    digest = site.failure("inner/uv.lock").environment
    assert digest is not None
    outcome = site.build(digest)
    assert outcome.outcome == "succeeded", outcome.message
    assert site.launch("inner/uv.lock").exit().outcome == "succeeded"


def test_a_broken_lock_is_a_failure_with_the_last_lines(site: Site) -> None:
    (site.code / "requirements.txt").write_text(requirements("0" * 64))
    digest = site.failure("requirements.txt").environment
    assert digest is not None
    outcome = site.build(digest)
    assert outcome.outcome == "failed"
    assert "uv pip ended with status 1. Its last lines:" in outcome.message
    assert "Hash mismatch" in outcome.message
    folder = site.store.folder
    wait_for(lambda: [p.name for p in folder.iterdir()] == ["requests"], "end of the build")


@pytest.mark.parametrize(
    ("lock", "expected"),
    [
        ("requirements.txt", "requirements.txt of the code cannot be read: No such file"),
        ("link.txt", "link.txt of the code cannot be read: "),
        ("away/shadow.txt", "away/shadow.txt of the code cannot be read: "),
        ("pipe.txt", "pipe.txt of the code cannot be read: no regular file"),
        ("uv.lock", "pyproject.toml of the code cannot be read: No such file"),
        ("large.txt", "large.txt of the code cannot be read: File too large"),
        ("bytes.txt", "bytes.txt is not text in UTF-8"),
    ],
)
def test_a_lock_that_cannot_be_read_is_named(
    site: Site, tmp_path: Path, lock: str, expected: str
) -> None:
    secret = tmp_path / "secrets"
    secret.mkdir()
    (secret / "shadow.txt").write_text("root:secret\n")
    (site.code / "link.txt").symlink_to(secret / "shadow.txt")
    (site.code / "away").symlink_to(secret)
    os.mkfifo(site.code / "pipe.txt")
    (site.code / "large.txt").write_bytes(b"#" * (4 * 2**20 + 1))
    (site.code / "bytes.txt").write_bytes(b"\xff")
    failure = site.failure(lock)
    assert (failure.reason, failure.environment) == (FailureReason.LAUNCH_ERROR, None)
    assert expected in failure.message
    assert not failure.free_retry


def test_an_interpreter_that_the_node_lacks_is_named(site: Site) -> None:
    (site.code / "requirements.txt").write_text(requirements(site.digest))
    failure = site.failure("requirements.txt", python="3.99")
    assert "environment.python='3.99': this node has no python3.99 on PATH" in failure.message


def test_a_folder_that_others_can_change_is_refused(site: Site) -> None:
    (site.code / "requirements.txt").write_text(requirements(site.digest))
    site.store.folder.mkdir()
    site.store.folder.chmod(0o775)
    failure = site.failure("requirements.txt")
    assert failure.environment is None
    assert f"{site.store.folder} has to be a folder of the worker's user" in failure.message


def test_a_node_that_takes_no_code_builds_nothing(site: Site) -> None:
    (site.code / "requirements.txt").write_text(requirements(site.digest))
    digest = site.failure("requirements.txt").environment
    assert digest is not None
    site.place.local = replace(site.place.local, allow_code=False)
    outcome = site.build(digest)
    assert outcome.outcome == "failed"
    assert "a build may run code of the packages; TRAINYARD_ALLOW_CODE=true" in outcome.message


def test_a_build_without_a_request_is_refused(site: Site) -> None:
    outcome = site.build("a" * 64)
    assert "has no request for environment aaaaaaaaaaaa" in outcome.message


def test_a_node_unlike_the_one_in_need_builds_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site.code / "requirements.txt").write_text(requirements(site.digest))
    digest = site.failure("requirements.txt").environment
    assert digest is not None
    monkeypatch.setattr("worker.environments.node_build.cuda_version", lambda: "11.8")
    assert "this node has CUDA 11.8, not " in site.build(digest).message
    monkeypatch.undo()
    request = site.store.read_request(digest)
    assert request is not None
    older = request.python.model_copy(update={"libc": "glibc 2.17"})
    unlike = request.model_copy(update={"python": older})
    site.store.request(unlike)
    message = site.build(unlike.digest).message
    assert f"this node has libc {request.python.libc}, not glibc 2.17" in message


def test_a_cancelled_build_leaves_nothing(site: Site) -> None:
    (site.code / "requirements.txt").write_text(requirements(site.digest))
    digest = site.failure("requirements.txt").environment
    assert digest is not None
    operation_id = site.give(digest)
    site.place.server.operations[operation_id].current = False  # before its first report
    folder = site.store.folder
    wait_for(lambda: [p.name for p in folder.iterdir()] == ["requests"], "end of the build")
