"""The nodes under test: what the server knows of them, and what their ranks do alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainyard.protocol.rest.nodes import NodeView
from trainyard.protocol.states import TERMINAL_JOB_STATES
from trainyard.prove.bench import Bench, CheckError, NotPossibleError, described
from trainyard.prove.figures import Figure, at_least, at_most, reported
from trainyard.prove.rank_probe.probe_job import probe_spec, probed, read_values
from trainyard.prove.rank_probe.probe_table import ProbeVerdict
from trainyard.prove.rank_probe.probe_verdict import judge


def machine(bench: Bench) -> list[Figure]:
    """Check the online nodes that offer slots of the tested kind."""
    nodes = _online_nodes(bench)
    bench.commands.append("trainyard nodes --json")
    verdict = ProbeVerdict()
    verdict.add_findings(findings(nodes), about="nodes")
    bench.findings += verdict.findings
    return [
        at_least("slots", sum(node.hardware.slots for node in nodes), bench.slots),
        reported("nodes", len(nodes)),
        reported("kinds_of_devices", len({node.hardware.device_name for node in nodes})),
        at_most("versions", len({node.version for node in nodes}), 1),
        at_most("problems", sum(len(node.problems) for node in nodes), 0),
        at_most("withheld_slots", sum(len(node.withheld) for node in nodes), 0),
    ]


def probe(bench: Bench, *, seconds: float, disk_mib: int) -> list[Figure]:
    """Run the probe of ranks on all slots, and name the ranks, nodes and links that differ.

    A probe that failed is judged by the values that its ranks logged before.
    """
    try:
        spec = probe_spec(bench.slots, device=bench.device, seconds=seconds, disk_mib=disk_mib)
    except ValueError as error:  # more slots than series
        raise NotPossibleError(str(error)) from error
    job = bench.watch(bench.submit(spec).id, lambda now: now.state in TERMINAL_JOB_STATES)
    attempt = job.current_attempt
    if attempt is None or attempt.ended_at is None:
        raise CheckError(described(job))
    values = read_values(bench.yard.metrics_csv(job.id, attempt=attempt.number))
    if not values:
        raise CheckError(described(job))
    verdict = judge(probed(attempt, values))
    bench.findings += verdict.findings
    return verdict.figures


def findings(nodes: Iterable[NodeView]) -> Iterator[str]:
    """Yield a sentence for each problem and each withheld slot of the nodes."""
    for node in nodes:
        yield from (f"node {node.name}: {problem}" for problem in node.problems)
        for slot in node.withheld:
            yield f"node {node.name}: slot {slot.slot} is withheld: {slot.reason}"


def _online_nodes(bench: Bench) -> list[NodeView]:
    return sorted(
        (n for n in bench.yard.nodes() if n.online and n.hardware.device == bench.device),
        key=lambda node: node.name,
    )
