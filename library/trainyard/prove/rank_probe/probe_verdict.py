"""The verdict of the probe of ranks: figures with bounds, and findings that name rank and node.

docs/prove-probe.md has the reasons for the bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median, median_low

from trainyard.protocol.rank_probe.probe_values import ProbeValue
from trainyard.prove.figures import at_most, equal, reported
from trainyard.prove.rank_probe.probe_job import ProbedAttempt
from trainyard.prove.rank_probe.probe_nodes import DISKS, judge_clocks, judge_disks, judge_network
from trainyard.prove.rank_probe.probe_table import ProbeTable, ProbeVerdict

SAME_NORM = 1e-9
"""Relative difference below which a finding about two gradients names no difference in size."""
PARTS = {0: "gradient", 1: "gradient", 2: "speed", 3: "disk", 4: "clock", 5: "network"}
"""Measurement of a value, by the tens of its number."""


def judge(probe: ProbedAttempt) -> ProbeVerdict:
    """Compare the ranks of a probe with each other and with the bounds."""
    table, verdict = ProbeTable(probe), ProbeVerdict()
    _judge_presence(table, verdict)
    _judge_gradients(table, verdict)
    _judge_speed(table, verdict)
    judge_disks(table, verdict)
    judge_clocks(table, verdict)
    judge_network(table, verdict)
    return verdict


def _judge_presence(table: ProbeTable, verdict: ProbeVerdict) -> None:
    have = {value: table.of(value).keys() for value in ProbeValue}
    absent = {
        rank: [value for value in _expected(table, rank) if rank not in have[value]]
        for rank in table.ranks
    }
    verdict.figures.append(equal("missing_values", sum(map(len, absent.values())), 0))
    findings = (
        f"{table.name(rank)}: no value of {', '.join(v.name.lower() for v in values[:3])}"
        + (f" and {len(values) - 3} more" if len(values) > 3 else "")
        + f" ({', '.join(dict.fromkeys(PARTS[v // 10] for v in values))}); the log of the rank has "
        "the reason"
        for rank, values in absent.items()
        if values
    )
    verdict.add_findings(findings, about="missing values")


def _expected(table: ProbeTable, rank: int) -> Iterator[ProbeValue]:
    """Yield the values that a rank logs without a fault."""
    yield from (value for value in ProbeValue if PARTS[value // 10] in ("gradient", "speed"))
    first, several = rank in table.firsts, len(table.firsts) > 1
    if first:
        in_bucket = table.of(ProbeValue.STORAGE_KIND).get(rank) == 0
        disk = (value for value in ProbeValue if PARTS[value // 10] == "disk")
        yield from (value for value in disk if not (in_bucket and value in DISKS["storage"]))
    yield from (value for value in ProbeValue if PARTS[value // 10] == "clock")
    if len(table.ranks) == 1:
        return
    only = {
        ProbeValue.ALL_REDUCE_IN_NODE: several and table.nodes.count(table.nodes[rank]) > 1,
        ProbeValue.ALL_REDUCE_OF_NODES: several and first,
    }
    network = (value for value in ProbeValue if PARTS[value // 10] == "network")
    yield from (value for value in network if only.get(value, True))


def _judge_gradients(table: ProbeTable, verdict: ProbeVerdict) -> None:
    digests, norms = table.of(ProbeValue.GRADIENT_DIGEST), table.of(ProbeValue.GRADIENT_NORM)
    if not digests or not norms:
        return
    kinds = table.by_kind()
    odd: list[int] = []
    findings: list[str] = []
    for ranks in kinds:
        given = {rank: digests[rank] for rank in ranks if rank in digests}
        right = _majority(given.values())
        wrong = [rank for rank, digest in given.items() if digest != right]
        odd += wrong
        if right is None and given:
            findings.append(
                f"{table.names(wrong)}: their gradients of one seed differ, and no majority shows "
                "which one is right"
            )
        elif wrong:
            others = [rank for rank in given if rank not in wrong]
            findings += (_difference(table, rank, others=others) for rank in wrong)
    findings += _between_kinds(table, verdict, named=odd)
    counts = table.of(ProbeValue.GRADIENT_DIGESTS)
    varying = [rank for rank, count in counts.items() if count > 1]
    findings += (
        f"{table.name(rank)}: repetitions of one seed gave {counts[rank]:.0f} different gradients"
        for rank in varying
    )
    verdict.figures.extend(
        [
            equal("gradient/ranks_that_differ", len(odd), 0),
            equal("gradient/ranks_that_vary", len(varying), 0),
            reported("gradient/kinds_of_devices", len(kinds)),
        ]
    )
    verdict.add_findings(findings, about="gradients")


def _majority(digests: Iterable[float]) -> float | None:
    """Return the digest of more than half of the ranks; None if there is none."""
    counts = Counter(digests)
    return next((d for d, count in counts.items() if 2 * count > counts.total()), None)


def _difference(table: ProbeTable, rank: int, *, others: Sequence[int]) -> str:
    norms = table.of(ProbeValue.GRADIENT_NORM)
    reference = next((norms[other] for other in others if norms.get(other)), 0.0)
    excess = norms.get(rank, 0.0) / reference - 1 if reference else 0.0
    ranks = f"{len(others)} other rank{'s' if len(others) > 1 else ''}"
    if abs(excess) < SAME_NORM:
        return f"{table.name(rank)}: the bits of its gradient differ from those of {ranks}"
    size = "larger" if excess > 0 else "smaller"
    return f"{table.name(rank)}: its gradient is {abs(excess):.1e} {size} than that of {ranks}"


def _between_kinds(table: ProbeTable, verdict: ProbeVerdict, *, named: list[int]) -> Iterator[str]:
    """Add the spread of norm and direction over all kinds of devices, whose bits may differ.

    Yield a finding for the rank with the largest spread above its bound, unless it is named
    already.
    """
    norms = table.of(ProbeValue.GRADIENT_NORM)
    projections = table.of(ProbeValue.GRADIENT_PROJECTION)  # fractions of the norm
    for name, values, scale, bound in (
        ("norm", norms, median_low(norms.values()), table.bounds.norm),
        ("direction", projections, 1.0, table.bounds.direction),
    ):
        if not values:
            continue
        middle = median_low(values.values())
        spreads = {rank: abs(value - middle) / (scale or 1.0) for rank, value in values.items()}
        worst = max(spreads, key=spreads.__getitem__)
        verdict.figures.append(at_most(f"gradient/{name}_spread", spreads[worst], bound))
        if spreads[worst] > bound and worst not in named:
            yield (
                f"{table.name(worst)}: the {name} of its gradient differs by {spreads[worst]:.1e} "
                "from the median of all kinds of devices"
            )


def _judge_speed(table: ProbeTable, verdict: ProbeVerdict) -> None:
    tests = (
        ("products", "matrix products", ProbeValue.PRODUCTS_SECONDS),
        ("steps", "training steps", ProbeValue.STEP_SECONDS),
    )
    for name, words, value in tests:
        times, slowest = table.of(value), table.of(ProbeValue(value + 1))
        ratios = dict(_ratios(times, table.by_kind()))
        if not ratios:
            continue
        longest = max((slowest[r] / times[r] for r in ratios if r in slowest), default=1.0)
        verdict.figures.extend(
            [
                reported(f"speed/{name}_seconds", median(times.values())),
                at_most(f"speed/{name}_of_slowest_rank", max(ratios.values()), table.bounds.slow),
                reported(f"speed/{name}_of_slowest_repetition", longest),
            ]
        )
        findings = (
            f"{table.name(rank)}: its {words} take {ratio:.2f} times as long as the median of its "
            f"kind of device; the bound is {table.bounds.slow:g}"
            for rank, ratio in ratios.items()
            if ratio > table.bounds.slow
        )
        verdict.add_findings(findings, about=words)


def _ratios(
    times: Mapping[int, float], kinds: Iterable[Sequence[int]]
) -> Iterator[tuple[int, float]]:
    """Yield rank and time as a multiple of the median of its kind; of two ranks, the faster."""
    for ranks in kinds:
        given = {rank: times[rank] for rank in ranks if times.get(rank, 0.0) > 0}
        if given:
            middle = median_low(given.values())
            yield from ((rank, seconds / middle) for rank, seconds in given.items())
