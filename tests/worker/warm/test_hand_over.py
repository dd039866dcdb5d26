"""A claimed launch is launched once, whatever happens to the waiting supervisor."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import Attempt, Place, wait_for
from tests.worker.fake_server import NODE_TOKEN
from tests.worker.warm.conftest import Idle
from trainyard.protocol.worker_messages import LaunchMessage
from worker import launch
from worker.api import WorkerApi
from worker.launch import launch_attempt, prepare_run
from worker.node.node_store import AttemptLock, WorkerRun
from worker.node.process_identity import identify, process_stat
from worker.warm import hand_over as hand_over_module
from worker.warm.hand_over import (
    SOCKET,
    GivenLaunch,
    connected,
    hand_over,
    in_folder,
    offered,
)

PACKAGE = "changing"


@pytest.fixture(autouse=True)
def _on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_over_module, "OFFER_SECONDS", 60.0)


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The reasons why launches would start a new supervisor; none is started."""
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


def test_each_launch_gets_a_supervisor_of_its_own(
    place: Place, idle: Idle, cold: list[str | None]
) -> None:
    """Also a launch that follows immediately."""
    waiting = idle.start()
    attempts = [launched(place) for _ in range(3)]
    for attempt in attempts:
        assert attempt.exit().outcome == "succeeded"
        assert '"TRAINYARD_LAUNCH": "warm"' in attempt.log()
        assert f"rank 0 in {attempt.run.root}\n" in attempt.log(), "as under torchrun"
    assert len({waiting.pid, *(attempt.pid for attempt in attempts)}) == 4
    assert cold == []
    wait_for(lambda: place.node.live() == [], "end of the supervisors")
    assert waiting.poll() is None


def test_a_supervisor_is_a_child_of_no_process_of_the_node(place: Place, idle: Idle) -> None:
    waiting = idle.start()
    with connected(place.node) as connection:
        connection.settimeout(60)
        pid = json.loads(connection.recv(4096))["pid"]
        stat = process_stat(pid)
        assert stat is not None
        assert stat.parent not in (waiting.pid, os.getpid())
        assert os.getsid(pid) == pid
    wait_for(partial(has_gone, pid), "end without a launch")
    assert waiting.poll() is None


