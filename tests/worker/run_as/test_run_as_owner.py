"""The setting `owner`: conditions of a worker, refused launches, operations, heartbeats."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.other_users import needs_root, packages
from tests.worker.conftest import NODE, Place, environment, make_place, wait_for
from tests.worker.fake_server import NODE_TOKEN, FakeOperation, FakeServer
from tests.worker.run_as.own_accounts import ADA, STAFF
from trainyard.base.ids import make_id
from trainyard.protocol.operations import OperationKind, OperationTask
from trainyard.protocol.worker_messages import LaunchMessage, OperationClaimReply
from trainyard.run.atomic import replace_file
from worker.api import WorkerApi
from worker.heartbeat import Heart
from worker.launch import launch_attempt
from worker.node.files import read_record
from worker.node.users import FIRST_GROUP, LAST_GROUP, NodeAccount, RankUser
from worker.operations import LAUNCH, OperationLaunch, prepare_operation
from worker.run_as.account_answers import AccountAnswers
from worker.run_as.run_as_owner import RunAsOwner, parse_run_as
from worker.run_as.unix_account import AccountRefusedError

USER = RankUser(
    uid=ADA,
    groups=(),
    own_group=FIRST_GROUP,
    account=NodeAccount(name="ada", gid=STAFF, home="/nowhere/ada", umask=0o077),
)
PREPARE = """
import sys
from pathlib import Path
from worker.run_as.run_as_owner import RunAsOwner
data, root = Path(sys.argv[1]), Path(sys.argv[2])
try:
    RunAsOwner().prepare_node(slots=4, data_dir=data, shared=[data / "cache"], roots=[root])
except ValueError as error:
    print(error)
