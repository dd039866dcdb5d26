"""Signs of an unreliable node: broken devices, a wrong clock, failed attempts. Pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from server.cluster.nodes.slots import slot_name
from trainyard.protocol.node_samples import NodeSample
from trainyard.protocol.worker_messages import ClockReading, Hardware
from trainyard.run.failures import Failure, FailureReason

BROKEN_XIDS: Mapping[int, str] = {
    48: "an uncorrectable memory error",
    62: "a halt of the GPU's own controller",
    63: "a row of memory that is to be remapped at the next reset",
    64: "a row of memory that could not be remapped",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    94: "a contained memory error",
    95: "an uncontained memory error",
    119: "the GPU's system processor did not answer",
    120: "an error of the GPU's system processor",
    140: "an unrecovered memory error",
}
"""Numbers, in NVIDIA's catalog, of the Xid errors after which a GPU needs at least a reset. Other
Xids, such as 13 and 31, may be errors of a program.
"""


@dataclass(frozen=True)
class NodeFailure:
    """An attempt that failed because of a node."""

    attempt_id: str
    job_id: str
    node: str
    reason: FailureReason
    spec: str
    """Digest of the job's spec without its name and notes; equal digests show equal jobs."""
    submitter: str
    """Id of the token that submitted the job, or the submitter's name if the id is unknown."""
    at: datetime
    """Time at which the attempt ended."""


def is_of_the_node(failure: Failure) -> bool:
    """Return whether a failure counts against the node that the failure names."""
    # The reason `launch_error` alone proves nothing: an unsuitable spec may also cause it.
    return failure.reason == FailureReason.NODE_LOST or failure.node_at_fault


def device_faults(
    hardware: Hardware, sample: NodeSample, *, now: datetime, trusted_since: datetime | None
) -> tuple[str, ...]:
    """Return one text for each Xid error that shows a broken device of a node.

    `now` is the time at which the sample arrived. Errors before `trusted_since`, the end of the
    node's last drain, do not count.
    """
    found: dict[str, None] = {}
    for device in sample.accelerators:
        name = slot_name(hardware, device.uuid)
        for xid in device.xids:
            at = now - timedelta(seconds=xid.age_seconds)
            if xid.code in BROKEN_XIDS and (trusted_since is None or at > trusted_since):
                found[f"{name}: Xid {xid.code}, {BROKEN_XIDS[xid.code]}"] = None
    return tuple(found)


def clock_is_wrong(reading: ClockReading | None, *, before: bool, limit: float) -> bool:
    """Return whether the clock of a node differs too much from the clock of the database.

    The clock becomes wrong once the difference certainly exceeds the limit, and right again once
    the difference is certainly at most half of the limit. So neither a slow network nor a clock
    near the limit makes the result alternate.

    Args:
        reading: the newest comparison with the database's clock; None repeats the last result.
        before: the last result.
        limit: maximum difference in seconds; if 0, no clock is wrong.
    """
    if reading is None or limit == 0:
        return before and limit > 0
    apart = abs(reading.skew_seconds)
    if before:
        return apart + reading.error_seconds > limit / 2
    return apart - reading.error_seconds > limit


def repeated_failures(
    failures: Iterable[NodeFailure],
    node: str,
    *,
    limit: int,
    nodes: int | None,
    submitters: int,
    trained_elsewhere: Callable[[Collection[str]], bool],
) -> Sequence[NodeFailure]:
    """Return the failures for which to cordon a node; empty if the node is not to be cordoned.

    A job can fail on purpose or because of its own input. So a failure does not count if its job
    also failed on another node for the same reason. Nor does it count if many nodes have failures
    for this reason. Many means more than half of the online nodes, or more than three nodes and
    more than a tenth of the online nodes. The node is cordoned if all of these conditions hold:

    - at least `limit` failures count;
    - the failed jobs have at least two different specs;
    - the failed jobs have at least two submitters, if several people have submitted jobs;
    - one of the failed jobs has trained without the node.

    Args:
        failures: failures of all nodes within the window.
        node: name of the node.
        limit: number of failures needed.
        nodes: number of online nodes with the node's kind of slot; None if no other node takes
            work. Then neither the number of nodes with failures nor the last condition matters.
        submitters: number of people with jobs within the window.
        trained_elsewhere: returns whether one of the jobs with these ids has trained without the
            node.
    """
    known = list(failures)
    nodes_of_job: dict[tuple[str, FailureReason], set[str]] = defaultdict(set)
    nodes_of: dict[FailureReason, set[str]] = defaultdict(set)
    for each in known:
        nodes_of_job[each.job_id, each.reason].add(each.node)
    for each in known:  # a job that fails on several nodes proves nothing about any of them
        if len(nodes_of_job[each.job_id, each.reason]) == 1:
            nodes_of[each.reason].add(each.node)
    own = [
        each
        for each in known
        if each.node == node
        and nodes_of_job[each.job_id, each.reason] == {node}
        and (nodes is None or not _many(len(nodes_of[each.reason]), nodes))
    ]
    agree = len({each.spec for each in own}) > 1 and (
        submitters < 2 or len({each.submitter for each in own}) > 1
    )
    if len(own) < limit or not agree:
        return ()
    return own if nodes is None or trained_elsewhere({each.job_id for each in own}) else ()


def _many(some: int, nodes: int) -> bool:
    return some > min(nodes / 2, max(3, nodes / 10))


def in_words(failures: Sequence[NodeFailure]) -> str:
    """Return a text such as `3 attempts failed because of it: 2 node_lost, 1 launch_error`."""
    reasons = Counter(str(each.reason) for each in failures)
    counted = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return f"{len(failures)} attempts failed because of it: {counted}"
