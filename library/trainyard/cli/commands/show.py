"""`ps`, `show`, `queue`, `events` and `nodes`: jobs, their events, and nodes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard.base.labels import parse_labels
from trainyard.cli.listings import (
    draw_counts,
    draw_events,
    draw_jobs,
    draw_nodes,
    draw_queue,
    draw_what_if,
)
from trainyard.cli.options import JobReference, Json, Limit
from trainyard.cli.output import at_most, emit, note, write_json, write_text
from trainyard.cli.render import draw_show
from trainyard.client.errors import UsageError
from trainyard.client.references import resolve_job
from trainyard.client.sdk import Client
from trainyard.client.spec_file import read_spec_file
from trainyard.protocol.rest.jobs import JobOrder
from trainyard.protocol.states import JobState


def ps(
    states: Annotated[
        list[JobState] | None, typer.Option("--state", help="Only jobs in this state. Repeatable.")
    ] = None,
    tags: Annotated[
        list[str] | None, typer.Option("--tag", help="Only jobs with this tag. Repeatable.")
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", help="Only jobs of this project.")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            "--search", help="Only jobs with these words in name or tags, or values like lr=0.01."
        ),
    ] = None,
    imported: Annotated[
        bool | None,
        typer.Option("--imported/--own", help="Only imported jobs, or only jobs that ran here."),
    ] = None,
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="NAME", help="Only jobs of this user.")
    ] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Only your jobs.")] = False,
    order: Annotated[
        JobOrder, typer.Option("--order", help="Running and waiting jobs first, or the newest.")
    ] = JobOrder.ACTIVE,
    limit: Limit = 20,
    json: Json = False,
) -> None:
    """List jobs, running ones first, then waiting ones, and count them by state."""
    with Client() as yard:
        wanted: dict[str, Any] = {
            "states": states or (),
            "tags": tags or (),
            "project": project,
            "search": search,
            "imported": imported,
            "owner": owner,
            "mine": mine,
        }
        jobs = yard.jobs(**wanted, order=order)
        if json:
            write_json(at_most(limit, jobs))
            return
        shown = list(itertools.islice(jobs, limit))  # the rest is counted below
        filtered = imported is not None or any(wanted.values())
        write_text(draw_jobs(shown, filtered=filtered))
        if shown:
            counts = yard.job_counts(**wanted)
            write_text(draw_counts(counts, shown=len(shown)))


def show(reference: JobReference, json: Json = False) -> None:
    """Show a job: state, attempts and their lineage, failure and remedy, next commands."""
    with Client() as yard:
        job = yard.job(resolve_job(yard, reference))
        if json:
            write_json(job)
        else:
            namesakes = itertools.islice(yard.jobs(name=job.name), 2)
            name = job.name if len(list(namesakes)) < 2 else job.id
            write_text(draw_show(job, list(yard.attempts(job.id)), name=name))
            place = yard.queue_place(job.id) if job.state == JobState.QUEUED else None
            if place is not None:
                write_text("", draw_queue([place]))


def queue(
    file: Annotated[
        Path | None,
        typer.Option(
            "--what-if", metavar="FILE", help="Predict the start of this spec; nothing is stored."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")
    ] = 50,
    json: Json = False,
) -> None:
    """List waiting jobs in order, with the reason and the expected start of each."""
    with Client() as yard:
        if file is not None:
            emit(yard.what_if(read_spec_file(file)), draw_what_if, as_json=json)
            return
        shown = at_most(limit, yard.queue())
    emit(shown, draw_queue, as_json=json)


def events(reference: JobReference, limit: Limit = 50, json: Json = False) -> None:
    """List the newest events of a job, the oldest of them first."""
    with Client() as yard:
        job_id = resolve_job(yard, reference)
        shown = at_most(limit, yard.events(job_id))[::-1]
    emit(shown, draw_events, as_json=json)


def nodes(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="cordon|uncordon|drain|undrain NODE | label NODE KEY=VALUE...",
            help="Action on one node; `KEY-` removes a label. Default: list all nodes.",
        ),
    ] = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="With `drain`: let running attempts finish.")
    ] = False,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="With `cordon`: the reason.")
    ] = None,
    json: Json = False,
) -> None:
    """List nodes with their slots and the jobs on them; cordon, drain or label a node.

    `cordon`: the node gets no new attempts, and running ones finish. The server itself cordons a
    node with broken GPUs or repeatedly failing attempts. `uncordon` ends both
    kinds of cordon.

    `drain`: the node gets no new attempts, and running ones save at the next step boundary and
    resume on other nodes, or wait in the queue. A drain uses up no retry, and
    `undrain` ends it.

    `label`: a spec selects nodes by label with `resources.node_selector`.
    """
    with Client() as yard:
        if given:
            _change_node(yard, given, finish=finish, reason=reason)
        shown = list(yard.nodes())
    emit(shown, draw_nodes, as_json=json)
    if json:
        return
    for node in shown:
        if node.notice:
            write_text(f"{node.name} is about to leave: {node.notice}")
        if node.drain is not None and node.drain.reasons:
            why = "; ".join(node.drain.reasons)
            write_text(f"{node.name} was cordoned by {node.drain.by}: {why}")
        for slot in node.withheld:
            write_text(f"slot {slot.slot} of {node.name} is withheld: {slot.reason}")
        for problem in node.problems:
            write_text(f"{node.name} has a problem: {problem}")
        for slow in node.slow_slots:
            slowed = f"slowed {slow.jobs} jobs of the last 30 days"
            write_text(f"slot {slow.slot} of {node.name} {slowed}")


def _change_node(yard: Client, given: list[str], *, finish: bool, reason: str | None) -> None:
    match given:
        case ["cordon", node] if not finish:
            yard.cordon(node, reason=reason)
        case ["uncordon", node] if not finish and reason is None:
            yard.uncordon(node)
        case ["drain", node] if reason is None:
            moving = yard.drain(node, running="finish" if finish else "move").allocations
            if moving and not finish:
                names = ", ".join(holding.job_name for holding in moving)
                note(f"These jobs save, leave {node} and resume elsewhere: {names}.")
        case ["undrain", node] if not finish and reason is None:
            yard.undrain(node)
        case ["label", node, *labels] if labels and not finish and reason is None:
            yard.label_node(node, _labels(labels))
        case _:
            raise UsageError(
                f"`nodes {' '.join(given)}` is not a command.",
                remedy="Write `trainyard nodes drain NODE [--finish]`, "
                "`trainyard nodes cordon NODE [--reason TEXT]`, `trainyard nodes undrain NODE`, "
                "`trainyard nodes uncordon NODE` or `trainyard nodes label NODE KEY=VALUE`.",
            )


def _labels(given: list[str]) -> dict[str, str | None]:
    """Parse changes to labels, such as `zone=a` and `rack-`.

    Raises:
        UsageError: a word has neither of the two forms, or is malformed.
    """
    withdrawn = [word[:-1] for word in given if "=" not in word and word.endswith("-")]
    added = [word for word in given if "=" in word or not word.endswith("-")]
    try:
        return {**dict.fromkeys(withdrawn), **parse_labels(",".join(added))}
    except ValueError as error:
        raise UsageError(f"{error}.", remedy="`KEY-` removes a label.") from None
