"""A claimed launch is launched once, whatever becomes of the supervisor that waits for it."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import HERE, Attempt, Place, environment, wait_for
from tests.worker.fake_server import NODE_TOKEN
from trainyard.protocol.worker_messages import LaunchMessage
from worker import launch
from worker.api import WorkerApi
from worker.launch import launch_attempt, prepare_run
from worker.node.node_store import AttemptLock, WorkerRun
from worker.node.process_identity import identify
from worker.warm import hand_over as hand_over_module
from worker.warm.hand_over import SOCKET, hand_over, in_folder, offered

PACKAGE = "changing"


@dataclass
class Idle:
    """Idle supervisors on the node of a test, with a process in place of their worker."""

    place: Place
    worker: subprocess.Popen[bytes]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *packages: str) -> subprocess.Popen[bytes]:
        """Start one, and return it when it waits for a launch."""
        identity = identify(self.worker.pid)
        assert identity is not None
        own, its = socket.socketpair()
        words = [str(self.place.node.data_dir), str(identity.pid), str(identity.start_time)]
        path = os.pathsep.join((str(HERE.parents[1]), str(self.place.folder)))
        with own, its, (self.place.folder / "idle.out").open("ab") as log:
            idle = subprocess.Popen(
                [
                    *(sys.executable, str(HERE / "warm" / "run_idle.py"), *words),
                    *(str(its.fileno()), *packages),
                ],
                env=environment(PYTHONPATH=path),
                pass_fds=[its.fileno()],
                stdout=log,
                stderr=log,
            )
            its.close()
            self.started.append(idle)
            assert own.recv(1) == b"r", (self.place.folder / "idle.out").read_text()
        wait_for((self.place.node.data_dir / SOCKET).exists, "socket of the idle supervisor")
        return idle


@pytest.fixture(autouse=True)
def _on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_over_module, "OFFER_SECONDS", 60.0)


@pytest.fixture
def idle(place: Place) -> Iterator[Idle]:
    made = Idle(place, subprocess.Popen(["sleep", "600"]))
    yield made
    for process in (*made.started, made.worker):
        process.kill()
        process.wait()


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Why launches started a supervisor of their own; none is started."""
    reasons: list[str | None] = []

    def note(_run: WorkerRun, _lock: AttemptLock, *, why_cold: str | None = None) -> None:
        reasons.append(why_cold)

    monkeypatch.setattr(launch, "start_supervisor", note)
    return reasons


def launched(place: Place, **granted: Any) -> Attempt:
    attempt = place.attempt(place.grant(**granted))
    message = LaunchMessage(attempt_id=attempt.id, node=place.local.name)
    with WorkerApi(place.server.url, NODE_TOKEN) as api:
        assert launch_attempt(place.local, message, api)
    return attempt


def test_the_idle_supervisor_takes_one_launch(
    place: Place, idle: Idle, cold: list[str | None]
) -> None:
    waiting = idle.start()
    attempt = launched(place)
    record = attempt.exit()
    assert record.outcome == "succeeded"
    assert attempt.pid == waiting.pid
    assert '"TRAINYARD_LAUNCH": "warm"' in attempt.log()
    assert f"rank 0 in {attempt.run.root}\n" in attempt.log(), "as under torchrun"
    assert waiting.wait(30) == 0
    assert cold == []
    assert place.node.live() == []
    launched(place)
    assert cold == ["no idle supervisor is ready"]


def test_a_launch_of_code_is_not_given_to_it(
    place: Place, idle: Idle, cold: list[str | None]
) -> None:
    waiting = idle.start()
    launched(place, program={"command": ["true"], "launcher": "command"})
    assert cold == [None]
    assert waiting.poll() is None


def test_an_idle_supervisor_that_was_killed_takes_none(
    place: Place, idle: Idle, cold: list[str | None]
) -> None:
    waiting = idle.start()
    waiting.kill()
    waiting.wait()
    assert (place.node.data_dir / SOCKET).exists()
    launched(place)
    assert cold == ["no idle supervisor is ready"]
    again = idle.start()
    assert launched(place).exit().outcome == "succeeded"
    assert again.wait(30) == 0


def test_one_that_does_not_answer_in_time_waits_for_the_next_launch(
    place: Place, idle: Idle, cold: list[str | None]
) -> None:
    waiting = idle.start()
    os.kill(waiting.pid, signal.SIGSTOP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hand_over_module, "OFFER_SECONDS", 0.5)
        launched(place)
    assert cold == ["no idle supervisor is ready"]
    os.kill(waiting.pid, signal.SIGCONT)
    attempt = launched(place)
    assert attempt.exit().outcome == "succeeded"
    assert attempt.pid == waiting.pid


def test_one_whose_forkserver_was_killed_ends(place: Place, idle: Idle) -> None:
    waiting = idle.start()
    children = Path(f"/proc/{waiting.pid}/task/{waiting.pid}/children").read_text().split()
    (forkserver,) = map(int, children)
    os.kill(forkserver, signal.SIGKILL)
    assert waiting.wait(30) == 0


