"""The worker keeps one idle supervisor, and starts none while an attempt is starting."""

from __future__ import annotations

import json
import os
import signal
import socket
from functools import partial
from pathlib import Path

import pytest

from tests.worker.conftest import Place, wait_for
from worker.launch import prepare_run
from worker.node.node_store import NodeStore, WorkerRun
from worker.node.process_identity import open_started_at
from worker.upkeep import idle_keeper
from worker.upkeep.idle_keeper import IdleKeeper
from worker.warm.hand_over import READY, USED, in_folder


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def offer_on(place: Place) -> dict[str, int]:
    """Return what the idle supervisor of a node offers to a launch that then leaves."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
        in_folder(place.node) as path,
    ):
        connection.settimeout(30)
        connection.connect(path)
        offer: dict[str, int] = json.loads(connection.recv(4096))
    return offer


def test_the_next_one_follows_one_that_was_killed(place: Place) -> None:
    keeper = IdleKeeper(place.local)
    keeper.start()
    try:
        pids = []
        for _ in range(2):
            assert keeper.ready.wait(120), place.node.idle_log.read_text()
            offer = wait_for(lambda: offer_on(place), "offer")
            pids.append(offer["pid"])
            pidfd = open_started_at(offer["pid"], offer["start_time"])
            assert pidfd is not None
            children = Path(f"/proc/{pids[-1]}/task/{pids[-1]}/children").read_text().split()
            if len(pids) == 2:
                keeper.stop()
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
            for child in map(int, children):  # the kernel ends it with its supervisor
                wait_for(partial(gone, child), "end of a child")
            wait_for(lambda: len(pids) == 2 or not keeper.ready.is_set(), "end that is noted")
        assert pids[0] != pids[1]
    finally:
        keeper.stop()
        keeper.join(30)
    assert not keeper.is_alive()


@pytest.mark.parametrize("record", [None, "metrics.jsonl", "exit.json", "outcome.json"])
def test_it_waits_for_the_first_step_or_the_end_of_an_attempt(
    place: Place, record: str | None
) -> None:
    attempt = place.attempt(place.grant())
    assert idle_keeper.may_start(place.node)
    lock = place.node.lock(attempt.id, create=True)
    assert lock is not None
    with lock:
        assert not idle_keeper.may_start(place.node), "it is being claimed"
        run = prepare_run(place.local, attempt.id, attempt.seen.claim)
        lock.lead_to(run)
    if record is not None:
        (run.root / record).touch()
    assert idle_keeper.may_start(place.node) is (record is not None)


def test_an_attempt_that_takes_no_step_delays_it_for_a_while(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = place.attempt(place.grant())
    lock = place.node.lock(attempt.id, create=True)
    assert lock is not None
    with lock:
        run: WorkerRun = prepare_run(place.local, attempt.id, attempt.seen.claim)
        lock.lead_to(run)
    monkeypatch.setattr(idle_keeper, "STARTING_SECONDS", -1.0)
    assert idle_keeper.may_start(place.node)


def test_one_that_ends_before_a_launch_came_is_followed_after_a_pause(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where memory does not suffice for it: imports would take a core for ever."""
    started: list[bytes] = []

    def die(_words: list[str], *, pass_fds: list[int], **_options: object) -> None:
        os.write(pass_fds[0], READY + words[len(started)])
        started.append(READY)

    words = [USED, b"", b""]
    monkeypatch.setattr(idle_keeper, "detach", die)
    monkeypatch.setattr(idle_keeper, "LOOK_SECONDS", 0.01)
    keeper = IdleKeeper(place.local)
    keeper.start()
    wait_for(lambda: len(started) == 2, "the one after a launch")
    keeper.join(0.5)
    keeper.stop()
    keeper.join(30)
    assert len(started) == 2, "the pause is seconds"


def test_files_that_cannot_be_opened_end_no_keeper(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_node: NodeStore) -> bool:
        tries.append(1)
        raise OSError("too many open files")

    tries: list[int] = []
    monkeypatch.setattr(idle_keeper, "may_start", refuse)
    keeper = IdleKeeper(place.local)
    keeper.start()
    wait_for(lambda: tries, "a try")
    keeper.join(0.2)
    assert keeper.is_alive()
    keeper.stop()
    keeper.join(30)


def test_one_that_is_never_ready_is_tried_again_after_a_growing_pause(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[list[str]] = []

    def fail(words: list[str], **_options: object) -> None:
        tries.append(words)
        raise OSError("no memory")

    monkeypatch.setattr(idle_keeper, "detach", fail)
    monkeypatch.setattr(idle_keeper, "LOOK_SECONDS", 0.01)
    keeper = IdleKeeper(place.local)
    keeper.start()
    wait_for(lambda: tries, "a try")
    keeper.join(0.5)
    keeper.stop()
    keeper.join(30)
    assert len(tries) == 1, "the pause is seconds"
