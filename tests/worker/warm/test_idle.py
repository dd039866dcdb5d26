"""The imports of an idle process, and imports after which it refuses to fork."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.worker.conftest import Place
from tests.worker.warm.conftest import Idle
from worker.launchers.warm.fork_client import UNMARKED, environment_of_imports
from worker.node.process_identity import status_field
from worker.node.process_tree import MARKER, NODE_MARKER
from worker.warm.hand_over import SOCKET, connected
from worker.warm.idle import _fork_detached

HERE = "tests.worker.warm"


@pytest.mark.parametrize(
    ("module", "code", "message"),
    [
        ("threaded", 3, "has 2 threads"),
        ("leaking", 3, "left /etc/passwd open"),
        ("missing", 1, "No module named"),
    ],
)
def test_it_forks_nothing_after_imports_that_fail_or_leave_something(
    idle: Idle, module: str, code: int, message: str
) -> None:
    process = idle.begin(module=f"{HERE}.{module}")
    assert not idle.ready
    assert process.wait(30) == code
    assert message in idle.output


def test_imports_that_hang_end_it_and_show_where(idle: Idle) -> None:
    process = idle.begin(module=f"{HERE}.hanging", import_seconds=0.5)
    assert process.wait(30) == -signal.SIGALRM
    assert "hanging.py" in idle.output


def test_one_whose_worker_ends_during_the_imports_leaves_the_socket_of_the_next(
    place: Place, idle: Idle
) -> None:
    path = place.node.data_dir / SOCKET
    path.touch()
    process = idle.begin(module=f"{HERE}.orphaned")
    assert process.wait(30) == 0
    assert path.is_file()
    assert not idle.ready


def test_the_imports_of_the_trainer_leave_one_thread_whatever_others_do(
    idle: Idle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank may have several, and torch's default folder is writable by every user of the node."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "worker")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    (tmp_path / "torchinductor_worker").touch()
    process = idle.start(module="trainer.__main__")
    assert status_field(process.pid, "Threads") == "1"


def test_it_forks_where_its_parent_ignores_the_ends_of_children(place: Place, idle: Idle) -> None:
    former = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        idle.start()
    finally:
        signal.signal(signal.SIGCHLD, former)
    with connected(place.node) as connection:
        connection.settimeout(60)
        answers = [connection.recv(4096)]
        connection.shutdown(socket.SHUT_WR)
        answers.append(connection.recv(4096))
    assert b"pid" in answers[0]
    assert answers[1] == b"", "one process answers a launch"


def test_a_fork_between_the_two_that_is_killed_is_no_reason_to_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Like without memory: the supervisor may have been forked, and then answers itself."""
    fork, first = os.fork, os.getpid()

    def fork_and_die() -> int:
        if os.getpid() == first:
            return fork()
        if fork() == 0:
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    monkeypatch.setattr(os, "fork", fork_and_die)
    assert not _fork_detached()


def test_the_imports_see_the_variables_of_ranks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://name:pass-word@proxy:3128")
    monkeypatch.setenv("TRAINYARD_BROKER_URL", "redis://pass-word@broker")
    found = environment_of_imports(node="node-1", threads=4)
    assert found["HTTPS_PROXY"] == "http://proxy:3128"
    assert found["OMP_NUM_THREADS"] == "4"
    assert {name for name in found if name.startswith("TRAINYARD_")} == {MARKER, NODE_MARKER}
    assert found[MARKER] == UNMARKED
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert environment_of_imports(node="node-1", threads=4)["OMP_NUM_THREADS"] == "2"
