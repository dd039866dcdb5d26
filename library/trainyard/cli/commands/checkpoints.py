"""`checkpoints`: lists, checks and changes checkpoints; `fork`: starts a job from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from trainyard.base.problems import Problem
from trainyard.cli import formats
from trainyard.cli.commands.jobs import confirm
from trainyard.cli.commands.operations import finish
from trainyard.cli.commands.watch import end_code, watch_job
from trainyard.cli.errors import explained
from trainyard.cli.options import Follow, Json, Limit, Newest, Set, Wait, Yes
from trainyard.cli.output import at_most, emit, facts, write_json, write_text
from trainyard.cli.render import job_line
from trainyard.cli.render_plan import draw_fork
from trainyard.cli.table import Listing
from trainyard.client import spec_file
from trainyard.client.errors import UnknownReferenceError, UsageError
from trainyard.client.references import newest_checkpoint, resolve
from trainyard.client.sdk import Client
from trainyard.client.spec_file import Assignment
from trainyard.protocol.rest.checkpoints import CheckpointDetails, CheckpointView
from trainyard.run.checkpoints.program_manifest import ProgramManifest

MAX_SHOWN_FILES = 50
"""Maximum number of files to list for a program's checkpoint."""
VERBS = ("verify", "pin", "unpin", "delete")


def checkpoints(
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB | [verify|pin|unpin|delete] CHECKPOINT",
            help="JOB lists its checkpoints; CHECKPOINT, such as JOB@step-400, shows one.",
        ),
    ],
    limit: Limit = 50,
    wait: Wait = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """List a job's checkpoints; show, verify, pin, unpin or delete one.

    `verify` compares every file with its checksum and, except for a program's checkpoint, loads
    every tensor; with --wait, it exits with 1 if it finds damage. `pin` exempts a checkpoint from
    retention. `delete` is rejected, with the reason, while the checkpoint is in use.
    """
    with Client() as yard:
        if len(given) == 1:
            target = resolve(yard, given[0])
            if target.checkpoint_id is not None:
                emit(yard.checkpoint(target.checkpoint_id), draw_checkpoint, as_json=json)
                return
            shown = at_most(limit, yard.checkpoints(target.job_id))
            emit(shown, draw_checkpoints, as_json=json)
            return
        if len(given) != 2 or given[0] not in VERBS:
            raise UsageError(
                f"{' '.join(given)!r} is neither a job nor an action on a checkpoint.",
                remedy=f"Write `trainyard checkpoints JOB`, or one of {', '.join(VERBS)} "
                "before JOB@step-N.",
            )
        verb = given[0]
        checkpoint_id = _checkpoint(yard, given[1], exact=verb == "delete")
        if verb in {"pin", "unpin"}:
            before = yard.checkpoint(checkpoint_id)
            view = yard.pin(checkpoint_id) if verb == "pin" else yard.unpin(checkpoint_id)
            emit(view, partial(_pinned_line, before=before), as_json=json)
            return
        if verb == "delete" and not yes:
            confirm(f"Delete {checkpoint_id} from storage?", flag="--yes")
        operation = (
            yard.verify(checkpoint_id)
            if verb == "verify"
            else yard.delete_checkpoint(checkpoint_id)
        )
        if wait:
            operation = yard.wait_for_operation(operation.id)
    finish(operation, waited=wait, as_json=json)


