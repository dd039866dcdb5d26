"""A pilot and the real server, connected only by HTTP, without a broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from server.core.context import Context
from server.core.database.engine import Database
from server.core.database.migrate import upgrade
from server.core.settings import Settings
from tests.e2e.control_plane import LOOPBACK, ONE_RANK, REPOSITORY, wait_for
from tests.library.conftest import PresentClock, serving
from tests.server.cluster.supply.site import Site, instance, secret_of
from tests.server.harness import Harness
from tests.worker.conftest import SPEC, TEXT
from trainyard.protocol.states import JobState
from worker.node.process_tree import descendants

pytestmark = pytest.mark.timeout(200)


def test_a_pilot_trains_a_job_to_its_end_by_long_polls_alone(tmp_path: Path) -> None:
    """Scheduler rounds run in this process, without a dispatcher: polls find the work."""
    settings = Settings(
        database_url=f"sqlite:///{tmp_path / 'trainyard.db'}",
        state_dir=tmp_path,
        heartbeat_seconds=0.5,
    )
    clock = PresentClock()
    context = Context(settings=settings, database=Database(settings.database_url), clock=clock)
    upgrade(context.database)
    context.secrets.create()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "text.txt").write_text(TEXT)
    site, harness = Site(context), Harness(context, clock)
    request_id = site.ask()
    site.claim(request_id)
    site.describe(request_id, "running", nodes=[instance(addresses=(LOOPBACK,))])
    job_id = harness.submit(**SPEC | {"resources": ONE_RANK})
    with serving(context) as url:
        pilot = _start_pilot(tmp_path, url, request_id)
        try:
            seen: dict[int, set[bytes]] = {}

            def is_over() -> bool:
                assert pilot.poll() is None, (tmp_path / "pilot.log").read_text()
                harness.place()
                for pid in (pilot.pid, *(stat.pid for stat in descendants(pilot.pid))):
                    seen.setdefault(pid, set()).add(_shown(pid))
                return harness.job(job_id).state not in (
                    JobState.QUEUED, JobState.STARTING, JobState.RUNNING
                )  # fmt: skip

            wait_for(is_over, "end of the job")
        finally:
            pilot.terminate()
            pilot.wait(60)
    job = harness.job(job_id)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1), (job.reason, _logs(tmp_path))
    assert harness.shares(job_id)[0].node == f"{site.name}-{request_id}-0"
    assert pilot.returncode == 0
    assert len(seen) >= 4, "the init, the worker, the supervisor, torchrun, the rank"
    token = next((tmp_path / "tmp").glob("*/node.token")).read_bytes().strip()
    for secret in (secret_of(request_id, 0).encode(), token):
        assert not [pid for pid, shown in seen.items() if any(secret in one for one in shown)]
    context.database.dispose()


def _start_pilot(folder: Path, url: str, request_id: str) -> subprocess.Popen[bytes]:
    secrets = folder / "secrets"
    secrets.touch(0o600)
    secrets.write_text(secret_of(request_id, 0) + "\n")
    (folder / "tmp").mkdir()
    variables = {
        "TRAINYARD_URL": url,
        "TRAINYARD_ROOTS": f"checkpoints={folder / 'checkpoints'},data={folder / 'data'}",
        "TRAINYARD_JOIN_TOKEN_FILE": str(secrets),
        "TRAINYARD_ADDRESS": LOOPBACK,
        "TRAINYARD_SLOTS": "1",
        "TRAINYARD_DEVICE": "cpu",
        "TRAINYARD_PILOT_KIND": "ssh",
        "TRAINYARD_PILOT_SOURCE": "slurm",
        "TRAINYARD_PILOT_REQUEST": request_id,
        "TRAINYARD_PILOT_INDEX": "0",
        "TRAINYARD_PILOT_INSTANCE": instance()["instance"],
        "TMPDIR": str(folder / "tmp"),
        "OMP_NUM_THREADS": "1",
    }
    with (folder / "pilot.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "worker", "pilot"],
            env={**os.environ, **variables},
            cwd=REPOSITORY,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _shown(pid: int) -> bytes:
    """Return environment and arguments of a process; empty after its end."""
    try:
        return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline"))
    except OSError:
        return b""


def _logs(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace") for path in folder.rglob("*.log"))
