"""`checkpoints`: the catalog of a job, and operations on it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from trainyard.cli import formats
from trainyard.cli.commands.jobs import confirm
from trainyard.cli.commands.operations import finish
from trainyard.cli.options import Json, Limit, Wait, Yes
from trainyard.cli.output import emit, facts
from trainyard.cli.table import Listing
from trainyard.client.errors import UnknownReferenceError, UsageError
from trainyard.client.references import resolve
from trainyard.client.sdk import Client
from trainyard.protocol.rest.checkpoints import CheckpointDetails, CheckpointView

VERBS = ("verify", "pin", "unpin", "delete")


def checkpoints(
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB | [verify|pin|unpin|delete] CHECKPOINT",
            help="A job to list, a checkpoint such as JOB@step-400 to show, or a verb before one.",
        ),
    ],
    limit: Limit = 50,
    wait: Wait = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """List a job's checkpoints, show writers and cost of one, or act on it.

    `verify` compares every file with its checksum and loads every tensor; with --wait it exits with
    1 when it finds damage. `pin` exempts a checkpoint from retention. `delete` is rejected with the
    reason while the checkpoint is in use.
    """
    with Client() as yard:
        if len(given) == 1:
            target = resolve(yard, given[0])
            if target.checkpoint_id is not None:
                emit(yard.checkpoint(target.checkpoint_id), draw_checkpoint, as_json=json)
                return
            shown = list(itertools.islice(yard.checkpoints(target.job_id), limit))
            emit(shown, draw_checkpoints, as_json=json)
            return
        if len(given) != 2 or given[0] not in VERBS:
            raise UsageError(
                f"{' '.join(given)!r} is neither a job nor something to do with a checkpoint.",
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
    """Return the catalog of a job."""
    if not shown:
        return Text("No checkpoints yet.")
    rows = Listing("STEP", "TRY", "KIND", "SIZE", "FILES", "LAYOUT", "DTYPE", "WRITTEN", "VERIFIED",
                   "PINNED", "AGE", "ID",
                   right=("STEP", "TRY", "SIZE", "FILES", "AGE"),
                   spare=("FILES", "DTYPE", "LAYOUT", "TRY", "WRITTEN", "KIND", "AGE", "PINNED",
                          "SIZE"))  # fmt: skip
    for c in shown:
        left = "" if c.on_lineage else " (left branch)"
        rows.add(
            f"{c.step:,}",
            str(c.attempt),
            f"{c.kind}{' (being deleted)' if c.deleting else left}",
            formats.size(c.size),
            str(c.files),
            c.layout,
            c.dtype,
            written(c),
            _verified(c),
            "yes" if c.pinned_at is not None else formats.DASH,
            formats.age(c.created_at),
            c.id,
            style="" if c.on_lineage and not c.deleting else "dim",
        )
    return rows


def draw_checkpoint(one: CheckpointDetails) -> RenderableType:
    """Return content, writers and cost of a checkpoint."""
    stall = "not known" if one.stall_seconds is None else f"{one.stall_seconds:.2f} s"
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
                ("weights", one.dtype),
                ("data position", f"sequence {data.position:,}, {data.consumed:,} trained on"),
                ("spec", one.manifest.spec_digest),
                ("came from", one.parent or "the start"),
                ("verified", _verified(one)),
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


def written(checkpoint: CheckpointView) -> str:
    """Return `2 writers, 1.3 GiB/s, stall 0.02 s`; without writers, how long the save took."""
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
            f"{reference} is a job: name one of its checkpoints, as {reference}@step-400."
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