def draw_checkpoints(shown: Sequence[CheckpointView]) -> RenderableType:
    """Return the catalog of a job as a table."""
    if not shown:
        return Text("No checkpoints yet.")
    rows = Listing("STEP", "TRY", "KIND", "SIZE", "FILES", "LAYOUT", "DTYPE", "WRITTEN", "VERIFIED",
                   "EXPORT", "PINNED", "AGE", "ID",
                   right=("STEP", "TRY", "SIZE", "FILES", "AGE"),
                   spare=("FILES", "DTYPE", "LAYOUT", "TRY", "WRITTEN", "KIND", "AGE", "PINNED",
                          "SIZE", "EXPORT"))  # fmt: skip
    for c in shown:
        left = "" if c.on_lineage else " (abandoned)"
        rows.add(
            f"{c.step:,}",
            str(c.attempt),
            f"{c.kind}{_deletion(c) if c.deleting else left}",
            formats.size(c.size),
            str(c.files),
            c.layout,
            c.dtype or formats.DASH,
            written(c),
            _verified(c),
            _exported(c),
            "yes" if c.pinned_at is not None else formats.DASH,
            formats.age(c.created_at),
            c.id,
            style="" if c.on_lineage and not c.deleting else "dim",
        )
    reasons = [(c, why) for c in shown for why in (not_deleted(c), not_exported(c)) if why]
    failing = [Text(f"{c.id}: {why}", style="red") for c, why in reasons]
    return Group(rows, *failing) if failing else rows


def not_exported(checkpoint: CheckpointView) -> str | None:
    """Return why the automatic export of a checkpoint failed; None if it did not fail."""
    export = checkpoint.auto_export
    if export is None or export.message is None:
        return None
    again = "" if export.ended_at else ", is tried again"
    return f"not exported{again}: {export.message}"


def _deletion(checkpoint: CheckpointView) -> str:
    return " (being deleted)" if checkpoint.not_deleted is None else " (not deleted)"


def not_deleted(checkpoint: CheckpointView) -> str | None:
    """Return why and how often the deletion of a checkpoint failed; None if no deletion failed."""
    failing = checkpoint.not_deleted
    return None if failing is None else f"not deleted: {formats.failed_tries(failing)}"


def draw_checkpoint(one: CheckpointDetails) -> RenderableType:
    """Return the content, writers and cost of a checkpoint as text."""
    if isinstance(one.manifest, ProgramManifest):
        return _draw_of_program(one, one.manifest)
    stall = "unknown" if one.stall_seconds is None else f"{one.stall_seconds:.2f} s"
    data = one.manifest.train_state.data
    lines: list[RenderableType] = [
        Text(
            f"{one.id}: {formats.size(one.size)} in {formats.counted(one.files, 'file')}, "
            f"{one.layout}"
        ),
        Text(f"Saved in {one.save_seconds:.2f} s; training waited: {stall}."),
        facts(
            (
                ("place", one.place),
                ("weights", one.dtype or formats.DASH),
                ("data position", f"sequence {data.position:,}, {data.consumed:,} trained on"),
                ("spec", one.manifest.spec_digest),
                ("parent", one.parent or "none"),
                ("verified", _verified(one)),
                *_facts_of_export(one),
                *_facts_of_deletion(one),
            ),
            indent=0,
        ),
    ]
    if not one.manifest.writers:
        return Group(*lines, Text("Its manifest does not list its writers."))
    rows = Listing("RANK", "SIZE", "FILES", "SECONDS", "BANDWIDTH",
                   right=("RANK", "SIZE", "FILES", "SECONDS", "BANDWIDTH"))  # fmt: skip
    for writer in one.manifest.writers:
        rows.add(
            str(writer.rank),
            formats.size(writer.size),
            str(writer.files),
            f"{writer.write_seconds:.2f}",
            formats.bandwidth(writer.size, writer.write_seconds),
        )
    return Group(*lines, rows)


def _facts_of_export(one: CheckpointView) -> list[tuple[str, str | Text]]:
    """Return the result of the automatic export, or why there is none yet."""
    export = one.auto_export
    if export is None:
        return []
    shown: str | Text = not_exported(one) or _exported(one)
    if export.result is not None:
        size = f"{export.result.format}, {formats.size(export.result.size)}"
        shown = f"{export.result.path} ({size}, {formats.age(export.ended_at)} ago)"
    return [("export", shown)]


