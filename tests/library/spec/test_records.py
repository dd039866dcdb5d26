"""Names, masks, ids and states: the small rules that several parts share."""

import json
import math
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainyard.base.ids import ALPHABET, is_id, make_id
from trainyard.base.redaction import has_credentials, hide_credentials, is_masked
from trainyard.protocol.operations import SampleEnd, SampleResult
from trainyard.protocol.record_parser import parse_record
from trainyard.protocol.states import (
    ATTEMPT_MOVES,
    ATTEMPT_NODE_MOVES,
    JOB_MOVES,
    AttemptState,
    JobState,
    sources,
)
from trainyard.run.checkpoints.checkpoint_names import (
    checkpoint_id,
    checkpoint_path,
    split_checkpoint_id,
)
from trainyard.run.failures import (
    FREE_RETRIES,
    NEVER_RETRIED,
    REMEDIES,
    Failure,
    FailureReason,
    Remedy,
)
from trainyard.run.record_base import to_json, to_plain
from trainyard.run.records import MetricRecord
from trainyard.spec.job import JobSpec
from trainyard.spec.storage_uri import split_place


def test_credentials_of_urls_are_masked_and_nothing_else() -> None:
    text = "see https://ada:pa%20ss@host/x?y=1, s3://key:secret@books and mail ada@host.org"
    shown = "see https://********@host/x?y=1, s3://********@books and mail ada@host.org"
    assert (has_credentials(text), has_credentials("https://host/a@b")) == (True, False)
    assert hide_credentials(text) == hide_credentials(shown) == shown
    assert (is_masked(shown), is_masked("********"), is_masked(text)) == (True, True, False)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_record_keeps_what_is_not_finite(value: float) -> None:
    line = MetricRecord(step=1, time=0.0, values={"train/loss": value})
    again = parse_record(MetricRecord, to_json(line))
    assert "null" not in json.dumps(to_plain(line)["values"])
    assert repr(again.values["train/loss"]) == repr(value)


@pytest.mark.parametrize("text", ["a\0b", "file-\udcff", "\ud83d"])
def test_text_of_a_program_is_storable_whatever_it_quotes(text: str) -> None:
    failure = Failure(reason=FailureReason.DATA_ERROR, message=text, path=text, traceback=text)
    drawn = SampleResult(text=text, tokens=1, ended=SampleEnd.TIME)
    for stored in (to_json(failure), drawn.model_dump_json()):
        assert "\\u0000" not in stored
        stored.encode()


def test_long_text_of_a_program_is_cut() -> None:
    text = "begin" + "x" * 10**6 + "end"
    failure = Failure(reason=FailureReason.DATA_ERROR, message=text, traceback=text)
    assert len(failure.message) == 4_000
    assert failure.message.startswith("begin")
    assert failure.traceback is not None
    assert len(failure.traceback) == 20_000
    assert failure.traceback.endswith("end")
    assert parse_record(Failure, to_json(failure)) == failure


def test_specs_and_records_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        JobSpec().name = "other"  # type: ignore[misc]  # that is the point


def test_a_place_is_a_root_and_a_path_below_it() -> None:
    assert split_place("data:books/one.txt") == ("data", PurePosixPath("books/one.txt"))
    assert split_place("data:a:b") == ("data", PurePosixPath("a:b"))
    for place in ("data:../x", "data:/x", "data:", "x", "data:a\x7f"):
        with pytest.raises(
            ValueError, match=r"not below a storage root|path below|control character"
        ):
            split_place(place)


def test_a_path_of_the_machine_is_refused_with_the_form_of_a_place() -> None:
    with pytest.raises(ValueError, match="'/home/x' is not below a storage root: write <root>:"):
        split_place("/home/x")


@given(
    job=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    attempt=st.integers(1, 10**6),
    step=st.integers(0, 10**9),
)
def test_a_checkpoint_id_is_its_job_attempt_and_step(job: str, attempt: int, step: int) -> None:
    assert split_checkpoint_id(checkpoint_id(job, attempt, step)) == (job, attempt, step)
    assert checkpoint_path(job, attempt, step).endswith(f"a{attempt}/step-{step}")


@pytest.mark.parametrize(
    "text", ["", "job", "job.a1", "job.a1.step-", "job.a1.step-3\n", ".a1.step-1"]
)
def test_what_is_no_checkpoint_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no checkpoint id"):
        split_checkpoint_id(text)


@given(
    times=st.lists(st.integers(0, 2**48 - 1), min_size=2),
    entropy=st.binary(min_size=10, max_size=10),
)
def test_an_id_holds_its_time_and_its_entropy_in_base_32(times: list[int], entropy: bytes) -> None:
    for time in times:
        number = 0
        for character in make_id(milliseconds=time, entropy=entropy):
            number = number * 32 + ALPHABET.index(character)
        assert number == time * 2**80 + int.from_bytes(entropy)


@given(
    times=st.lists(st.integers(0, 2**48 - 1), min_size=2),
    entropy=st.binary(min_size=10, max_size=10),
)
def test_ids_sort_by_time(times: list[int], entropy: bytes) -> None:
    ids = [make_id(milliseconds=time, entropy=entropy) for time in times]
    assert all(is_id(identifier) for identifier in ids)
    assert sorted(ids) == [make_id(milliseconds=t, entropy=entropy) for t in sorted(times)]


@pytest.mark.parametrize(
    "text", ["", "u" * 26, "8" + "0" * 25, "0" * 25, "0" * 27, "0" * 26 + "\n"]
)
def test_what_is_no_id(text: str) -> None:
    assert not is_id(text)


@pytest.mark.parametrize(
    ("moves", "first"),
    [
        (JOB_MOVES, {"queued"}),
        (ATTEMPT_MOVES, {"placed"}),
        (ATTEMPT_NODE_MOVES, {"placed", "spare"}),
    ],
)
def test_every_state_but_the_first_can_be_reached(
    moves: dict[str, frozenset[str]], first: set[str]
) -> None:
    reached, new = {*first}, {*first}
    while new:
        new = {target for state in new for target in moves[state]} - reached
        reached |= new
    assert reached == moves.keys()


def test_the_guard_of_a_move_is_the_table_turned_around() -> None:
    assert sources(ATTEMPT_MOVES, AttemptState.ENDED) == set(AttemptState) - {AttemptState.ENDED}
    assert sources(JOB_MOVES, JobState.STARTING) == {JobState.QUEUED}


def test_every_failure_has_a_remedy_and_no_reason_is_both_free_and_final() -> None:
    assert set(REMEDIES) == set(FailureReason)
    assert not FREE_RETRIES & NEVER_RETRIED


def test_a_failure_that_was_stored_without_a_remedy_has_the_usual_one() -> None:
    stored = '{"reason": "data_error", "message": "a shard is empty"}'
    assert parse_record(Failure, stored).remedy == REMEDIES[FailureReason.DATA_ERROR]
    own = Failure(
        reason=FailureReason.DATA_ERROR, message="it is empty", remedy=Remedy(text="Fill it.")
    )
    assert parse_record(Failure, to_json(own)) == own
    with pytest.raises(ValidationError, match="reason"):
        parse_record(Failure, '{"reason": "unheard_of", "message": "m"}')
