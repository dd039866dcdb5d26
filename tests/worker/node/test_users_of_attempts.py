"""An attempt with its own Unix user: inaccessible files, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.other_users import needs_root, packages
from tests.worker.conftest import HERE, Attempt, Place, environment, make_place, wait_for
from tests.worker.fake_server import FakeServer, FakeShell
from tests.worker.launchers.process_launcher import STAND_IN, TORCHRUN, WARM
from tests.worker.node.conftest import alive
from trainyard.base.ids import make_id
from trainyard.protocol.attempt import AttemptSpec
from trainyard.protocol.shell_sessions.messages import ShellOrder, Terminal
from trainyard.protocol.states import DesiredState
from trainyard.run.atomic import replace_file
from worker.launch import prepare_run
from worker.launchers.warm.fork_client import environment_of_imports
from worker.node.files import read_record
from worker.node.node_store import AttemptLock
from worker.node.process_tree import end_user
from worker.node.users import RankUser, RunAs

RUN_AS = "nobody:61920-8"
LOOK = """
id -u
for file in supervisor.secret ../../../node.token; do cat $file; done
cat
echo planted > kernels.zip
setsid sleep 600 &
"""


@pytest.fixture
def open_place(open_folder: Path) -> Iterator[Place]:
    server = FakeServer()
    made = make_place(open_folder, server)
    made.local = replace(made.local, allow_code=True)
    replace_file(made.node.token, "ty_node_secret\n", mode=0o600)
    yield made
    made.clean()
    server.close()


@dataclass
class Launched:
    """An attempt of one rank with its own user, without a supervisor yet."""

    attempt: Attempt
    lock: AttemptLock
    user: RankUser

    def supervise(self, python: str, behaviour: str, *, launcher: str = TORCHRUN) -> None:
        """Start the supervisor, with a stand-in for the trainer."""
        run = self.attempt.run
        variables = environment(PYTHONPATH=packages())
        if launcher == WARM:  # like those of the idle process that forks its supervisor
            variables = environment_of_imports(node=self.attempt.node, threads=1) | variables
        with self.lock, run.supervisor_log.open("wb") as log:
            self.attempt.supervisor = subprocess.Popen(
                [
                    *(python, str(HERE / "run_detached.py"), str(run.root)),
                    *(str(self.lock.fd), launcher, python, STAND_IN[1], behaviour),
                ],
                pass_fds=[self.lock.fd],
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=run.root,
                env=variables,
            )


@pytest.fixture
def launched(open_place: Place) -> Launched:
    run_as = RunAs.parse(RUN_AS)
    open_place.local = replace(open_place.local, run_as=run_as)
    node = open_place.node
    run_as.prepare_node(slots=4, data_dir=node.data_dir, shared=[])
    attempt = open_place.attempt(open_place.grant(ranks=1))
    attempt.seen.claimed = True
    lock = node.lock(attempt.id, create=True)
    assert lock is not None
    with node.users() as taken:
        user = run_as.free(taken)
        run = prepare_run(open_place.local, attempt.id, attempt.seen.claim, user=user)
        lock.lead_to(run)
    return Launched(attempt, lock, user)


@needs_root
@pytest.mark.parametrize("launcher", [TORCHRUN, WARM])
def test_code_of_a_rank_reaches_nothing_of_the_node_and_all_of_it_ends(
    open_place: Place, launched: Launched, python: str, launcher: str
) -> None:
    attempt, run, user = launched.attempt, launched.attempt.run, launched.user
    with open_place.node.users() as taken:
        assert taken == {user.uid} == {61_921}
        assert RunAs.parse(RUN_AS).free(taken).uid == 61_922
    assert run.writer == user.uid
    modes = {path.name: path.stat().st_mode & 0o7777 for path in run.root.iterdir()}
    assert (run.root.stat().st_mode & 0o7777, run.root.stat().st_gid) == (0o1700, user.uid)
    assert (modes["spec.json"], modes["supervisor.secret"]) == (0o640, 0o600)
    launched.supervise(python, "pry", launcher=launcher)
    record = attempt.exit()
    said = attempt.log().splitlines()
    assert record.outcome == "succeeded", (said, run.supervisor_log.read_text())
    assert "node.token: PermissionError" in said
    assert "supervisor.secret: PermissionError" in said
    assert "spec.json: '{\\n '" in said
    assert "removed" not in said
    # Neither rights nor descriptors of the process that forked it, nor its supervisor's memory.
    assert "rights 0" in said
    assert "root again" not in said
    for name in ("environ", "mem", "maps"):
        assert f"{name} of the supervisor: PermissionError" in said
    assert f"opened {['socket'] if launcher == WARM else []}" in said, "where the ranks meet"
    assert any(line.startswith("uid 61921 groups [") and "home True" in line for line in said)
    assert "events" not in attempt.seen.files, "a link to the token is not served"
    assert alive(user.uid) == [], "the daemon of the rank has ended"
    assert attempt.processes == []
    assert (run.root.stat().st_mode & 0o7777, RankUser.of_run(run.root)) == (
        0o1700,
        RankUser(uid=user.uid, groups=()),
    ), "a later attempt with the same id reads nothing of it"
    assert Path(run.log(0)).stat().st_uid == os.geteuid()
    assert Path(run.heartbeat).stat().st_uid == user.uid


@needs_root
def test_a_command_of_a_person_is_the_user_of_its_attempt_and_ends_with_it(
    open_place: Place, launched: Launched, python: str
) -> None:
    attempt, user = launched.attempt, launched.user
    described = read_record(attempt.run.attempt, AttemptSpec)
    assert described is not None
    assert described.kernel_cache is not None, "the attempt itself may share its kernels"
    piped = FakeShell(_order(0, "sh", "-c", LOOK), given=b"what is piped\n")
    typed = FakeShell(_order(1, "sh", "-c", "echo opened > $(tty)", terminal=Terminal()))
    launched.supervise(python, "sleep")
    attempt.phase("training")
    attempt.seen.shells = {shell.order.id: shell for shell in (piped, typed)}
    for shell in (piped, typed):
        ended = wait_for(lambda shell=shell: shell.exit, "end of a command")  # type: ignore[misc]
        assert (ended.exit_code, ended.failure) == (0, None), shell.output
    assert piped.output.decode().splitlines() == [
        "61921",
        "cat: supervisor.secret: Permission denied",
        "cat: ../../../node.token: Permission denied",
        "what is piped",
    ]
    assert typed.output == b"opened\r\n", "the terminal is the user's own"
    assert alive(user.uid) != [], "what the command has left"
    attempt.seen.desired = DesiredState.CANCEL
    assert attempt.exit().outcome == "cancelled"
    assert alive(user.uid) == []
    assert list(open_place.node.kernels.iterdir()) == [], "what the command planted is not kept"


def _order(number: int, *argv: str, terminal: Terminal | None = None) -> ShellOrder:
    shell_id = make_id(milliseconds=number, entropy=bytes(10))
    return ShellOrder(id=shell_id, argv=argv, terminal=terminal)


@needs_root
def test_a_damaged_launch_record_hides_no_process_of_the_attempt(
    open_place: Place, launched: Launched, python: str
) -> None:
    attempt, user = launched.attempt, launched.user
    # A daemon that has removed the marks of its attempt.
    process = subprocess.Popen(
        ["/bin/sleep", "600"], user=user.uid, group=user.uid, extra_groups=[], cwd="/", env={}
    )
    try:
        attempt.run.launch.write_bytes(b"{")
        with open_place.node.users() as taken:
            assert taken == {user.uid}, "no other attempt gets the id meanwhile"
        launched.supervise(python, "succeed")
        assert attempt.supervisor is not None
        assert attempt.supervisor.wait(60) == 0
        assert process.wait(60) == -signal.SIGKILL
        assert open_place.node.live() == []
        assert attempt.run.root.stat().st_mode & 0o7777 == 0o1700, "a later attempt reads nothing"
    finally:
        end_user(user)
        process.wait()


def test_a_run_directory_without_a_user_of_its_own_names_none(place: Place) -> None:
    attempt = place.attempt(place.grant())
    assert RankUser.of_run(attempt.run.root) is None, "it is not there yet"
    prepare_run(place.local, attempt.id, attempt.seen.claim)
    assert RankUser.of_run(attempt.run.root) is None
