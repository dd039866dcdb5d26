"""`stop`, `cancel`, `kill`, `priority`, `resume` and `delete`: commands that change a job."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from trainyard.cli import formats
from trainyard.cli.commands.watch import end_code, watch_job
from trainyard.cli.errors import FAILED, explained
from trainyard.cli.listings import draw_options
from trainyard.cli.options import Follow, JobReference, Json, Reason, Set, Wait, Yes
from trainyard.cli.output import emit, has_terminal, note, write_json, write_text
from trainyard.cli.render import job_line
from trainyard.cli.render_plan import draw_preview
from trainyard.client import spec_file
from trainyard.client.errors import UsageError
from trainyard.client.references import resolve, resolve_job
from trainyard.client.sdk import Client
from trainyard.client.spec_file import Assignment
from trainyard.protocol.attempt import SECTIONS, SINGLE_FIELDS
from trainyard.protocol.rest.jobs import CancelReply, JobView
from trainyard.spec.sections.resources import priority_words

OVERRIDES = {field: name for name, field in SINGLE_FIELDS.items()}
"""Name of the override for each spec field that a resume can override alone. All other overrides
replace a whole section."""


def stop(
    reference: JobReference,
    reason: Reason = "",
    wait: Wait = False,
    json: Json = False,
) -> None:
    """Save a checkpoint, then end the job; the job can resume later."""
    with Client() as yard:
        job = yard.stop(resolve_job(yard, reference), reason=reason)
        if wait:
            job = yard.wait(job.id)
    emit(job, job_line, as_json=json)


def cancel(
    reference: JobReference, reason: Reason = "", yes: Yes = False, json: Json = False
) -> None:
    """End a job now without saving; show the lost steps and prompt for confirmation."""
    with Client() as yard:
        job_id = resolve_job(yard, reference)
        if not yes:
            job = yard.job(job_id)
            confirm(f"Cancel {job.name}? {_at_risk(yard, job)}", flag="--yes, or `trainyard kill`")
        reply = yard.cancel(job_id, reason=reason)
    emit(reply, _cancelled, as_json=json)


def kill(reference: JobReference, reason: Reason = "", json: Json = False) -> None:
    """Cancel a job without confirmation."""
    cancel(reference, reason, yes=True, json=json)


def priority(
    reference: JobReference,
    given: Annotated[
        str,
        typer.Argument(metavar="PRIORITY", help="low, normal, high, or a number, -100 to 100."),
    ],
    json: Json = False,
) -> None:
    """Change the priority of a waiting or running job.

    Write a negative number after --: `trainyard priority JOB -- -20`.
    """
    with Client() as yard:
        number = re.fullmatch(r"[+-]?\d+", given)
        job = yard.set_priority(resolve_job(yard, reference), int(given) if number else given)
        if json:
            write_json(job)
        else:
            write_text(job_line(job), f"Priority: {priority_words(job.priority)}")


def _cancelled(reply: CancelReply) -> RenderableType:
    return Group(job_line(reply.job), f"Lost: {reply.lost}" if reply.lost else "Nothing is lost.")


def _at_risk(yard: Client, job: JobView) -> str:
    """Return the work that a cancellation would lose, as text."""
    saved = max((c.step for c in yard.checkpoints(job.id) if c.on_lineage), default=0)
    if not formats.has_step(job.progress, job.state):
        return "Its work since the last save would be lost; it has reported no step."
    steps = max(job.progress.step - saved, 0)
    return f"{formats.counted(steps, 'step')} since the last checkpoint would be lost."


def resume(
    reference: Annotated[
        str, typer.Argument(metavar="JOB", help="Job, or JOB@step-400 to go back to that step.")
    ],
    world_size: Annotated[
        int | None,
        typer.Option("--world-size", min=1, help="Number of slots. Default: unchanged."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="New total number of steps.")
    ] = None,
    settings: Set = None,
    allow_code_change: Annotated[
        bool,
        typer.Option(
            "--allow-code-change",
            help="Resume even if the files of model.code or model.hugging_face have changed.",
        ),
    ] = False,
    options: Annotated[
        bool, typer.Option("--options", help="Only list the legal world sizes.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the changes.")] = False,
    wait: Follow = False,
    json: Json = False,
) -> None:
    """Resume from the newest checkpoint, or an older one, on any legal number of slots."""
    with Client() as yard:
        target = resolve(yard, reference)
        if options:
            emit(yard.resume_options(target.job_id), draw_options, as_json=json)
            return
        assignments = [spec_file.parse_assignment(text) for text in settings or ()]
        job = yard.job(target.job_id)
        _warn_of_a_repeat(job, assignments)
        with explained(
            partial(spec_file.origin, file=None, assignments=assignments),
            remedy=f"`trainyard resume {target.job_id} --options` lists the legal world sizes.",
            spec_field=_spec_field,
        ):
            reply = yard.resume(
                target.job_id,
                world_size=world_size,
                steps=steps,
                checkpoint_id=target.checkpoint_id,
                overrides=_overrides(job, assignments) if assignments else None,
                allow_code_change=allow_code_change,
                dry_run=dry_run,
            )
        if json:
            write_json(reply)
        else:
            write_text(draw_preview(reply.preview))
            write_text("\nNothing was changed." if dry_run else "", job_line(reply.job))
        if wait and not dry_run:
            raise typer.Exit(end_code(watch_job(yard, target.job_id, as_json=json).state))


def _warn_of_a_repeat(job: JobView, assignments: Iterable[Assignment]) -> None:
    """Warn if a resume with these assignments would fail as the newest attempt did."""
    action = job.next_action
    if action is None:
        return
    if action.verb != "resume":
        note(f"Warning: {action.text}")
        return
    if action.setting is None:
        return
    field = spec_file.parse_assignment(action.setting).path
    if all(assignment.path != field for assignment in assignments):
        note(f"Warning: {action.text} Use --set {action.setting}.")


def _overrides(job: JobView, assignments: Iterable[Assignment]) -> dict[str, Any]:
    """Return the overrides for the assignments.

    Most overrides replace a whole section; values without an assignment are those of the newest
    attempt.

    Raises:
        UsageError: a resume may not change one of the fields.
    """
    listed = list(assignments)
    for assignment in listed:
        _check(assignment)
    spec = job.current_attempt.overrides.apply(job.spec) if job.current_attempt else job.spec
    document = spec.model_dump(mode="json")
    changed = spec_file.apply(document, listed)
    overrides: dict[str, Any] = {}
    for assignment in listed:
        section, field = assignment.path[0], ".".join(assignment.path)
        if field in OVERRIDES:
            overrides[OVERRIDES[field]] = changed[section][assignment.path[1]]
        else:
            overrides[section] = changed[section]
    return overrides


def _check(assignment: Assignment) -> None:
    field = ".".join(assignment.path)
    if assignment.path[0] in SECTIONS and len(assignment.path) > 1:
        return
    if field in OVERRIDES and assignment.text:
        return
    legal = ", ".join([*OVERRIDES, *(f"{section}.*" for section in SECTIONS)])
    raise UsageError(f"{assignment}: it would change the result.\n  A resume may change {legal}.")


def _spec_field(pointer: str) -> str:
    """Return the spec field that an override sets: `/training/steps` for `/overrides/steps`."""
    field = pointer.removeprefix("/overrides").removeprefix("/")
    return f"/{SINGLE_FIELDS.get(field, field).replace('.', '/')}"


def delete(
    reference: JobReference,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Delete the job's checkpoints too.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete a finished job; with --checkpoints, delete its checkpoints too."""
    with Client() as yard:
        job = yard.job(resolve_job(yard, reference))
        if not yes:
            what = "and its checkpoints" if checkpoints else "and keep its checkpoints"
            confirm(f"Delete {job.name} {what}?", flag="--yes")
        operations = yard.delete(job.id, checkpoints="delete" if checkpoints else "keep")
    going = "; its checkpoints are being deleted: `trainyard operations`" if operations else ""
    write_text(f"Deleted {job.name}{going}.")


def confirm(question: str, *, flag: str) -> None:
    """Prompt for confirmation, and exit with 1 if it is refused.

    Raises:
        UsageError: there is no terminal; the error names `flag`.
    """
    if not has_terminal():
        raise UsageError(question, remedy=f"There is no terminal for an answer: use {flag}.")
    if not typer.confirm(question, err=True):
        raise typer.Exit(FAILED)
