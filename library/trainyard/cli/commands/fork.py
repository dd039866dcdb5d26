"""`fork`: a new job from a checkpoint of another one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trainyard.base.problems import Problem
from trainyard.cli.commands.watch import end_code, watch_job
from trainyard.cli.errors import explained
from trainyard.cli.options import Follow, Json, Newest, Set
from trainyard.cli.output import write_json, write_text
from trainyard.cli.render import job_line
from trainyard.cli.render_plan import draw_fork
from trainyard.client import spec_file
from trainyard.client.references import newest_checkpoint
from trainyard.client.sdk import Client
from trainyard.client.spec_file import Assignment


def fork(
    reference: Newest,
    settings: Set = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the new job; the old one and -fork.")
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(
            "--parts",
            metavar="model,...",
            help="Parts to load: model, and any of optimizer, counters, data; all that can "
            "continue without this option.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and what stays exact; store nothing.")
    ] = False,
    wait: Follow = False,
    json: Json = False,
) -> None:
    """Start a new job with changed settings from a checkpoint, and list what stays exact."""
    assignments = [spec_file.parse_assignment(text) for text in settings or ()]

    def origin(problem: Problem) -> str | None:
        if problem.pointer.startswith("/parts"):
            return f"--parts {parts}"
        if problem.pointer == "/name" and name is not None:
            return f"--name {name}"
        return spec_file.origin(problem, file=None, assignments=assignments)

    with Client() as yard:
        checkpoint_id = newest_checkpoint(yard, reference)
        with explained(
            origin,
            remedy="docs/forking.md lists what a fork may change and what then stays exact.",
            spec_field=lambda pointer: pointer.removeprefix("/changes"),
        ):
            reply = yard.fork(
                checkpoint_id,
                name=name,
                changes=_changes(assignments),
                parts=parts.split(",") if parts is not None else None,
                dry_run=dry_run,
            )
        if json:
            write_json(reply)
        else:
            if reply.preview is not None:
                write_text(draw_fork(reply.preview), "")
            write_text(job_line(reply.job) if reply.job else "Nothing was stored.")
        if wait and reply.job is not None:
            raise typer.Exit(end_code(watch_job(yard, reply.job.id, as_json=json).state))


def _changes(assignments: list[Assignment]) -> dict[str, Any]:
    """Return the assignments as a JSON merge patch: an empty value takes a field out."""
    changes: dict[str, Any] = {}
    for assignment in assignments:
        section = changes
        for part in assignment.path[:-1]:
            section = section.setdefault(part, {})
        value = spec_file.typed_value(assignment) if assignment.text else None
        section[assignment.path[-1]] = value
    return changes
