"""The first process of a container: keeps the worker running, reaps, drains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.worker.conftest import Place, environment, wait_for
from trainyard.run.directory import Phase
from worker.node.process_identity import process_stat
from worker.supervisor.preemption import read_notice

WORKER = """
import os, subprocess, sys, time
with open("starts", "a") as file:
    file.write(f"{os.getpid()}\\n")
orphan = "import os,time\\nif os.fork(): os._exit(0)\\nopen('orphan','w').write(str(os.getpid()))"
subprocess.run([sys.executable, "-c", orphan])
time.sleep(600)
"""
INIT = """
import sys
from pathlib import Path
from worker.init import Init
from worker.node.node_store import NodeStore
sys.exit(Init([sys.executable, "node_worker.py"], node=NodeStore(Path(sys.argv[1]))).run())
"""


def test_init_restarts_the_worker_reaps_orphans_and_drains(place: Place) -> None:
    attempt = place.start(stand_in="chatter")
    attempt.phase(Phase.TRAINING)
    (place.folder / "node_worker.py").write_text(WORKER)
    init = subprocess.Popen(
        [sys.executable, "-c", INIT, str(place.node.data_dir)],
        env=environment(),
        cwd=place.folder,
    )
    try:
        first = wait_for(lambda: starts(place.folder), "worker")[0]
        orphan = int(wait_for(lambda: read(place.folder / "orphan"), "orphan"))
        wait_for(lambda: process_stat(orphan) is None, "reaped orphan")
        os.kill(first, signal.SIGKILL)
        second = wait_for(lambda: starts(place.folder)[1:], "restarted worker")[0]
        assert init.poll() is None
        assert attempt.seen.exit is None

        init.send_signal(signal.SIGTERM)
        assert init.wait(60) == 0
    finally:
        init.kill()
        init.wait()
    assert process_stat(second) is None
    assert read_notice([place.node.leaving]) == "its container is being ended"
    record = attempt.exit()
    assert record.failure is not None
    assert record.failure.reason == "preempted"


def starts(folder: Path) -> list[int]:
    return [int(line) for line in read(folder / "starts").split()]


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
