"""Builds reports like a supervisor."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from sqlalchemy import select

from server.api.auth.tokens import hash_token
from server.core.context import Context
from server.core.database.tables import events, notices
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.reports import authenticate_share
from server.telemetry.ingest.receive import store_report
from server.telemetry.metrics.charts import chart
from tests.server.harness import Supervisor
from trainyard.protocol.event_kinds import NoticeKind
from trainyard.protocol.rest.metrics_and_logs import CurveView
from trainyard.protocol.worker_messages import PROTOCOL, Chunk, Report, ReportReply


def chunk(file: str, content: bytes, *, start: int = 0) -> Chunk:
    """Return a chunk of these bytes."""
    packed = base64.b64encode(zlib.compress(content)).decode()
    return Chunk(file=file, start=start, end=start + len(content), content=packed)


def metric_lines(first: int, last: int, **values: float) -> bytes:
    """Return lines of `metrics.jsonl`; the loss of a step is its number unless given."""
    lines = [
        {
            "step": step,
            "time": 1000.0 + step,
            "values": {"train/loss": float(step)}
            | {name.replace("__", "/"): value for name, value in values.items()},
            "data_digest": f"{step:032x}",
        }
        for step in range(first, last + 1)
    ]
    return json_lines(lines)


def json_lines(records: list[dict[str, Any]]) -> bytes:
    """Return JSON lines; NaN and infinity as strings, as the trainer writes them."""
    text = "".join(json.dumps(record) + "\n" for record in records)
    for word in ("-Infinity", "NaN", "Infinity"):
        text = text.replace(f": {word}", f': "{word}"')
    return text.encode()


def send(
    context: Context,
    supervisor: Supervisor,
    *chunks: Chunk,
    token: str | None = None,
    **fields: Any,
) -> ReportReply:
    """Report chunks and further fields."""
    given = {"protocol": PROTOCOL, "node": supervisor.node, "identity": supervisor.identity}
    report = Report.model_validate(given | {"chunks": chunks} | fields)
    # To text and back, as on the wire.
    report = Report.model_validate_json(report.model_dump_json())
    token_hash = hash_token(token or supervisor.reply.attempt_token)
    share = authenticate_share(context, supervisor.attempt_id, token_hash)
    return store_report(context, share, report)


def loss(context: Context, job_id: str) -> CurveView:
    """Return the curve of the job's loss."""
    (curve,) = chart(context, job_id, ["train/loss"], scope=SYSTEM_SCOPE).curves
    return curve


def kept_events(context: Context, kind: str) -> list[dict[str, Any]]:
    """Return the data of the events of one kind, oldest first, or of the notices of that kind."""
    with context.database.read() as connection:
        if kind in set(NoticeKind):
            changed = select(notices.c.data).where(notices.c.kind == kind)
            return list(connection.scalars(changed.order_by(notices.c.seq)))
        query = select(events.c.data).where(events.c.kind == kind).order_by(events.c.id)
        return list(connection.scalars(query))
