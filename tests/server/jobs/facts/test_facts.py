"""Facts of jobs: from a report, a spec or an import to views, searches and comparisons."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import func, select, update

from server.core.context import Context
from server.core.database.metric_and_log_tables import config_words, job_facts
from server.core.database.rows import Job
from server.core.database.tables import jobs
from server.core.errors import InvalidRequestError, NotFoundError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.facts.compare import compare_facts
from server.jobs.facts.store import MAX_WORDS, config_word
from server.jobs.jobs.listing import JobFilter, count_jobs, list_jobs
from server.jobs.jobs.queries import job_view
from server.jobs.jobs.service import delete
from server.jobs.jobs.submission import SubmittedSpec, submit_all
from tests.actors import ADA
from tests.server.api.in_process import TestClient
from tests.server.harness import Harness, Supervisor
from tests.server.reports import chunk, kept_events, send
from tests.server.telemetry.imports.test_imports import imported
from trainyard.protocol.rest.jobs import JobOrder
from trainyard.protocol.worker_messages import PROTOCOL, Report
from trainyard.run.fact_types.fact_records import MAX_FACTS_BYTES, FactValue, RunFacts
from trainyard.spec.job import JobSpec, parse_job_spec

ARGUMENTS = {"lr": 0.001, "layers": [1, 2], "fast": True}


@pytest.fixture
def allow_code() -> bool:
    """The server accepts jobs that bring code."""
    return True


def program(**arguments: Any) -> dict[str, Any]:
    section = {"command": ["train.py"], "arguments": arguments, "resume": "any_world_size"}
    return {"program": section, "resources": {"world_size": 1}}


def started(harness: Harness, **arguments: Any) -> tuple[str, Supervisor]:
    harness.add_node()
    job_id, (supervisor,) = harness.launched(**program(**arguments))
    return job_id, supervisor


def facts_of_job(context: Context, job_id: str) -> RunFacts:
    facts = job_view(context, job_id, scope=SYSTEM_SCOPE).facts
    assert facts is not None
    return facts


def found(context: Context, search: str) -> list[str]:
    wanted = JobFilter(search=search)
    rows = list_jobs(context, wanted, JobOrder.ACTIVE, after=None, limit=50, scope=SYSTEM_SCOPE)
    assert sum(count_jobs(context, wanted, scope=SYSTEM_SCOPE).values()) == len(rows)
    return [row.id for row in rows]


def words(context: Context, job_id: str) -> int:
    query = select(func.count()).where(config_words.c.job_id == job_id)
    with context.database.read() as connection:
        return connection.scalar(query) or 0


def test_a_program_begins_with_its_arguments(context: Context, harness: Harness) -> None:
    job_id = harness.submit(**program(**ARGUMENTS))
    facts = facts_of_job(context, job_id)
    assert facts.config == {"lr": 0.001, "layers": "[1, 2]", "fast": True}
    assert (facts.summary, facts.tags) == ({}, ())
    assert job_view(context, harness.submit(), scope=SYSTEM_SCOPE).facts is None
    assert found(context, "lr=1e-3") == [job_id]


def test_a_report_replaces_the_facts(context: Context, harness: Harness) -> None:
    job_id, supervisor = started(harness, lr=0.001)
    config: dict[str, FactValue] = {"lr": 0.01, "model.name": "ResNet", "epochs": 3, "none": "None"}
    send(context, supervisor, facts=RunFacts(config=config, summary={"best": 0.5}))
    send(context, supervisor, facts=RunFacts(config=config, summary={"best": 0.75, "ok": True}))
    facts = facts_of_job(context, job_id)
    assert (facts.config, facts.summary) == (config, {"best": 0.75, "ok": True})
    assert isinstance(facts.config["epochs"], int)
    assert kept_events(context, "facts") == [{"config": 4, "summary": 2}]
    assert found(context, "lr=0.001") == []
    for search in ("lr=1e-2", "LR=.01", "model.name=resnet EPOCHS=3.0", "tiny epochs=3"):
        assert found(context, search) == [job_id], search
    for search in ("lr=0.011", "name=resnet", "model.name=res", "epochs=3 lr=1", "=", "lr="):
        assert found(context, search) == [], search


def test_a_resumed_attempt_replaces_what_the_one_before_reported(
    context: Context, harness: Harness
) -> None:
    harness.add_node()
    retry = {"retry": {"backoff_seconds": 0}}
    job_id, (supervisor,) = harness.launched(**program(lr=1) | retry)
    supervisor.train(0)
    send(context, supervisor, facts=RunFacts(config={"a": 1}, summary={"best": 1}, tags=("x",)))
    supervisor.end("failed")
    assert facts_of_job(context, job_id).summary == {"best": 1}  # until the next one reports
    harness.place()
    (again,) = harness.claim_all(job_id)
    send(context, again, facts=RunFacts(config={"b": 2}))
    facts = facts_of_job(context, job_id)
    assert (facts.config, facts.summary, job_view(context, job_id, scope=SYSTEM_SCOPE).tags) == (
        {"b": 2},
        {},
        ("x",),
    )
    assert (found(context, "a=1"), found(context, "b=2")) == ([], [job_id])


def test_only_the_node_of_rank_0_reports_facts(context: Context, harness: Harness) -> None:
    harness.add_node("node-1", slots=1)
    harness.add_node("node-2", slots=1)
    job_id, supervisors = harness.launched(**program() | {"resources": {"world_size": 2}})
    for supervisor in supervisors:
        facts = RunFacts(config={"node": supervisor.node})
        send(context, supervisor, facts=facts)
    assert facts_of_job(context, job_id).config == {"node": supervisors[0].node}


def test_tags_are_added_once_in_their_legal_form(context: Context, harness: Harness) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.launched(**program() | {"tags": ["own", "base"]})
    send(context, supervisor, facts=RunFacts(tags=("two words", "base", "ä", "x" * 64)))
    assert harness.job(job_id).tags == ["own", "base", "two-words", "x" * 64]
    assert found(context, "two-words") == [job_id]
    with context.database.write() as connection:  # as a person removes one
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(tags=["own"]))
    send(context, supervisor, facts=RunFacts(tags=("two words", "new")))
    assert harness.job(job_id).tags == ["own", "new"]
    send(context, supervisor, facts=RunFacts(tags=tuple(f"t{n}" for n in range(32))))
    tags = harness.job(job_id).tags
    assert len(tags) <= 32
    assert JobSpec(tags=tags).tags == tuple(tags)


HOSTILE = {
    "nul and surrogates": '{"config": {"a\\u0000b": "x\\u0000\\ud800y"}}',
    "not finite": '{"config": {"a": "NaN", "b": "Infinity"}}',
    "a large whole number": '{"config": {"a": 100000000000000000000}}',
    "long texts": json.dumps({"config": {"n" * 9000: "v" * 9000}}),
    "an endless number": '{"config": {"a": 1%s}}' % ("0" * 300),
    "control characters": '{"config": {"a": "\\u001b[31mred\\u202e"}, "tags": ["\\u001b[31m"]}',
}


@pytest.mark.parametrize("document", HOSTILE.values(), ids=[*HOSTILE])
def test_hostile_values_are_stored_as_text_or_numbers(
    context: Context, harness: Harness, client: TestClient, document: str
) -> None:
    job_id, supervisor = started(harness)
    send(context, supervisor, facts=json.loads(document))
    facts = facts_of_job(context, job_id)
    assert facts.config
    assert all(len(name) <= 256 for name in facts.config)
    assert all(len(str(value)) <= 1000 for value in facts.config.values())
    view = client.get(f"/api/v1/jobs/{job_id}")
    assert view.status_code == 200
    assert "Infinity" not in view.text.replace('"Infinity"', "").replace('"-Infinity"', "")
    assert client.get(f"/api/v1/facts/compare?jobs={job_id}").status_code == 200


REFUSED = {
    "too many": {"config": {f"n{number}": number for number in range(1001)}},
    "too many bytes": {"config": {f"n{number}": "x" * 900 for number in range(40)}},
    "too many bytes of a summary": {"summary": {f"n{number}": "x" * 900 for number in range(40)}},
    "nested": {"config": {"a": {"b": 1}}},
    "a list": {"config": {"a": [1]}},
    "null": {"config": {"a": None}},
    "infinite": {"summary": {"a": math.inf}},
    "unknown field": {"secrets": {}},
    "too many tags": {"tags": [f"t{number}" for number in range(33)]},
}


@pytest.mark.parametrize("document", REFUSED.values(), ids=[*REFUSED])
def test_what_no_writer_of_ours_makes_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Report.model_validate_json(
            json.dumps(
                {
                    "protocol": PROTOCOL,
                    "node": "a",
                    "identity": {
                        "boot_id": "a",
                        "pid_namespace": "1",
                        "pid": 1,
                        "start_time": 1,
                    },
                    "facts": document,
                }
            )
        )


@pytest.mark.parametrize("text", ["[" * 50_000, "9" * 5000, '{"a":' * 300 + "1" + "}" * 300])
def test_deep_nesting_and_endless_numbers_are_no_crash(text: str) -> None:
    with pytest.raises(ValidationError):
        Report.model_validate_json(f'{{"facts": {{"config": {{"a": {text}}}}}}}')


def test_the_largest_facts_go_with_a_report(context: Context, harness: Harness) -> None:
    job_id, supervisor = started(harness)
    section: dict[str, FactValue] = {f"name-{number:04}": "é" * 10 for number in range(800)}
    facts = RunFacts(config=section, summary=section)
    send(context, supervisor, chunk("log:0", b"x\n"), facts=facts)
    assert facts_of_job(context, job_id).config == section
    assert words(context, job_id) == MAX_WORDS
    assert len(json.dumps(section)) < 2 * MAX_FACTS_BYTES
    supervisor.end("succeeded")
    delete(context, job_id, actor=ADA, checkpoints="keep")
    with context.database.read() as connection:
        assert connection.scalars(select(job_facts.c.job_id)).all() == []
    assert words(context, job_id) == 0


def test_an_imported_run_has_the_same_facts(context: Context, client: TestClient) -> None:
    job_id = imported(client)
    facts = facts_of_job(context, job_id)
    assert (facts.config, facts.summary) == ({"lr": 0.01, "layers": "[1, 2]"}, {"best": "NaN"})
    assert found(context, "lr=1e-2") == [job_id]
    page = client.get("/api/v1/jobs", params={"search": "lr=0.01 calm"}).json()
    assert [job["id"] for job in page["items"]] == [job_id]


def test_a_comparison_has_what_differs(
    context: Context, harness: Harness, client: TestClient
) -> None:
    one, supervisor = started(harness, lr=0.1, seed=1, flag=True)
    other = imported(client, arguments={"lr": 0.2, "seed": 1, "flag": 1})
    trainer = harness.submit()
    send(
        context,
        supervisor,
        facts=RunFacts(
            config={"lr": 0.1, "seed": 1, "flag": True, "more": "x"}, summary={"best": 2.5}
        ),
    )
    reply = client.get(f"/api/v1/facts/compare?jobs={one},{other}").json()
    assert [job["id"] for job in reply["jobs"]] == [one, other]
    assert {row["name"]: row["values"] for row in reply["config"]} == {
        "lr": [0.1, 0.2],
        "flag": [True, 1],
        "more": ["x", None],
    }
    assert reply["summary"] == [{"name": "best", "values": [2.5, "NaN"]}]
    assert reply["same"] == 1
    alone = compare_facts(context, [trainer, trainer], scope=SYSTEM_SCOPE)
    assert (alone.config, alone.summary, alone.same, len(alone.jobs)) == ((), (), 0, 1)
    with pytest.raises(NotFoundError, match="no job has the id"):
        compare_facts(context, [one, context.new_id()], scope=SYSTEM_SCOPE)
    with pytest.raises(InvalidRequestError, match="9 jobs; legal: 1 to 8"):
        compare_facts(context, [context.new_id() for _ in range(9)], scope=SYSTEM_SCOPE)


def test_words_of_values() -> None:
    assert config_word("LR", 3e-4) == config_word("lr", "0.0003") == "lr=0.0003"
    assert config_word("n", 5) == config_word("n", "5.00")
    assert config_word("on", True) == config_word("on", "true")
    assert config_word("a", "two words") is None
    assert config_word("a", "x" * 200) is None
    assert config_word("a", "nan") == "a=nan"
    assert config_word("id", str(2**60)) != config_word("id", str(2**60 + 1))


def test_a_name_or_a_value_may_have_the_sign(context: Context, harness: Harness) -> None:
    job_id, supervisor = started(harness)
    send(context, supervisor, facts=RunFacts(config={"a=b": 0.10, "path": "x=0.10"}))
    assert found(context, "a=b=0.100") == found(context, "path=x=0.10") == [job_id]


def test_jobs_of_one_group_begin_with_facts_of_their_own(
    context: Context, harness: Harness
) -> None:
    specs = [program(lr=0.1), program(lr=0.2), program()]
    stored = submit_all(context, [SubmittedSpec(parse_job_spec(each), ADA) for each in specs])
    ids = [job.id for job in stored if isinstance(job, Job)]
    assert [found(context, f"lr={lr}") for lr in (0.1, 0.2)] == [[ids[0]], [ids[1]]]


def test_a_search_of_a_value_reads_an_index(context: Context, harness: Harness) -> None:
    harness.submit(**program(lr=0.1))
    query = select(config_words.c.job_id).where(config_words.c.word == "lr=0.1")
    with context.database.snapshot() as connection:  # one transaction, in which the setting holds
        text = str(query.compile(connection, compile_kwargs={"literal_binds": True}))
        explain = "EXPLAIN QUERY PLAN"
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # of a table of one row
            explain = "EXPLAIN"
        plan = str(connection.exec_driver_sql(f"{explain} {text}").all())
    assert "SEARCH config_words USING" in plan or "pk_config_words" in plan
