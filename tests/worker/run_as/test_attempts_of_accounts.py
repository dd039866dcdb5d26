"""Attempts under Unix accounts: ids, files, secrets, commands, and what stays of the account."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.other_users import needs_root
from tests.worker.conftest import Place, make_place, wait_for
from tests.worker.fake_server import FakeServer, FakeShell
from tests.worker.launchers.process_launcher import PROGRAM, TORCHRUN, WARM
from tests.worker.node.conftest import alive
from tests.worker.node.test_users_of_attempts import Launched
from tests.worker.run_as.own_accounts import ADA, BOB, STAFF, VISION
from trainyard.base.ids import make_id
from trainyard.protocol.shell_sessions.messages import ShellOrder
from trainyard.protocol.states import DesiredState
from worker.launch import detach, prepare_run
from worker.launchers.base import Share
from worker.launchers.rank_environment import rank_environment
from worker.node.process_tree import WRAPPER
from worker.node.users import FIRST_GROUP, NodeAccount, RankUser
from worker.run_as.run_as_owner import RunAsOwner
from worker.run_as.storage_check import closed_storage

OWN = FIRST_GROUP + 1
USER = RankUser(
    uid=ADA,
    groups=(VISION,),
    own_group=OWN,
    account=NodeAccount(name="ada", gid=STAFF, home="/nowhere/ada", umask=0o027),
)


@pytest.fixture
def open_place(open_folder: Path) -> Iterator[Place]:
    server = FakeServer()
    made = make_place(open_folder, server)
    made.local = replace(made.local, allow_code=True, run_as=RunAsOwner())
    yield made
    made.clean()
    server.close()


@pytest.fixture
def launched(open_place: Place) -> Launched:
    return prepared(open_place)


def prepared(open_place: Place, program: dict[str, Any] | None = None) -> Launched:
    """Return an attempt of the account, of a trainer by default."""
    node = open_place.node
    checkpoints = Path(open_place.local.roots["checkpoints"])
    checkpoints.mkdir(exist_ok=True)
    RunAsOwner().prepare_node(
        slots=4, data_dir=node.data_dir, shared=[node.cache_dir], roots=[checkpoints]
    )
    checkpoints.chmod(0o1777)
    attempt = open_place.attempt(open_place.grant(ranks=1, program=program))
    attempt.seen.claimed = True
    lock = node.lock(attempt.id, create=True)
    assert lock is not None
    run = prepare_run(open_place.local, attempt.id, attempt.seen.claim, user=USER)
    lock.lead_to(run)
    return Launched(attempt, lock, USER)


@pytest.fixture
def login(open_place: Place) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the account that is no part of the attempt, such as a login by ssh."""
    del open_place
    with subprocess.Popen(
        ["/bin/sleep", "600"], user=ADA, group=STAFF, extra_groups=[VISION], cwd="/"
    ) as process:
        yield process
        process.kill()


def test_an_account_gets_no_variable_of_the_login_of_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {"KRB5CCNAME", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "SUDO_USER", "MAIL"}
    for name in names:
        monkeypatch.setenv(name, "of the worker")
    assert rank_environment().keys() >= names, "a pool has no accounts, and may need them"
    assert rank_environment(USER).keys().isdisjoint(names)


def read_as(uid: int, path: Path) -> str:
    """Return what another process of a user gets from a file: its text, or the error."""
    ids = (f"--reuid={uid}", f"--regid={STAFF}", f"--groups={VISION}")
    words = ("setpriv", *ids, "cat", str(path))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return str(done.stdout or done.stderr.strip().rpartition(": ")[2])


