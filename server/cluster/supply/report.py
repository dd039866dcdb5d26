"""Reports of provisioners; a report changes requests and proves the end of pilots.

One transaction stores a whole report. The number of its statements depends on the kinds of changes
and on the different reasons for an end, not on the number of jobs. After this transaction, each
share on a node that is proved gone is ended in its own transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, select, update

from server.cluster.supply.changes import end_requests, leave, pause, source_changed
from server.cluster.supply.gone_nodes import (
    EndShares,
    forget_worker,
    shares_on,
    shares_without_pilot,
)
from server.cluster.supply.rows import (
    IS_OPEN,
    NodeRequest,
    Pilot,
    StoredSource,
    lock_source,
    open_pilots,
    open_requests,
)
from server.core.context import Context
from server.core.database.source_tables import node_requests, pilots, sources
from server.core.database.tables import nodes
from server.core.lifecycle import move_requests
from server.core.subject import SERVER
from trainyard.protocol.node_sources.messages import (
    MAX_CANCELS,
    EngineJob,
    EngineNode,
    SourceReport,
    SourceReportReply,
    pilot_name,
)
from trainyard.protocol.states import NodeRequestState

LATEST = datetime.max.replace(tzinfo=UTC).timestamp() - 86_400
"""An end time after this time counts as no limit; some engines write the year 9999 for no limit."""
ANSWERS = (
    *("ref", "engine_state", "unknown_since", "reason", "explanation"),
    *("starts_at", "ends_at", "started_at"),
)
"""Columns of a request that are set from the engine's description of the request's job."""


def store_report(
    context: Context, report: SourceReport, *, end_shares: EndShares
) -> SourceReportReply:
    """Store a provisioner's report; return at most `MAX_CANCELS` request ids with jobs to cancel.

    Raises:
        NotFoundError: no source has this name.
    """
    with context.database.write() as connection:
        source = lock_source(connection, report.source)
        requests = {each.id: each for each in open_requests(connection, source.name)}
        described = {job.request_id: job for job in report.jobs if job.request_id in requests}
        gone = _note_pilots(context, connection, source=source, described=described)
        _note_requests(context, connection, requests=requests, described=described)
        _note_missing(context, connection, report=report, requests=requests, described=described)
        _note_call(context, connection, source=source, report=report)
        left = open_requests(connection, source.name)
        cancel = [each.id for each in left if each.cancel_at is not None]
        orphans = _orphans(connection, report.jobs, {each.id for each in left})
        if report.complete:
            shares = shares_without_pilot(connection, source.name)
        else:
            shares = shares_on(connection, gone)
    end_shares(context, shares)
    return SourceReportReply(cancel=tuple([*cancel, *orphans][:MAX_CANCELS]))


# ---- requests ------------------------------------------------------------------------------------


def _note_requests(
    context: Context,
    connection: Connection,
    *,
    requests: Mapping[str, NodeRequest],
    described: Mapping[str, EngineJob],
) -> None:
    """Store the engine's descriptions, and make the state changes that they prove."""
    if not described:
        return
    now = context.now()
    connection.execute(
        update(node_requests)
        .where(node_requests.c.id == bindparam("described"))
        .values({name: bindparam(f"new_{name}") for name in ANSWERS}),
        [_answer(requests[job.request_id], job, now) for job in described.values()],
    )
    moving: dict[NodeRequestState, list[NodeRequest]] = {}
    for job in described.values():
        request = requests[job.request_id]
        target = _target(request, job)
        if target is not None:
            moving.setdefault(target, []).append(request)
    _move(context, connection, moving=moving, described=described)
    ends = [
        {"of_request": job.request_id, "end": _time(job.ends_at)}
        for job in described.values()
        # A running job without an end no longer has a time limit. A completing job may be requeued,
        # so its reported end, which is now, is not the end of its nodes.
        if job.state == "running"
    ]
    if ends:
        of_request = nodes.c.request_id == bindparam("of_request")
        connection.execute(update(nodes).where(of_request).values(ends_at=bindparam("end")), ends)


