"""Unused contents are deleted in bounded parts, except those that a report may still name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.core.context import Context
from server.jobs.jobs.service import delete
from server.telemetry.artifacts import cleaning
from server.telemetry.artifacts.cleaning import ContentCleaner, delete_released
from server.telemetry.artifacts.uploads import store_block
from tests.actors import ADA
from tests.server.clock import FakeClock
from tests.server.harness import Harness, Supervisor
from tests.server.telemetry.artifacts.uploading import (
    counts,
    digest_of,
    line,
    released,
    report,
    share_of,
    upload,
)
from trainyard.protocol.job_artifacts.messages import BLOCK_BYTES

HOUR, DAY = 3600.0, 86_400.0


def test_what_a_running_attempt_uploaded_stays_until_its_end(
    context: Context, launched: tuple[str, Supervisor], clock: FakeClock
) -> None:
    _, supervisor = launched
    upload(context, supervisor, b"not reported yet")
    cleaner = ContentCleaner(context)
    clock.advance(30 * DAY)
    cleaner.clean()
    assert counts(context) == (0, 1, 1)
    supervisor.end("succeeded")
    cleaner.clean()  # reports of an ended attempt are accepted for a while
    assert counts(context) == (0, 1, 1)
    clock.advance(HOUR + 1)
    cleaner.clean()
    assert counts(context) == (0, 0, 0)


def test_an_artifact_keeps_its_content_for_ever(
    context: Context, launched: tuple[str, Supervisor], clock: FakeClock
) -> None:
    _, supervisor = launched
    for content in (b"named", b"late"):
        upload(context, supervisor, content)
    report(context, supervisor, line("a", b"named"))
    supervisor.end("succeeded")
    clock.advance(DAY - 1)
    cleaner = ContentCleaner(context)
    cleaner.clean()
    assert counts(context) == (1, 2, 2)
    clock.advance(365 * DAY)
    cleaner.clean()
    assert counts(context) == (1, 1, 1)


def test_an_upload_that_never_finished_frees_the_quota(
    context: Context, launched: tuple[str, Supervisor], clock: FakeClock
) -> None:
    settings = context.settings.model_copy(update={"artifact_quota_bytes": 2 * BLOCK_BYTES})
    small = replace(context, settings=settings)
    _, supervisor = launched
    share, content = share_of(small, supervisor), bytes(2 * BLOCK_BYTES)
    block = content[:BLOCK_BYTES]
    store_block(small, share, digest_of(content), offset=0, size=len(content), block=block)
    assert upload(small, supervisor, b"x").refused == "quota"
    clock.advance(HOUR + 1)
    ContentCleaner(small).clean()
    assert counts(small) == (0, 0, 0)
    assert upload(small, supervisor, b"x").refused is None
    # The earlier upload then continues from its start.
    again = store_block(small, share, digest_of(block), offset=0, size=len(block), block=block)
    assert again.stored == len(block)


def test_a_content_that_a_later_attempt_uploads_again_stays(
    context: Context, harness: Harness, launched: tuple[str, Supervisor], clock: FakeClock
) -> None:
    job_id, supervisor = launched
    upload(context, supervisor, b"the same")
    supervisor.end("failed")
    clock.advance(60)
    assert harness.place() == 1
    (later,) = harness.claim_all(job_id)
    clock.advance(2 * DAY)
    assert upload(context, later, b"the same").stored == 8
    clock.advance(2 * DAY)
    ContentCleaner(context).clean()
    report(context, later, line("a", b"the same"))
    assert counts(context) == (1, 1, 1)


def test_contents_of_a_deleted_job_go_in_bounded_transactions(
    context: Context,
    launched: tuple[str, Supervisor],
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cleaning, "BLOCKS_AT_ONCE", 2)
    job_id, supervisor = launched
    large, small = bytes(5 * BLOCK_BYTES + 1), [b"%d" % number for number in range(5)]
    for content in (large, *small):
        clock.advance(1)  # ids of one moment have no order
        upload(context, supervisor, content)
    supervisor.end("succeeded")
    delete(context, job_id, actor=ADA, checkpoints="keep")
    assert (counts(context), released(context)) == ((0, 6, 11), 6)
    left = []
    while delete_released(context):
        left.append(counts(context)[2])
    # The large one shrinks by two, and is deleted with its last two; small ones go two by two.
    assert left == [9, 7, 5, 3, 1, 0]
    assert counts(context) == (0, 0, 0)


def test_a_round_looks_at_a_part_and_the_next_one_at_the_rest(
    context: Context,
    launched: tuple[str, Supervisor],
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cleaning, "MAX_CONSIDERED", 2)
    _, supervisor = launched
    for number in range(5):
        clock.advance(1)  # ids of one moment have no order
        upload(context, supervisor, b"%d" % number)
    report(context, supervisor, *(line("a", b"%d" % number) for number in (0, 1, 2)))
    supervisor.end("succeeded")
    clock.advance(2 * DAY)
    cleaner = ContentCleaner(context)
    seen = []
    for _ in range(3):
        cleaner.clean()
        seen.append(counts(context)[1])
    assert seen == [5, 4, 3]
