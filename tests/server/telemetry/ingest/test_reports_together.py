"""Reports of many jobs in one transaction: as many statements as for two, and no mix-up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, text

from server.api.auth.tokens import hash_token
from server.api.http.group_commit import serve_apart
from server.core.context import Context
from server.core.database.tables import attempt_nodes, jobs
from server.core.errors import ConflictError, InvalidRequestError, UnauthenticatedError
from server.core.lifecycle import lock_job
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.reports import ReportedShare, authenticate_shares
from server.telemetry.ingest.receive import SentReport, store_report, store_together
from server.telemetry.logs.pages import page
from server.telemetry.metrics.charts import chart
from tests.server.harness import Harness, Supervisor
from tests.server.reports import chunk, kept_events, metric_lines
from tests.server.statements import statements
from trainyard.protocol.worker_messages import PROTOCOL, Chunk, Identity, Report, ReportReply
from trainyard.run.directory import Phase
from trainyard.run.records import Heartbeat

JOBS = 8
OTHER = Identity(boot_id="boot", pid_namespace="1", pid=999, start_time=1)


@pytest.fixture
def running(harness: Harness) -> list[tuple[str, Supervisor]]:
    """Training jobs of one rank, each with its supervisor."""
    harness.add_node("node-1", slots=JOBS)
    job_ids = [harness.submit(name=f"job-{number}") for number in range(JOBS)]
    assert harness.place() == JOBS
    supervisors = [harness.claim_all(job_id)[0] for job_id in job_ids]
    for supervisor in supervisors:
        supervisor.train(1)
    return list(zip(job_ids, supervisors, strict=True))


def sent(context: Context, supervisor: Supervisor, *chunks: Chunk, **fields: Any) -> SentReport:
    """Return a report in the form that the endpoint passes on."""
    key = supervisor.attempt_id, hash_token(supervisor.reply.attempt_token)
    (share,) = authenticate_shares(context, [key])
    assert isinstance(share, ReportedShare)
    given = {"protocol": PROTOCOL, "node": supervisor.node, "identity": supervisor.identity}
    return SentReport(share, Report.model_validate(given | {"chunks": chunks} | fields))


def step(
    context: Context, supervisor: Supervisor, number: int, *, first: int, **fields: Any
) -> SentReport:
    """Return the report of steps from `first` on, with a line of output for each."""
    before = b"".join(metric_lines(n, n, perf__step_seconds=0.5) for n in range(first, number))
    lines = metric_lines(number, number, perf__step_seconds=0.5)
    output = b"step %06d of %s\n"
    start = len(output % (0, supervisor.attempt_id.encode())) * (number - first)
    return sent(
        context,
        supervisor,
        chunk("metrics", lines, start=len(before)),
        chunk("log:0", output % (number, supervisor.attempt_id.encode()), start=start),
        heartbeat=Heartbeat(phase=Phase.TRAINING, step=number, time=1000.0 + number),
        **fields,
    )


def steps_of(context: Context, job_id: str) -> list[int]:
    return [
        step
        for curve in chart(context, job_id, ["train/loss"], scope=SYSTEM_SCOPE).curves
        for step in curve.steps
    ]


def test_many_reports_take_as_many_statements_as_two(
    context: Context, running: list[tuple[str, Supervisor]]
) -> None:
    store_together(context, [step(context, each, 2, first=2) for _, each in running])
    counts = []
    for some in (running[:2], running[2:]):
        reports = [step(context, each, 3, first=2) for _, each in some]
        with statements(context) as seen:
            replies = store_together(context, reports)
        assert all(isinstance(reply, ReportReply) for reply in replies)
        counts.append(len([each for each in seen if not each.startswith("BEGIN")]))
    assert counts[0] == counts[1], counts
    # COPY passes by the event that counts: points of PostgreSQL.
    assert counts[0] == (15 if context.database.is_sqlite else 14), counts


def test_each_report_is_stored_for_its_own_job(
    context: Context, running: list[tuple[str, Supervisor]]
) -> None:
    for number in (2, 3):
        reports = [step(context, each, number, first=2) for _, each in running]
        replies = store_together(context, reports)
        for report, reply in zip(reports, replies, strict=True):
            assert isinstance(reply, ReportReply)
            assert reply.acknowledged == {each.file: each.end for each in report.report.chunks}
    for job_id, supervisor in running:
        assert steps_of(context, job_id) == [2, 3]
        texts = [line.text for line in page(context, job_id, scope=SYSTEM_SCOPE).lines]
        assert texts == [f"step {n:06d} of {supervisor.attempt_id}" for n in (2, 3)]
    with context.database.read() as connection:
        progress = connection.scalars(select(jobs.c.progress)).all()
    assert [(each.step, each.loss) for each in progress] == [(3, 3.0)] * JOBS
    assert [each["step"] for each in kept_events(context, "metrics")] == [3] * JOBS


def test_copies_of_reports_change_nothing(
    context: Context, running: list[tuple[str, Supervisor]]
) -> None:
    reports = [step(context, each, 2, first=2) for _, each in running]
    for _ in range(2):  # the second time with shares that were read before the first
        for reply in store_together(context, reports):
            assert isinstance(reply, ReportReply)
    assert all(steps_of(context, job_id) == [2] for job_id, _ in running)
    assert all(len(page(context, job_id, scope=SYSTEM_SCOPE).lines) == 1 for job_id, _ in running)


def test_a_refused_report_keeps_no_other_from_being_stored(
    context: Context, running: list[tuple[str, Supervisor]]
) -> None:
    supervisors = [each for _, each in running]
    wrong = Chunk(file="log:0", start=0, end=5, content="no base64")
    group = [
        step(context, supervisors[0], 2, first=2),
        step(context, supervisors[1], 2, first=2, identity=OTHER),
        step(context, supervisors[2], 2, first=2, node="node-2"),
        sent(context, supervisors[3], wrong),
        step(context, supervisors[4], 2, first=2),
    ]
    first, other, elsewhere, damaged, last = store_together(context, group)
    assert isinstance(first, ReportReply)
    assert isinstance(other, ConflictError)
    assert isinstance(elsewhere, UnauthenticatedError)
    assert isinstance(damaged, InvalidRequestError)
    assert isinstance(last, ReportReply)
    stored = [bool(steps_of(context, job_id)) for job_id, _ in running[:5]]
    assert stored == [True, False, False, False, True]


def test_what_moves_a_job_or_appends_an_event_is_stored_alone(
    context: Context, harness: Harness, running: list[tuple[str, Supervisor]]
) -> None:
    with context.database.write() as connection:
        connection.execute(
            attempt_nodes.update()
            .where(attempt_nodes.c.attempt_id == running[0][1].attempt_id)
            .values(unreachable_since=harness.clock.now())
        )
    unreadable = sent(context, running[1][1], chunk("metrics", b"no record\n"))
    group = [step(context, running[0][1], 2, first=2), unreadable]
    group += [step(context, each, 2, first=2) for _, each in running[2:]]
    answers = store_together(context, group)
    assert answers[:2] == [None, None]
    assert steps_of(context, running[0][0]) == []
    assert all(isinstance(answer, ReportReply) for answer in answers[2:])
    for each in group[:2]:
        store_report(context, each.share, each.report)
    assert kept_events(context, "reachable") == [{}]
    assert [each["file"] for each in kept_events(context, "line_skipped")] == ["metrics"]
    others = [job_id for number, (job_id, _) in enumerate(running) if number != 1]
    assert all(steps_of(context, job_id) == [2] for job_id in others)


def test_a_job_that_cannot_be_read_costs_the_others_no_point(
    context: Context, running: list[tuple[str, Supervisor]]
) -> None:
    group = [step(context, each, 2, first=2) for _, each in running]
    with context.database.write() as connection:
        connection.execute(
            text("UPDATE jobs SET progress = '{}}' WHERE id = :id"), {"id": running[3][0]}
        )
    replies = serve_apart(partial(store_together, context), group)
    assert [isinstance(each, ReportReply) for each in replies] == [n != 3 for n in range(JOBS)]
    others = [job_id for number, (job_id, _) in enumerate(running) if number != 3]
    assert all(steps_of(context, job_id) == [2] for job_id in others)


def test_a_group_does_not_wait_for_a_job_that_another_transaction_holds(
    context: Context, running: list[tuple[str, Supervisor]]
) -> None:
    if context.database.is_sqlite:
        pytest.skip("it has one writer at a time")
    group = [step(context, each, 2, first=2) for _, each in running]
    with ThreadPoolExecutor(1) as pool:
        with context.database.write() as connection:
            lock_job(connection, running[2][0])
            alone = pool.submit(store_together, context, group[2:3]).result(timeout=30)
            answers = pool.submit(store_together, context, group).result(timeout=30)
        assert alone == [None]
        assert [answer is None for answer in answers] == [n == 2 for n in range(JOBS)]
    store_report(context, group[2].share, group[2].report)
    assert all(steps_of(context, job_id) == [2] for job_id, _ in running)


def test_two_reports_of_one_job_are_no_group(
    context: Context, running: list[tuple[str, Supervisor]]
) -> None:
    own = step(context, running[0][1], 2, first=2)
    with pytest.raises(AssertionError):
        store_together(context, [own, own])


@pytest.mark.parametrize("kind", ["large", "events", "answers"])
def test_a_large_report_and_one_with_events_never_share(
    context: Context, running: list[tuple[str, Supervisor]], kind: str
) -> None:
    supervisor = running[0][1]
    kinds: dict[str, dict[str, Any]] = {
        "large": {"chunks": (chunk("log:0", b"x" * 99 + b"\n"), chunk("log:0", b"y" * 17_000))},
        "events": {"chunks": (chunk("events", b"{}\n"),)},
        "answers": {"answers": {"a": {"ok": True, "message": "done", "step": 1}}},
    }
    given = kinds[kind]
    assert not sent(context, supervisor, *given.pop("chunks", ()), **given).may_share
    assert step(context, supervisor, 2, first=2).may_share
