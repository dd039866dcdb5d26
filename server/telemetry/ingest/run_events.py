"""Applies the events of a run: catalogs commits, stores answers, and appends other events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import update

from server.core.database.tables import attempt_nodes, attempts, requests
from server.core.subject import TRAINER
from server.jobs.checkpoints.catalog import record_commits, record_stall
from server.jobs.ranks.store import (
    places_of,
    record_found,
    record_gone,
    record_times,
    straggler_words,
)
from server.telemetry.ingest.parse import AnsweredRequest, Comparison
from server.telemetry.ingest.report import IncomingReport
from server.telemetry.metrics.lineage_values import measure
from server.telemetry.metrics.rank_steps import reached_by_all
from trainyard.protocol.manifest import Manifest, SaveFailed, SaveSettled
from trainyard.protocol.rest.event_data import (
    PhaseEntered,
    RequestAnswered,
    Resumed,
    StopAgreed,
    WeightsLoaded,
)
from trainyard.protocol.rest.metrics_and_logs import (
    RankTimes,
    RankTimesStored,
    StragglerFound,
    StragglerGone,
)
from trainyard.protocol.states import AttemptNodeState
from trainyard.run.checkpoints.program_manifest import ProgramManifest
from trainyard.run.records import RequestAnswer

LONGEST_HOLD = timedelta(seconds=30)
"""Maximum age of a commit that is held back for metrics of other nodes. An older commit is accepted
without these metrics, because a node may be silent or may use an older library.
"""


def hold_early_commits(incoming: IncomingReport) -> None:
    """Hold back a program's commit, and all later events, until the metrics before it are stored.

    After `LONGEST_HOLD`, or without another running share, nothing is held back. Each node reports
    its own ranks. The node of global rank 0 reports the commit after the metrics of its ranks, but
    the metrics of other nodes may arrive later. At the end of a checkpoint block, each rank records
    the step. The progress of a rank thus shows whether the rank's metrics have arrived.
    """
    commits = [
        (index, event)
        for index, event in enumerate(incoming.content.events)
        if isinstance(event, ProgramManifest) and event.world_size > 1
    ]
    if not commits or not incoming.has_others(attempt_nodes.c.state == AttemptNodeState.RUNNING):
        return
    ranks, step = reached_by_all(incoming.connection, incoming.share.attempt_id)
    now = incoming.context.now()
    for index, commit in commits:
        has_all = ranks >= commit.world_size and step >= commit.step
        # If the trainer's clock is ahead of the server's, nothing is held back.
        if not has_all and timedelta() <= now - commit.created_at < LONGEST_HOLD:
            incoming.content.hold_events(index)
            return


def apply_run_events(incoming: IncomingReport) -> None:
    """Apply the events of `events.jsonl` in the order in which the trainer wrote them."""
    context, connection = incoming.context, incoming.connection
    content = incoming.content.events
    attempt_id = incoming.share.attempt_id
    placed = any(isinstance(event, StragglerFound | StragglerGone) for event in content)
    places = places_of(connection, attempt_id) if placed else ()
    for event in content:
        match event:
            case Manifest() | ProgramManifest():
                record_commits(
                    context,
                    connection,
                    attempt_id=attempt_id,
                    manifests=[event],
                    actor=TRAINER,
                    measure=measure,
                )
            case SaveSettled():
                if record_stall(connection, attempt_id, event):
                    incoming.notify(event)
            case SaveFailed():
                _note_failed_save(incoming, event)
            case AnsweredRequest():
                _store_answer(incoming, event.request_id, event.answer)
            case PhaseEntered():
                incoming.notify(event)
            case StragglerFound() | StragglerGone() | RankTimes():
                _apply_comparison(incoming, event, places)
            case _:
                incoming.append(event, message=_in_words(event))


def _apply_comparison(
    incoming: IncomingReport, event: Comparison, places: Sequence[tuple[str, int]]
) -> None:
    """Store a result of a comparison of ranks, unless it is about a rank without a known slot."""
    context, connection = incoming.context, incoming.connection
    attempt_id = incoming.share.attempt_id
    if isinstance(event, RankTimes):
        record_times(connection, attempt_id, event)
        incoming.notify(RankTimesStored(step=event.step))
        return
    if event.rank >= len(places):
        return
    node, slot = places[event.rank]
    if isinstance(event, StragglerGone):
        record_gone(context, connection, attempt_id=attempt_id, rank=event.rank)
        message = f"rank {event.rank} on {node} is as fast as the others again"
    else:
        event = event.model_copy(update={"node": node, "slot": slot})
        record_found(context, connection, attempt_id=attempt_id, found=event)
        message = straggler_words(event)
    incoming.append(event, message=message, subject=incoming.share.subject.on(node))


def store_answers(incoming: IncomingReport) -> None:
    """Store the answers that the supervisor read from the run directory, each to one request."""
    for request_id, answer in incoming.report.answers.items():
        _store_answer(incoming, request_id, answer)


def _note_failed_save(incoming: IncomingReport, failed: SaveFailed) -> None:
    mine = attempts.c.id == incoming.share.attempt_id
    incoming.connection.execute(update(attempts).where(mine).values(save_failed=failed))
    unsaved = failed.step - failed.saved_step
    incoming.append(
        failed,
        message=f"save {failed.tries} failed, {unsaved} steps since step {failed.saved_step} "
        f"are not saved: {failed.message}",
    )


def _store_answer(incoming: IncomingReport, request_id: str, answer: RequestAnswer) -> None:
    """Store the first answer to a request of this attempt."""
    answered = incoming.connection.execute(
        update(requests)
        .where(
            requests.c.id == request_id,
            requests.c.attempt_id == incoming.share.attempt_id,
            requests.c.answer.is_(None),
        )
        .values(answer=answer)
    )
    if answered.rowcount:
        incoming.append(
            RequestAnswered(request_id=request_id, ok=answer.ok, message=answer.message),
            message=answer.message,
        )


def _in_words(event: WeightsLoaded | Resumed | StopAgreed) -> str:
    match event:
        case WeightsLoaded():
            return f"starts from {event.place}"
        case Resumed():
            changed = f"; changed: {'; '.join(event.changed)}" if event.changed else ""
            return f"resumed from {event.checkpoint_id}{changed}"
        case StopAgreed():
            return f"all ranks leave after step {event.step}"
