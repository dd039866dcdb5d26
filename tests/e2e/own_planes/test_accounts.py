"""Jobs under the Unix accounts of their owners, with the real torchrun and trainer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedded.record import read_record
from tests.e2e.control_plane import (
    TEXT,
    ControlPlane,
    assert_each_once,
    finished,
    in_state,
    processes_with,
    spec,
    wait_for,
)
from tests.e2e.workers import Worker, drained_plane, joined_node
from tests.other_users import needs_root, open_folder, packages, python_in
from tests.worker.run_as.own_accounts import BOB, STAFF, with_accounts, write_accounts
from trainyard.client.sdk import Client
from trainyard.protocol.states import JobState
from worker.node.users import FIRST_GROUP

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
OWNER = "runner@default"
EVE = 61_820
"""User id of the account that is added while its job waits."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with its own node drained: jobs run on the test's node."""
    with drained_plane(tmp_path_factory.mktemp("accounts")) as made:
        yield made


@pytest.fixture(scope="module")
def passwd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of accounts that the node reads."""
    path = write_accounts(tmp_path_factory.mktemp("etc"))["/etc/passwd"]
    legal = [line for line in path.read_text().splitlines(keepends=True) if "hidden" not in line]
    path.write_text("".join(legal))  # a worker does not start on a node with that account
    return path


@pytest.fixture(scope="module")
def node(plane: ControlPlane, passwd: Path) -> Iterator[Worker]:
    """A node that runs jobs under the accounts of their owners."""
    if os.geteuid() != 0:
        pytest.skip("only root can change to other users")
    with open_folder() as folder, plane.connect() as yard:
        for name in ("checkpoints", "data", "python"):
            (folder / name).mkdir()
        (folder / "checkpoints").chmod(0o1777)
        (folder / "data" / "text.txt").write_text(TEXT)
        environment = {
            "TRAINYARD_RUN_AS": "owner",
            "TRAINYARD_ROOTS": f"checkpoints={folder / 'checkpoints'},data={folder / 'data'}",
            "PYTHONPATH": packages(),
        }
        files = {f"/etc/{name}": passwd.with_name(name) for name in ("passwd", "group")}
        files["/etc/login.defs"] = passwd.with_name("login.defs")
        python = with_accounts(files, python_in(folder / "python"))
        data = folder / "owned"
        with joined_node(plane, yard, data, python=python, **environment) as worker:
            yield worker


def waits_because(yard: Client, job_id: str, reason: str) -> None:
    wait_for(lambda: reason in (yard.job(job_id).reason or ""), f"reason {reason!r}")
    assert yard.job(job_id).attempt == 0, "nothing was launched"


@pytest.fixture(scope="module")
def owner(plane: ControlPlane) -> Iterator[Client]:
    """A service account, which owns the jobs of these tests; the built-in user gets no account."""
    with plane.connect() as admin:
        admin.create_service_account("default", OWNER.partition("@")[0])
        made = admin.service_token("default", OWNER, name="tests")
    record = read_record(plane.folders.record)
    assert record is not None
    with Client(record.url, made.secret) as client:
        yield client


def give_account(yard: Client, account: str) -> None:
    """Map the service account."""
    found = yard.user_named(OWNER)
    assert found is not None
    yard.change_user(found.id, unix_account=account)


@needs_root
def test_a_job_waits_for_an_account_and_then_saves_and_resumes_under_it(
    plane: ControlPlane, yard: Client, owner: Client, node: Worker, passwd: Path
) -> None:
    assert {each.hardware.isolation for each in yard.nodes() if each.name == node.name} == {"owner"}
    job_id = owner.submit(spec("owned")).id
    waits_because(yard, job_id, "runs jobs of an owner without a Unix account")
    give_account(yard, "root")
    waits_because(
        yard, job_id, f"root has uid 0, and uids below 1000 belong to the system on {node.name}"
    )
    give_account(yard, "eve")
    waits_because(yard, job_id, f"eve has no account on {node.name}")
    with passwd.open("a") as accounts:
        accounts.write(f"eve:x:{EVE}:{STAFF}::/nowhere/eve:/bin/sh\n")
    run = plane.run(job_id, node=node.data)
    run.hold_at(12)
    for rank in (0, 1):
        status = Path(f"/proc/{run.rank_pid(rank)}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert (fields["Uid"].split()[0], fields["Gid"].split()[0]) == (str(EVE), str(STAFF))
        (of_attempt,) = map(int, fields["Groups"].split())
        assert of_attempt > FIRST_GROUP
    saved = node.data.parent / "checkpoints" / job_id
    saved.chmod(0o700)  # closed to others, as a file system that refuses root closes it
    yard.stop(job_id)
    run.go_on()
    in_state(yard, job_id, JobState.STOPPED)
    yard.resume(job_id, world_size=4)
    assert finished(yard, job_id).state == "succeeded"
    second, first = yard.attempts(job_id)
    assert (first.outcome, second.outcome) == ("stopped", "succeeded")
    assert_each_once(yard, job_id, steps=40)
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in saved.rglob("*")}
    assert owners == {(EVE, STAFF)}
    for attempt in (first, second):
        assert processes_with(f"TRAINYARD_ATTEMPT_ID={attempt.id}") == []


@needs_root
def test_checkpoints_of_a_former_account_end_the_attempt_with_the_remedy(
    plane: ControlPlane, yard: Client, owner: Client, node: Worker
) -> None:
    give_account(yard, "ada")
    job_id = owner.submit(spec("given")).id
    run = plane.run(job_id, node=node.data)
    run.hold_at(12)
    yard.stop(job_id)
    run.go_on()
    in_state(yard, job_id, JobState.STOPPED)
    give_account(yard, "bob")
    yard.resume(job_id)
    job = finished(yard, job_id)
    assert job.state == "failed"
    newest = next(iter(yard.attempts(job_id)))
    assert newest.failure is not None
    assert newest.failure.reason == "not_allowed"
    saved = node.data.parent / "checkpoints" / job_id
    assert newest.failure.message.endswith(
        f"gives the folder to the account (chown -R bob {saved})"
    )
    for path in (saved, *saved.rglob("*")):
        os.chown(path, BOB, STAFF)
    yard.resume(job_id)
    assert finished(yard, job_id).state == "succeeded"
