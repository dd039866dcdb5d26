"""A person uses a job of their own against jobs of others, at two levels of isolation.

Each outcome is a line of "Commands of people" in docs/worker-processes.md or of "Compiled kernels"
in docs/worker.md.
"""

from __future__ import annotations

import base64
import io
import json
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.attack.conftest import Level, in_shell, person, script_job
from tests.e2e.control_plane import ONE_RANK, finished, in_state, spec, wait_for
from tests.other_users import needs_root
from trainyard.client.errors import TrainyardError
from trainyard.client.sdk import Client
from trainyard.protocol.states import JobState
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout
from worker.node.kernel_store import kernel_key

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    needs_root,
    pytest.mark.parametrize("level", ["none", "user"], indirect=True, scope="module"),
]
PLANTED = "planted.py"
SECRET = "secret-of-ada"
FIRST, LAST = 500_001, 502_000
"""Steps of the false points."""
PLANT = """
printf %s {archive} | base64 -d > kernels.zip && echo planted
cp kernels.zip {store} 2> /dev/null && echo stored || echo refused
cat ../../*/1/spec.json 2> /dev/null | grep -q {secret} && echo read || echo unread
"""
POISON = """
seq {first} {last} | sed 's#.*#{{"step":&,"time":1.7e9,"values":{{"perf/step_seconds":1e-5}}}}#' \\
    >> metrics.jsonl && echo poisoned
"""


def archive() -> bytes:
    """Return what torch would load as code."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(PLANTED, "raise SystemExit")
    return made.getvalue()


def built_in(name: str, *, steps: int) -> dict[str, Any]:
    """Return the spec of a job of one rank that brings no code.

    It compiles nothing, which takes a C++ compiler long, but may share an archive all the same.
    """
    return spec(
        name,
        model={"n_layers": 1},
        training={"steps": steps, "seq_len": 32, "global_batch_size": 4},
        checkpoint={"interval_steps": 0, "preflight": False},
        resources=ONE_RANK,
    )


@dataclass(frozen=True)
class Attack:
    """What Mallory did in a job of her own, and the equal job that Ada ran afterwards."""

    level: Level
    mallory: Client
    ada: Client
    job_id: str
    said: list[str]
    """Lines of her commands."""
    victim: str
    """Id of the equal job."""

    @property
    def store(self) -> Path:
        """The archives of compiled kernels of the node."""
        return self.level.worker.data / "kernels"


def key_of(job: dict[str, Any]) -> str:
    """Return the name of the archive of such a job, as anybody can compute it."""
    return kernel_key(parse_job_spec(job), Layout(), threads="1")


@pytest.fixture(scope="module")
def attack(level: Level) -> Iterator[Attack]:
    """Mallory plants and poisons by commands in her job; then Ada runs an equal one."""
    with ExitStack() as stack:
        mallory, ada = (
            stack.enter_context(person(level.yard, f"{name}-{level.isolation}"))
            for name in ("mallory", "ada")
        )
        waits = ada.submit(script_job("waits", "sleep 600", SECRET=SECRET)).id
        in_state(ada, waits, JobState.RUNNING)
        job = built_in("mallory", steps=10**6)
        job_id = mallory.submit(job).id
        run = level.run_directory(job_id)
        in_state(mallory, job_id, JobState.RUNNING)
        kernels = level.worker.data / "kernels"
        given = base64.b64encode(archive()).decode()
        words = {"archive": given, "store": kernels / f"{key_of(job)}.zip", "secret": SECRET}
        said = in_shell(mallory, job_id, PLANT.format(**words)).split()
        metrics = run / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") > 20, "steps")
        said += in_shell(mallory, job_id, POISON.format(first=FIRST, last=LAST)).split()
        wait_for(lambda: mallory.job(job_id).progress.step == LAST, "false points at the server")
        mallory.cancel(job_id)
        finished(mallory, job_id)
        victim = ada.submit(built_in("ada", steps=40)).id
        assert finished(ada, victim).state == "succeeded"
        yield Attack(level, mallory, ada, job_id, said, victim)
        ada.cancel(waits)
        finished(ada, waits)


def test_what_a_command_leaves_as_kernels_is_loaded_by_no_other_job(attack: Attack) -> None:
    is_apart = attack.level.isolation == "user"
    assert attack.said[:2] == ["planted", "refused" if is_apart else "stored"]
    described = attack.level.run_directory(attack.victim) / "attempt.json"
    taken = json.loads(described.read_text())["kernel_cache"]
    if not is_apart:
        assert taken is None, "a node that allows code and has no users shares no kernels"
        return
    assert Path(taken).parent == attack.store
    assert list(attack.store.iterdir()) == []


def test_a_command_reads_secrets_of_other_jobs_where_ranks_have_no_users(attack: Attack) -> None:
    assert attack.said[2] == ("unread" if attack.level.isolation == "user" else "read")


def test_false_points_of_a_command_teach_nothing(attack: Attack) -> None:
    """Points at the server are shown with the job, and no speed is learned from them."""
    assert attack.said[3:] == ["poisoned"]

    def learned() -> set[str]:
        with closing(sqlite3.connect(attack.level.plane.folders.database)) as database:
            rows = database.execute("SELECT job_id FROM measured_runs")
            return {job_id for (job_id,) in rows}

    # What ended first is looked at first.
    wait_for(lambda: attack.victim in learned(), "what Ada's job teaches")
    assert attack.job_id not in learned()


def test_only_who_submitted_a_job_and_the_admin_run_commands_in_it(level: Level) -> None:
    """Neither another person nor another token of the same name; an event names who and why."""
    name = f"grace-{level.isolation}"
    with person(level.yard, name) as grace, person(level.yard, f"eve-{level.isolation}") as eve:
        job_id = grace.submit(script_job("graces", "sleep 600", SECRET=SECRET)).id
        in_state(grace, job_id, JobState.RUNNING)
        try:
            with pytest.raises(TrainyardError, match="a command sees the secrets of its job"):
                eve.open_shell(job_id, ["env"])
            assert SECRET in in_shell(grace, job_id, "env")
            (token,) = [each for each in level.yard.tokens() if each.name == name]
            level.yard.revoke_token(token.id)
            with (
                person(level.yard, name) as namesake,
                pytest.raises(TrainyardError, match="a command sees the secrets of its job"),
            ):
                namesake.open_shell(job_id, ["env"])
            assert in_shell(level.yard, job_id, "echo of the admin") == "of the admin\n"
            opened = [e.message for e in level.yard.events(job_id) if e.kind == "shell_opened"]
            assert [each.split(" runs on ")[0] for each in opened] == [
                f"admin, an admin, in the job of {name},",
                f"{name}, the owner of the job,",
            ]
            assert SECRET not in eve.job(job_id).model_dump_json()
        finally:
            level.yard.cancel(job_id)
            finished(level.yard, job_id)
