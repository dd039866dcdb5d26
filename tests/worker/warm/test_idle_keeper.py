"""The worker keeps one idle process, and starts the next one when that has ended."""

from __future__ import annotations

import os
import signal
import socket
import time
from functools import partial
from pathlib import Path

import pytest

from tests.worker.conftest import Place, wait_for
from trainyard.base.backoff import Backoff
from worker.upkeep import idle_keeper
from worker.upkeep.idle_keeper import IdleKeeper
from worker.warm.hand_over import CHANGED, READY, connected
from worker.warm.idle import CREDENTIALS


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def idle_process(place: Place) -> int:
    """Return the pid of the process that listens on a node's socket; 0 without one."""
    try:
        with connected(place.node) as connection:
            return peer(connection)
    except OSError:
        return 0


def test_one_that_was_killed_is_followed_by_another(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_keeper, "AGAIN", Backoff(first=0.1, longest=0.1))
    keeper = IdleKeeper(place.local)
    keeper.start()
    try:
        pids = []
        for _ in range(2):
            assert keeper.ready.wait(120), place.node.idle_log.read_text()
            pids.append(wait_for(partial(idle_process, place), "idle process"))
            if len(pids) == 2:
                keeper.stop()
            os.kill(pids[-1], signal.SIGKILL)
            wait_for(partial(gone, pids[-1]), "end of the idle process")
            wait_for(lambda: len(pids) == 2 or not keeper.ready.is_set(), "end that is noted")
        assert pids[0] != pids[1]
    finally:
        keeper.stop()
        keeper.join(30)
    assert not keeper.is_alive()


def peer(connection: socket.socket) -> int:
    """Return the pid of the process that listens on the other side."""
    size = CREDENTIALS.size
    found: int = CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )[0]
    return found


def test_one_that_ended_is_followed_by_another_where_the_worker_forks_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like Celery's pool, whose processes live as long as the worker."""
    forked: list[int] = []

    def fork_and_end(_words: list[str], *, pass_fds: list[int], **_options: object) -> None:
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
            os._exit(0)
        forked.append(pid)
        os.write(pass_fds[0], READY)

    monkeypatch.setattr(idle_keeper, "detach", fork_and_end)
    monkeypatch.setattr(idle_keeper, "AGAIN", Backoff(first=0.1, longest=0.1))
    keeper = IdleKeeper(place.local)
    keeper.start()
    try:
        wait_for(lambda: len(forked) > 1, "next one")
    finally:
        keeper.stop()
        keeper.join(30)
        for pid in forked:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_one_that_ends_before_a_launch_came_is_followed_after_a_pause(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like without enough memory: repeated imports would occupy a core forever."""
    started: list[bytes] = []

    def die(_words: list[str], *, pass_fds: list[int], **_options: object) -> None:
        os.write(pass_fds[0], READY + words[len(started)])
        started.append(READY)

    words = [CHANGED, b"", b""]
    monkeypatch.setattr(idle_keeper, "detach", die)
    keeper = IdleKeeper(place.local)
    keeper.start()
    wait_for(lambda: len(started) == 2, "the one with the changed code")
    keeper.join(0.5)
    keeper.stop()
    keeper.join(30)
    assert len(started) == 2, "the pause is seconds"


def test_one_that_is_never_ready_is_tried_again_after_a_growing_pause(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[list[str]] = []

    def fail(words: list[str], **_options: object) -> None:
        tries.append(words)
        raise OSError("no memory")

    monkeypatch.setattr(idle_keeper, "detach", fail)
    keeper = IdleKeeper(place.local)
    keeper.start()
    wait_for(lambda: tries, "a try")
    keeper.join(0.5)
    keeper.stop()
    keeper.join(30)
    assert len(tries) == 1, "the pause is seconds"
