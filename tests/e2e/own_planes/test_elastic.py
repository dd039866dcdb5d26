"""An elastic job on three nodes: one is lost for good, comes back, or another takes its place."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.e2e.control_plane import (
    LEASE_SECONDS,
    ControlPlane,
    assert_each_once,
    cancel_all,
    in_state,
    spec,
    wait_for,
)
from tests.e2e.workers import joined_node, started_worker
from trainyard.client.sdk import Client
from trainyard.protocol.rest.attempts import AttemptView
from trainyard.protocol.rest.event_data import ContinuityChecked, StopAgreed
from trainyard.protocol.rest.events import AnyEvent
from trainyard.protocol.states import AttemptNodeState, AttemptState, JobState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SOON_SECONDS = 15.0
"""Limit from the end of the silence to the next attempt's training; its start-up takes as long as
that of the first one, whatever else this machine does."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate control plane with two slots, on which jobs grow soon."""
    folder = tmp_path_factory.mktemp("elastic")
    made = ControlPlane(folder, slots=2, TRAINYARD_GROW_AFTER_SECONDS="5")
    try:
        yield made
    finally:
        made.end()


ELASTIC = {"world_size": 6, "min_world_size": 4}


def submit(yard: Client, name: str, **resources: int) -> str:
    """Submit a job that lasts long enough for a change of its size to pay."""
    wanted = spec(
        name,
        training={"steps": 100_000, "global_batch_size": 24},
        checkpoint={"interval_steps": 50},
        resources=resources,
    )
    return yard.submit(wanted).id


def trains(yard: Client, job_id: str, number: int) -> AttemptView:
    """Return an attempt once it trains."""

    def look() -> AttemptView | None:
        attempt = yard.job(job_id).current_attempt
        if attempt is None or attempt.number != number:
            return None
        return attempt if attempt.state == AttemptState.RUNNING else None

    return wait_for(look, f"training of attempt {number}", seconds=300)


def happened(yard: Client, job_id: str, kind: str, *, attempt: int | None = None) -> AnyEvent:
    """Return the newest event of a kind."""
    return next(e for e in yard.events(job_id) if e.kind == kind and attempt in {None, e.attempt})


def assert_soon(yard: Client, job_id: str, lost_at: datetime) -> None:
    """Check that the second attempt is placed in time, and starts about as fast as the first."""
    placed, running = (
        {n: happened(yard, job_id, kind, attempt=n).at for n in (1, 2)}
        for kind in ("placed", "running")
    )
    assert (placed[2] - lost_at).total_seconds() <= LEASE_SECONDS + SOON_SECONDS / 2
    assert running[2] - placed[2] <= 2 * (running[1] - placed[1])


def step_of(yard: Client, job_id: str) -> int:
    return yard.job(job_id).progress.step


def reaches(yard: Client, job_id: str, step: int) -> None:
    wait_for(lambda: step_of(yard, job_id) >= step, f"step {step}", seconds=300)


def assert_sample_exact(yard: Client, job_id: str) -> None:
    """Stop the job, and compare its data with those of an uninterrupted job."""
    yard.stop(job_id)
    in_state(yard, job_id, JobState.STOPPED)
    steps = step_of(yard, job_id)
    found = assert_each_once(yard, job_id, steps=steps)
    whole = spec(
        "whole",
        training={"steps": steps, "global_batch_size": 24},
        lr_schedule={"total_steps": 100_000},
        checkpoint={"interval_steps": 100_000},
        resources={"world_size": 2},
    )
    other = yard.submit(whole).id
    in_state(yard, other, JobState.SUCCEEDED)
    expected = assert_each_once(yard, other, steps=steps)
    assert found.steps["data_digest"] == expected.steps["data_digest"]
    for step in range(1, steps + 1):
        key = ("data_digest", step)
        assert found.values[key] == expected.values[key]


