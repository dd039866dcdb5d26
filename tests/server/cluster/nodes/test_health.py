"""Evidence against a node: broken devices, and failures that no job caused."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.cluster.nodes.health import (
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


def failures(
    *rows: tuple[str, str, FailureReason], specs: str = "", submitters: str = ""
) -> list[NodeFailure]:
    """Record failures of jobs on nodes; each job has its own spec, one person submits all."""
    return [
        NodeFailure(
            f"attempt-{i}", job, node, reason, specs or f"spec of {job}", submitters or "ada", NOW
        )
        for i, (job, node, reason) in enumerate(rows)
    ]


def judged(
    rows: Sequence[NodeFailure],
    *,
    limit: int = 3,
    elsewhere: bool = True,
    nodes: int | None = 8,
    submitters: int = 1,
) -> int:
    """Return how many failures cordon node `a`."""
    found = repeated_failures(
        rows,
        "a",
        limit=limit,
        nodes=nodes,
        submitters=submitters,
        trained_elsewhere=lambda _: elsewhere,
    )
    return len(found)


def test_failures_of_several_jobs_count_together() -> None:
    rows = failures(("j", "a", LAUNCH), ("k", "a", LOST), ("j", "a", LAUNCH))
    assert judged(rows[:2]) == 0
    assert judged(rows) == 3
    assert judged(rows, elsewhere=False) == 0, "no other node has shown that it runs such jobs"


def test_jobs_of_one_spec_are_one_witness() -> None:
    rows = [(f"j{number}", "a", LAUNCH) for number in range(8)]
    assert judged(failures(*rows, specs="the same")) == 0
    assert judged(failures(*rows)) == 8


def test_where_several_people_run_jobs_one_of_them_is_not_enough() -> None:
    of_ada = failures(("j", "a", LAUNCH), ("k", "a", LAUNCH), ("m", "a", LOST))
    assert judged(of_ada, submitters=2) == 0
    assert judged(of_ada, submitters=1) == 3
    of_bob = failures(("n", "a", LAUNCH), submitters="bob")
    assert judged([*of_ada, *of_bob], submitters=2) == 4


@pytest.mark.parametrize(
    ("nodes", "struck", "counts"),
    [
        (2, 1, True),
        (2, 2, False),
        (3, 1, True),
        (3, 2, False),
        (4, 2, True),
        (8, 3, True),
        (8, 4, False),
        (100, 10, True),
        (100, 11, False),
    ],
)
def test_a_cause_that_shows_on_many_nodes_cordons_none(
    nodes: int, struck: int, counts: bool
) -> None:
    names = ["a", *(f"n{number}" for number in range(1, struck))]
    rows = [(f"{job} on {name}", name, LAUNCH) for name in names for job in "jkm"]
    assert judged(failures(*rows), nodes=nodes) == (3 if counts else 0)


def test_the_only_node_is_judged_by_its_failures_alone() -> None:
    rows = failures(("j", "a", LAUNCH), ("k", "a", LOST), ("j", "a", LAUNCH))
    assert judged(rows, nodes=None, elsewhere=False) == 3


def test_a_job_that_fails_everywhere_has_no_node_cordoned() -> None:
    rows = failures(*[(job, node, LAUNCH) for job in "jk" for node in "ab" for _ in range(3)])
    assert judged(rows) == 0
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
    counted = repeated_failures(
        known, "a", limit=limit, nodes=8, submitters=1, trained_elsewhere=lambda _: True
    )
    assert not counted or len(counted) >= limit
    for each in counted:
        assert each.node == "a"
        alike = [o for o in known if (o.job_id, o.reason) == (each.job_id, each.reason)]
        assert {other.node for other in alike} == {"a"}