@needs_root
@pytest.mark.parametrize("launcher", [TORCHRUN, WARM])
def test_ranks_run_under_the_account_and_all_of_them_end(
    open_place: Place,
    launched: Launched,
    login: subprocess.Popen[bytes],
    python: str,
    launcher: str,
) -> None:
    attempt, run = launched.attempt, launched.attempt.run
    checkpoints = Path(open_place.local.roots["checkpoints"])
    saved = checkpoints / attempt.seen.claim.attempt.job_id
    saved.mkdir()
    os.chown(saved, ADA, STAFF)
    saved.chmod(0o700)  # closed to others, as a file system that refuses root closes it
    assert RankUser.of_run(run.root) == RankUser(uid=OWN, groups=())
    assert run.root.stat().st_mode & 0o7777 == 0o1700, "closed until the first process of ada"
    with open_place.node.users() as taken:
        assert taken == {OWN}, "the worker finds the attempt by its group"
    for uid in (ADA, BOB):
        assert read_as(uid, run.spec) == "Permission denied", "only the attempt reads its secrets"
    launched.supervise(python, "identify", launcher=launcher)
    record = attempt.exit()
    said = attempt.log().splitlines()
    assert record.outcome == "succeeded", (said, run.supervisor_log.read_text())
    ids = f"({ADA}, {ADA}, {ADA}) ({STAFF}, {STAFF}, {STAFF}) [{VISION}, {OWN}]"
    assert f"user {ids} umask 027" in said
    assert "home /nowhere/ada of ada ada" in said
    assert "rights 0" in said
    assert "root again" not in said
    for name in ("environ", "mem", "maps"):
        assert f"{name} of the supervisor: PermissionError" in said
    written = (saved / "saved").stat()
    assert (written.st_uid, written.st_gid, written.st_mode & 0o777) == (ADA, STAFF, 0o640)
    cache = (open_place.node.cache_dir / str(ADA)).stat()
    assert (cache.st_uid, cache.st_mode & 0o777) == (ADA, 0o700)
    assert alive(ADA) == [login.pid], "the daemon has ended, and the login has not"
    assert attempt.seen.claim.attempt.kernel_cache is None
    assert run.root.stat().st_mode & 0o7777 == 0o1700
    assert (run.root.stat().st_uid, run.root.stat().st_gid) == (0, OWN)
    assert Path(run.log(0)).stat().st_uid == 0


@needs_root
def test_a_command_runs_under_the_account_and_ends_with_the_attempt(
    launched: Launched, login: subprocess.Popen[bytes], python: str
) -> None:
    attempt = launched.attempt
    argv = ("sh", "-c", 'id -u; id -g; id -G; umask; echo "$HOME"; setsid sleep 600 &')
    shell = FakeShell(ShellOrder(id=make_id(milliseconds=1, entropy=bytes(10)), argv=argv))
    launched.supervise(python, "sleep")
    attempt.phase("training")
    attempt.seen.shells = {shell.order.id: shell}
    ended = wait_for(lambda: shell.exit, "end of the command")
    assert (ended.exit_code, ended.failure) == (0, None), shell.output
    expected = [str(ADA), str(STAFF), f"{STAFF} {VISION} {OWN}", "0027", "/nowhere/ada"]
    assert shell.output.decode().splitlines() == expected
    attempt.seen.desired = DesiredState.CANCEL
    assert attempt.exit().outcome == "cancelled"
    assert alive(ADA) == [login.pid]


PROGRAM_OF_PACK = """
id -u; id -g; id -G; umask; echo "$HOME" "$TORCHINDUCTOR_CACHE_DIR" "$SSH_AUTH_SOCK"
cat "$TRAINYARD_RUN/supervisor.secret" "$TRAINYARD_RUN/launch.json" | grep -c ty_
touch made && ls -n made main.sh
"""


