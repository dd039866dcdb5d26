"""The data folder of a node: locked by one worker, and recognised, unlike its copies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker.conftest import Place, environment, wait_for
from worker.api import WorkerApi
from worker.heartbeat import Heart
from worker.node.lock import ID_FILE, lock_folder, worker_identity
from worker.node.process_identity import boot_id
from worker.registration import register
from worker.settings import Settings

HOLDER = """
import os, sys, time
from pathlib import Path
from worker.node.lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    child = os.fork()
    if child:
        print(child, flush=True)
    time.sleep(600)
"""


def identity(folder: Path) -> str:
    with lock_folder(folder) as worker:
        assert worker.boot_id == boot_id()
        assert worker == worker_identity(folder)
        return worker.folder


def test_a_folder_keeps_its_id_and_a_copy_gets_another(tmp_path: Path) -> None:
    folder, copy = tmp_path / "node", tmp_path / "copy"
    folder.mkdir()
    first = identity(folder)
    assert identity(folder) == first
    shutil.copytree(folder, copy, copy_function=shutil.copy2)
    assert worker_identity(copy).folder == first  # until a worker serves it
    assert identity(copy) != first
    assert identity(copy) == identity(copy)
    moved = folder.rename(tmp_path / "moved")
    assert identity(moved) == first


@pytest.mark.parametrize("damage", [b"", b"abc", b"0" * 32, b"0" * 32 + b" x\n"])
def test_a_damaged_id_is_replaced(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / ID_FILE).write_bytes(damage)
    with pytest.raises(ValueError, match="holds no id"):
        worker_identity(tmp_path)
    assert identity(tmp_path) == identity(tmp_path)


def test_a_second_worker_of_a_folder_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], env=environment(), stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        refused = pytest.raises(ValueError, match=rf"TRAINYARD_DATA_DIR.*\(pid {holder.pid}\)")
        with refused, lock_folder(tmp_path, wait_seconds=0):
            pass
        holder.kill()
        holder.wait()
        os.kill(child, 0)  # a pool child that outlives its worker holds nothing
        with lock_folder(tmp_path, wait_seconds=0):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_a_worker_waits_while_another_one_serves_its_node(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.registration.ANOTHER_WORKER_SECONDS", 0.01)
    place.node.token.write_text("node-token\n")
    server = place.server
    settings = Settings(url=server.url, node_name="node-1", data_dir=place.node.data_dir)
    server.another_worker = True
    with (
        lock_folder(place.node.data_dir) as worker,
        WorkerApi(server.url, None) as api,
    ):
        local = replace(place.local, worker=worker)
        registering = threading.Thread(
            target=register,
            args=(settings, local, api),
            kwargs={"roots": {}},
        )
        registering.start()
        wait_for(lambda: len(server.registrations) > 3, "tries to register")
        assert registering.is_alive()
        server.another_worker = False
        registering.join(30)
        assert not registering.is_alive()
        assert server.registrations[-1].worker == worker
        heart = Heart(local, api, seconds=5)
        heart.beat()
        before = heart.refusal
        assert before is None
        assert server.heartbeats[-1].worker == worker
        server.another_worker = True
        heart.beat()
        assert heart.refusal is not None
        assert heart.refusal.status == 409


def test_a_heartbeat_carries_the_clock_by_the_answer_before(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.node.token.write_text("node-token\n")
    server = place.server
    with WorkerApi(server.url, "node-token") as api:
        heart = Heart(place.local, api, seconds=5)
        heart.beat()
        assert [beat.clock for beat in server.heartbeats] == [None], "nothing was answered before"
        server.time = 1_000_000.0
        monkeypatch.setattr(time, "time", lambda: 1_000_060.0)
        heart.beat()
        heart.beat()
    clock = server.heartbeats[-1].clock
    assert clock is not None
    # The answer came within the round trip, so the difference is known to half its length.
    assert 0 < clock.error_seconds < 10
    assert clock.skew_seconds - clock.error_seconds == pytest.approx(60.0, abs=1e-6)
