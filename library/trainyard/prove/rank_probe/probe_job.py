"""The job that runs the probe of ranks: its spec, and the values that its ranks have logged."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.protocol.rank_probe.probe_values import MAX_RANKS, SERIES, ProbeValue
from trainyard.protocol.rest.attempts import AttemptView
from trainyard.spec.auto import DeviceKind

COMMAND = ("python", "-m", "trainer.rank_probe")
"""Runs with the worker's own interpreter; the job brings no code. Nodes and server still need
`TRAINYARD_ALLOW_CODE=true`, as for every program; the refusal of the server names the variable."""
LEAST_SECONDS = 60.0
"""Minimum time limit of a probe: ranks need half of it to import torch on a busy machine."""

RankValues = Mapping[ProbeValue, Mapping[int, float]]
"""Finite values by global rank; a rank without a value is absent."""


@dataclass(frozen=True)
class ProbedAttempt:
    """The values of an attempt, and what the verdict compares them with."""

    values: RankValues
    """Values by rank."""
    nodes: tuple[str, ...]
    """Name of the node of each rank."""
    device: DeviceKind
    """Kind of the slots."""
    created_at: float
    """Unix time on the server before the ranks started."""
    ended_at: float
    """Unix time on the server after the ranks ended."""


def probe_spec(
    slots: int,
    *,
    device: str = "auto",
    nodes: int | None = None,
    seconds: float = 240.0,
    disk_mib: int = 256,
    root: str = "checkpoints",
) -> dict[str, Any]:
    """Return the spec of a job that probes a number of slots.

    Args:
        slots: number of ranks.
        device: `resources.device` of the job.
        nodes: number of nodes, with equally many slots each; None for any placement.
        seconds: time limit of each rank; the ranks end at this limit.
        disk_mib: size in MiB of the file that each node writes to each of the two folders.
        root: name of the storage root that is measured.

    Raises:
        ValueError: an argument is out of its range.
    """
    if not 1 <= slots <= MAX_RANKS:
        raise ValueError(f"slots={slots}: a probe has 1 to {MAX_RANKS} ranks, with a series each")
    if not LEAST_SECONDS <= seconds < math.inf:
        raise ValueError(f"seconds={seconds:g}: a probe needs at least {LEAST_SECONDS:g} s")
    if disk_mib < 1:
        raise ValueError(f"disk_mib={disk_mib}: the written file has at least 1 MiB")
    resources = {"world_size": slots, "device": device}
    return {
        "name": "prove-probe",
        "program": {
            "command": list(COMMAND),
            "arguments": {"seconds": seconds, "disk-mib": disk_mib, "root": root},
        },
        "resources": resources if nodes is None else {**resources, "nodes": nodes},
        "checkpoint": {"root": root},
        # A second attempt would hide the fault that ended the first one.
        "retry": {"max_retries": 0},
    }


def read_values(rows: Iterable[str]) -> RankValues:
    """Return the values in the lines of `Client.metrics_csv`, the header first.

    Values that are not finite, other series and unknown numbers of values are omitted.
    """
    known = set(ProbeValue)
    values: dict[ProbeValue, dict[int, float]] = {}
    for row in csv.DictReader(rows):
        name, _, rank = row["name"].rpartition("/rank-")
        if name != SERIES or int(row["step"]) not in known:
            continue
        number = float(row["value"])
        if math.isfinite(number):
            values.setdefault(ProbeValue(int(row["step"])), {})[int(rank)] = number
    return values


def probed(attempt: AttemptView, values: RankValues) -> ProbedAttempt:
    """Return an ended attempt as the input of the verdict.

    Raises:
        ValueError: the attempt has not ended.
    """
    if attempt.ended_at is None:
        raise ValueError(f"attempt {attempt.number} is {attempt.state}; a verdict needs its end")
    shares = sorted(attempt.nodes, key=lambda share: share.node_rank)
    return ProbedAttempt(
        values=values,
        nodes=tuple(share.node for share in shares for _ in share.slots),
        device=attempt.device,
        created_at=attempt.created_at.timestamp(),
        ended_at=attempt.ended_at.timestamp(),
    )
