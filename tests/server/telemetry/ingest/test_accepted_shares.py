"""A cached share saves the check of its token; a revoked token stays refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus

import pytest
from sqlalchemy import update

from server.api.auth.tokens import hash_token
from server.app.factory import create_app
from server.core.context import Context
from server.core.database.tables import attempt_nodes
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts import reports
from server.jobs.attempts.reports import AcceptedShares, authenticate_share
from server.telemetry.metrics.charts import chart
from tests.server.api.in_process import TestClient
from tests.server.clock import FakeClock
from tests.server.harness import Harness, Launched
from tests.server.reports import chunk, metric_lines, send
from tests.server.statements import statements
from trainyard.protocol.worker_messages import PROTOCOL, Chunk, Report

Post = Callable[..., int]


@pytest.fixture
def post(context: Context, launched: Launched) -> Iterator[Post]:
    """Post chunks like the supervisor, and return the status of the answer."""
    _, supervisor = launched
    path = f"/api/v1/workers/attempts/{supervisor.attempt_id}/report"
    headers = {
        "authorization": f"Bearer {supervisor.reply.attempt_token}",
        "content-type": "application/json",
    }

    def send_chunks(*chunks: Chunk) -> int:
        report = Report(
            protocol=PROTOCOL,
            node=supervisor.node,
            identity=supervisor.identity,
            chunks=chunks,
        )
        body = report.model_dump_json()
        return int(client.post(path, content=body, headers=headers).status_code)

    with TestClient(create_app(context), base_url="http://127.0.0.1:8470") as client:
        yield send_chunks


def test_only_the_first_report_looks_at_its_token_before_its_transaction(
    context: Context, post: Post
) -> None:
    looks = []
    for _ in range(2):
        with statements(context) as seen:
            assert post() == HTTPStatus.OK
        looks.append(sum("attempt_nodes.token_hash IN" in each for each in seen))
    # The first report of a share changes its state, so it gets its own transaction.
    assert looks == [3, 1]


def test_a_token_that_is_revoked_in_between_is_refused(
    context: Context, post: Post, launched: Launched
) -> None:
    assert post() == HTTPStatus.OK
    with context.database.write() as connection:
        mine = attempt_nodes.c.attempt_id == launched[1].attempt_id
        connection.execute(update(attempt_nodes).where(mine).values(token_hash="other"))
    assert post() == HTTPStatus.UNAUTHORIZED


def test_a_share_that_ended_ten_minutes_ago_is_refused(
    post: Post, launched: Launched, clock: FakeClock
) -> None:
    assert post() == HTTPStatus.OK
    launched[1].end("succeeded")
    clock.advance(599)
    assert post() == HTTPStatus.OK
    clock.advance(1)
    assert post() == HTTPStatus.CONFLICT


def test_what_another_process_stored_in_between_is_stored_once(
    context: Context, post: Post, launched: Launched
) -> None:
    job_id, supervisor = launched
    first, second, third = (metric_lines(step, step) for step in (1, 2, 3))
    assert post(chunk("metrics", first)) == HTTPStatus.OK
    send(context, supervisor, chunk("metrics", second, start=len(first)))
    assert post(chunk("metrics", second + third, start=len(first))) == HTTPStatus.OK
    (curve,) = chart(context, job_id, ["train/loss"], scope=SYSTEM_SCOPE).curves
    assert list(curve.steps) == [1, 2, 3]


def test_the_share_that_has_not_reported_for_longest_makes_room(
    context: Context, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MAX_ACCEPTED", 1)
    harness.add_node("node-1", slots=2)
    jobs = [harness.submit(name=f"job-{number}") for number in range(2)]
    assert harness.place() == len(jobs)
    shares = []
    for job_id in jobs:
        (supervisor,) = harness.claim_all(job_id)
        token = hash_token(supervisor.reply.attempt_token)
        shares.append(authenticate_share(context, supervisor.attempt_id, token))
    kept = AcceptedShares()
    for share in shares:
        kept.keep(share, {"metrics": 7, "log:0": 0})
    former, newest = (kept.take(share.key) for share in shares)
    assert former is None
    assert newest is not None
    assert newest.acknowledged == {"metrics": 7}
    assert kept.take(newest.key) is None
