"""A worker without a broker: long polls of the server bring its messages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.worker.conftest import LONG, NODE, Place, environment, wait_for
from tests.worker.fake_server import JOIN_TOKEN, NODE_TOKEN
from trainyard.base.backoff import Backoff
from trainyard.protocol.states import DesiredState
from trainyard.run.directory import Phase
from worker.inbox import polls
from worker.inbox.polls import ServerInbox
from worker.inbox.start import Message
from worker.node.node_store import LocalNode, identity_of
from worker.settings import Settings

NOWHERE = "redis://127.0.0.1:1/0"


@contextmanager
def worker_of(place: Place, *, secret: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker with an unreachable broker until the block ends."""
    registered = len(place.server.registrations)
    more = {
        "TRAINYARD_URL": place.server.url,
        "TRAINYARD_INBOX": "server",
        "TRAINYARD_BROKER_URL": NOWHERE,
        "TRAINYARD_NODE_NAME": NODE,
        "TRAINYARD_DATA_DIR": str(place.node.data_dir),
        "TRAINYARD_ROOTS": ",".join(f"{name}={path}" for name, path in place.local.roots.items()),
    }
    if secret is not None:
        more["TRAINYARD_JOIN_TOKEN_FILE"] = str(secret)
    with (place.folder / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker"],
            env=environment(**more),
            stdout=log,
            stderr=log,
            cwd=place.folder,
            start_new_session=True,
        )
    try:
        wait_for(lambda: len(place.server.registrations) > registered, "registration")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file with the join token."""
    path = tmp_path / "join"
    path.touch(0o600)
    path.write_text(f"{JOIN_TOKEN}\n")
    return path


def test_a_node_without_a_broker_launches_and_is_found_again(place: Place, secret: Path) -> None:
    with worker_of(place, secret=secret) as worker:
        assert place.server.registrations[-1].inbox == "server"
        attempt = place.attempt(place.grant(spec=LONG, ranks=1))
        attempt.phase(Phase.TRAINING)
        before = identity_of(attempt.run)
        begin = time.monotonic()
        worker.send_signal(signal.SIGTERM)  # while a poll waits
        assert worker.wait(60) == 0
        assert time.monotonic() - begin < polls.WAIT_SECONDS / 2
    with worker_of(place):
        wait_for(lambda: place.server.heartbeats[-1].supervised == (attempt.id,), "supervision")
        assert identity_of(attempt.run) == before
        attempt.seen.desired = DesiredState.STOP
        assert attempt.exit().outcome == "stopped"
    assert "celery" not in (place.folder / "worker.log").read_text().lower()


def test_a_worker_without_a_broker_imports_no_celery() -> None:
    code = "import sys, worker.serve; sys.exit('celery' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment(), check=False).returncode == 0
    )


@contextmanager
def polling(
    place: Place, start: Callable[[Message, Settings, LocalNode], object]
) -> Iterator[ServerInbox]:
    """Poll the server of a test without real launches."""
    place.node.token.write_text(NODE_TOKEN)
    settings = Settings(url=place.server.url, node_name=NODE, data_dir=place.node.data_dir)
    inbox = ServerInbox(settings, place.local)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polls, "start", start)
        patch.setattr(polls, "AGAIN", Backoff(first=0.5, longest=0.5, jitter=0))
        patch.setattr(polls, "WAIT_SECONDS", 0.3)
        thread = threading.Thread(target=inbox.poll_until_stopped)
        thread.start()
        try:
            yield inbox
        finally:
            inbox.stop()
            thread.join()
            inbox._threads.shutdown(wait=True)


def test_what_is_refused_is_taken_again_after_a_pause(place: Place) -> None:
    begun: list[tuple[str, float]] = []

    def refused(message: Message, settings: Settings, node: LocalNode) -> bool:
        begun.append((str(message), time.monotonic()))
        return False

    place.grant()
    with polling(place, refused):
        wait_for(lambda: len(begun) >= 3, "third try")
    pauses = [later[1] - sooner[1] for sooner, later in pairwise(begun)]
    assert min(pauses) >= 0.5
    # Each poll in the meantime named the id as known.
    assert len([p for p in place.server.polls if not p.known]) <= len(begun) + 1


def test_two_start_at_once_and_what_starts_is_known(place: Place) -> None:
    go_on, begun = threading.Event(), Counter[str]()

    def slow(message: Message, settings: Settings, node: LocalNode) -> bool:
        begun[str(message)] += 1
        assert go_on.wait(60)
        raise OSError("no space left")  # which ends neither thread nor polls

    wanted = {place.grant() for _ in range(3)}
    try:
        with polling(place, slow):
            wait_for(lambda: len(begun) == 2, "two that start")
            wait_for(lambda: set(place.server.polls[-1].known) == wanted, "poll that knows them")
            assert set(begun.values()) == {1}
            go_on.set()
            wait_for(lambda: len(begun) == 3, "the third")
    finally:
        go_on.set()


def test_an_answer_without_news_makes_no_tight_loop(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polls, "MAX_KNOWN", 0)  # so that each answer names the ids in work
    place.server.insisted.add(place.grant())
    go_on = threading.Event()

    def slow(message: Message, settings: Settings, node: LocalNode) -> bool:
        return go_on.wait(60)

    with polling(place, slow):
        wait_for(lambda: len(place.server.polls) >= 3, "polls")
        begin, before = time.monotonic(), len(place.server.polls)
        wait_for(lambda: len(place.server.polls) >= before + 2, "polls")
        assert time.monotonic() - begin >= polls.SHORTEST_SECONDS * 0.9
        go_on.set()


def test_polls_go_on_once_the_server_is_back(place: Place) -> None:
    begun: list[str] = []

    def granted(message: Message, settings: Settings, node: LocalNode) -> bool:
        begun.append(str(message))
        return True

    with polling(place, granted):
        wait_for(lambda: place.server.polls, "poll")
        place.server.close()
        place.server.open()
        attempt_id = place.grant()
        wait_for(lambda: begun, "start")
    assert attempt_id in begun[0]


def test_a_signal_during_a_start_lets_it_finish(place: Place, secret: Path) -> None:
    place.server.lose_grants = 1  # the claim is repeated: a start that takes a while
    with worker_of(place, secret=secret) as worker:
        attempt = place.attempt(place.grant(spec=LONG, ranks=1))
        wait_for(lambda: attempt.seen.claimed, "claim")
        os.kill(worker.pid, signal.SIGTERM)
        assert worker.wait(60) == 0
    wait_for(lambda: identity_of(attempt.run), "supervisor")
    attempt.seen.desired = DesiredState.CANCEL
    attempt.exit()
