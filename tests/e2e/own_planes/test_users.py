"""Ranks as their own Unix users, with the real torchrun and trainer, on a separate node."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.control_plane import (
    SLOTS,
    TEXT,
    ControlPlane,
    assert_each_once,
    finished,
    in_state,
    processes_with,
    spec,
)
from tests.e2e.workers import Worker, drained_plane, joined_node
from tests.other_users import needs_root, open_folder, packages, python_in
from trainyard.client.sdk import Client
from trainyard.protocol.states import JobState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FIRST = 62_100
GROUP = 65_534  # nogroup
MODEL = Path(__file__).with_name("prying_model")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with its own node drained: jobs run on the test's node."""
    with drained_plane(tmp_path_factory.mktemp("users")) as made:
        yield made


@pytest.fixture(scope="module")
def strict(plane: ControlPlane) -> Iterator[Worker]:
    """A node that runs each attempt as its own user."""
    if os.geteuid() != 0:
        pytest.skip("only root can change to other users")
    with open_folder() as folder, plane.connect() as yard:
        for name in ("checkpoints", "data", "python"):
            (folder / name).mkdir()
        (folder / "data" / "text.txt").write_text(TEXT)
        shutil.copytree(MODEL, folder / "data" / "prying")
        environment = {
            "TRAINYARD_RUN_AS": f"nobody:{FIRST}-{SLOTS + 1}",
            "TRAINYARD_ROOTS": f"checkpoints={folder / 'checkpoints'},data={folder / 'data'}",
            "PYTHONPATH": packages(),
        }
        data, python = folder / "strict", python_in(folder / "python")
        with joined_node(plane, yard, data, python=python, **environment) as worker:
            yield worker


def prying(name: str, token: Path) -> dict[str, Any]:
    """Return the spec of a job with the prying model."""
    made = spec(name, training={"steps": 4, "seq_len": 64})
    made["model"] = {
        "factory": "prying:build",
        "code": "data:prying",
        "arguments": {"token": str(token)},
        "vocab_size": 320,
    }
    return made


def said(yard: Client, job_id: str, rank: int) -> set[str]:
    """Return the lines of a rank's output, from the server."""
    return {line.text for line in yard.logs(job_id, rank=rank).lines}


def ids_of(pid: int) -> tuple[int, int, set[int]]:
    """Return the user of a process, its group, and its further groups."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    uid, gid = (int(fields[name].split()[0]) for name in ("Uid", "Gid"))
    return uid, gid, set(map(int, fields["Groups"].split()))


@needs_root
def test_a_job_saves_stops_and_goes_on_as_other_users(
    plane: ControlPlane, yard: Client, strict: Worker
) -> None:
    job_id = yard.submit(spec("guest")).id
    run = plane.run(job_id, node=strict.data)
    run.hold_at(12)
    for rank in (0, 1):
        assert ids_of(run.rank_pid(rank)) == (FIRST + 1, FIRST + 1, {GROUP})
    yard.stop(job_id)
    run.go_on()
    in_state(yard, job_id, JobState.STOPPED)
    newest = next(yard.checkpoints(job_id))
    yard.resume(job_id, world_size=4)
    assert finished(yard, job_id).state == "succeeded"
    second, first = yard.attempts(job_id)
    assert (second.start_step, second.parent_checkpoint_id) == (newest.step, newest.id)
    assert second.continuity is not None
    assert second.continuity.ok
    assert (first.outcome, second.outcome) == ("stopped", "succeeded")
    assert_each_once(yard, job_id, steps=40)
    saved = strict.data.parent / "checkpoints" / job_id
    files = [path.stat() for path in saved.rglob("*.distcp")]
    assert {stat.st_gid for stat in files} == {GROUP}
    assert {stat.st_uid for stat in files} <= set(range(FIRST, FIRST + SLOTS + 1))
    for attempt in (first, second):
        assert processes_with(f"TRAINYARD_ATTEMPT_ID={attempt.id}") == []


@needs_root
def test_code_of_a_job_does_not_get_the_token_of_its_node(
    plane: ControlPlane, yard: Client, strict: Worker
) -> None:
    token = strict.data / "node.token"
    job_id = yard.submit(prying("spy", token)).id
    job = finished(yard, job_id)
    secret = token.read_bytes().strip()
    run = plane.run(job_id, node=strict.data).files
    closed = {f"{act}=PermissionError" for act in ("read", "secret", "replaced")}
    for rank in (0, 1):
        assert said(yard, job_id, rank) >= {*closed, "linked=done", f"uid={FIRST + 1}"}
    assert "planted=done" in said(yard, job_id, 0)
    links = [Path(run.log(2)), Path(run.log(3)), Path(run.error)]
    assert [link.readlink() for link in links] == [token] * 3
    assert job.state == "succeeded"
    served = [p for p in plane.folders.root.rglob("*") if p.is_file() and secret in p.read_bytes()]
    assert served == []
    assert yard.logs(job_id).ranks == [0, 1]
