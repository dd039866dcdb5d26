"""Reports: stored once or not at all, despite loss, duplication and damage in transit."""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import event, func, select

from server.api.auth.tokens import hash_token
from server.core.context import Context
from server.core.database.schema import metadata
from server.core.database.tables import events, jobs
from server.core.errors import ConflictError, InvalidRequestError, UnauthenticatedError
from server.jobs.attempts.reports import authenticate_share
from server.telemetry.ingest import parse
from server.telemetry.metrics.store import MAX_SERIES
from tests.server.clock import FakeClock
from tests.server.harness import Harness, Launched
from tests.server.reports import chunk, json_lines, kept_events, loss, metric_lines, send
from tests.server.seen import csv_rows, page
from trainyard.protocol.states import DesiredState
from trainyard.protocol.worker_messages import Chunk
from trainyard.run.directory import Phase
from trainyard.run.records import Heartbeat


def count_rows(context: Context) -> Mapping[str, int]:
    with context.database.read() as connection:
        return {
            table.name: connection.scalar(select(func.count()).select_from(table)) or 0
            for table in metadata.sorted_tables
        }


def test_a_report_of_a_step_needs_few_statements(context: Context, launched: Launched) -> None:
    _, supervisor = launched
    first, second = metric_lines(1, 1), metric_lines(2, 2)
    send(context, supervisor, chunk("metrics", first), heartbeat=at_step(1))
    statements: list[str] = []
    event.listen(
        context.database.engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_: statements.append(statement),
    )
    send(context, supervisor, chunk("metrics", second, start=len(first)), heartbeat=at_step(2))
    queries = [s for s in statements if s.lstrip().startswith(("SELECT", "UPDATE", "INSERT"))]
    assert len(queries) <= 13, queries
    assert sum(query.startswith("UPDATE attempt_nodes") for query in queries) == 1


def at_step(step: int) -> Heartbeat:
    return Heartbeat(phase=Phase.TRAINING, step=step, time=1000.0 + step)


# ---- offsets -----------------------------------------------------------------------------------


def test_a_report_that_comes_twice_is_stored_once(context: Context, launched: Launched) -> None:
    job_id, supervisor = launched
    content, output = metric_lines(1, 5), b"hello\nworld\n"
    for _ in range(2):
        reply = send(context, supervisor, chunk("metrics", content), chunk("log:0", output))
        assert reply.acknowledged == {"metrics": len(content), "log:0": len(output)}
    assert loss(context, job_id).steps == [1, 2, 3, 4, 5]
    assert [line.text for line in page(context, job_id).lines] == ["hello", "world"]


def test_overlap_is_cut_and_a_gap_is_not_taken(context: Context, launched: Launched) -> None:
    job_id, supervisor = launched
    send(context, supervisor, chunk("log:0", b"one\ntw"))
    reply = send(context, supervisor, chunk("log:0", b"\ntwo\nthree\n", start=3))
    assert reply.acknowledged == {"log:0": 14}
    assert [line.text for line in page(context, job_id).lines] == ["one", "two", "three"]
    first, second, third = metric_lines(1, 3), metric_lines(4, 6), metric_lines(7, 9)
    send(context, supervisor, chunk("metrics", first))
    reply = send(context, supervisor, chunk("metrics", third, start=len(first + second)))
    assert reply.acknowledged == {"metrics": len(first)}
    assert loss(context, job_id).steps == [1, 2, 3]
    reply = send(context, supervisor, chunk("metrics", first + second + third))
    assert reply.acknowledged == {"metrics": len(first + second + third)}
    assert loss(context, job_id).steps == list(range(1, 10))


def test_any_order_of_losses_and_repeats_ends_with_everything_once(
    context: Context, launched: Launched
) -> None:
    job_id, supervisor = launched
    whole = metric_lines(1, 60)
    ends = [0, *(index + 1 for index, byte in enumerate(whole) if byte == ord("\n"))]
    chance = random.Random(1)
    acknowledged = 0
    while acknowledged < len(whole):
        start, end = sorted(chance.sample(ends, 2))
        if chance.random() < 0.5:  # like a supervisor; otherwise any old or future range
            start = acknowledged
        if end <= start:
            continue
        reply = send(context, supervisor, chunk("metrics", whole[start:end], start=start))
        assert reply.acknowledged["metrics"] >= acknowledged
        acknowledged = reply.acknowledged["metrics"]
    line = loss(context, job_id)
    assert (line.steps, line.last) == (list(range(1, 61)), [float(s) for s in range(1, 61)])
    digests = [row for text in csv_rows(context, job_id, ["data_digest"]) for row in text.split()]
    assert digests[1:] == [f"1,{step},,data_digest,{step:032x}" for step in range(1, 61)]


