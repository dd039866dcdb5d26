"""`save`, `profile` and `snapshot`: requests to a running trainer, which continues."""

from __future__ import annotations

from typing import Annotated

import typer

from trainyard.cli.options import JobReference, Json
from trainyard.cli.output import write_json, write_text
from trainyard.client.references import resolve_job
from trainyard.client.sdk import Client
from trainyard.run.records import RequestKind

FAILED = 1
Steps = Annotated[int, typer.Option("--steps", min=1, max=100, help="Steps to record.")]
AllRanks = Annotated[
    bool, typer.Option("--all-ranks", help="Every rank records; the first one without.")
]
Answered = Annotated[bool, typer.Option("--wait", "-w", help="Until the trainer has answered.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(short_help="Save a checkpoint now, and go on.")(save)
    app.command(short_help="Record the next steps with torch.profiler.")(profile)
    app.command(short_help="Record what takes the memory of a GPU.")(snapshot)


def save(reference: JobReference, wait: Answered = False, json: Json = False) -> None:
    """Save a checkpoint now, and continue training."""
    _ask(reference, "save", wait=wait, json=json)


def profile(
    reference: JobReference,
    steps: Steps = 3,
    all_ranks: AllRanks = False,
    wait: Answered = False,
    json: Json = False,
) -> None:
    """Record the next steps with torch.profiler, for ui.perfetto.dev.

    The files stay in the run directory on the node; with --wait they are named when they are there.
    """
    _ask(reference, "profile", steps=steps, all_ranks=all_ranks, wait=wait, json=json)


def snapshot(
    reference: JobReference,
    steps: Steps = 3,
    all_ranks: AllRanks = False,
    wait: Answered = False,
    json: Json = False,
) -> None:
    """Record CUDA's allocator over the next steps, for pytorch.org/memory_viz.

    The files stay in the run directory on the node; with --wait they are named when they are there.
    """
    _ask(reference, "memory_snapshot", steps=steps, all_ranks=all_ranks, wait=wait, json=json)


def _ask(
    reference: str,
    kind: RequestKind,
    *,
    steps: int = 3,
    all_ranks: bool = False,
    wait: bool,
    json: bool,
) -> None:
    with Client() as yard:
        job_id = resolve_job(yard, reference)
        request = yard.request(job_id, kind, steps=steps, ranks="all" if all_ranks else "first")
        if wait:
            request = yard.wait_for_answer(job_id, request.id)
    answer = request.answer
    if json:
        write_json(request)
    else:
        write_text(
            "Requested; `trainyard events` has the answer." if answer is None else answer.message
        )
    if answer is not None and not answer.ok:
        raise typer.Exit(FAILED)
