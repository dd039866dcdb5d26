"""The verdict of the probe of ranks names each fault, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from trainyard.protocol.rank_probe.probe_values import ProbeValue
from trainyard.prove.figures import judged
from trainyard.prove.rank_probe.probe_job import ProbedAttempt, RankValues
from trainyard.prove.rank_probe.probe_table import MAX_FINDINGS, ProbeVerdict
from trainyard.prove.rank_probe.probe_verdict import judge
from trainyard.spec.auto import DeviceKind

CREATED, ENDED = 1_800_000_000.0, 1_800_000_060.0
OF_ALL = {
    ProbeValue.KIND: 7.0,
    ProbeValue.GRADIENT_DIGEST: 11.0,
    ProbeValue.GRADIENT_NORM: 0.5,
    ProbeValue.GRADIENT_PROJECTION: 0.1,
    ProbeValue.GRADIENT_DIGESTS: 1.0,
    ProbeValue.PRODUCTS_SECONDS: 0.02,
    ProbeValue.PRODUCTS_SLOWEST_SECONDS: 0.03,
    ProbeValue.STEP_SECONDS: 0.04,
    ProbeValue.STEP_SLOWEST_SECONDS: 0.05,
    ProbeValue.CLOCK_TIME: CREATED + 30,
    ProbeValue.CLOCK_OFFSET: 0.0,
    ProbeValue.CLOCK_UNCERTAINTY: 0.001,
    ProbeValue.LATENCY_SECONDS: 0.001,
    ProbeValue.ALL_REDUCE_SMALL: 1e8,
    ProbeValue.ALL_REDUCE_LARGE: 1e9,
    ProbeValue.ALL_REDUCE_IN_NODE: 2e9,
    ProbeValue.LINK: 2e9,
}
OF_NODE = {
    ProbeValue.STORAGE_KIND: 1.0,
    ProbeValue.STORAGE_WRITE: 5e8,
    ProbeValue.STORAGE_READ: 9e8,
    ProbeValue.STORAGE_SYNC_SECONDS: 0.01,
    ProbeValue.DATA_WRITE: 5e8,
    ProbeValue.DATA_READ: 9e8,
    ProbeValue.DATA_SYNC_SECONDS: 0.01,
    ProbeValue.ALL_REDUCE_OF_NODES: 1e9,
}
Changes = Mapping[int, Mapping[ProbeValue, float | None]]


def probe(
    nodes: str, changes: Changes | None = None, *, device: DeviceKind = "cpu"
) -> ProbedAttempt:
    """Return a healthy probe, with some values changed; None removes a value."""
    values: dict[ProbeValue, dict[int, float]] = {value: {} for value in ProbeValue}
    for rank, node in enumerate(nodes):
        given: dict[ProbeValue, float | None] = dict(OF_ALL)
        if nodes.index(node) == rank:
            given |= OF_NODE
        for value, number in {**given, **(changes or {}).get(rank, {})}.items():
            if number is not None:
                values[value][rank] = number
    return ProbedAttempt(values, tuple(nodes), device, CREATED, ENDED)


def findings(nodes: str, changes: Changes | None = None) -> list[str]:
    verdict = judge(probe(nodes, changes))
    assert bool(verdict.findings) == missed(verdict), "figures and findings contradict each other"
    return verdict.findings


def missed(verdict: ProbeVerdict) -> bool:
    return bool(judged(verdict.figures)["status"] == "failed")


@pytest.mark.parametrize("nodes", ["a", "aa", "ab", "aabb", "abc", "aaabb"])
def test_ranks_without_a_fault_have_no_finding(nodes: str) -> None:
    assert findings(nodes) == []


def test_the_number_of_figures_does_not_depend_on_the_number_of_ranks() -> None:
    few, many = judge(probe("aabb")), judge(probe("a" * 500 + "b" * 500))
    assert [figure.name for figure in few.figures] == [figure.name for figure in many.figures]


def test_a_scaled_gradient_is_named_with_its_excess() -> None:
    wrong = {2: {ProbeValue.GRADIENT_NORM: 0.5005, ProbeValue.GRADIENT_DIGEST: 12.0}}
    assert findings("aabb", wrong) == [
        "rank 2 on node b: its gradient is 1.0e-03 larger than that of 3 other ranks"
    ]


def test_a_flipped_bit_is_named_although_the_norm_is_equal() -> None:
    assert findings("aabb", {1: {ProbeValue.GRADIENT_DIGEST: 12.0}}) == [
        "rank 1 on node a: the bits of its gradient differ from those of 3 other ranks"
    ]


@pytest.mark.parametrize(
    ("nodes", "digests", "named"),
    [
        ("ab", (1.0, 2.0), "rank 0 on node a, rank 1 on node b"),
        ("aab", (1.0, 2.0, 3.0), "rank 0 on node a, rank 1 on node a, rank 2 on node b"),
    ],
)
def test_without_a_majority_all_ranks_are_named(
    nodes: str, digests: tuple[float, ...], named: str
) -> None:
    wrong = {rank: {ProbeValue.GRADIENT_DIGEST: digest} for rank, digest in enumerate(digests)}
    assert findings(nodes, wrong) == [
        f"{named}: their gradients of one seed differ, and no majority shows which one is right"
    ]


def test_other_kinds_of_devices_may_differ_in_bits_but_not_in_size_or_direction() -> None:
    kind = {ProbeValue.KIND: 8.0, ProbeValue.GRADIENT_DIGEST: 12.0}
    assert findings("aab", {2: {**kind, ProbeValue.GRADIENT_NORM: 0.50001}}) == []
    (found,) = findings("aab", {2: {**kind, ProbeValue.GRADIENT_NORM: 0.5005}})
    assert found.startswith("rank 2 on node b: the norm of its gradient differs by 1.0e-03")
    (found,) = findings("aab", {2: {**kind, ProbeValue.GRADIENT_PROJECTION: -0.9}})
    assert found.startswith("rank 2 on node b: the direction of its gradient differs by 1.0e+00")


def test_a_rank_whose_repetitions_differ_is_named() -> None:
    assert findings("aab", {0: {ProbeValue.GRADIENT_DIGESTS: 2.0}}) == [
        "rank 0 on node a: repetitions of one seed gave 2 different gradients"
    ]


@pytest.mark.parametrize("nodes", ["aabb", "ab"])
def test_a_rank_at_half_speed_is_named(nodes: str) -> None:
    rank = len(nodes) - 1
    (found,) = findings(nodes, {rank: {ProbeValue.PRODUCTS_SECONDS: 0.04}})
    assert found.startswith(f"rank {rank} on node b: its matrix products take 2.00 times as long")
    (found,) = findings(nodes, {rank: {ProbeValue.STEP_SECONDS: 0.08}})
    assert found.startswith(f"rank {rank} on node b: its training steps take 2.00 times as long")


def test_gpus_have_a_narrower_bound_on_speed() -> None:
    slow = probe("aabb", {3: {ProbeValue.STEP_SECONDS: 0.048}})
    assert judge(slow).findings == []
    (found,) = judge(replace(slow, device="cuda")).findings
    assert "take 1.20 times as long" in found
    assert found.endswith("the bound is 1.15")


def test_a_slow_disk_is_named_relative_to_the_other_nodes_and_absolutely() -> None:
    (found,) = findings("abc", {1: {ProbeValue.STORAGE_WRITE: 1e8}})
    assert found == (
        "node b: its storage root writes 100.0 MB/s; the bound is 125.0, the median of the nodes "
        "500.0"
    )
    quick = {ProbeValue.STORAGE_WRITE: 5e9}
    assert findings("abc", {0: quick, 1: {ProbeValue.STORAGE_WRITE: 3e8}, 2: quick}) == []
    (found,) = findings("a", {0: {ProbeValue.DATA_READ: 4e7}})
    assert found.startswith("node a: its data folder reads 40.0 MB/s; the bound is 50.0")
    (found,) = findings("ab", {1: {ProbeValue.DATA_SYNC_SECONDS: 0.9}})
    assert found.startswith("node b: a small fsync in its data folder takes 0.90 s")


def test_a_bucket_needs_no_bandwidth() -> None:
    in_bucket = {
        ProbeValue.STORAGE_KIND: 0.0,
        ProbeValue.STORAGE_WRITE: None,
        ProbeValue.STORAGE_READ: None,
        ProbeValue.STORAGE_SYNC_SECONDS: None,
    }
    assert findings("a", {0: in_bucket}) == []


def clock(seconds: float, *, offset: float) -> dict[ProbeValue, float | None]:
    return {ProbeValue.CLOCK_TIME: CREATED + 30 + seconds, ProbeValue.CLOCK_OFFSET: offset}


def test_a_clock_an_hour_off_is_named() -> None:
    (found,) = findings("ab", {1: clock(3600, offset=3600)})
    assert found.startswith("node b: its clock is at least 3570.0 s ahead of the server's clock")


def test_the_clock_of_rank_0_is_named_and_not_those_of_the_others() -> None:
    changes = {0: clock(-3600, offset=0), 1: clock(0, offset=3600), 2: clock(0, offset=3600)}
    (found,) = findings("abc", changes)
    assert found.startswith("node a: its clock is at least 3570.0 s behind the server's clock")


def test_a_clock_seconds_off_is_found_by_the_median_of_the_nodes() -> None:
    (found,) = findings("abc", {0: {}, 1: clock(5, offset=5), 2: {}})
    assert found == "node b: its clock is 5.0 s ahead of the median of the nodes"


def test_of_two_clocks_seconds_apart_both_are_named() -> None:
    (found,) = findings("aabb", {2: clock(5, offset=5), 3: clock(5, offset=5)})
    assert found.startswith("node b: its clock is 5.0 s ahead of that of node a; ")
    assert found.endswith("the server's times do not show which one is right")


def test_a_slow_link_is_named_by_both_of_its_ranks() -> None:
    (found,) = findings("aabb", {2: {ProbeValue.LINK: 1.5e8}})
    assert found.startswith("link from rank 1 on node a to rank 2 on node b: 150.0 MB/s")
    (found,) = findings("aaaa", {0: {ProbeValue.LINK: 1.5e8}})
    assert found.startswith("link from rank 3 on node a to rank 0 on node a: 150.0 MB/s")


def test_gpus_with_nvlink_in_pairs_are_compared_with_those_of_other_nodes() -> None:
    paired = {rank: {ProbeValue.LINK: 2.2e10 if rank % 2 else 2.5e11} for rank in range(12)}
    between = {rank: {ProbeValue.LINK: 2e10} for rank in (0, 4, 8)}
    every = {**paired, **between}
    assert judge(probe("aaaabbbbcccc", every, device="cuda")).findings == []
    (found,) = judge(
        probe("aaaabbbbcccc", every | {6: {ProbeValue.LINK: 2.2e10}}, device="cuda")
    ).findings
    assert found.startswith("link from rank 5 on node b to rank 6 on node b: 22000.0 MB/s")


def test_links_of_one_node_with_gpus_have_no_bound() -> None:
    paired = {rank: {ProbeValue.LINK: 2.2e10 if rank % 2 else 2.5e11} for rank in range(4)}
    assert judge(probe("aaaa", paired, device="cuda")).findings == []


def test_links_between_nodes_have_an_absolute_bound() -> None:
    slow = {ProbeValue.LINK: 9e7}
    assert len(findings("ab", {0: slow, 1: slow})) == 2
    assert findings("aa", {0: slow, 1: slow}) == []


def test_missing_values_are_named_once_per_rank() -> None:
    everything = dict.fromkeys(ProbeValue)
    assert findings("ab", {1: {**everything}}) == [
        "rank 1 on node b: no value of kind, gradient_digest, gradient_norm and 21 more "
        "(gradient, speed, disk, clock, network); the log of the rank has the reason"
    ]
    (found,) = findings("aab", {1: {ProbeValue.LINK: None}})
    assert "rank 1 on node a: no value of link (network)" in found


def test_a_kind_of_device_without_gradients_has_no_majority_to_miss() -> None:
    alone = {ProbeValue.KIND: 8.0, ProbeValue.GRADIENT_DIGEST: None}
    (found,) = findings("aab", {2: alone})
    assert found.startswith("rank 2 on node b: no value of gradient_digest (gradient)")


def test_a_probe_without_any_value_fails() -> None:
    empty: RankValues = {}
    verdict = judge(ProbedAttempt(empty, ("a", "b"), "cpu", CREATED, ENDED))
    assert missed(verdict)
    assert len(verdict.findings) == 2


def test_findings_are_bounded() -> None:
    slow = {rank: {ProbeValue.STEP_SECONDS: 1.0} for rank in range(40)}
    found = findings("a" * 100, slow)
    assert len(found) == MAX_FINDINGS + 1
    assert found[-1] == "24 more findings about training steps"
