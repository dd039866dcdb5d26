"""The values of a probe by rank, with names of ranks and nodes; the form of its verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from trainyard.protocol.rank_probe.probe_values import ProbeValue
from trainyard.prove.figures import Figure
from trainyard.prove.rank_probe.probe_job import ProbedAttempt
from trainyard.spec.auto import DeviceKind

MAX_FINDINGS = 16
"""Maximum number of findings about one subject; one more counts the rest."""
MAX_NAMED = 8
"""Maximum number of ranks that one finding names."""


@dataclass(frozen=True)
class ProbeBounds:
    """Bounds that depend on the kind of device; docs/prove-probe.md has their reasons."""

    slow: float
    """Longest legal time of a rank, as a multiple of the median of its kind."""
    disk: float
    """Bandwidth from which on a disk is not compared with other nodes, in bytes per second."""
    link: float
    """Least legal bandwidth of a link, as a fraction of the median of its kind."""
    norm: float
    """Largest legal relative difference between gradient norms of different kinds of devices."""
    direction: float
    """Largest legal difference between projections of these gradients, as fractions of the norm."""


BOUNDS: Mapping[DeviceKind, ProbeBounds] = {
    "cpu": ProbeBounds(slow=1.5, disk=200e6, link=0.2, norm=1e-4, direction=1e-3),
    "cuda": ProbeBounds(slow=1.15, disk=1e9, link=0.5, norm=1e-2, direction=0.1),
}


@dataclass(frozen=True)
class ProbeVerdict:
    """The result of a probe."""

    figures: list[Figure] = field(default_factory=list)
    """Measured figures with their bounds; their number does not depend on the number of ranks."""
    findings: list[str] = field(default_factory=list)
    """Faults in words, which name ranks and nodes."""

    def add_findings(self, findings: Iterable[str], *, about: str) -> None:
        """Add at most `MAX_FINDINGS` findings about a subject, and a count of the others."""
        found = list(findings)
        self.findings.extend(found[:MAX_FINDINGS])
        if len(found) > MAX_FINDINGS:
            self.findings.append(f"{len(found) - MAX_FINDINGS} more findings about {about}")


class ProbeTable:
    """The values of a probe, with the names of its ranks."""

    def __init__(self, probe: ProbedAttempt) -> None:
        """Prepare the table; nothing is judged yet."""
        self.probe = probe
        self.nodes = probe.nodes
        self.device = probe.device
        self.bounds = BOUNDS[probe.device]
        self.ranks = range(len(probe.nodes))
        self.firsts = [rank for rank in self.ranks if rank == 0 or self.starts_node(rank)]
        """First rank of each node."""

    def of(self, value: ProbeValue) -> dict[int, float]:
        """Return a value by rank; ranks without the value are absent."""
        given = self.probe.values.get(value, {})
        return {rank: given[rank] for rank in self.ranks if rank in given}

    def starts_node(self, rank: int) -> bool:
        """Return whether the previous rank of the ring is on another node."""
        return self.nodes[rank] != self.nodes[rank - 1]

    def name(self, rank: int) -> str:
        """Return rank and node."""
        return f"rank {rank} on node {self.nodes[rank]}"

    def names(self, ranks: Sequence[int]) -> str:
        """Return ranks and nodes of at most `MAX_NAMED` ranks, and a count of the others."""
        text = ", ".join(map(self.name, ranks[:MAX_NAMED]))
        more = len(ranks) - MAX_NAMED
        return f"{text} and {more} more" if more > 0 else text

    def by_kind(self) -> list[list[int]]:
        """Return the ranks of each kind of device."""
        kinds: dict[float, list[int]] = {}
        for rank, kind in self.of(ProbeValue.KIND).items():
            kinds.setdefault(kind, []).append(rank)
        return list(kinds.values())

    def by_node(self, ranks: Iterable[int]) -> Iterator[tuple[str, list[int]]]:
        """Yield each node with its ranks among those given, which are in rising order."""
        for node, group in groupby(ranks, key=lambda rank: self.nodes[rank]):
            yield node, list(group)
