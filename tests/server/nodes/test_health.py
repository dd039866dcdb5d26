"""What counts against a node: broken devices, and failures that are its own and not the job's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.nodes.health import (
    BROKEN_XIDS,
    NodeFailure,
    device_faults,
    in_words,
    is_of_the_node,
    repeated_failures,
)
from trainyard.protocol.node_samples import (
    Accelerator,
    AcceleratorSample,
    HostSample,
    NodeSample,
    XidError,
)
from trainyard.protocol.worker_messages import Hardware
from trainyard.run.failures import Failure, FailureReason

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOST, LAUNCH = FailureReason.NODE_LOST, FailureReason.LAUNCH_ERROR
GPU = Accelerator(index=0, uuid="GPU-a", name="H100", memory_bytes=80 << 30)
HARDWARE = Hardware(
    device="cuda",
    slots=1,
    device_name="H100",
    device_memory_bytes=80 << 30,
    cores=8,
    memory_bytes=1 << 40,
    accelerators=(GPU,),
)


def faults(*xids: XidError, uuid: str = "GPU-a", trusted: float | None = None) -> tuple[str, ...]:
    host = HostSample(load=0.5, memory_bytes=1000, memory_used_bytes=400)
    sample = NodeSample(host=host, accelerators=(AcceleratorSample(uuid=uuid, xids=xids),))
    since = None if trusted is None else NOW - timedelta(seconds=trusted)
    return device_faults(HARDWARE, sample, now=NOW, trusted_since=since)


def xid(code: int, age: float = 5.0) -> XidError:
    return XidError(code=code, age_seconds=age)


@pytest.mark.parametrize("code", sorted(BROKEN_XIDS))
def test_an_xid_of_broken_hardware_is_a_fault_in_words(code: int) -> None:
    (fault,) = faults(xid(code), xid(code, 1.0))
    assert fault == f"slot 0: Xid {code}, {BROKEN_XIDS[code]}"


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_an_xid_of_a_program_is_none(code: int) -> None:
    assert faults(xid(code)) == ()


def test_errors_from_before_a_person_trusted_the_node_again_are_none() -> None:
    assert faults(xid(79, 60.0), xid(48, 10.0), trusted=30.0) == (
        "slot 0: Xid 48, an uncorrectable memory error",
    )


def test_a_divided_gpu_is_named_by_its_uuid() -> None:
    assert faults(xid(79), uuid="GPU-b") == ("GPU-b: Xid 79, the GPU has fallen off the bus",)


@pytest.mark.parametrize(
    ("reason", "node_at_fault", "counts"),
    [
        (LOST, False, True),
        (LAUNCH, True, True),
        (LAUNCH, False, False),  # a spec that does not fit, a port that another process held
        (FailureReason.TRAINER_ERROR, False, False),
        (FailureReason.HANG, False, False),
        (FailureReason.OUT_OF_MEMORY, False, False),
        (FailureReason.PREEMPTED, False, False),
        (FailureReason.DATA_ERROR, False, False),
    ],
)
def test_only_failures_without_a_rank_at_fault_count(
    reason: FailureReason, node_at_fault: bool, counts: bool
) -> None:
    failure = Failure(reason=reason, message="m", node="a", node_at_fault=node_at_fault)
    assert is_of_the_node(failure) is counts


def failures(*rows: tuple[str, str, FailureReason]) -> list[NodeFailure]:
    return [
        NodeFailure(f"attempt-{i}", job, node, reason, NOW)
        for i, (job, node, reason) in enumerate(rows)
    ]


def judged(rows: Sequence[NodeFailure], *, limit: int = 3, elsewhere: bool = False) -> int:
    """Return how many failures have node `a` cordoned."""
    found = repeated_failures(rows, "a", limit=limit, trained_elsewhere=lambda _: elsewhere)
    return len(found)


def test_failures_of_several_jobs_count_together() -> None:
    rows = failures(("j", "a", LAUNCH), ("k", "a", LOST), ("j", "a", LAUNCH))
    assert judged(rows[:2]) == 0
    assert judged(rows) == 3


def test_failures_of_one_job_count_where_it_trains_elsewhere() -> None:
    rows = failures(*[("j", "a", LAUNCH)] * 3)
    assert judged(rows) == 0
    assert judged(rows, elsewhere=True) == 3


def test_a_job_that_fails_everywhere_has_no_node_cordoned() -> None:
    rows = failures(*[(job, node, LAUNCH) for job in "jk" for node in "ab" for _ in range(3)])
    assert judged(rows, elsewhere=True) == 0
    assert judged([*rows, *failures(*[("m", "a", LAUNCH)] * 2, ("n", "a", LAUNCH))]) == 3


def test_the_words_count_by_reason() -> None:
    rows = failures(("j", "a", LOST), ("k", "a", LAUNCH), ("k", "a", LOST))
    assert in_words(rows) == "3 attempts failed because of it: 1 launch_error, 2 node_lost"


ROWS = st.lists(
    st.tuples(st.sampled_from("jkm"), st.sampled_from("abc"), st.sampled_from([LOST, LAUNCH])),
    max_size=12,
)


@given(ROWS, st.integers(1, 4))
def test_what_counts_is_of_the_node_and_of_jobs_that_failed_nowhere_else_alike(
    rows: list[tuple[str, str, FailureReason]], limit: int
) -> None:
    known = failures(*rows)
    counted = repeated_failures(known, "a", limit=limit, trained_elsewhere=lambda _: False)
    assert not counted or len(counted) >= limit
    for each in counted:
        assert each.node == "a"
        alike = [o for o in known if (o.job_id, o.reason) == (each.job_id, each.reason)]
        assert {other.node for other in alike} == {"a"}