def test_a_job_shrinks_without_a_lost_node_and_grows_when_it_is_back(
    plane: ControlPlane, yard: Client, tmp_path: Path
) -> None:
    data = tmp_path / "c"
    with (
        joined_node(plane, yard, tmp_path / "b", TRAINYARD_SLOTS="2"),
        joined_node(plane, yard, data, TRAINYARD_SLOTS="2") as doomed,
    ):
        job_id = submit(yard, "elastic", **ELASTIC)
        assert trains(yard, job_id, 1).layout.world_size == 6
        reaches(yard, job_id, 60)
        lost_at = datetime.now(UTC)
        doomed.kill_all()
        second = trains(yard, job_id, 2)
        assert second.layout.world_size == 4
        assert doomed.name not in {node.node for node in second.nodes}
        change = yard.job(job_id).size_change
        assert change is not None
        assert (change.before, change.world_size) == (6, 4)
        assert change.reason.startswith(f"{doomed.name} has been silent for")
        assert_soon(yard, job_id, lost_at)
        held = next(node for node in yard.nodes() if node.name == doomed.name)
        assert held.free_slots == 0
        reaches(yard, job_id, step_of(yard, job_id) + 20)
        with started_worker(plane, data, name=doomed.name, TRAINYARD_SLOTS="2") as back:
            third = trains(yard, job_id, 3)
            assert (third.layout.world_size, third.cause) == (6, "resize")
            assert third.actor == "scheduler"
            stopped = happened(yard, job_id, "stop_agreed", attempt=2)
            assert isinstance(stopped.data, StopAgreed)
            assert stopped.data.step == third.start_step  # it saves first: no step is lost
            reaches(yard, job_id, third.start_step + 20)
            assert yard.job(job_id).retries_left == 2
            assert_sample_exact(yard, job_id)
            cancel_all(yard)
            back.kill_all()


def test_a_free_node_takes_the_place_of_a_lost_one(
    plane: ControlPlane, yard: Client, tmp_path: Path
) -> None:
    with (
        joined_node(plane, yard, tmp_path / "b", TRAINYARD_SLOTS="2"),
        joined_node(plane, yard, tmp_path / "c", TRAINYARD_SLOTS="2") as doomed,
    ):
        job_id = submit(yard, "replaced", **ELASTIC)
        assert doomed.name in {node.node for node in trains(yard, job_id, 1).nodes}
        reaches(yard, job_id, 60)
        with joined_node(plane, yard, tmp_path / "d", TRAINYARD_SLOTS="2") as spare:
            lost_at = datetime.now(UTC)
            doomed.kill_all()
            second = trains(yard, job_id, 2)
            assert second.layout.world_size == 6
            names = {node.node for node in second.nodes}
            assert (spare.name in names, doomed.name in names) == (True, False)
            assert_soon(yard, job_id, lost_at)
            reaches(yard, job_id, second.start_step + 20)
            assert_sample_exact(yard, job_id)


def test_a_spare_node_takes_the_place_of_a_lost_one_at_the_same_size(
    plane: ControlPlane, yard: Client, tmp_path: Path
) -> None:
    with (
        joined_node(plane, yard, tmp_path / "b", TRAINYARD_SLOTS="2") as doomed,
        joined_node(plane, yard, tmp_path / "c", TRAINYARD_SLOTS="2") as spare,
    ):
        job_id = submit(yard, "spared", world_size=2, nodes=2, spare_nodes=1)
        first = trains(yard, job_id, 1)
        reserved = {node.node: node.state == AttemptNodeState.SPARE for node in first.nodes}
        assert reserved == {plane.node: False, doomed.name: False, spare.name: True}
        waiting = yard.submit(spec("waits", resources={"world_size": 4, "nodes": 2})).id
        reaches(yard, job_id, 60)
        lost_at = datetime.now(UTC)
        doomed.kill_all()
        second = trains(yard, job_id, 2)
        assert [node.node for node in second.nodes] == [plane.node, spare.name]
        assert second.layout == first.layout
        assert_soon(yard, job_id, lost_at)
        reaches(yard, job_id, second.start_step + 20)
        assert yard.job(waiting).state == JobState.QUEUED
        yard.cancel(waiting, reason="the spare node was not given away")
        assert_sample_exact(yard, job_id)


def test_eight_ranks_in_float8_go_on_with_seven(
    plane: ControlPlane, yard: Client, tmp_path: Path
) -> None:
    """Seven do not divide the rows of any weight: FSDP gathers these in high precision."""
    with (
        joined_node(plane, yard, tmp_path / "b", TRAINYARD_SLOTS="5"),
        joined_node(plane, yard, tmp_path / "c", TRAINYARD_SLOTS="1") as doomed,
    ):
        wanted = spec(
            "eight",
            training={"steps": 100_000, "global_batch_size": 56, "micro_batch_size": 1},
            quantization={"recipe": "float8_tensorwise"},
            checkpoint={"interval_steps": 10},
            resources={"world_size": 8, "min_world_size": 4},
        )
        job_id = yard.submit(wanted).id
        assert trains(yard, job_id, 1).layout.world_size == 8
        reaches(yard, job_id, 12)
        doomed.kill_all()
        second = trains(yard, job_id, 2)
        assert second.layout.world_size == 7
        assert second.start_step >= 10
        reaches(yard, job_id, second.start_step + 5)
        checked = happened(yard, job_id, "continuity_checked", attempt=2)
        assert isinstance(checked.data, ContinuityChecked)
        assert checked.data.ok, checked
        cancel_all(yard)
