"""Claims of many attempts in one transaction: as many statements as one, each claimed once."""

from __future__ import annotations

from functools import partial

import pytest
from fastapi import Response
from sqlalchemy import select, text

from server.api.http import responses
from server.api.http.group_commit import serve_apart
from server.app import worker_endpoints
from server.core.context import Context
from server.core.database.tables import attempts, events
from server.core.errors import ConflictError, NotFoundError, UnreadableError
from server.core.lifecycle import IllegalMoveError
from server.jobs.attempts.claim import claim_all
from server.jobs.jobs.service import cancel
from tests.actors import ADA
from tests.server.harness import WORKER, Harness
from tests.server.statements import statements
from trainyard.protocol.worker_messages import PROTOCOL, Claim, ClaimReply, WorkerIdentity

NODE = "node-1"
OTHER = WorkerIdentity(folder="1" * 32, boot_id="b007-0001")


@pytest.fixture
def placed(harness: Harness) -> list[str]:
    """The attempts of eight placed jobs."""
    harness.add_node(NODE, slots=8)
    job_ids = [harness.submit(name=f"job-{number}") for number in range(8)]
    assert harness.place() == 8
    return [harness.attempt(job_id).id for job_id in job_ids]


def sent(
    attempt_id: str, *, node: str = NODE, worker: WorkerIdentity = WORKER
) -> tuple[str, Claim]:
    secret = f"{attempt_id:_<43}"
    return attempt_id, Claim(protocol=PROTOCOL, node=node, worker=worker, secret=secret)


def test_many_claims_take_as_many_statements_as_one(context: Context, placed: list[str]) -> None:
    counts = []
    for some in (placed[:2], placed[2:]):
        with statements(context) as seen:
            replies = claim_all(context, [sent(each) for each in some])
        assert all(isinstance(each, ClaimReply) for each in replies)
        counts.append(len([each for each in seen if not each.startswith("BEGIN")]))
    assert counts[0] == counts[1], counts
    assert counts[0] == (8 if context.database.is_sqlite else 9), counts


def test_each_claim_gets_its_own_job_and_event(
    context: Context, harness: Harness, placed: list[str]
) -> None:
    replies = claim_all(context, [sent(each) for each in placed])
    names = [each.spec.name for each in replies if isinstance(each, ClaimReply)]
    assert names == [f"job-{number}" for number in range(8)]
    for reply in replies:
        assert isinstance(reply, ClaimReply)
        job_id = reply.attempt.job_id
        assert harness.attempt(job_id).state == "starting"
        assert [share.state for share in harness.shares(job_id)] == ["claimed"]
        assert harness.kinds(job_id) == ["submitted", "placed", "claimed"]
        assert harness.job(job_id).updated_at == harness.clock.now()


def test_a_refused_claim_keeps_no_other_from_its_share(
    context: Context, harness: Harness, placed: list[str]
) -> None:
    """Already claimed, cancelled, without a share, of another worker, without an attempt."""
    first = claim_all(context, [sent(placed[0]), sent(placed[6])])
    harness.clock.advance(1)
    taken = placed[0], Claim(protocol=PROTOCOL, node=NODE, worker=WORKER)
    cancel(context, job_of(context, placed[1]), actor=ADA, reason="")
    replies = claim_all(
        context,
        [
            taken,
            sent(placed[1]),
            sent(placed[2], node="node-2"),
            sent(placed[3], worker=OTHER),
            sent("0" * 26),
            sent(placed[4]),
            sent(placed[6]),
        ],
    )
    kinds = [type(each) for each in replies]
    assert kinds[:5] == [
        IllegalMoveError,
        ConflictError,
        NotFoundError,
        ConflictError,
        NotFoundError,
    ]
    assert isinstance(replies[5], ClaimReply)
    assert replies[6] == first[1]  # a repeat
    with context.database.read() as connection:
        query = select(events.c.job_id).where(events.c.kind == "claimed")
        claimed = connection.scalars(query).all()
    assert len(claimed) == len(set(claimed)) == 3


def test_a_job_that_cannot_be_read_keeps_no_other_from_its_share(
    context: Context, placed: list[str]
) -> None:
    with context.database.write() as connection:
        broken = text("UPDATE attempts SET layout = '{\"tp\": 0}' WHERE id = :id")
        connection.execute(broken, {"id": placed[3]})
    claims = [sent(each) for each in placed]
    replies = serve_apart(lambda some: claim_all(context, some), claims)
    assert [type(each) for each in replies].count(ClaimReply) == 7
    assert isinstance(replies[3], UnreadableError)


def job_of(context: Context, attempt_id: str) -> str:
    with context.database.read() as connection:
        query = select(attempts.c.job_id).where(attempts.c.id == attempt_id)
        return str(connection.scalar(query))


def test_a_reply_that_cannot_be_written_makes_no_other_claim_a_second_one(
    context: Context, placed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second claim without a secret is refused."""
    written = responses.reply

    def fails_once(claimed: ClaimReply) -> Response:
        if claimed.attempt.job_id == job_ids[1]:
            raise ValueError("no text")
        return written(claimed)

    with context.database.read() as connection:
        rows = connection.execute(select(attempts.c.id, attempts.c.job_id)).all()
    job_ids = [{row.id: row.job_id for row in rows}[each] for each in placed]
    monkeypatch.setattr("server.app.worker_endpoints.reply", fails_once)
    claim = Claim(protocol=PROTOCOL, node=NODE, worker=WORKER)
    claims = [(each, claim) for each in placed[:4]]
    answers = serve_apart(partial(worker_endpoints._claimed, context), claims)
    assert [type(each) for each in answers] == [Response, ValueError, Response, Response]
