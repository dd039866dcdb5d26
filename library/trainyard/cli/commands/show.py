"""`ps`, `show`, `queue`, `events` and `nodes`: jobs, their events, and machines."""

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
        list[JobState] | None, typer.Option("--state", help="Only in this state; repeatable.")
    ] = None,
    tags: Annotated[
        list[str] | None, typer.Option("--tag", help="Only with this tag; repeatable.")
    ] = None,
    project: Annotated[str | None, typer.Option("--project", help="Only of this project.")] = None,
    search: Annotated[
        str | None,
        typer.Option(
            "--search", help="Only with these words in name or tags, or these values, as lr=0.01."
        ),
    ] = None,
    imported: Annotated[
        bool | None,
        typer.Option("--imported/--own", help="Only what another tool recorded, or what ran here."),
    ] = None,
    order: Annotated[
        JobOrder, typer.Option("--order", help="Those that run or wait first, or the newest.")
    ] = JobOrder.ACTIVE,
    limit: Limit = 20,
    json: Json = False,
) -> None:
    """List jobs, those that run first and then those that wait, and count them by state."""
    with Client() as yard:
        wanted: dict[str, Any] = {
            "states": states or (),
            "tags": tags or (),
            "project": project,
            "search": search,
            "imported": imported,
        }
        jobs = yard.jobs(**wanted, order=order)
        if json:
            write_json(at_most(limit, jobs))
            return
        shown = list(itertools.islice(jobs, limit))  # those that are left out are counted below
        filtered = any(value is not None and value != () for value in wanted.values())
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
        typer.Option("--what-if", metavar="FILE", help="When would this spec start?"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Rows at most.")] = 50,
    json: Json = False,
) -> None:
    """List the jobs that wait in their order: reason and expected start; nothing is stored."""
    with Client() as yard:
        if file is not None:
            emit(yard.what_if(read_spec_file(file)), draw_what_if, as_json=json)
            return
        shown = at_most(limit, yard.queue())
    emit(shown, draw_queue, as_json=json)


def events(reference: JobReference, limit: Limit = 50, json: Json = False) -> None:
    """List the events of a job, oldest first."""
    with Client() as yard:
        job_id = resolve_job(yard, reference)
        shown = at_most(limit, yard.events(job_id))[::-1]
    emit(shown, draw_events, as_json=json)


def nodes(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[cordon|uncordon|drain|undrain NODE | label NODE KEY=VALUE...]",
            help="Nothing for all machines, or what to do with one; `KEY-` withdraws a label.",
        ),
    ] = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="Let what runs on the drained node run to its end.")
    ] = False,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why the node is cordoned.")
    ] = None,
    json: Json = False,
) -> None:
    """List the machines, their slots and who holds them; cordon, drain or label one.

    Nothing new is placed on a cordoned node, and what runs there finishes. The server cordons a
    node whose GPUs are broken or on which attempts keep failing; `uncordon` ends that.

    Nothing new is placed on a drained node. Attempts there save at the next step boundary, leave
    and resume on other nodes, or wait in the queue; no retry is used up.

    Labels are what `resources.node_selector` of a spec selects by.
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
                note(f"Save, leave {node} and resume elsewhere: {names}.")
        case ["undrain", node] if not finish and reason is None:
            yard.undrain(node)
        case ["label", node, *labels] if labels and not finish and reason is None:
            yard.label_node(node, _labels(labels))
        case _:
            raise UsageError(
                f"`nodes {' '.join(given)}` is no command.",
                remedy="Write `trainyard nodes drain NODE [--finish]`, "
                "`trainyard nodes cordon NODE [--reason TEXT]`, `trainyard nodes undrain NODE`, "
                "`trainyard nodes uncordon NODE` or `trainyard nodes label NODE KEY=VALUE`.",
            )


def _labels(given: list[str]) -> dict[str, str | None]:
    """Return the changes of `zone=a` and `rack-`.

    Raises:
        UsageError: a word is neither.
    """
    withdrawn = [word[:-1] for word in given if "=" not in word and word.endswith("-")]
    added = [word for word in given if "=" in word or not word.endswith("-")]
    try:
        return {**dict.fromkeys(withdrawn), **parse_labels(",".join(added))}
    except ValueError as error:
        raise UsageError(f"{error}.", remedy="`KEY-` withdraws a label.") from None