@needs_root
def test_a_program_runs_under_the_account_from_a_pack_of_root(
    open_place: Place, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/of/the/worker")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as pack:
        entry = tarfile.TarInfo("main.sh")
        entry.size = len(PROGRAM_OF_PACK)
        pack.addfile(entry, io.BytesIO(PROGRAM_OF_PACK.encode()))
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    open_place.node.packs.mkdir(mode=0o700)
    open_place.node.packs.joinpath(f"{digest}.tar.gz").write_bytes(content.getvalue())
    code = {"pack": f"sha256:{digest}"}
    words = {"command": ["/bin/sh", "main.sh"], "launcher": "command", "code": code}
    launched = prepared(open_place, words)
    attempt, run = launched.attempt, launched.attempt.run
    launched.supervise(python, "", launcher=PROGRAM)
    record, lines = attempt.exit(), attempt.log().splitlines()
    assert record.outcome == "succeeded", (lines, run.supervisor_log.read_text())
    assert lines[:4] == [str(ADA), str(STAFF), f"{STAFF} {VISION} {OWN}", "0027"]
    assert lines[4] == f"/nowhere/ada {run.kernels} ", "no folder that other users can guess"
    assert "0" in lines[5:], "the program reads no token"
    owners = {words[-1]: words[2] for words in map(str.split, lines) if len(words) == 9}
    assert owners == {"made": str(ADA), "main.sh": "0"}
    assert run.root.stat().st_mode & 0o7777 == 0o1700


@needs_root
def test_root_follows_no_link_in_a_run_directory(open_place: Place, launched: Launched) -> None:
    run, victim = launched.attempt.run, open_place.folder / "victim"
    Path(run.supervisor_log).symlink_to(victim)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        detach(["supervise", str(run.root)], log=run.supervisor_log, folder=run.root)
    assert not victim.exists()


@needs_root
def test_no_member_of_the_group_enters_before_the_last_write_of_root(
    open_place: Place, launched: Launched
) -> None:
    run = launched.attempt.run
    victim = open_place.folder / "victim"
    victim.mkdir()
    ids = (f"--reuid={BOB}", f"--regid={STAFF}", f"--groups={OWN}")
    plant = ("setpriv", *ids, "ln", "-s", str(victim), str(run.code))
    done = subprocess.run(plant, capture_output=True, text=True, check=False)
    assert "Permission denied" in done.stderr
    Share.read(run).admit_user()
    subprocess.run(plant, check=True)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        USER.give(run.code, 0o1770)
    assert victim.stat().st_gid == 0


@needs_root
@pytest.mark.parametrize(
    ("squat", "why"),
    [
        ("link", "which is no folder"),
        ("bob", f"which belongs to uid {BOB}"),
        ("open", "to which every user can write"),
        (None, None),
    ],
)
def test_no_attempt_uses_a_folder_that_others_made_or_can_change(
    open_place: Place,
    launched: Launched,
    squat: str | None,
    why: str | None,
    python: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.executable", python)
    monkeypatch.setattr("worker.run_as.storage_check.WRAPPER", (python, *WRAPPER[1:]))
    share = Share.read(launched.attempt.run)
    saved = Path(open_place.local.roots["checkpoints"], share.attempt.job_id)
    if squat == "link":
        saved.symlink_to(open_place.folder)
    elif squat is not None:
        saved.mkdir()
        os.chown(saved, BOB if squat == "bob" else ADA, STAFF)
        saved.chmod(0o777 if squat == "open" else 0o700)
    found = closed_storage(share)
    if why is None:
        assert found is None
        status = saved.stat()
        assert (status.st_uid, status.st_mode & 0o777) == (ADA, 0o750), "made before the ranks"
    else:
        assert found is not None
        assert f"ada cannot use {saved}, {why}" in found


@needs_root
def test_checkpoints_of_a_former_owner_end_the_attempt_with_a_remedy(
    open_place: Place, launched: Launched, python: str
) -> None:
    attempt = launched.attempt
    saved = Path(open_place.local.roots["checkpoints"], attempt.seen.claim.attempt.job_id)
    saved.mkdir()
    os.chown(saved, BOB, STAFF)
    launched.supervise(python, "identify")
    record = attempt.exit()
    assert record.failure is not None
    assert record.failure.reason == "not_allowed"
    assert record.failure.message == (
        f"the account ada cannot use {saved}, which belongs to uid {BOB}; after a transfer of the "
        f"job, an administrator of the file system gives the folder to the account (chown -R ada "
        f"{saved})"
    )
    assert list(saved.iterdir()) == []
    assert alive(ADA) == []