def test_one_that_ends_leaves_the_socket_of_the_next(place: Place, idle: Idle) -> None:
    former, waiting = idle.start(), idle.start()
    children = Path(f"/proc/{former.pid}/task/{former.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    assert former.wait(30) == 0
    attempt = launched(place)
    assert attempt.exit().outcome == "succeeded"
    assert attempt.pid == waiting.pid


def test_a_launch_whose_log_cannot_be_written_is_launched(
    place: Place, idle: Idle, cold: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(*words: Any, **options: Any) -> WorkerRun:
        run = prepare_run(*words, **options)
        run.supervisor_log.mkdir()
        return run

    monkeypatch.setattr(launch, "prepare_run", prepare)
    idle.start()
    assert launched(place).exit().outcome == "succeeded"
    assert cold == []


def test_it_ends_with_its_worker_unless_it_has_a_launch(place: Place, idle: Idle) -> None:
    first = idle.start()
    attempt = launched(place)
    idle.worker.kill()
    idle.worker.wait()
    assert attempt.exit().outcome == "succeeded"
    assert first.wait(30) == 0
    idle.worker = subprocess.Popen(["sleep", "600"])
    second = idle.start()
    idle.worker.kill()
    idle.worker.wait()
    assert second.wait(30) == 0


def test_changed_code_is_not_forked(place: Place, idle: Idle, cold: list[str | None]) -> None:
    package = place.folder / PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("A = 1\n")
    waiting = idle.start(PACKAGE)
    (package / "__init__.py").write_text("A = 2\n")
    launched(place)
    assert cold == ["the code on the disk has changed since"]
    assert waiting.wait(30) == 0


@dataclass
class Held:
    """A launch that is given by hand, with the lock of its attempt."""

    place: Place
    attempt: Attempt
    run: WorkerRun
    lock: AttemptLock

    def give(self) -> str | None:
        return hand_over(self.place.node, self.run, self.lock)


@pytest.fixture
def held(place: Place) -> Iterator[Held]:
    attempt = place.attempt(place.grant())
    lock = place.node.lock(attempt.id, create=True)
    assert lock is not None
    with lock:
        run = prepare_run(place.local, attempt.id, attempt.seen.claim)
        lock.lead_to(run)
        yield Held(place, attempt, run, lock)


def in_its_place(place: Place, act: Callable[[socket.socket], None]) -> int:
    """Run a process that acts on the first connection as an idle supervisor; return its pid."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        with in_folder(place.node) as path:
            listener.bind(path)
        listener.listen()
        pid = os.fork()
        if pid == 0:
            try:
                act(listener.accept()[0])
            finally:
                os._exit(0)
    return pid


def offer(connection: socket.socket) -> tuple[Path, int] | None:
    own = identify(os.getpid())
    assert own is not None
    return offered(connection, identity={"pid": own.pid, "start_time": own.start_time})


def test_one_that_dies_with_the_launch_in_its_hands_leaves_the_lock(
    place: Place, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(connection: socket.socket) -> None:
        monkeypatch.setattr(hand_over_module, "_receive_with_lock", take_and_die)
        offer(connection)

    def take_and_die(connection: socket.socket) -> None:
        socket.recv_fds(connection, 4096, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    pid = in_its_place(place, die)
    assert held.give() == "the idle supervisor did not take the launch"
    os.waitpid(pid, 0)
    assert place.node.is_held(held.attempt.id), "by the launch alone"
    held.lock.__exit__()
    held.lock.fd = os.dup(0)  # for the fixture to close
    assert not place.node.is_held(held.attempt.id)


def test_one_that_keeps_a_launch_without_a_word_is_ended(
    place: Place, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_over_module, "ACCEPT_SECONDS", 0.5)

    def keep(connection: socket.socket) -> None:
        monkeypatch.setattr(hand_over_module, "_receive_with_lock", take_and_sleep)
        offer(connection)

    def take_and_sleep(connection: socket.socket) -> None:
        socket.recv_fds(connection, 4096, 1)
        time.sleep(600)

    pid = in_its_place(place, keep)
    assert held.give() == "the idle supervisor did not take the launch"
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_one_whose_word_is_lost_is_ended(
    place: Place, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it launched the attempt, and so did the supervisor that the launch starts."""

    def lose(connection: socket.socket) -> None:
        def refuse_the_second(*words: Any, **options: Any) -> None:
            if "taken" in words[1]:
                raise OSError(errno.ENOBUFS, "no buffer space")
            send(*words, **options)

        send = hand_over_module._send
        monkeypatch.setattr(hand_over_module, "_send", refuse_the_second)
        assert offer(connection) is not None
        connection.close()
        time.sleep(60)

    pid = in_its_place(place, lose)
    assert held.give() == "the idle supervisor did not take the launch"
    assert os.waitpid(pid, os.WNOHANG) == (pid, signal.SIGKILL)


def test_a_launch_whose_worker_is_killed_after_its_words_is_taken(held: Held) -> None:
    """No other process starts the attempt any more."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def speak_and_leave() -> None:
        with ours:
            ours.recv(4096)
            words = json.dumps({"run": str(held.run.root)}).encode()
            socket.send_fds(ours, [words], [held.lock.fd])

    speaking = threading.Thread(target=speak_and_leave)
    with its:
        speaking.start()
        found = offer(its)
        speaking.join()
    assert found is not None
    folder, lock = found
    with AttemptLock.inherited(lock) as inherited:
        assert (folder, inherited.path) == (held.run.root, held.lock.path)


def test_other_users_cannot_connect(place: Place, idle: Idle) -> None:
    idle.start()
    assert (place.node.data_dir / SOCKET).stat().st_mode & 0o777 == 0o600
