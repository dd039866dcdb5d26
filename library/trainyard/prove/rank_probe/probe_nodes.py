"""The verdict on nodes: disks, clocks, and the links between their ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median_high, median_low

from trainyard.protocol.rank_probe.probe_values import ProbeValue
from trainyard.prove.figures import at_least, at_most, reported
from trainyard.prove.rank_probe.probe_table import ProbeTable, ProbeVerdict

DISK_BYTES_PER_SECOND = 50e6
"""Least legal bandwidth of a disk."""
DISK_SHARE = 0.25
"""Least legal bandwidth of a disk, as a fraction of the median of the nodes."""
SYNC_SECONDS = 0.5
"""Longest legal time of a small write with fsync."""
CLOCK_SECONDS = 1.0
"""Largest legal difference between two clocks."""
LINK_OF_NODES = 100e6
"""Least legal bandwidth of a link between nodes, in bytes per second."""
DISKS = {
    "storage": (
        ProbeValue.STORAGE_WRITE,
        ProbeValue.STORAGE_READ,
        ProbeValue.STORAGE_SYNC_SECONDS,
    ),
    "data": (ProbeValue.DATA_WRITE, ProbeValue.DATA_READ, ProbeValue.DATA_SYNC_SECONDS),
}
"""Bandwidths and latency of each folder."""
FOLDERS = {"storage": "storage root", "data": "data folder"}


def judge_disks(table: ProbeTable, verdict: ProbeVerdict) -> None:
    """Compare the disks of the nodes with each other and with absolute bounds."""
    for folder, (write, read, sync) in DISKS.items():
        findings: list[str] = []
        for verb, value in (("write", write), ("read", read)):
            findings += _bandwidth(table, verdict, value=value, words=(folder, verb))
        if times := table.of(sync):
            figure = at_most(f"disk/{folder}_sync_seconds", max(times.values()), SYNC_SECONDS)
            verdict.figures.append(figure)
        findings += [
            f"node {table.nodes[rank]}: a small fsync in its {FOLDERS[folder]} takes "
            f"{seconds:.2f} s; the bound is {SYNC_SECONDS:g} s"
            for rank, seconds in times.items()
            if seconds > SYNC_SECONDS
        ]
        verdict.add_findings(findings, about=f"the {FOLDERS[folder]}")


def _bandwidth(
    table: ProbeTable, verdict: ProbeVerdict, *, value: ProbeValue, words: tuple[str, str]
) -> Iterator[str]:
    """Add figures of a bandwidth; yield a finding for each slow node."""
    folder, verb = words
    speeds = table.of(value)
    if not speeds:
        return
    middle = median_high(speeds.values())
    least = max(DISK_BYTES_PER_SECOND, min(DISK_SHARE * middle, table.bounds.disk))
    figure = f"disk/{folder}_{verb}_bytes_per_second"
    verdict.figures.append(at_least(figure, min(speeds.values()), least))
    for rank, speed in speeds.items():
        if speed < least:
            yield (
                f"node {table.nodes[rank]}: its {FOLDERS[folder]} {verb}s {speed / 1e6:.1f} MB/s; "
                f"the bound is {least / 1e6:.1f}, the median of the nodes {middle / 1e6:.1f}"
            )


def judge_clocks(table: ProbeTable, verdict: ProbeVerdict) -> None:
    """Compare the clocks with the server's times, then with each other.

    The times of an attempt on the server bound each clock from both sides, so a clock that is off
    by more than the duration of the attempt is named even if it is the clock of rank 0.
    """
    times = table.of(ProbeValue.CLOCK_TIME)
    if not times:
        return
    created, ended = table.probe.created_at, table.probe.ended_at
    outside = {r: min(0.0, t - created) + max(0.0, t - ended) for r, t in times.items()}
    wrong = [rank for rank in outside if abs(outside[rank]) > CLOCK_SECONDS]
    findings = [
        f"node {node}: its clock is at least {_span(outside[ranks[0]])} the server's clock"
        for node, ranks in table.by_node(wrong)
    ]
    bound = CLOCK_SECONDS
    verdict.figures.append(at_most("clock/seconds_from_server", _largest(outside), bound))
    findings += _offsets(table, verdict, wrong=wrong)
    verdict.add_findings(findings, about="clocks")


def _offsets(table: ProbeTable, verdict: ProbeVerdict, *, wrong: list[int]) -> Iterator[str]:
    """Add figures of the offsets; yield a finding for each node with an offset above the bound.

    Args:
        table: the values.
        verdict: receives the figures.
        wrong: ranks that the server's times have already shown to be wrong.
    """
    offsets = table.of(ProbeValue.CLOCK_OFFSET)
    if not offsets:
        return
    errors = table.of(ProbeValue.CLOCK_UNCERTAINTY)
    trusted = {table.nodes[r]: offsets[r] for r in table.firsts if r in offsets and r not in wrong}
    middle = median_low((trusted or offsets).values())
    apart = {r: max(0.0, abs(o - middle) - errors.get(r, 0.0)) for r, o in offsets.items()}
    verdict.figures.extend(
        [
            at_most("clock/seconds_between_nodes", _largest(apart), CLOCK_SECONDS),
            reported("clock/uncertainty_seconds", _largest(errors)),
        ]
    )
    unclear = len(trusted) == 2
    late = [rank for rank in apart if apart[rank] > CLOCK_SECONDS and rank not in wrong]
    for node, ranks in table.by_node(late):
        others = [other for other in trusted if other != node]
        yield (
            f"node {node}: its clock is {_span(offsets[ranks[0]] - middle)} "
            + (f"that of node {others[0]}" if unclear else "the median of the nodes")
            + ("; the server's times do not show which one is right" if unclear else "")
        )


def _span(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'}"


def _largest(values: Mapping[int, float]) -> float:
    return max(map(abs, values.values()), default=0.0)


def judge_network(table: ProbeTable, verdict: ProbeVerdict) -> None:
    """Report the all-reduces; compare the links inside nodes, and the links between nodes."""
    _report_collectives(table, verdict)
    links = table.of(ProbeValue.LINK)
    between = {rank: speed for rank, speed in links.items() if table.starts_node(rank)}
    inside = _inside(table, {r: speed for r, speed in links.items() if r not in between})
    findings = [
        *_links(table, verdict, groups=inside, floor=0.0, where="inside nodes"),
        *_links(table, verdict, groups=[between], floor=LINK_OF_NODES, where="between nodes"),
    ]
    verdict.add_findings(findings, about="links")


def _inside(table: ProbeTable, links: Mapping[int, float]) -> list[Mapping[int, float]]:
    """Return the links inside nodes in groups of equal ones.

    Processes of a node share its memory. GPUs of a node may have NVLink to some neighbours only, so
    the link of a GPU is compared with the same link of other nodes.
    """
    if table.device == "cpu":
        return [links]
    groups: dict[int, dict[int, float]] = {}
    for rank, speed in links.items():
        groups.setdefault(rank - table.nodes.index(table.nodes[rank]), {})[rank] = speed
    return list(groups.values())


def _report_collectives(table: ProbeTable, verdict: ProbeVerdict) -> None:
    slowest: tuple[tuple[str, ProbeValue, Callable[[Iterable[float]], float]], ...] = (
        ("latency_seconds", ProbeValue.LATENCY_SECONDS, max),
        ("all_reduce_small_bytes_per_second", ProbeValue.ALL_REDUCE_SMALL, min),
        ("all_reduce_large_bytes_per_second", ProbeValue.ALL_REDUCE_LARGE, min),
        ("all_reduce_in_node_bytes_per_second", ProbeValue.ALL_REDUCE_IN_NODE, min),
        ("all_reduce_of_nodes_bytes_per_second", ProbeValue.ALL_REDUCE_OF_NODES, min),
    )
    for name, value, of in slowest:
        if given := table.of(value):
            verdict.figures.append(reported(f"network/{name}", of(given.values())))


def _links(
    table: ProbeTable,
    verdict: ProbeVerdict,
    *,
    groups: Sequence[Mapping[int, float]],
    floor: float,
    where: str,
) -> Iterator[str]:
    """Add figures of the links of one sort; yield a finding for each slow link of its group."""
    middles = [median_high(links.values()) if links else 0.0 for links in groups]
    speeds = [
        (rank, found, middle)
        for links, middle in zip(groups, middles, strict=True)
        for rank, found in links.items()
    ]
    if not speeds:
        return
    slowest = min(found for _, found, _ in speeds)
    share = min(found / middle if middle else 0.0 for _, found, middle in speeds)
    name = f"network/link_{where.replace(' ', '_')}"
    speed = f"{name}_bytes_per_second"
    verdict.figures.extend(
        [
            at_least(speed, slowest, floor) if floor else reported(speed, slowest),
            at_least(f"{name}_share_of_median", share, table.bounds.link),
        ]
    )
    for rank, found, middle in speeds:
        least = max(floor, table.bounds.link * middle)
        if found < least:
            sender = table.name((rank - 1) % len(table.ranks))
            yield (
                f"link from {sender} to {table.name(rank)}: {found / 1e6:.1f} MB/s; the bound is "
                f"{least / 1e6:.1f}, the median of the links {where} {middle / 1e6:.1f}"
            )