def _move(
    context: Context,
    connection: Connection,
    *,
    moving: Mapping[NodeRequestState, Sequence[NodeRequest]],
    described: Mapping[str, EngineJob],
) -> None:
    for target in (NodeRequestState.PENDING, NodeRequestState.RUNNING):
        if target in moving:
            move_requests(connection, target, [{"id": each.id} for each in moving[target]])
    changes = {NodeRequestState.LEAVING: leave, NodeRequestState.ENDED: end_requests}
    for target, change in changes.items():
        alike: dict[str, list[NodeRequest]] = {}
        for each in moving.get(target, ()):
            alike.setdefault(_reason(each, described[each.id]), []).append(each)
        for reason, some in alike.items():
            change(context, connection, some, reason, actor=SERVER)


def _answer(request: NodeRequest, job: EngineJob, now: datetime) -> dict[str, Any]:
    is_unknown = job.state == "unknown"
    started, same = request.started_at, job.state == request.engine_state
    if job.state in ("running", "completing") and started is None:
        started = now
    return {
        "described": request.id,
        "new_ref": job.ref,
        "new_engine_state": job.state,
        "new_unknown_since": (request.unknown_since or now) if is_unknown else None,
        "new_reason": job.reason or _kept_reason(request, job),
        "new_explanation": request.explanation if is_unknown or same else None,
        "new_starts_at": request.starts_at if is_unknown else _time(job.starts_at),
        "new_ends_at": request.ends_at if is_unknown else _time(job.ends_at),
        "new_started_at": started,
    }


def _target(request: NodeRequest, job: EngineJob) -> NodeRequestState | None:
    """Return the new state that a description proves; None if the state stays."""
    match job.state:
        case "unknown":
            return None
        case "pending":
            target = NodeRequestState.PENDING
        case "running" | "completing":
            # A completing job may be requeued. Its pilots have received a notice, so they leave.
            target = NodeRequestState.RUNNING
        case "ended":
            # Without a proof, processes of the job may still run. The request counts as leaving
            # until the engine proves the end or a person orders it.
            target = NodeRequestState.ENDED if job.gone else NodeRequestState.LEAVING
    is_leaving = request.state == NodeRequestState.LEAVING
    if request.state == target or (is_leaving and target != NodeRequestState.ENDED):
        return None
    return target


def _reason(request: NodeRequest, job: EngineJob) -> str:
    return job.reason or _kept_reason(request, job) or f"the engine's job is {job.state}"


def _kept_reason(request: NodeRequest, job: EngineJob) -> str:
    """Return the reason that an unknown or leaving request keeps; empty for other requests."""
    keeps = job.state == "unknown" or request.state == NodeRequestState.LEAVING
    return request.reason if keeps else ""


def _note_missing(
    context: Context,
    connection: Connection,
    *,
    report: SourceReport,
    requests: Mapping[str, NodeRequest],
    described: Mapping[str, EngineJob],
) -> None:
    """Mark a request as unknown if a listing or an answer lacks it; its job may still run.

    Also store the answer to the asked request; end it if the engine refused it or never had it.
    """
    now, asked = context.now(), requests.get(report.asked or "")
    earlier = set(report.earlier)
    missing = [
        each.id
        for each in requests.values()
        if each.id not in described
        and each.id not in earlier
        and each.ref is not None
        and ((report.complete and report.error is None) or each is asked)
        and report.explanation is None
    ]
    if missing:
        since = {"engine_state": "unknown", "unknown_since": now}
        unknown = update(node_requests).where(node_requests.c.id.in_(missing))
        connection.execute(unknown.where(node_requests.c.unknown_since.is_(None)).values(since))
    if asked is None:
        return
    if report.error is None:
        _note_answer(connection, asked, report.explanation)
    if asked.ref is not None or asked.id in described:
        return
    if report.error is not None and report.refused:
        end_requests(context, connection, [asked], report.error, actor=SERVER)
    elif report.error is not None:
        failed = update(node_requests).where(node_requests.c.id == asked.id)
        connection.execute(failed.values(reason=report.error))
    elif asked.cancel_at is not None:
        # Calls of a provisioner exclude each other, so no submission is in progress, and a later
        # claim will be refused. If a job appears nevertheless, it is an orphan.
        reason = "withdrawn before the engine had it"
        end_requests(context, connection, [asked], reason, actor=SERVER)


