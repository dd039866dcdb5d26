"""`ps`, `show`, `events` and `nodes`: what there is."""

from __future__ import annotations

import itertools
from typing import Annotated

import typer

from client.cli.options import JobReference, Json, Limit
from client.cli.output import say, write_json
from client.cli.pages import draw_show
from client.cli.tables import draw_events, draw_jobs, draw_nodes
from client.references import resolve_job
from client.sdk import Trainyard
from specs.states import JobState


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(short_help="List jobs.")(ps)
    app.command(short_help="Show one job whole.")(show)
    app.command(short_help="Say what happened to a job.")(events)
    app.command(short_help="List the machines and their slots.")(nodes)


def ps(
    states: Annotated[
        list[JobState] | None, typer.Option("--state", help="Only in this state; repeatable.")
    ] = None,
    tags: Annotated[
        list[str] | None, typer.Option("--tag", help="Only with this tag; repeatable.")
    ] = None,
    search: Annotated[
        str | None, typer.Option("--search", help="Only with this text in the name.")
    ] = None,
    limit: Limit = 20,
    json: Json = False,
) -> None:
    """List jobs, the newest first."""
    with Trainyard() as yard:
        jobs = yard.jobs(states=states or (), tags=tags or (), search=search)
        shown = list(itertools.islice(jobs, limit))
    if json:
        write_json(shown)
    else:
        say(draw_jobs(shown))


def show(reference: JobReference, json: Json = False) -> None:
    """Show a job: state, attempts and their lineage, failure and advice, what to do next."""
    with Trainyard() as yard:
        job = yard.job(resolve_job(yard, reference))
        if json:
            write_json(job)
        else:
            say(draw_show(job, list(yard.attempts(job.id))))


def events(reference: JobReference, limit: Limit = 50, json: Json = False) -> None:
    """Say what happened to a job, the oldest first."""
    with Trainyard() as yard:
        job_id = resolve_job(yard, reference)
        shown = list(itertools.islice(yard.events(job_id), limit))[::-1]
    if json:
        write_json(shown)
    else:
        say(draw_events(shown))


def nodes(
    drain: Annotated[
        str | None, typer.Option("--drain", metavar="NODE", help="Place nothing new on it.")
    ] = None,
    undrain: Annotated[
        str | None, typer.Option("--undrain", metavar="NODE", help="Place on it again.")
    ] = None,
    json: Json = False,
) -> None:
    """List the machines, their slots and who holds them."""
    with Trainyard() as yard:
        if drain:
            yard.drain(drain)
        if undrain:
            yard.undrain(undrain)
        shown = list(yard.nodes())
    if json:
        write_json(shown)
    else:
        say(draw_nodes(shown))