def _exported(checkpoint: CheckpointView) -> Text:
    export = checkpoint.auto_export
    if export is None:
        return Text(formats.DASH)
    if export.result is not None:
        return Text(f"✓ {export.result.format}", style="green")
    return Text(export.state, style="red" if export.message else "")


def _facts_of_deletion(one: CheckpointView) -> list[tuple[str, str]]:
    why = not_deleted(one)
    return [("deletion", why)] if why else []


def _draw_of_program(one: CheckpointDetails, manifest: ProgramManifest) -> RenderableType:
    rows = Listing("FILE", "SIZE", manifest.algorithm.upper(), right=("SIZE",))
    for file in manifest.files[:MAX_SHOWN_FILES]:
        rows.add(file.path, formats.size(file.size), file.checksum[:16])
    more = len(manifest.files) - MAX_SHOWN_FILES
    lines: list[RenderableType] = [
        Text(
            f"{one.id}: {formats.size(one.size)} in {formats.counted(one.files, 'file')}, saved by "
            f"a program on {formats.counted(manifest.world_size, 'rank')} in "
            f"{one.save_seconds:.2f} s."
        ),
        facts(
            (
                ("place", one.place),
                ("parent", one.parent or "none"),
                ("verified", _verified(one)),
                *_facts_of_deletion(one),
            ),
            indent=0,
        ),
        rows,
    ]
    return Group(*lines, *([Text(f"... and {more:,} more.")] if more > 0 else []))


def written(checkpoint: CheckpointView) -> str:
    """Return `2 writers, 1.3 GiB/s, stall 0.02 s`; without a count, `in 1.50 s, stall 0.02 s`."""
    count, stall = checkpoint.writers, checkpoint.stall_seconds
    if count is None:
        parts = [f"in {checkpoint.save_seconds:.2f} s"]
    else:
        speed = formats.bandwidth(checkpoint.size, checkpoint.write_seconds)
        parts = [formats.counted(count, "writer"), speed]
    if stall is not None:
        parts.append(f"stall {stall:.2f} s")
    return ", ".join(parts)


def _checkpoint(yard: Client, reference: str, *, exact: bool) -> str:
    target = resolve(yard, reference, exact=exact)
    if target.checkpoint_id is None:
        raise UnknownReferenceError(
            f"{reference} is a job: name one of its checkpoints, such as {reference}@step-400."
        )
    return target.checkpoint_id


def _verified(checkpoint: CheckpointView) -> Text:
    found = checkpoint.verification
    if found is None:
        return Text(formats.DASH)
    if not found.ok:
        return Text(f"✗ {found.fault}", style="red")
    how = "checksums" if found.loaded_at is None else "loaded"
    return Text(f"✓ {how}, {formats.age(found.at)} ago", style="green")


def _pinned_line(view: CheckpointDetails, before: CheckpointDetails) -> str:
    is_pinned = view.pinned_at is not None
    if view.pinned_at != before.pinned_at:
        return f"{view.id} is {'pinned' if is_pinned else 'no longer pinned'}."
    how = f"was pinned already, by {view.pinned_by}" if is_pinned else "was not pinned"
    return f"{view.id} {how}: nothing changed."


def fork(
    reference: Newest,
    settings: Set = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the new job. Default: OLD-fork.")
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(
            "--parts",
            metavar="model,...",
            help="Parts to load: model, and any of optimizer, counters, data. Default: all that "
            "can continue.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the plan and what stays exact.")
    ] = False,
    wait: Follow = False,
    json: Json = False,
) -> None:
    """Start a new job from a checkpoint, with changed settings; list the parts that stay exact."""
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
            remedy="docs/forking.md lists the changes that a fork may make, and their effects.",
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
    """Return the assignments as a JSON merge patch, in which an empty value removes a field."""
    changes: dict[str, Any] = {}
    for assignment in assignments:
        section = changes
        for part in assignment.path[:-1]:
            section = section.setdefault(part, {})
        value = spec_file.typed_value(assignment) if assignment.text else None
        section[assignment.path[-1]] = value
    return changes
