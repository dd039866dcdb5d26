"""Pilots in real allocations of Slurm, with the real server: one elastic job over five of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.e2e.control_plane import assert_each_once, in_state, wait_for
from tests.provisioner.site import LONG, OpenPlane, Site, minutes_since, paced, write_python
from tests.provisioner.slurm_rig import SlurmRig, missing
from tests.provisioner.thieves import Thief, assert_no_secret_is_shown
from trainyard.client.errors import TrainyardError
from trainyard.protocol.node_sources.messages import job_name
from trainyard.protocol.states import JobState, NodeRequestState

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
    pytest.mark.timeout(3600),
]
SOURCES = """
[[sources]]
name = "pool"
kind = "slurm"
slots = 1
device = "cpu"
python = "{python}"
url = "{url}"
request_seconds = 3600
leave_seconds = 120
limits = {{ nodes_per_request = 1 }}
worker = {{ allow_code = true }}
options = {{ options = ["--exclusive"], signal_seconds = 30 }}
roots = {{ checkpoints = "{checkpoints}", data = "{data}" }}
"""
STEP_SECONDS = 0.05
"""Of each forward pass: without it the curves would have many thousands of points."""


@pytest.fixture
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SlurmRig]:
    cluster = SlurmRig(tmp_path, **getattr(request, "param", {}))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def site(rig: SlurmRig, tmp_path: Path) -> Iterator[Site]:
    plane = OpenPlane(tmp_path, slots=1, TRAINYARD_GROW_AFTER_SECONDS="3")
    try:
        with plane.connect() as yard:
            sources = SOURCES.format(
                python=write_python(
                    tmp_path,
                    addresses="dev eth0",
                    variables=f"TMPDIR={tmp_path}/nodes/$(hostname)",
                ),
                url=f"http://{rig.address}:{yard.url.rpartition(':')[2]}",
                checkpoints=plane.folders.checkpoints,
                data=plane.folders.data,
            )
            made = Site(tmp_path, plane, yard, sources=sources, environment=rig.environment)
            yield made
            made.close()
    finally:
        plane.end()


def test_an_elastic_job_is_sample_exact_over_five_allocations(site: Site, rig: SlurmRig) -> None:
    yard = site.yard
    wanted = paced(
        "elastic",
        seconds=STEP_SECONDS,
        training={"steps": 100_000, "global_batch_size": 16},
        checkpoint={"interval_steps": 100},
        resources={"world_size": 2, "min_world_size": 1, "node_selector": {"source": "pool"}},
    )
    began = time.time()
    job_id = yard.submit(wanted).id
    first, second = (each.id for each in site.requests(count=2))  # caused by the job itself
    number = site.trains(job_id, ranks=2, above=0)
    assert_no_secret_is_shown(site)

    # Two pilots with different ends: the job leaves the first before its time limit.
    limit = minutes_since(began, left=4)
    rig.run("scontrol", "update", f"jobid={site.ref(first)}", f"timelimit={limit}")
    number = site.trains(job_id, ranks=1, above=number)
    ended = site.request(first, NodeRequestState.ENDED).ended_at
    assert ended is not None
    assert ended.timestamp() < began + 60 * limit

    third = site.add_node()
    number = site.trains(job_id, ranks=2, above=number)
    rig.change_and_save("scontrol", "update", f"jobid={site.ref(third)}", "timelimit=50")
    rig.kill_controller()
    step = yard.job(job_id).progress.step
    wait_for(lambda: yard.job(job_id).progress.step > step + 20, "progress", seconds=LONG)
    rig.start_controller()
    rig.run("scancel", site.ref(second))  # by a person, whom the server does not know
    number = site.trains(job_id, ranks=1, above=number)

    fourth = site.add_node()
    number = site.trains(job_id, ranks=2, above=number)
    rig.run("scontrol", "update", f"jobid={site.ref(fourth)}", "requeue=1")
    rig.run("scontrol", "requeue", site.ref(fourth))
    number = site.trains(job_id, ranks=1, above=number)
    number = site.trains(job_id, ranks=2, above=number)  # in another life, by the same secret
    (pilot,) = site.yard.node_request("pool", fourth).joined
    assert pilot in {node.node for node in next(iter(yard.attempts(job_id))).nodes}

    # Slurm announces an end, as it does before a limit: the job leaves that node.
    rig.run("scancel", "--batch", "--signal=USR1", site.ref(third))
    number = site.trains(job_id, ranks=1, above=number)
    site.add_node()
    site.trains(job_id, ranks=2, above=number)
    assert_no_secret_is_shown(site)

    yard.stop(job_id)
    in_state(yard, job_id, JobState.STOPPED)
    steps = yard.job(job_id).progress.step
    found = assert_each_once(yard, job_id, steps=steps)
    whole = paced(
        "whole",
        seconds=0.0,
        training={"steps": steps, "global_batch_size": 16},
        lr_schedule={"total_steps": 100_000},
        checkpoint={"interval_steps": 100_000},
        resources={"world_size": 1},
    )
    other = yard.submit(whole).id
    assert yard.wait(other, timeout=LONG, poll_seconds=1).state == JobState.SUCCEEDED
    expected = assert_each_once(yard, other, steps=steps)
    for step in range(1, steps + 1):
        key = ("data_digest", step)
        assert found.values[key] == expected.values[key]
        key = ("train/loss", step)
        assert float(found.values[key]) == pytest.approx(float(expected.values[key]), rel=1e-4)


# The end must be proved, and the source is listed once a minute: Slurm remembers jobs longer.
@pytest.mark.parametrize("rig", [{"min_job_age": 300}], indirect=True)
def test_a_join_secret_is_refused_twice_late_and_from_another_place(
    site: Site, rig: SlurmRig
) -> None:
    request_id = site.add_node()
    job, thief = site.ref(request_id), Thief(site, request_id)
    host = rig.run("squeue", "--noheader", "--format=%N", f"--jobs={job}")
    elsewhere = next(name for name in rig.names if name != host)

    def refusal(instance: str, *, within: Sequence[str]) -> str:
        status, detail = thief.joins(instance, within=within)
        assert status in (403, 409)
        return detail

    first, second = f"{job}.0.0", f"{job}.1.0"
    assert "; slurm names 10." in refusal(first, within=())
    assert "; slurm names 10." in refusal(first, within=rig.inside(elsewhere))
    assert "a worker of another data folder" in refusal(first, within=rig.inside(host))
    assert "its end is not proved" in refusal(second, within=rig.inside(host))
    (node,) = site.yard.node_request("pool", request_id).joined
    since = datetime.now(UTC)
    wait_for(
        lambda: any(n.name == node and n.heartbeat_at > since for n in site.yard.nodes()),
        "heartbeat of the pilot, whose token still counts",
    )
    assert_no_secret_is_shown(site)

    rig.run("scancel", job)
    site.request(request_id, NodeRequestState.ENDED)
    for instance in (first, second):
        assert "has ended" in refusal(instance, within=rig.inside(host))
    assert not list(site.folder.glob(f"nodes/*/trainyard-{request_id}-*"))  # its data are gone


def test_a_job_that_slurm_has_forgotten_is_ended_by_a_person_alone(
    site: Site, rig: SlurmRig
) -> None:
    request_id = site.add_node()
    name = f"--name={job_name(request_id)}"
    with site.provisioner_stopped():
        rig.run("scancel", site.ref(request_id))
        wait_for(
            lambda: not rig.run("squeue", "--noheader", "--states=all", name),
            "oblivion",
            seconds=LONG,
        )
    found = wait_for(_if_unknown(site, request_id), "answer", seconds=LONG)
    assert found == "running"  # no answer proves nothing
    ended = site.yard.end_node_request("pool", request_id)
    assert ended.state == "ended"
    with pytest.raises(TrainyardError, match="has ended"):
        site.yard.explain_node_request("pool", request_id)


def _if_unknown(site: Site, request_id: str) -> Callable[[], str | None]:
    def look() -> str | None:
        found = site.yard.node_request("pool", request_id)
        return found.state if found.engine_state == "unknown" else None

    return look
