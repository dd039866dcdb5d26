"""`chores`: what is and was done to checkpoints, how far it is, and how it ended."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from trainyard.base.ids import is_id
from trainyard.cli import formats
from trainyard.cli.options import Json, Limit
from trainyard.cli.output import complain, say, write_json
from trainyard.cli.table import Listing
from trainyard.cli.tables import SHORT_ID
from trainyard.client.errors import UnknownReferenceError
from trainyard.client.references import resolve
from trainyard.client.sdk import Client
from trainyard.protocol.chores import ChoreKind
from trainyard.protocol.rest.chores import ChoreView
from trainyard.protocol.states import ChoreState

FAILED, USAGE = 1, 2
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
    ChoreKind.SAMPLE: "Drew from",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(short_help="Show what is done to checkpoints; take it back.")(chores)


def chores(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB | CHECKPOINT] | cancel CHORE",
            help="Only its; all of them without. Or a chore to take back, by its id.",
        ),
    ] = None,
    open_only: Annotated[
        bool, typer.Option("--open", help="Only those that have not ended.")
    ] = False,
    limit: Limit = 20,
    json: Json = False,
) -> None:
    """Show what is and was done to checkpoints: verifications, exports, deletions and so on.

    `cancel` takes one back: at once where it waits, else its node ends it within seconds. A
    deletion that has begun cannot be taken back.
    """
    words_given = given or []
    with Client() as yard:
        if len(words_given) == 2 and words_given[0] == "cancel":
            view = yard.cancel_chore(_chore(yard, words_given[1]))
            write_json(view) if json else say(chore_line(view))
            return
        if len(words_given) > 1:
            complain(
                f"{' '.join(words_given)!r} is neither a job nor a chore to cancel.",
                remedy="Write `trainyard chores [JOB]` or `trainyard chores cancel CHORE`.",
            )
            raise typer.Exit(USAGE)
        target = resolve(yard, words_given[0]) if words_given else None
        found = yard.chores(
            job_id=target.job_id if target else None,
            checkpoint_id=target.checkpoint_id if target else None,
            open_only=open_only,
        )
        shown = list(itertools.islice(found, limit))
    write_json(shown) if json else say(draw_chores(shown))


def _chore(yard: Client, reference: str) -> str:
    """Return the id of an open chore whose id begins like this; a whole id is taken as it is."""
    if is_id(reference):
        return reference
    fitting = [chore.id for chore in yard.chores(open_only=True) if chore.id.startswith(reference)]
    if len(fitting) != 1:
        how = "no open chore has" if not fitting else f"{len(fitting)} open chores have"
        raise UnknownReferenceError(f"{how} an id that begins with {reference!r}.")
    return fitting[0]


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
            chore.node or formats.DASH,
            chore.actor,
            formats.age(chore.created_at),
            Text(_result(chore), style="dim"),
        )
    return rows


def _what(chore: ChoreView) -> str:
    if chore.checkpoint_id is None:
        return f"all of {chore.job_name}"
    return f"{chore.job_name}@{chore.checkpoint_id.split('.', 1)[1]}"


def _share(chore: ChoreView) -> str:
    progress = chore.progress
    if chore.state != ChoreState.RUNNING or progress is None or not progress.total:
        return formats.DASH
    return formats.share(progress.done / progress.total)


def _result(chore: ChoreView) -> str:
    return chore.outcome.message if chore.outcome else chore.waiting or chore.reason


def is_well(chore: ChoreView) -> bool:
    found = chore.outcome.verification if chore.outcome else None
    return chore.state == ChoreState.SUCCEEDED and (found is None or found.ok)


def chore_line(chore: ChoreView) -> Text:
    well = is_well(chore)
    if chore.state in {ChoreState.QUEUED, ChoreState.RUNNING}:
        why = f": {chore.waiting}" if chore.waiting else ""
        where = "`trainyard chores` shows it"
        return Text(f"{chore.kind} of {_what(chore)} is {chore.state}{why}; {where}")
    if chore.state == ChoreState.CANCELLED:
        return Text(f"⊘ {chore.kind} of {_what(chore)} is taken back")
    message = chore.outcome.message if chore.outcome else ""
    sign = Text("✓ ", style="green") if well else Text("✗ ", style="red")
    title = f"{DONE[chore.kind]} {_what(chore)}" if well else f"{chore.kind} of {_what(chore)}"
    return Text.assemble(sign, f"{title}: {message}")
