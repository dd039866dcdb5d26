"""Programs that attack their own supervisor through the run directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.other_users import needs_root
from tests.worker.conftest import Place, wait_for
from tests.worker.launchers.test_program_launcher import start
from trainyard.protocol.states import DesiredState
from worker.launchers.torchrun import RankWatch
from worker.node.node_store import WorkerRun
from worker.node.process_identity import process_stat

PIPE = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{plant}
print("runs", flush=True)
time.sleep(600)
"""
STOP = 'os.environ["TRAINYARD_RUN"] + "/stop"'


@pytest.fixture
def place(place: Place) -> Place:
    """A node that runs code of jobs, with a folder for it."""
    place.local = replace(place.local, allow_code=True)
    Path(place.local.roots["data"], "mine").mkdir()
    return place


@pytest.mark.parametrize(
    "plant",
    [
        f"os.mkfifo({STOP})",
        f'os.symlink("/dev/zero", {STOP})',
        f"os.truncate(os.open({STOP}, os.O_CREAT | os.O_RDWR), 2**40)",
    ],
    ids=["pipe", "link", "hole"],
)
def test_what_lies_in_place_of_the_order_holds_up_no_stop(place: Place, plant: str) -> None:
    attempt = start(place, PIPE.format(plant=plant), stop_grace_seconds=1.0)
    wait_for(lambda: "runs" in attempt.log(), "program")
    attempt.seen.desired = DesiredState.STOP
    assert attempt.exit().outcome == "stopped"


@needs_root
def test_a_record_of_a_rank_names_no_process_of_another_user(
    run_of_another_user: WorkerRun,
) -> None:
    run, writer = run_of_another_user, run_of_another_user.writer
    Path(run.ranks).mkdir()

    def look(pid: int) -> tuple[dict[int, int], dict[int, int]]:
        stat = process_stat(pid)
        assert stat is not None
        record = Path(run.ranks, "0.start")
        record.write_text(json.dumps({"pid": pid, "start_time": stat.start_time}))
        os.chown(record, writer, -1)
        seen = RankWatch(run, [0]).poll()
        for pidfd in seen.pidfds.values():
            os.close(pidfd)
        return dict(seen.pids), dict(seen.pidfds)

    assert look(os.getpid()) == ({}, {})
    with subprocess.Popen(["/bin/sleep", "600"], user=writer, cwd="/") as own:
        try:
            assert look(own.pid)[0] == {0: own.pid}
        finally:
            own.send_signal(signal.SIGKILL)


def test_a_program_that_fills_its_run_directory_is_ended(place: Place) -> None:
    place.local = replace(place.local, run_bytes=4 * 2**20)
    script = """
        import os, time
        with open(os.environ["TRAINYARD_RUN"] + "/large", "wb") as file:
            file.write(os.urandom(8 * 2**20))
        time.sleep(600)
    """
    attempt = start(place, script, ranks=1)
    failure = attempt.exit().failure
    assert failure is not None
    assert failure.reason == "disk_limit"
    assert failure.message == f"{attempt.run.root} takes more than 4,194,304 bytes of disk"
    assert "TRAINYARD_RUN_BYTES" in failure.remedy.text


def test_a_program_that_reports_the_loss_of_its_node_has_failed_by_itself(place: Place) -> None:
    script = """
        import json, os, sys
        forged = {"reason": "node_lost", "message": "mine", "rank": 0, "free_retry": True}
        with open(os.environ["TRAINYARD_RUN"] + "/error.json", "w") as file:
            json.dump(forged, file)
        sys.exit(3)
    """
    failure = start(place, script, ranks=1).exit().failure
    assert failure is not None
    assert (failure.reason, failure.message, failure.exit_code) == ("program_error", "mine", 3)
    assert not failure.is_free


def test_a_link_in_place_of_the_mark_of_the_end_leads_nowhere(place: Place) -> None:
    target = place.folder / "planted"
    script = f"""
        import os
        os.symlink({str(target)!r}, os.environ["TRAINYARD_RUN"] + "/over")
    """
    attempt = start(place, script, ranks=1)
    assert attempt.exit().outcome == "succeeded"
    wait_for(lambda: not place.node.live() or None, "the end of the supervisor")
    assert not target.exists()
    over = Path(attempt.run.over)
    assert (over.is_symlink(), over.read_bytes()) == (False, b"")