"""
DELETE = """
import json, os, pathlib, shutil, sys
shutil.rmtree({folder!r})
folder = pathlib.Path(sys.argv[1])
message = f"{os.getuid()} {os.getgid()} {sorted(os.getgroups())} {os.environ['HOME']}"
(folder / "outcome.json").write_text(json.dumps({"outcome": "succeeded", "message": message}))
"""


# ---- the setting --------------------------------------------------------------------------------


def test_the_setting_is_owner_a_pool_or_empty() -> None:
    assert parse_run_as("") is None
    assert isinstance(parse_run_as("owner"), RunAsOwner)
    for text in ("Owner", "owners", "owner:5"):
        with pytest.raises(ValueError, match=r"user:first-count.*; or owner, for the accounts"):
            parse_run_as(text)


@needs_root
def test_a_worker_that_cannot_change_to_every_account_does_not_start(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": packages()}
    words = (sys.executable, "-c", PREPARE, str(tmp_path), str(tmp_path / "root"))

    def prepared(*before: str) -> str:
        done = subprocess.run(
            (*before, *words), capture_output=True, text=True, env=env, check=True
        )
        return done.stdout.strip()

    lesser = ("setpriv", "--bounding-set=-dac_override,-kill")
    assert prepared(*lesser) == "TRAINYARD_RUN_AS=owner needs the capabilities DAC_OVERRIDE, KILL"
    assert prepared() == ""
    assert (tmp_path / "root").stat().st_mode & 0o7777 == 0o1777, "made for every account"
    assert (tmp_path / "cache").stat().st_mode & 0o7777 == 0o711
    (tmp_path / "root").chmod(0o750)
    assert prepared() == ""
    assert (tmp_path / "root").stat().st_mode & 0o7777 == 0o750, "an existing root stays"


def test_a_worker_other_than_root_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 61_899)
    with pytest.raises(ValueError, match=r"needs a worker that is root, .* has uid 61899"):
        RunAsOwner().prepare_node(slots=1, data_dir=tmp_path, shared=[], roots=[])


def test_a_worker_in_a_user_namespace_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("worker.run_as.run_as_owner.in_user_namespace", lambda: True)
    with pytest.raises(ValueError, match="outside a user namespace"):
        RunAsOwner().prepare_node(slots=1, data_dir=tmp_path, shared=[], roots=[])


def test_a_group_is_never_used_again(place: Place) -> None:
    run_as, found = RunAsOwner(), RankUser(uid=ADA, groups=())
    users = [run_as.free((), found, fresh=place.node.fresh_group) for _ in range(3)]
    first = users[0].own
    assert [user.own for user in users] == [first, first + 1, first + 2]
    assert FIRST_GROUP < first < LAST_GROUP
    again = replace(place.node)
    assert again.fresh_group() == first + 3, "also after a restart of the worker"
    (place.node.data_dir / "last_group").write_text(f"{LAST_GROUP}\n")
    with pytest.raises(ValueError, match=r"last_group=2147483647: no group id follows"):
        place.node.fresh_group()


# ---- launches -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("account", "why"),
    [
        (None, "the owner of the job has no Unix account; an admin sets it with `trainyard users"),
        ("nemo-of-no-node", "nemo-of-no-node has no account"),
        ("root", "root has uid 0, and uids below 1000 belong to the system"),
    ],
)
def test_a_refused_account_puts_the_launch_back_before_anything_is_written(
    place: Place, account: str | None, why: str
) -> None:
    place.local = replace(place.local, run_as=RunAsOwner())
    attempt = place.attempt(place.grant())
    attempt.seen.claim = attempt.seen.claim.model_copy(update={"account": account})
    message = LaunchMessage(attempt_id=attempt.id, node=NODE)
    with WorkerApi(place.server.url, NODE_TOKEN) as api:
        assert not launch_attempt(place.local, message, api)
    (report,) = attempt.seen.reports
    assert report.exit is not None
    failure = report.exit.failure
    assert failure is not None
    assert failure.message.startswith(f"{NODE}: {why}")
    assert (failure.reason, failure.free_retry) == ("launch_error", True)
    assert place.node.live() == []
    assert not attempt.run.root.exists()


# ---- operations ---------------------------------------------------------------------------------


def given(kind: OperationKind, account: str | None) -> OperationClaimReply:
    task = OperationTask(kind=kind, job_id="job1", root="checkpoints", paths=("job1/a1/step-4",))
    return OperationClaimReply(
        task=task, storage=None, fence=1, report_seconds=0.05, account=account
    )


def test_an_operation_needs_the_account_and_a_build_has_none(place: Place) -> None:
    run_as, fresh = RunAsOwner(), place.node.fresh_group
    local = replace(place.local, run_as=run_as)
    for kind in OperationKind:
        if kind is OperationKind.BUILD:
            first, second = (run_as.for_operation(kind, "ada", fresh=fresh) for _ in range(2))
            assert first.is_fresh
            assert first.account is None
            assert first.uid != second.uid, "no other operation reads or ends the build"
            continue
        for account, why in ((None, "has no Unix account"), ("root", "uid 0")):
            with pytest.raises(AccountRefusedError, match=why):
                run_as.for_operation(kind, account, fresh=fresh)
    with pytest.raises(AccountRefusedError, match="uid 0"):
        prepare_operation(local, "01", given(OperationKind.DELETE, "root"))
    assert not (place.node.data_dir / "operations").exists()


@needs_root
def test_a_deletion_runs_under_the_account(open_place: Place, python: str) -> None:
    place, job = open_place, Path(open_place.local.roots["checkpoints"], "job1")
    (job / "a1").mkdir(parents=True)
    job.parent.chmod(0o1777)
    for folder in (job, job / "a1"):
        os.chown(folder, ADA, STAFF)
        folder.chmod(0o700)
    operation_id = make_id(milliseconds=1, entropy=os.urandom(10))
    claim = given(OperationKind.DELETE, "ada")
    place.server.operations[operation_id] = FakeOperation(claim)
    local = replace(place.local, run_as=None)
    folder = prepare_operation(local, operation_id, claim)
    launch = read_record(folder / LAUNCH, OperationLaunch)
    assert launch is not None
    changed = launch.model_copy(update={"user": USER})
    replace_file(folder / LAUNCH, changed.model_dump_json())
    for above in (place.node.data_dir, folder.parents[1], folder.parent):
        above.chmod(0o711)
    script = place.folder / "delete.py"
    script.write_text(DELETE.replace("{folder!r}", repr(str(job / "a1"))))
    code = (
        "from pathlib import Path; from worker.operations import OperationSupervisor; "
        f"OperationSupervisor(Path({str(folder)!r}), "
        f"command=[{python!r}, {str(script)!r}]).supervise()"
    )
    env = environment(PYTHONPATH=packages())
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
    outcome = place.server.operations[operation_id].outcome
    assert outcome is not None
    assert outcome.message == f"{ADA} {STAFF} [{FIRST_GROUP}] /nowhere/ada"
    assert list(job.iterdir()) == []


@pytest.fixture
def open_place(open_folder: Path) -> Iterator[Place]:
    server = FakeServer()
    made = make_place(open_folder, server)
    replace_file(made.node.token, NODE_TOKEN)
    yield made
    made.clean()
    server.close()


# ---- answers to the server ----------------------------------------------------------------------


def test_a_heartbeat_has_the_answers_and_waits_for_no_directory_service(place: Place) -> None:
    slow, names = threading.Event(), []

    def look(name: str) -> int | str:
        names.append(name)
        slow.wait(30)
        return ADA if name == "ada" else "has no account"

    place.node.token.write_text(NODE_TOKEN)
    server = place.server
    server.accounts = ("ada", "bob")
    answers = AccountAnswers(look)
    with WorkerApi(server.url, NODE_TOKEN) as api:
        heart = Heart(place.local, api, seconds=0.01, accounts=answers)
        heart.beat()
        wait_for(lambda: names, "a lookup")
        heart.beat()
        assert [beat.accounts for beat in server.heartbeats] == [{}, {}]
        assert names == ["ada"], "one lookup at a time"
        slow.set()
        found = {"ada": ADA, "bob": "has no account"}
        wait_for(lambda: answers.found == found, "the answers")
        heart.beat()
        assert server.heartbeats[-1].accounts == found
        server.accounts = ()
        heart.beat()
        wait_for(lambda: answers.found == {}, "the end of the answers")


def test_new_answers_are_sent_at_once(place: Place) -> None:
    place.node.token.write_text(NODE_TOKEN)
    server = place.server
    server.accounts = ("ada",)
    with WorkerApi(server.url, NODE_TOKEN) as api:
        heart = Heart(place.local, api, seconds=3600, accounts=AccountAnswers(lambda _: ADA))
        heart.beat()
        heart.start()
        wait_for(lambda: server.heartbeats[-1].accounts == {"ada": ADA}, "the answer")
        heart.stop()
        heart.join(30)


def test_without_the_setting_heartbeats_have_no_answers(place: Place) -> None:
    place.node.token.write_text(NODE_TOKEN)
    place.server.accounts = ("ada",)
    with WorkerApi(place.server.url, NODE_TOKEN) as api:
        Heart(place.local, api, seconds=5).beat()
    assert place.server.heartbeats[-1].accounts is None