def _note_answer(connection: Connection, asked: NodeRequest, explanation: str | None) -> None:
    """Store why a request waits; clear `ask` if the report answers the requested call."""
    values: dict[str, Any] = {} if explanation is None else {"explanation": explanation}
    if asked.ask == ("status" if explanation is None else "explain"):
        values["ask"] = None
    if values:
        of_asked = update(node_requests).where(node_requests.c.id == asked.id)
        connection.execute(of_asked.values(values))


def _orphans(connection: Connection, jobs: Sequence[EngineJob], known: set[str]) -> Sequence[str]:
    """Return the request ids of live engine jobs that belong to no open request of any source."""
    live = {job.request_id for job in jobs if job.state not in ("unknown", "ended")} - known
    if not live:
        return []
    elsewhere = select(node_requests.c.id).where(node_requests.c.id.in_(live), IS_OPEN)
    return sorted(live - set(connection.scalars(elsewhere)))


# ---- pilots --------------------------------------------------------------------------------------


def _note_pilots(
    context: Context,
    connection: Connection,
    *,
    source: StoredSource,
    described: Mapping[str, EngineJob],
) -> list[str]:
    """Store the named instances; forget the workers of gone pilots, and return their nodes."""
    if not described:
        return []
    named: list[dict[str, Any]] = []
    gone: list[Pilot] = []
    for pilot in open_pilots(connection, source.name):
        job = described.get(pilot.request_id)
        if job is None or job.state == "unknown":
            continue
        instances = [node for node in job.nodes if node.index == pilot.number]
        now_named = _named(pilot, instances)
        if now_named is not None:
            named.append(
                {
                    "of_request": pilot.request_id,
                    "of_number": pilot.number,
                    "new_named": now_named.instance,
                    "new_addresses": list(now_named.addresses),
                }
            )
        is_gone = job.gone or any(n.gone and n.instance == pilot.joined for n in instances)
        if pilot.joined is not None and pilot.gone_at is None and is_gone:
            gone.append(pilot)
    is_pilot = and_(
        pilots.c.request_id == bindparam("of_request"), pilots.c.number == bindparam("of_number")
    )
    if named:
        values: dict[str, Any] = {n: bindparam(f"new_{n}") for n in ("named", "addresses")}
        connection.execute(update(pilots).where(is_pilot).values(values), named)
    if gone:
        ended = [{"of_request": each.request_id, "of_number": each.number} for each in gone]
        connection.execute(update(pilots).where(is_pilot).values(gone_at=context.now()), ended)
    names = [pilot_name(source.name, each.request_id, each.number) for each in gone]
    forget_worker(context, connection, names, reason=f"{source.kind} proves that it ended")
    return names


def _named(pilot: Pilot, instances: Sequence[EngineNode]) -> EngineNode | None:
    """Return the instance that may join: the joined one while it lives, otherwise the newest."""
    living = [each for each in instances if not each.gone]
    joined = [each for each in living if each.instance == pilot.joined]
    candidates = joined or living
    return candidates[-1] if candidates else None


# ---- the call ------------------------------------------------------------------------------------


def _note_call(
    context: Context, connection: Connection, *, source: StoredSource, report: SourceReport
) -> None:
    """Store that the provisioner reported, and whether its call to the engine succeeded.

    Only a complete listing clears an error or a needed login. Any other successful call may have
    reached only a part of the engine, or may have needed no login. A refusal by the engine pauses
    the source.
    """
    now, error, needs = context.now(), report.error, report.needs_login
    is_listed = report.complete and error is None
    values: dict[str, Any] = {"heard_at": now, "is_away": False}
    if is_listed:
        values["listed_at"] = now
    if is_listed or error is not None:
        values["error"] = error
    if is_listed or needs is not None:
        values["needs_login"] = needs
    else:
        needs = source.needs_login
    connection.execute(update(sources).where(sources.c.name == source.name).values(values))
    if (source.needs_login is None) != (needs is None) or source.is_away:
        what = "is back" if needs is None else f"needs a login: {needs.reason}"
        source_changed(
            context, connection, name=source.name, message=f"source {source.name} {what}"
        )
    if error is not None and report.refused and source.paused_at is None:
        pause(
            context, connection, source=source, reason=f"the engine refuses: {error}", actor=SERVER
        )


def _time(seconds: float | None) -> datetime | None:
    if seconds is None or seconds > LATEST:
        return None
    return datetime.fromtimestamp(seconds, UTC)