def test_the_idle_process_holds_no_secret(
    place: Place, idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://name:pass-word@proxy:3128")
    monkeypatch.setenv("TRAINYARD_BROKER_URL", "redis://pass-word@broker")
    waiting = idle.start()
    attempt = launched(place)
    assert attempt.exit().outcome == "succeeded"
    shown = Path(f"/proc/{waiting.pid}/environ").read_bytes()
    assert b"HTTPS_PROXY=http://proxy:3128\0" in shown
    for secret in ("pass-word", attempt.seen.claim.attempt_token):
        assert secret.encode() not in shown
        assert secret.encode() not in memory_of(waiting.pid)


def memory_of(pid: int) -> bytes:
    """Return the private memory that a process has written."""
    content = []
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for words in map(str.split, maps):
            if words[1].startswith("rw") and words[-1] not in ("[vvar]", "[vsyscall]"):
                first, end = (int(each, 16) for each in words[0].split("-"))
                memory.seek(first)
                content.append(memory.read(end - first))
    return b"".join(content)


def test_a_launch_of_code_is_not_given_to_it(
    place: Place, idle: Idle, cold: list[str | None]
) -> None:
    waiting = idle.start()
    launched(place, program={"command": ["true"], "launcher": "command"})
    assert cold == [None]
    assert waiting.poll() is None


def test_an_idle_process_that_was_killed_takes_none(
    place: Place, idle: Idle, cold: list[str | None]
) -> None:
    waiting = idle.start()
    waiting.kill()
    waiting.wait()
    assert (place.node.data_dir / SOCKET).exists()
    launched(place)
    assert cold == ["no idle process is ready"]
    idle.start()
    assert launched(place).exit().outcome == "succeeded"


def test_one_that_does_not_answer_in_time_waits_for_the_next_launch(
    place: Place, idle: Idle, cold: list[str | None]
) -> None:
    waiting = idle.start()
    os.kill(waiting.pid, signal.SIGSTOP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hand_over_module, "OFFER_SECONDS", 0.5)
        launched(place)
    assert cold == ["no idle process is ready"]
    os.kill(waiting.pid, signal.SIGCONT)
    assert launched(place).exit().outcome == "succeeded"
    assert len(cold) == 1


def test_one_that_ends_leaves_the_socket_of_the_next(
    place: Place, idle: Idle, cold: list[str | None]
) -> None:
    former, its_worker = idle.start(), idle.worker
    idle.worker = subprocess.Popen(["sleep", "600"])
    idle.start()
    its_worker.kill()
    its_worker.wait()
    assert former.wait(30) == 0
    assert launched(place).exit().outcome == "succeeded"
    assert cold == []


def test_a_launch_whose_log_cannot_be_written_is_launched(
    place: Place, idle: Idle, cold: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(*words: Any, **options: Any) -> WorkerRun:
        run = prepare_run(*words, **options)
        run.supervisor_log.mkdir()
        return run

    monkeypatch.setattr(launch, "prepare_run", prepare)
    idle.start()
    attempt = launched(place)
    assert Path(f"/proc/{attempt.pid}/cwd").readlink() == attempt.run.root
    assert attempt.exit().outcome == "succeeded"
    assert cold == []


def test_it_ends_with_its_worker_and_supervisors_do_not(place: Place, idle: Idle) -> None:
    waiting = idle.start()
    attempt = launched(place)
    idle.worker.kill()
    idle.worker.wait()
    assert waiting.wait(30) == 0
    assert attempt.exit().outcome == "succeeded"


def test_nothing_is_left_at_the_end_of_the_worker(place: Place, idle: Idle) -> None:
    idle.start()
    with connected(place.node) as connection:
        connection.settimeout(60)
        pid = json.loads(connection.recv(4096))["pid"]
        (forkserver,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        idle.worker.kill()
        idle.worker.wait()
    for each in (pid, int(forkserver)):
        wait_for(partial(has_gone, each), "end")


def has_gone(pid: int) -> bool:
    stat = process_stat(pid)
    return stat is None or stat.ended


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
    """A launch that is passed by hand, with the lock of its attempt."""

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
    """Run a process that acts as the supervisor on its first connection; return its pid."""
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


def offer(connection: socket.socket) -> GivenLaunch | None:
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
    assert held.give() == "the supervisor did not take the launch"
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
    assert held.give() == "the supervisor did not take the launch"
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_one_whose_word_is_lost_is_ended(
    place: Place, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise both it and the supervisor of the launch would launch the attempt."""

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
    assert held.give() == "the supervisor did not take the launch"
    assert os.waitpid(pid, os.WNOHANG) == (pid, signal.SIGKILL)


def test_a_launch_whose_worker_is_killed_after_its_words_is_taken(held: Held) -> None:
    """No other process starts the attempt."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def speak_and_leave() -> None:
        with ours:
            ours.recv(4096)
            words = json.dumps({"run": str(held.run.root), "environment": {}}).encode()
            socket.send_fds(ours, [words], [held.lock.fd])

    speaking = threading.Thread(target=speak_and_leave)
    with its:
        speaking.start()
        found = offer(its)
        speaking.join()
    assert found is not None
    with AttemptLock.inherited(found.lock) as inherited:
        assert (found.folder, inherited.path) == (held.run.root, held.lock.path)


def test_other_users_cannot_connect(place: Place, idle: Idle) -> None:
    idle.start()
    assert (place.node.data_dir / SOCKET).stat().st_mode & 0o777 == 0o600


def test_a_supervisor_gets_the_variables_of_the_worker(
    place: Place, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://name:pass-word@proxy:3128")
    hidden = ("TRAINYARD_BROKER_URL", "_MP_FORK_LOGFILE_", "_MP_FORK_LOGFORMAT_")
    for name in hidden:  # the last ones are those of a process of Celery's pool
        monkeypatch.setenv(name, "redis://broker")

    def note(connection: socket.socket) -> None:
        given = offer(connection)
        assert given is not None
        (place.folder / "given.json").write_text(json.dumps(given.environment))

    pid = in_its_place(place, note)
    assert held.give() is None
    os.waitpid(pid, 0)
    given = json.loads((place.folder / "given.json").read_text())
    assert given["HTTPS_PROXY"] == "http://name:pass-word@proxy:3128"
    assert not given.keys() & set(hidden), "else imports seem to have seen others"


def test_one_that_does_not_end_keeps_the_launch(
    place: Place, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other supervisor may take it: both might launch it."""
    monkeypatch.setattr(hand_over_module, "ACCEPT_SECONDS", 0.5)
    monkeypatch.setattr(hand_over_module, "END_SECONDS", 0.5)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_words: None)  # as in a disk wait

    def keep(connection: socket.socket) -> None:
        offer(connection)
        time.sleep(600)

    monkeypatch.setattr(hand_over_module, "_receive_with_lock", lambda _connection: None)
    pid = in_its_place(place, keep)
    with pytest.raises(TimeoutError, match="may have taken the launch"):
        held.give()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
