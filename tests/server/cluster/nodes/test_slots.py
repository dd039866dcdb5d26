"""Slots withheld from placement, and slot numbers that stay while attempts hold slots."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.cluster.nodes.capacity import read_offers
from server.cluster.nodes.slots import keep_slots, uuids, withheld_slots
from server.jobs.attempts.retry_policy import PUT_BACK_SECONDS
from tests.server.cluster.nodes.gpu_node import (
    FOREIGN,
    PYTHON,
    GpuNode,
    hardware,
    sample,
    with_disk,
)
from tests.server.harness import Harness
from trainyard.protocol.node_samples import DeviceProcess, NodeSample
from trainyard.protocol.rest.nodes import WithheldSlot
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.records import ExitRecord


@pytest.mark.parametrize(
    ("found", "reasons"),
    [
        (sample(a={}, b={}), {}),
        (None, {}),
        (
            sample(a={"foreign": (PYTHON,)}, b={}),
            {"0": FOREIGN},
        ),
        (
            sample(a={}, b={"foreign": (DeviceProcess(pid=7), PYTHON, PYTHON)}),
            {"1": "process 7 and 2 others hold its memory"},
        ),
        (
            sample(a={"problem": "GPU is lost"}, b={}),
            {"0": "the device does not answer: GPU is lost"},
        ),
        (
            sample("accelerators have not answered for 31 s"),
            dict.fromkeys("01", "the driver does not answer"),
        ),
    ],
)
def test_a_slot_is_withheld_for_a_reason(found: NodeSample | None, reasons: dict[str, str]) -> None:
    assert withheld_slots(hardware("a", "b"), found, before={}) == reasons


@pytest.mark.parametrize(("name", "free"), [("data_dir", 64 << 20), ("checkpoints", 0)])
def test_slots_are_offered_while_the_data_folder_has_room(name: str, free: int) -> None:
    assert withheld_slots(hardware(device="cpu"), with_disk(name, free), before={}) == {}


def test_the_slots_of_a_node_without_room_are_withheld_until_it_has_some(node: GpuNode) -> None:
    full = "the data folder of the node has less than 64 MiB of room"
    node.register("a", "b")
    node.beat(with_disk("data_dir", (64 << 20) - 1))
    assert [(held.slot, held.reason) for held in node.view.withheld] == [(0, full), (1, full)]
    assert node.view.free_slots == 0
    for without in (None, sample(a={}, b={}), with_disk("checkpoints", 1 << 30, a={}, b={})):
        node.beat(without)
        assert node.view.free_slots == 0, "no reading of the data folder"
    node.register("b", "a")
    assert node.view.free_slots == 0, "a worker that ends for want of room starts again"
    node.beat(with_disk("data_dir", 64 << 20, a={}, b={}))
    assert node.view.withheld == ()


@pytest.mark.parametrize(
    ("found", "reasons"),
    [
        (None, {"0": "held"}),  # the sample failed
        (sample(), {"0": "held"}),  # the worker has just started, and no sample was taken yet
        (sample(b={}), {"0": "held"}),
        (sample(a={}), {}),
        (sample(a={}, b={"foreign": (PYTHON,)}), {"1": FOREIGN}),
        (sample("no answer", b={}), {"0": "the driver does not answer"}),
    ],
)
def test_only_a_sample_of_a_device_ends_its_reason(
    found: NodeSample | None, reasons: dict[str, str]
) -> None:
    assert withheld_slots(hardware("a", "b"), found, before={"GPU-a": "held"}) == reasons


def test_a_slot_stays_withheld_while_its_worker_restarts(node: GpuNode) -> None:
    node.register("a", "b")
    node.beat(sample(a={"foreign": (PYTHON,)}, b={}))
    node.register("b", "a")
    withheld = (WithheldSlot(slot=1, reason=FOREIGN),)
    assert (node.view.free_slots, node.view.withheld) == (1, withheld)
    for without in (sample(), None):
        node.beat(without)
        assert (node.view.free_slots, node.view.withheld) == (1, withheld)
    node.beat(sample(b={}, a={}))
    assert (node.view.free_slots, node.view.withheld) == (2, ())


def test_a_device_that_is_listed_again_is_not_withheld_as_absent(
    harness: Harness, node: GpuNode
) -> None:
    node.register("a", "b")
    harness.running()
    node.register("a")
    assert [slot.reason for slot in node.view.withheld] == ["the driver does not list GPU-b"]
    node.register("a", "b")
    assert node.view.withheld == ()


def test_a_withheld_slot_gets_no_job_and_returns_by_itself(harness: Harness, node: GpuNode) -> None:
    node.register("a", "b")
    node.beat(sample(a={"foreign": (PYTHON,)}, b={}))
    assert (node.view.free_slots, [slot.slot for slot in node.view.withheld]) == (1, [0])
    both = harness.submit(resources={"world_size": 2})
    one = harness.submit()
    assert harness.place() == 1
    assert harness.job(both).reason == (
        "needs 2 slots, 1 are online, slot 0 of gpu-01 is withheld "
        "(process 4242 (python) of ada holds its memory)"
    )
    assert harness.shares(one)[0].slots == [1]
    harness.claim_all(one)[0].end("succeeded")
    node.beat(sample(a={}, b={}))
    assert harness.place() == 1
    assert harness.shares(both)[0].slots == [0, 1]


def test_a_slot_of_an_attempt_is_never_withheld(harness: Harness, node: GpuNode) -> None:
    """Seen from inside a container, the attempt's own ranks are unknown processes."""
    node.register("a", "b")
    job_id, (supervisor,) = harness.running(resources={"world_size": 2})
    node.beat(sample(a={"foreign": (DeviceProcess(pid=7),)}, b={}))
    assert (node.view.free_slots, node.view.withheld) == (0, ())
    with harness.context.database.read() as connection:
        (offer,) = read_offers(connection, without_job=job_id)
    assert (offer.slots, offer.free) == (2, (0, 1))
    supervisor.end("succeeded")
    assert node.view.free_slots == 1  # until the next sample
    node.beat(sample(a={}, b={}))
    assert node.view.free_slots == 2


