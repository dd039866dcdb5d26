"""`save`, `profile` and `snapshot`: requests to a running trainer; training continues."""

from __future__ import annotations

from typing import Annotated

import typer

from trainyard.cli.errors import FAILED
from trainyard.cli.options import JobReference, Json
from trainyard.cli.output import emit
from trainyard.client.references import resolve_job
from trainyard.client.sdk import Client
from trainyard.protocol.rest.jobs import JobRequestView
from trainyard.run.records import RequestKind

Steps = Annotated[int, typer.Option("--steps", min=1, max=100, help="Steps to record.")]
AllRanks = Annotated[
    bool, typer.Option("--all-ranks", help="Record on every rank. Default: only rank 0.")
]
Answered = Annotated[bool, typer.Option("--wait", "-w", help="Wait for the trainer's answer.")]


def save(reference: JobReference, wait: Answered = False, json: Json = False) -> None:
    """Save a checkpoint of a running job now; training continues."""
    _request(reference, "save", wait=wait, json=json)


def profile(
    reference: JobReference,
    steps: Steps = 3,
    all_ranks: AllRanks = False,
    wait: Answered = False,
    json: Json = False,
) -> None:
    """Record the next steps with torch.profiler; open the files in ui.perfetto.dev.

    The files stay in the run directory on the node. With --wait, the command prints their paths.
    """
    _request(reference, "profile", steps=steps, all_ranks=all_ranks, wait=wait, json=json)


def snapshot(
    reference: JobReference,
    steps: Steps = 3,
    all_ranks: AllRanks = False,
    wait: Answered = False,
    json: Json = False,
) -> None:
    """Record CUDA memory allocations in the next steps; open the files in pytorch.org/memory_viz.

    The files stay in the run directory on the node. With --wait, the command prints their paths.
    """
    _request(reference, "memory_snapshot", steps=steps, all_ranks=all_ranks, wait=wait, json=json)


def _request(
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
    emit(request, _answer, as_json=json)
    if request.answer is not None and not request.answer.ok:
        raise typer.Exit(FAILED)


def _answer(request: JobRequestView) -> str:
    if request.answer is None:
        return "Requested. `trainyard events` will show the answer."
    return request.answer.message
