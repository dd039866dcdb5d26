"""Records of a run directory: their JSON text, their limits, and refusals."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from trainyard.base.problems import spec_error
from trainyard.protocol.record_parser import adapter, check_record, parse_record
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.directory import Phase
from trainyard.run.failures import (
    REMEDIES,
    BadWindow,
    Failure,
    FailureReason,
    LoadFailure,
    MemoryUse,
    Remedy,
)
from trainyard.run.record_base import JsonRecord, to_json
from trainyard.run.records import (
    DIFF_LIMIT_BYTES,
    EventRecord,
    ExitRecord,
    Heartbeat,
    MetricRecord,
    Outcome,
    Provenance,
    RankExit,
    Request,
    RequestAnswer,
)

RANK = RankExit(rank=1, pid=2, exit_code=None, signal="SIGKILL", time=3.0)
FAILURE = Failure(
    reason=FailureReason.OUT_OF_MEMORY,
    message="a\0b\udcff",
    remedy=Remedy(text="Resume."),
    rank=3,
    path="p\ud83d",
    traceback="t",
    bad_window=BadWindow(start=0, end=8, first_step=1),
    memory=MemoryUse(
        device="cpu",
        total_bytes=1,
        reserved_bytes=2,
        allocated_bytes=3,
        weights_bytes=4,
        gradients_bytes=5,
        optimizer_bytes=6,
        rest_bytes=7,
    ),
    load=LoadFailure(checkpoint_id="c", fault=CheckpointFault.FILE_SIZE),
)
PROVENANCE = Provenance(
    git_commit=None,
    git_diff="d",
    git_diff_truncated=False,
    packages={"a": "1"},
    python="3",
    torch="2",
    cuda=None,
    cuda_driver=None,
    nccl=None,
    host="h",
    platform="p",
    cpu_count=2,
    gpus=("g",),
)
# pydantic's texts of these records, from when they were its models.
TEXTS: list[tuple[JsonRecord, str]] = [
    (
        MetricRecord(
            step=3,
            time=1.5,
            values={"nan": math.nan, "up": math.inf, "down": -math.inf, "lr": 0.0003, "é": 1e22},
        ),
        '{"step":3,"time":1.5,"values":{"nan":"NaN","up":"Infinity","down":"-Infinity","lr":0.0003,'
        '"é":1e+22},"data_digest":null,"ranks":1}',
    ),
    (
        MetricRecord(step=4, time=1.7e9, values={}, data_digest="ab12"),
        '{"step":4,"time":1700000000.0,"values":{},"data_digest":"ab12","ranks":1}',
    ),
    (
        EventRecord(
            time=2.0,
            kind="save_failed",
            step=5,
            data={"a": None, "b": [1, 2.5, True], "c": {"d": 'x\n\t"\x1f\x7fé\u2028'}},
        ),
        '{"time":2.0,"kind":"save_failed","step":5,"data":{"a":null,"b":[1,2.5,true],'
        '"c":{"d":"x\\n\\t\\"\\u001f\x7fé\u2028"}}}',
    ),
    (
        EventRecord(time=2.0, kind="stop_agreed", step=5),
        '{"time":2.0,"kind":"stop_agreed","step":5,"data":{}}',
    ),
    (
        Heartbeat(phase=Phase.TRAINING, step=1, time=1700000000.25),
        '{"phase":"training","step":1,"time":1700000000.25,"steps":null,"answers":[]}',
    ),
    (
        Outcome(outcome="succeeded", step=9, checkpoint_id="job.a1.step-9"),
        '{"outcome":"succeeded","step":9,"checkpoint_id":"job.a1.step-9","failure":null}',
    ),
    (Request(kind="profile"), '{"kind":"profile","steps":3,"ranks":"first"}'),
    (
        RequestAnswer(ok=True, message="saved", step=2),
        '{"ok":true,"message":"saved","step":2}',
    ),
    (
        FAILURE,
        '{"reason":"out_of_memory","message":"a\ufffdb\\\\udcff","remedy":{"text":"Resume.",'
        '"resume":null,"field":null},"rank":3,"node":null,"signal":null,"exit_code":null,'
        '"step":null,"path":"p\\\\ud83d","metric":null,"traceback":"t","bad_window":{"start":0,'
        '"end":8,"first_step":1},"free_retry":false,"node_at_fault":false,'
        '"memory":{"device":"cpu","total_bytes":1,'
        '"reserved_bytes":2,"allocated_bytes":3,"weights_bytes":4,"gradients_bytes":5,'
        '"optimizer_bytes":6,"rest_bytes":7},"load":{"checkpoint_id":"c","fault":"file_size"},"environment":null}',
    ),
    (
        ExitRecord(outcome="failed", failure=None, ranks=(RANK,), time=4.0),
        '{"outcome":"failed","failure":null,"ranks":[{"rank":1,"pid":2,"exit_code":null,'
        '"signal":"SIGKILL","time":3.0}],"time":4.0,"positions":[],"false_alarms":0,'
        '"unreported_commit":false}',
    ),
    (
        PROVENANCE,
        '{"git_commit":null,"git_diff":"d","git_diff_truncated":false,"packages":{"a":"1"},'
        '"python":"3","torch":"2","cuda":null,"cuda_driver":null,"nccl":null,"host":"h",'
        '"platform":"p","cpu_count":2,"gpus":["g"],"launch":null}',
    ),
]


@pytest.mark.parametrize(("record", "text"), TEXTS, ids=lambda value: type(value).__name__)
def test_the_json_text_of_a_record(record: JsonRecord, text: str) -> None:
    assert to_json(record) == text
    assert to_json(parse_record(type(record), text)) == text
    assert check_record(type(record), record) is record


@pytest.mark.parametrize(("record", "text"), TEXTS, ids=lambda value: type(value).__name__)
def test_pydantic_writes_the_same_text(record: JsonRecord, text: str) -> None:
    """The server stores records, and sends them inside models, which pydantic writes."""
    assert adapter(type(record)).dump_json(record).decode() == text


def test_a_nan_in_the_data_of_an_event_is_a_string() -> None:
    record = EventRecord(time=2.0, kind="phase", step=5, data={"n": [math.nan]})
    assert to_json(record).endswith('"data":{"n":["NaN"]}}')


def test_a_value_without_a_json_type_is_refused() -> None:
    with pytest.raises(TypeError, match="set is no JSON type"):
        to_json(EventRecord(time=2.0, kind="phase", step=5, data={"a": {1}}))


def test_an_indented_record_is_the_one_that_a_person_reads() -> None:
    record = ExitRecord(outcome="failed", failure=None, ranks=(RANK,), time=4.0)
    assert to_json(record, indent=1) == (
        '{\n "outcome": "failed",\n "failure": null,\n "ranks": [\n  {\n   "rank": 1,\n'
        '   "pid": 2,\n   "exit_code": null,\n   "signal": "SIGKILL",\n   "time": 3.0\n  }\n ],\n'
        ' "time": 4.0,\n "positions": [],\n "false_alarms": 0,\n "unreported_commit": false\n}'
    )


@pytest.mark.parametrize("value", [2.5e-05, 1e-300, 5e-324, 1.7976931348623157e308, 0.1 + 0.2])
def test_a_number_is_read_as_it_was(value: float) -> None:
    record = MetricRecord(step=1, time=0.0, values={"a": value})
    assert parse_record(MetricRecord, to_json(record)) == record


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        (Heartbeat, '{"phase":"training","step":1,"time":1,"x":2}', "/x: unknown field"),
        (Heartbeat, '{"phase":"training","step":-1,"time":1}', "/step: .* greater .* equal to 0"),
        (Heartbeat, '{"phase":"training","step":1}', "/time: Field required"),
        (Heartbeat, '{"phase":"no","step":1,"time":1}', "/phase: Input should be 'starting'"),
        (Request, "[]", "/: Input should be an object"),
        (Request, '{"kind":"save","steps":101}', "/steps: .* less than or equal to 100"),
        (MetricRecord, '{"step":1,"time":0,"values":{"a":null}}', "/values/a: .* valid number"),
        (
            RankExit,
            to_json(RANK).replace("2", str(2**62)),
            "/pid: .* less than 4611686018427387904",
        ),
        (Failure, '{"reason":"other","message":"m"}', "/reason: Input should be 'out_of_memory'"),
        (
            Provenance,
            to_json(PROVENANCE).replace('["g"]', json.dumps(["g"] * 1025)),
            "/gpus: .* at most 1024 items",
        ),
    ],
)
def test_what_is_no_record_is_refused(kind: type[JsonRecord], text: str, problem: str) -> None:
    with pytest.raises(ValidationError) as refused:
        parse_record(kind, text)
    with pytest.raises(ValueError, match=problem):
        raise spec_error(refused.value, text)


def test_numbers_of_other_spellings_are_accepted() -> None:
    text = '{"step":"1","time":"2","values":{"a":"NaN","b":"-Infinity","c":NaN,"d":1}}'
    found = parse_record(MetricRecord, text)
    assert repr(found.values) == "{'a': nan, 'b': -inf, 'c': nan, 'd': 1.0}"
    assert (found.step, found.time) == (1, 2.0)


def test_texts_are_cut_where_they_are_written_and_where_they_are_read() -> None:
    long = "begin" + "x" * 2 * DIFF_LIMIT_BYTES + "end"
    written = Provenance(
        **{**vars(PROVENANCE), "git_diff": long, "packages": {long: long}, "gpus": (long, "g")}
    )
    assert written.git_diff is not None
    assert len(written.git_diff) == DIFF_LIMIT_BYTES
    assert written.git_diff.endswith("x...")
    ((name, version),) = written.packages.items()
    assert (len(name), len(version)) == (4000, 4000)
    assert (len(written.gpus[0]), written.gpus[1]) == (4000, "g")
    fields: dict[str, Any] = {"reason": "hang", "message": long, "path": long, "traceback": long}
    read = parse_record(Failure, json.dumps(fields))
    assert read == Failure(**{**fields, "reason": FailureReason.HANG})
    assert (len(read.message), len(read.path or "")) == (4000, 4096)
    assert (read.traceback or "")[:4] == "...x"


def test_a_failure_without_a_remedy_has_the_usual_one() -> None:
    for reason, remedy in REMEDIES.items():
        assert Failure(reason=reason, message="m").remedy == remedy


@pytest.mark.parametrize("kind", sorted({type(record) for record, _ in TEXTS}, key=repr))
def test_every_field_of_a_record_has_a_description(kind: type[JsonRecord]) -> None:
    schema = adapter(kind).json_schema(mode="serialization")
    assert schema["description"]
    for name, field in schema["properties"].items():
        assert field.get("description"), f"{kind.__name__}.{name} has no docstring"
    assert sorted(schema["required"]) == sorted(schema["properties"])
