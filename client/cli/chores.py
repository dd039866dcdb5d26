"""`chores`: what is and was done to checkpoints, how far it is, and how it ended."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from client.cli import words
from client.cli.listing import Listing
from client.cli.options import Json, Limit
from client.cli.output import say, write_json
from client.cli.tables import SHORT_ID
from client.references import resolve
from client.sdk import Trainyard
from specs.api.chores import ChoreView
from specs.chores import ChoreKind
from specs.states import ChoreState

FAILED = 1
SIGNS = {
    ChoreState.QUEUED: ("○", "blue"),
    ChoreState.RUNNING: ("●", "green"),
    ChoreState.SUCCEEDED: ("✓", "green"),
    ChoreState.FAILED: ("✗", "red"),
    ChoreState.CANCELLED: ("⊘", "dim"),
}
DONE = {
    ChoreKind.VERIFY: "Verified",
    ChoreKind.SCRUB: "Scrubbed",
    ChoreKind.DELETE: "Deleted",
    ChoreKind.EXPORT: "Exported",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(short_help="Show what is done to checkpoints.")(chores)


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
    """Show what is and was done to checkpoints: verifications, scrubs, exports, deletions."""
    with Trainyard() as yard:
        target = resolve(yard, reference) if reference is not None else None
        found = yard.chores(
            job_id=target.job_id if target else None,
            checkpoint_id=target.checkpoint_id if target else None,
            open_only=open_only,
        )
        shown = list(itertools.islice(found, limit))
    write_json(shown) if json else say(draw_chores(shown))


def finish(chore: ChoreView, *, waited: bool, as_json: bool) -> None:
    """Say what became of a chore, or where to look for it.

    Raises:
        typer.Exit: with 1, where it was waited for and has not ended well.
    """
    write_json(chore) if as_json else say(chore_line(chore))
    if waited and not is_well(chore):
        raise typer.Exit(FAILED)


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


def _what(chore: ChoreView) -> str:
    if chore.checkpoint_id is None:
        return f"all of {chore.job_name}"
    return f"{chore.job_name}@{chore.checkpoint_id.split('.', 1)[1]}"


def _share(chore: ChoreView) -> str:
    progress = chore.progress
    if chore.state != ChoreState.RUNNING or progress is None or not progress.total:
        return words.DASH
    return words.share(progress.done / progress.total)


def is_well(chore: ChoreView) -> bool:
    found = chore.outcome.verification if chore.outcome else None
    return chore.state == ChoreState.SUCCEEDED and (found is None or found.ok)


def chore_line(chore: ChoreView) -> Text:
    well = is_well(chore)
    if chore.state in {ChoreState.QUEUED, ChoreState.RUNNING}:
        return Text(f"{chore.kind} of {_what(chore)} is {chore.state}; `trainyard chores` shows it")
    message = chore.outcome.message if chore.outcome else ""
    sign = Text("✓ ", style="green") if well else Text("✗ ", style="red")
    title = f"{DONE[chore.kind]} {_what(chore)}" if well else f"{chore.kind} of {_what(chore)}"
    return Text.assemble(sign, f"{title}: {message}")
