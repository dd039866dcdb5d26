"""`checkpoints` and `chores`: the catalog of a job, what is done to it, and how far that is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from client.cli import words
from client.cli.acting import confirm
from client.cli.listing import Listing
from client.cli.options import Json, Limit, Yes
from client.cli.output import complain, say, write_json
from client.cli.tables import SHORT_ID
from client.errors import UnknownReferenceError
from client.references import resolve
from client.sdk import Trainyard
from specs.api.chores import ChoreView
from specs.api.telemetry import CheckpointDetails, CheckpointView
from specs.chores import ChoreKind
from specs.states import ChoreState

FAILED, USAGE = 1, 2
VERBS = ("verify", "pin", "unpin", "delete")
SIGNS = {
    ChoreState.QUEUED: ("○", "blue"),
    ChoreState.RUNNING: ("●", "green"),
    ChoreState.SUCCEEDED: ("✓", "green"),
    ChoreState.FAILED: ("✗", "red"),
    ChoreState.CANCELLED: ("⊘", "dim"),
}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(short_help="List a job's checkpoints; verify, pin, unpin or delete one.")(
        checkpoints
    )
    app.command(short_help="Show what is done to checkpoints.")(chores)


def checkpoints(
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB | [verify|pin|unpin|delete] CHECKPOINT",
            help="A job to list, a checkpoint such as JOB@step-400 to show, or what to do with it.",
        ),
    ],
    limit: Limit = 50,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Until a verification or deletion has ended.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """List a job's checkpoints, show who wrote one and what it cost, or act on it.

    `verify` compares every file with its checksum and loads every tensor; with --wait it exits with
    1 when something is wrong. `pin` keeps a checkpoint whatever retention says. `delete` is refused
    with the reason where somebody needs it.
    """
    with Trainyard() as yard:
        if len(given) == 1:
            target = resolve(yard, given[0])
            if target.checkpoint_id is not None:
                one = yard.checkpoint(target.checkpoint_id)
                write_json(one) if json else say(draw_checkpoint(one))
                return
            shown = list(itertools.islice(yard.checkpoints(target.job_id), limit))
            write_json(shown) if json else say(draw_checkpoints(shown))
            return
        if len(given) != 2 or given[0] not in VERBS:
            complain(
                f"{' '.join(given)!r} is neither a job nor something to do with a checkpoint.",
                advice=f"Write `trainyard checkpoints JOB`, or one of {', '.join(VERBS)} "
                "before JOB@step-N.",
            )
            raise typer.Exit(USAGE)
        verb, checkpoint_id = given[0], _checkpoint(yard, given[1])
        if verb in {"pin", "unpin"}:
            view = yard.pin(checkpoint_id) if verb == "pin" else yard.unpin(checkpoint_id)
            write_json(view) if json else say(_pinned_line(view))
            return
        if verb == "delete" and not yes:
            confirm(f"Delete {checkpoint_id} from storage?", flag="--yes")
        chore = (
            yard.verify(checkpoint_id)
            if verb == "verify"
            else yard.delete_checkpoint(checkpoint_id)
        )
        if wait:
            chore = yard.wait_for_chore(chore.id)
    write_json(chore) if json else say(_chore_line(chore))
    if wait and not _is_well(chore):
        raise typer.Exit(FAILED)


def chores(
    reference: Annotated[
        str | None,
        typer.Argument(metavar="[JOB | CHECKPOINT]", help="Only its; all of them without."),
    ] = None,
    open_only: Annotated[
        bool, typer.Option("--open", help="Only those that have not ended.")
    ] = False,
    limit: Limit = 20,
    json: Json = False,
) -> None:
    """Show what is and was done to checkpoints: verifications, scrubs, deletions."""
    with Trainyard() as yard:
        target = resolve(yard, reference) if reference is not None else None
        found = yard.chores(
            job_id=target.job_id if target else None,
            checkpoint_id=target.checkpoint_id if target else None,
            open_only=open_only,
        )
        shown = list(itertools.islice(found, limit))
    write_json(shown) if json else say(draw_chores(shown))


def draw_checkpoints(shown: Sequence[CheckpointView]) -> RenderableType:
    """Return the catalog of a job."""
    if not shown:
        return Text("No checkpoints yet.")
    rows = Listing("STEP", "TRY", "KIND", "SIZE", "FILES", "LAYOUT", "WRITTEN", "VERIFIED",
                   "PINNED", "AGE", "ID",
                   right=("STEP", "TRY", "SIZE", "FILES", "AGE"),
                   spare=("FILES", "LAYOUT", "TRY", "WRITTEN", "KIND", "AGE", "PINNED",
                          "SIZE"))  # fmt: skip
    for c in shown:
        left = "" if c.on_lineage else " (left branch)"
        rows.add(
            f"{c.step:,}",
            str(c.attempt),
            f"{c.kind}{' (being deleted)' if c.deleting else left}",
            words.size(c.size),
            str(c.files),
            c.layout,
            written(c),
            _verified(c),
            "yes" if c.pinned_at is not None else words.DASH,
            words.age(c.created_at),
            c.id,
            style="" if c.on_lineage and not c.deleting else "dim",
        )
    return rows


def draw_checkpoint(one: CheckpointDetails) -> RenderableType:
    """Return who wrote a checkpoint, and what it cost."""
    stall = "not known" if one.stall_seconds is None else f"{one.stall_seconds:.2f} s"
    lines = [
        Text(f"{one.id}: {words.size(one.size)} in {one.files} file{_s(one.files)}, {one.layout}"),
        Text(f"Saved in {one.save_seconds:.2f} s; training waited: {stall}."),
    ]
    if not one.manifest.writers:
        return Group(*lines, Text("Its manifest does not say who wrote it."))
    rows = Listing("RANK", "SIZE", "FILES", "SECONDS", "BANDWIDTH",
                   right=("RANK", "SIZE", "FILES", "SECONDS", "BANDWIDTH"))  # fmt: skip
    for writer in one.manifest.writers:
        rows.add(
            str(writer.rank),
            words.size(writer.size),
            str(writer.files),
            f"{writer.write_seconds:.2f}",
            words.bandwidth(writer.size, writer.write_seconds),
        )
    return Group(*lines, rows)


def written(checkpoint: CheckpointView) -> str:
    """Return `2 writers, 1.3 GiB/s, stall 0.02 s`; without writers, how long the save took."""
    count, stall = checkpoint.writers, checkpoint.stall_seconds
    if count is None:
        parts = [f"in {checkpoint.save_seconds:.2f} s"]
    else:
        speed = words.bandwidth(checkpoint.size, checkpoint.write_seconds)
        parts = [f"{count} writer{_s(count)}", speed]
    if stall is not None:
        parts.append(f"stall {stall:.2f} s")
    return ", ".join(parts)


def draw_chores(shown: Sequence[ChoreView]) -> RenderableType:
    """Return chores, the newest first."""
    if not shown:
        return Text("Nothing is being done, and nothing was.")
    rows = Listing("ID", "WHAT", "CHECKPOINT", "STATE", "DONE", "NODE", "BY", "AGE", "RESULT",
                   right=("DONE", "AGE"), spare=("BY", "NODE", "AGE", "ID"),
                   elastic="RESULT")  # fmt: skip
    for chore in shown:
        sign, style = SIGNS[chore.state]
        rows.add(
            chore.id[:SHORT_ID],
            chore.kind,
            _what(chore),
            Text(f"{sign} {chore.state}", style=style),
            _share(chore),
            chore.node or words.DASH,
            chore.actor,
            words.age(chore.created_at),
            Text(chore.outcome.message if chore.outcome else chore.reason, style="dim"),
        )
    return rows


def _checkpoint(yard: Trainyard, reference: str) -> str:
    target = resolve(yard, reference)
    if target.checkpoint_id is None:
        raise UnknownReferenceError(
            f"{reference} is a job: name one of its checkpoints, as {reference}@step-400."
        )
    return target.checkpoint_id


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _verified(checkpoint: CheckpointView) -> Text:
    found = checkpoint.verification
    if found is None:
        return Text(words.DASH)
    if not found.ok:
        return Text(f"✗ {found.fault}", style="red")
    how = "checksums" if found.loaded_at is None else "loaded"
    return Text(f"✓ {how}, {words.age(found.at)} ago", style="green")


def _what(chore: ChoreView) -> str:
    if chore.checkpoint_id is None:
        return f"all of {chore.job_name}"
    return f"{chore.job_name}@{chore.checkpoint_id.split('.', 1)[1]}"


def _share(chore: ChoreView) -> str:
    progress = chore.progress
    if chore.state != ChoreState.RUNNING or progress is None or not progress.total:
        return words.DASH
    return words.share(progress.done / progress.total)


def _is_well(chore: ChoreView) -> bool:
    found = chore.outcome.verification if chore.outcome else None
    return chore.state == ChoreState.SUCCEEDED and (found is None or found.ok)


def _chore_line(chore: ChoreView) -> Text:
    well = _is_well(chore)
    done = {ChoreKind.DELETE: "Deleted"}.get(chore.kind, "Verified")
    if chore.state in {ChoreState.QUEUED, ChoreState.RUNNING}:
        return Text(f"{chore.kind} of {_what(chore)} is {chore.state}; `trainyard chores` shows it")
    message = chore.outcome.message if chore.outcome else ""
    sign = Text("✓ ", style="green") if well else Text("✗ ", style="red")
    title = f"{done} {_what(chore)}" if well else f"{chore.kind} of {_what(chore)}"
    return Text.assemble(sign, f"{title}: {message}")


def _pinned_line(view: CheckpointDetails) -> str:
    return f"{view.id} is {'pinned' if view.pinned_at is not None else 'no longer pinned'}."