def test_two_chunks_of_one_file_in_one_report_are_both_stored(
    context: Context, launched: Launched
) -> None:
    job_id, supervisor = launched
    first, second = metric_lines(1, 2), metric_lines(3, 4)
    reply = send(
        context,
        supervisor,
        chunk("metrics", first),
        chunk("metrics", second, start=len(first)),
    )
    assert reply.acknowledged == {"metrics": len(first + second)}
    assert loss(context, job_id).steps == [1, 2, 3, 4]


def test_copies_that_race_are_stored_once(context: Context, launched: Launched) -> None:
    job_id, supervisor = launched
    parts = [metric_lines(10 * number + 1, 10 * number + 10) for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for number, part in enumerate(parts):
            start = sum(map(len, parts[:number]))
            chunks = (chunk("metrics", part, start=start), chunk("log:0", b"x\n", start=2 * number))
            copies = [pool.submit(send, context, supervisor, *chunks) for _ in range(4)]
            ends = {copy.result().acknowledged["metrics"] for copy in copies}
            assert ends == {start + len(part)}
    assert loss(context, job_id).steps == list(range(1, 81))
    assert page(context, job_id).total_lines == 8


# ---- what is refused ---------------------------------------------------------------------------


GOOD = metric_lines(1, 2)
DAMAGED: dict[str, tuple[Chunk, str]] = {
    "no base64": (Chunk(file="metrics", start=0, end=9, content="?"), "/chunks/1/content"),
    "no zlib": (
        Chunk(file="metrics", start=0, end=9, content=base64.b64encode(b"plain").decode()),
        "/chunks/1/content",
    ),
    "cut off": (
        Chunk(
            file="metrics",
            start=0,
            end=len(GOOD),
            content=base64.b64encode(zlib.compress(GOOD)[:-6]).decode(),
        ),
        "/chunks/1/content",
    ),
    "longer than its range": (
        chunk("metrics", GOOD).model_copy(update={"end": len(GOOD) - 1}),
        "/chunks/1/content",
    ),
    "shorter than its range": (
        chunk("metrics", GOOD).model_copy(update={"end": len(GOOD) + 1}),
        "/chunks/1/content",
    ),
    "a bomb": (chunk("log:0", bytes(5 * 1024 * 1024)), "/chunks/1/end"),
    "a bomb that lies": (
        chunk("log:0", bytes(50 * 1024 * 1024)).model_copy(update={"end": 1000}),
        "/chunks/1/content",
    ),
    "ends before it starts": (
        chunk("metrics", GOOD).model_copy(update={"start": 900, "end": 2}),
        "/chunks/1/end",
    ),
    "half a line": (chunk("metrics", GOOD[:-5]), "/chunks/1/content"),
    "no JSON among lines": (chunk("metrics", GOOD + b"{oops\n"), "/chunks/1/content"),
    "another node's rank": (chunk("log:7", b"x\n"), "/chunks/1/file"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_chunk_refuses_the_report_whole(
    context: Context, launched: Launched, damage: str
) -> None:
    _, supervisor = launched
    before = count_rows(context)
    bad, pointer = DAMAGED[damage]
    with pytest.raises(InvalidRequestError) as refusal:
        send(context, supervisor, chunk("events", b""), bad, heartbeat=None)
    assert [problem.pointer for problem in refusal.value.problems] == [pointer]
    with pytest.raises(InvalidRequestError):  # good chunks of the same report are not stored either
        send(context, supervisor, chunk("log:0", b"fine\n"), bad)
    assert count_rows(context) == before


def test_no_chunk_is_inflated_before_the_sizes_of_all_are_known(
    context: Context, launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, supervisor = launched
    inflated: list[bytes] = []
    monkeypatch.setattr(parse, "_inflated", lambda packed, **_: inflated.append(packed))
    hides = chunk("log:0", b"").model_copy(update={"start": 2**60, "end": 0})
    with pytest.raises(InvalidRequestError):
        send(context, supervisor, *[chunk("log:0", bytes(2**22))] * 9, hides)
    assert inflated == []


UNREADABLE = {
    "torn": b"\0\0\0\0",
    "no JSON": b"{oops",
    "no object": b"[]",
    "no step": b'{"time": 1, "values": {}}',
    "a step before all": b'{"step": -1, "time": 1, "values": {}}',
    "a step too far": b'{"step": 99999999999999999999, "time": 1, "values": {}}',
    "no time": b'{"step": 1, "time": "NaN", "values": {}}',
    "a name with a NUL": b'{"step": 1, "time": 1, "values": {"a\\u0000": 1}}',
    "a long name": json.dumps({"step": 1, "time": 1, "values": {"x" * 269: 1.0}}).encode(),
    "no digest": b'{"step": 1, "time": 1, "values": {}, "data_digest": "\\u0000"}',
    "no UTF-8": b'{"step": 1, "time": 1, "values": {"\xff": 1}}',
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_line_that_can_never_be_read_is_skipped_once_it_comes_alone(
    context: Context, launched: Launched, text: bytes
) -> None:
    job_id, supervisor = launched
    before, bad, after = metric_lines(1, 2), text + b"\n", metric_lines(3, 4)
    with pytest.raises(InvalidRequestError, match=f"at byte {len(before)} "):
        send(context, supervisor, chunk("metrics", before + bad + after))
    send(context, supervisor, chunk("metrics", before))
    reply = send(context, supervisor, chunk("metrics", bad, start=len(before)))
    assert reply.acknowledged == {"metrics": len(before + bad)}
    send(context, supervisor, chunk("metrics", after, start=len(before + bad)))
    assert loss(context, job_id).steps == [1, 2, 3, 4]
    (told,) = kept_events(context, "line_skipped")
    assert (told["file"], told["offset"]) == ("metrics", len(before))
    # Stored bytes are never checked again: a late copy with the bad line in it does no harm.
    whole = before + bad + after
    assert send(context, supervisor, chunk("metrics", whole)).acknowledged["metrics"] == len(whole)


def test_reports_need_the_token_of_this_attempt(context: Context, launched: Launched) -> None:
    _, supervisor = launched
    with pytest.raises(UnauthenticatedError):
        send(context, supervisor, chunk("metrics", GOOD), token="ty_attempt_wrong")


def test_output_of_an_ended_share_is_taken_and_nothing_else(
    context: Context, launched: Launched, clock: FakeClock
) -> None:
    job_id, supervisor = launched
    send(context, supervisor, chunk("log:0", b"one\n"))
    supervisor.end("succeeded")
    before = harness_job(context, job_id)
    clock.advance(599)
    heartbeat = {"phase": "training", "step": 7, "time": 1.0}
    metrics, output = metric_lines(1, 2), b"two\n"
    reply = send(
        context,
        supervisor,
        chunk("metrics", metrics),
        chunk("events", b"nonsense\n"),
        chunk("log:0", output, start=4),
        heartbeat=heartbeat,
    )
    assert reply.desired == DesiredState.CANCEL
    assert reply.acknowledged == {"metrics": len(metrics), "events": 9, "log:0": 8}
    assert [line.text for line in page(context, job_id).lines] == ["one", "two"]
    assert harness_job(context, job_id) == before
    assert count_rows(context)["metric_series"] == 0
    send(context, supervisor, exit={"outcome": "failed", "failure": None, "ranks": [], "time": 1.0})
    assert harness_job(context, job_id) == before
    other = supervisor.identity.model_copy(update={"pid": 999})
    with pytest.raises(ConflictError, match="another supervisor"):
        send(context, supervisor, chunk("log:0", b"x", start=8), identity=other)


def test_records_of_event_files_are_metrics(context: Context, harness: Harness) -> None:
    harness.add_node("n0", slots=2)
    harness.add_node("n1", slots=2)
    job_id, (first, second) = harness.launched(resources={"world_size": 4})
    own, of_files = metric_lines(1, 2), metric_lines(2, 4, eval__loss=0.5)
    file = "event_files"
    for _ in range(2):
        reply = send(context, first, chunk("metrics", own), chunk(file, of_files))
        assert reply.acknowledged == {"metrics": len(own), file: len(of_files)}
    assert loss(context, job_id).steps == [1, 2, 3, 4]  # a step of a series is kept once
    with pytest.raises(InvalidRequestError, match="node of global rank 0"):
        send(context, second, chunk(file, of_files))
    first.end("succeeded")
    reply = send(context, first, chunk(file, b"nonsense\n", start=len(of_files)))
    assert reply.acknowledged == {file: len(of_files) + 9}


@pytest.mark.parametrize("slots", [(4, 1), (4, 3), (2, 2, 1), (2, 2)])
def test_ranks_of_a_node_follow_those_of_the_shares_before_it(
    context: Context, harness: Harness, slots: tuple[int, ...]
) -> None:
    for number, count in enumerate(slots):
        harness.add_node(f"n{number}", slots=count)
    world_size = sum(slots)
    job_id, supervisors = harness.launched(
        resources={"world_size": world_size}, training={"micro_batch_size": 1}
    )
    assert tuple(len(share.slots) for share in harness.shares(job_id)) == slots
    lines = [f"rank {rank}" for rank in range(world_size)]
    first = 0
    for supervisor, count in zip(supervisors, slots, strict=True):
        logs = {f"log:{rank}": lines[rank].encode() for rank in range(first, first + count)}
        reply = send(context, supervisor, *(chunk(file, line) for file, line in logs.items()))
        assert reply.acknowledged == {file: len(line) for file, line in logs.items()}
        with pytest.raises(InvalidRequestError, match=f"{first} to {first + count - 1}"):
            send(context, supervisor, chunk(f"log:{first + count}", b"x"))
        first += count

    def closed() -> list[bool]:
        found = [page(context, job_id, rank=rank).lines for rank in range(world_size)]
        return [[line.text for line in each] == [lines[rank]] for rank, each in enumerate(found)]

    assert not any(closed()), "no line has its end yet"
    supervisors[-1].end("stopped")
    assert closed() == [rank >= world_size - slots[-1] for rank in range(world_size)]


def test_the_token_of_an_attempt_is_revoked_ten_minutes_after_its_end(
    context: Context, launched: Launched, clock: FakeClock
) -> None:
    _, supervisor = launched
    token = hash_token(supervisor.reply.attempt_token)
    clock.advance(100_000)
    authenticate_share(context, supervisor.attempt_id, token)
    supervisor.end("succeeded")
    clock.advance(599)
    authenticate_share(context, supervisor.attempt_id, token)
    clock.advance(1)
    with pytest.raises(ConflictError, match="revoked"):
        authenticate_share(context, supervisor.attempt_id, token)
    with pytest.raises(UnauthenticatedError):
        authenticate_share(context, supervisor.attempt_id, hash_token("ty_attempt_wrong"))


def harness_job(context: Context, job_id: str) -> tuple[object, ...]:
    """Return state and progress of a job, and its stored events."""
    with context.database.read() as connection:
        row = connection.execute(
            select(jobs.c.state, jobs.c.progress).where(jobs.c.id == job_id)
        ).one()
        kept = connection.scalars(select(events.c.kind).order_by(events.c.id)).all()
    return row.state, row.progress, tuple(kept)


# ---- limits ------------------------------------------------------------------------------------


def test_series_above_the_limit_are_left_out_with_one_event(
    context: Context, launched: Launched
) -> None:
    _, supervisor = launched
    values = {f"own/{number:04}": 1.0 for number in range(MAX_SERIES + 5)}
    lines = json_lines(
        [{"step": s, "time": 1.0, "values": values | {"late": 1.0}} for s in range(1, 4)]
    )
    first = lines.index(b"\n") + 1
    for start, end in ((0, first), (first, len(lines))):
        reply = send(context, supervisor, chunk("metrics", lines[start:end], start=start))
        assert reply.acknowledged == {"metrics": end}
    assert count_rows(context)["metric_series"] == MAX_SERIES == 2000
    (told,) = kept_events(context, "metrics_dropped")
    assert told == {"what": "series", "limit": 2000, "first": "own/2000"}


def test_steps_after_the_last_one_are_left_out_with_one_event(
    context: Context, launched: Launched
) -> None:
    job_id, supervisor = launched
    with context.database.read() as connection:
        stored = connection.execute(select(jobs.c.spec).where(jobs.c.id == job_id)).scalar_one()
    last = stored.read("spec").training.steps
    lines = metric_lines(last - 1, last + 3)
    assert send(context, supervisor, chunk("metrics", lines)).acknowledged == {
        "metrics": len(lines)
    }
    more = metric_lines(last + 4, last + 5)
    reply = send(context, supervisor, chunk("metrics", more, start=len(lines)))
    assert reply.acknowledged == {"metrics": len(lines + more)}
    assert loss(context, job_id).steps == [last - 1, last]
    (told,) = kept_events(context, "metrics_dropped")
    assert told == {"what": "steps", "limit": last, "first": last + 1}


def test_another_protocol_is_refused(context: Context, launched: Launched) -> None:
    _, supervisor = launched
    with pytest.raises(InvalidRequestError, match="/protocol"):
        send(context, supervisor, protocol=99)