def test_the_only_node_without_a_usable_slot_is_named(harness: Harness, node: GpuNode) -> None:
    node.register("a")
    node.beat(sample(a={"foreign": (PYTHON,)}))
    job_id = harness.submit()
    harness.place()
    assert harness.job(job_id).reason == (
        "needs 1 slot; no node that is online offers a slot: slot 0 of gpu-01 is withheld "
        "(process 4242 (python) of ada holds its memory)"
    )


def test_slots_keep_their_devices_while_an_attempt_holds_one(
    harness: Harness, node: GpuNode
) -> None:
    assert node.register("a", "b", "c").slots == ()
    job_id, (supervisor,) = harness.running(resources={"world_size": 2})
    assert harness.shares(job_id)[0].slots == [0, 1]
    # GPU a is lost, and the driver renumbers the rest; d was added.
    assert node.register("d", "c", "b").slots == ("GPU-a", "GPU-b", "GPU-c", "GPU-d")
    node.beat(sample(b={}, c={}, d={}))
    second = harness.submit(resources={"world_size": 2})
    assert harness.place() == 1
    assert harness.shares(second)[0].slots == [2, 3]
    assert node.view.free_slots == 0
    supervisor.end("succeeded")
    assert [slot.reason for slot in node.view.withheld] == ["the driver does not list GPU-a"]
    assert node.view.free_slots == 1
    harness.claim_all(second)[0].end("succeeded")
    assert node.register("d", "c", "b").slots == ()
    assert [gpu.uuid for gpu in node.view.hardware.accelerators] == ["GPU-d", "GPU-c", "GPU-b"]
    assert (node.view.free_slots, node.view.withheld) == (3, ())


NAMES = st.lists(st.sampled_from("abcdef"), unique=True, max_size=6)


@given(st.lists(NAMES, min_size=1, max_size=5))
def test_a_number_never_changes_its_device(listings: Sequence[Sequence[str]]) -> None:
    kept = hardware(*listings[0])
    for names in listings[1:]:
        before, now = kept, hardware(*names)
        kept = keep_slots(before, now)
        assert uuids(kept)[: len(before.accelerators)] == uuids(before)
        assert len({*uuids(kept)}) == len(uuids(kept)) == len(kept.accelerators)
        assert {gpu.uuid for gpu in kept.accelerators if gpu.listed} == {*uuids(now)}


def test_cpu_slots_have_no_devices_to_keep() -> None:
    cpu = hardware(device="cpu")
    assert keep_slots(cpu, cpu) == cpu
    assert keep_slots(hardware("a"), cpu) == cpu
    assert withheld_slots(cpu, sample(), before={}) == {}


def test_slots_that_a_launch_found_unusable_are_withheld_at_once(
    harness: Harness, node: GpuNode
) -> None:
    node.register("a", "b")
    job_id, (supervisor,) = harness.launched(retry={"max_retries": 0})
    assert harness.shares(job_id)[0].slots == [0]
    failure = Failure(
        reason=FailureReason.LAUNCH_ERROR, message="slot 0", node="gpu-01", free_retry=True
    )
    ended = ExitRecord(outcome="failed", failure=failure, ranks=(), time=1.0)
    supervisor.report(unusable={"GPU-a": FOREIGN, "GPU-b": FOREIGN}, exit_record=ended)
    withheld = [(held.slot, held.reason) for held in node.view.withheld]
    assert withheld == [(0, FOREIGN)], "of its share alone"
    job = harness.job(job_id)
    assert (job.state, job.retries_used) == ("queued", 0)
    harness.clock.advance(PUT_BACK_SECONDS)
    assert harness.place() == 1
    assert harness.shares(job_id)[0].slots == [1]
    harness.submit()
    assert harness.place() == 0
    node.beat(None)
    assert node.view.free_slots == 0, "a heartbeat without a sample ends no reason"
    node.beat(sample(a={}, b={}))
    assert node.view.withheld == ()
    assert harness.place() == 1
