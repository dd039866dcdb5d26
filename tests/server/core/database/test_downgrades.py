"""A downgrade leaves what the former version reads: it refuses fields and kinds that came later."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from alembic import command

from server.cluster.nodes.slots import CLOCK
from server.cluster.projects.service import create_project
from server.core.context import Context
from server.core.database.engine import Database
from server.core.database.metric_and_log_tables import (
    artifact_blocks,
    artifact_contents,
    config_words,
    job_facts,
)
from server.core.database.migrate import alembic_config, upgrade
from server.core.database.slot_tables import holdings
from server.core.database.tables import (
    attempt_nodes,
    attempts,
    checkpoints,
    events,
    jobs,
    notices,
    operations,
)
from server.core.events.notices import notify
from server.core.events.store import NewEvent, append_event
from server.core.subject import SERVER, Subject
from server.jobs.attempts.node_heartbeat import node_heartbeat
from server.jobs.checkpoints import service
from server.jobs.jobs.resume import resume
from server.telemetry.imports.store import start_import
from server.telemetry.metrics.points import Points
from server.telemetry.metrics.store import read_tails, store_points
from tests.actors import ADA
from tests.server.cluster.nodes.gpu_node import GpuNode, heartbeat
from tests.server.harness import Harness
from tests.server.records import add_attempt, add_job
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.past_runs.views import ImportedRun, ImportRequest
from trainyard.protocol.rest.checkpoints import SampleRequest
from trainyard.protocol.rest.jobs import PendingLaunch
from trainyard.protocol.rest.metrics_and_logs import (
    FactsStored,
    RankTimesStored,
    StragglerFound,
    StragglerGone,
)
from trainyard.protocol.rest.projects import ProjectRequest
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import AttemptCause, AttemptState
from trainyard.protocol.worker_messages import ClockReading
from trainyard.run.fact_types.fact_records import MAX_FACTS, RunFacts
from trainyard.run.failures import FailureReason
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.sections.resources import ResourcesSection

OFFSETS = {"metrics": 7, "log:0": 3}
"""Of the spool of a share."""
RANGE = {"min_world_size", "max_world_size", "shrink_after_seconds"}
SELECTORS = {"node_selector", "exclude_nodes"}
RESOURCES_OF_0037 = {*ResourcesSection.model_fields} - {"spare_nodes", "max_runtime_seconds"}
RESOURCES = {"world_size", "nodes", "device", "priority"}
SPEC = {*JobSpec.model_fields} - {"project"}
"""Fields of a spec at revision 0026; those of its section `resources` are above."""


@pytest.mark.parametrize(
    ("revision", "spec", "resources"),
    [
        ("0026", SPEC, RESOURCES),
        ("0029", {*JobSpec.model_fields}, RESOURCES),
        ("0030", {*JobSpec.model_fields}, RESOURCES | RANGE),
        ("0031", {*JobSpec.model_fields}, RESOURCES | RANGE | SELECTORS),
        ("0037", {*JobSpec.model_fields}, RESOURCES_OF_0037),
    ],
)
def test_every_stored_spec_has_the_fields_of_the_former_version(
    database: Database, harness: Harness, revision: str, spec: set[str], resources: set[str]
) -> None:
    job_id = store_specs(harness)
    with database.write() as connection:
        command.downgrade(alembic_config(connection), revision)
        found = list(stored(connection))
    assert len(found) == 5
    for holder in found:
        assert holder.keys() in (spec, {*Overrides.model_fields})
        assert holder["resources"].keys() == resources
    upgrade(database)
    section = harness.job(job_id).spec.resources
    assert (section.world_size, section.priority) == (2, 7)
    assert section.node_selector == ({"zone": "a"} if revision >= "0031" else {})


def test_imported_runs_stay_as_jobs_that_have_ended(
    database: Database, harness: Harness, context: Context
) -> None:
    request = ImportRequest(
        run=ImportedRun(tool="wandb", run_id="a", digest="sha256:" + "a" * 64, points=1),
        name="past",
        state="succeeded",
        start_time=1.7e9,
        seconds=60.0,
        last_step=1,
    )
    job_id = start_import(context, request, actor=ADA).job_id
    with database.write() as connection:
        command.downgrade(alembic_config(connection), "0046")
        of_job = attempts.c.job_id == job_id
        row = connection.execute(sa.select(attempts.c.cause, attempts.c.state).where(of_job)).one()
        kinds = connection.scalars(sa.select(events.c.kind)).all()
    assert (row.cause, row.state, kinds) == (AttemptCause.SUBMIT, AttemptState.ENDED, [])
    upgrade(database)
    assert harness.job(job_id).imported_from is None


def test_facts_are_filled_in_from_programs_and_imports(
    database: Database, harness: Harness, context: Context
) -> None:
    request = ImportRequest(
        run=ImportedRun(
            tool="wandb",
            run_id="a",
            digest="sha256:" + "a" * 64,
            points=1,
            summary={"best": 1.5, "worst": "NaN", **{f"m/{n}": 0.5 for n in range(1998)}},
        ),
        name="past",
        arguments={"lr": 0.1, "layers": (1, 2), "long": "x" * 4000, "on": True, "big": 2**62},
        state="succeeded",
        start_time=1.7e9,
        seconds=60.0,
        last_step=1,
    )
    job_id = start_import(context, request, actor=ADA).job_id
    harness.submit()
    with database.write() as connection:
        before = _facts_and_words(connection, job_id)
        notify(context, connection, Subject(job_id), FactsStored(config=1, summary=1))
        command.downgrade(alembic_config(connection), "0057")
        assert connection.scalars(sa.select(notices.c.kind)).all() == []
    upgrade(database)
    with database.read() as connection:
        assert _facts_and_words(connection, job_id) == before
        assert connection.scalar(sa.select(sa.func.count()).select_from(job_facts)) == 1
    assert len(before[0].summary) == MAX_FACTS
    assert before[0].summary["worst"] == "NaN"
    assert before[1] == {"lr=0.1", "on=true", f"big={2**62}"}


def _facts_and_words(connection: sa.Connection, job_id: str) -> tuple[RunFacts, set[str]]:
    facts = connection.scalar(sa.select(job_facts.c.facts).where(job_facts.c.job_id == job_id))
    assert isinstance(facts, RunFacts)
    return facts, set(connection.scalars(sa.select(config_words.c.word)))


def test_events_and_notices_of_stragglers_are_deleted(
    database: Database, harness: Harness, context: Context
) -> None:
    job_id = harness.submit()
    kinds = sa.select(events.c.kind).order_by(events.c.id)
    found = StragglerFound(step=3, time=1.0, rank=0, kind="compute", factor=1.5, share=0.2)
    with database.write() as connection:
        before = connection.scalars(kinds).all()
        for data in (found, StragglerGone(step=9, time=2.0, rank=0)):
            append_event(context, connection, NewEvent(data, SERVER, Subject(job_id), ""))
        notify(context, connection, Subject(job_id), RankTimesStored(step=9))
        command.downgrade(alembic_config(connection), "0028")
        assert connection.scalars(kinds).all() == before
        assert "rank_times" not in connection.scalars(sa.select(notices.c.kind)).all()
    upgrade(database)


def test_spare_nodes_are_forgotten(database: Database, harness: Harness) -> None:
    """The former version takes each share for one with ranks, and refuses the field."""
    for name in "abc":
        harness.add_node(name, slots=2)
    resources = {"world_size": 4, "nodes": 2, "spare_nodes": 1}
    job_id, (supervisor, _) = harness.running(resources=resources)
    supervisor.end("failed", FailureReason.TRAINER_ERROR)
    job = harness.job(job_id)
    launch = {"cause": AttemptCause.RESUME, "actor": "ada", "layout": job.spec.layout()}
    chosen = PendingLaunch(overrides=Overrides(resources=job.spec.resources), **launch)
    spare = sa.text("UPDATE attempt_nodes SET state = 'spare' WHERE node = 'a'")
    with database.write() as connection:
        connection.execute(sa.update(jobs).values(chosen=chosen))
        of_a = attempt_nodes.c.node == "a"
        connection.execute(sa.update(attempt_nodes).where(of_a).values(acknowledged=OFFSETS))
        command.downgrade(alembic_config(connection), "0038")
        shares = connection.exec_driver_sql("SELECT node FROM attempt_nodes ORDER BY node_rank")
        assert shares.scalars().all() == ["a", "b"]
        assert connection.exec_driver_sql("SELECT node FROM holdings").scalars().all() == ["a"]
        text = connection.exec_driver_sql("SELECT chosen FROM jobs").scalar_one()
        section = json.loads(text)["overrides"]["resources"]
        assert section.keys() == RESOURCES_OF_0037
    with pytest.raises(sa.exc.IntegrityError), database.write() as connection:
        connection.execute(spare)
    upgrade(database)
    with database.write() as connection:
        connection.execute(spare)
        stored = sa.select(attempt_nodes.c.acknowledged).where(of_a)
        assert connection.scalar(stored) == OFFSETS
        assert connection.scalars(sa.select(holdings.c.node)).all() == ["a"]


def test_the_launch_of_a_person_is_found_in_the_attempts(
    database: Database, harness: Harness
) -> None:
    harness.add_node(slots=4)
    elastic = {"world_size": 4, "min_world_size": 1}
    job_id, (supervisor,) = harness.running(resources=elastic)
    fixed = harness.submit(resources={"world_size": 1})
    for size in (3, 2):
        resume(harness.context, job_id, ResumeRequest(world_size=size), actor=ADA)
        supervisor.end("stopped")
        harness.place()
        (supervisor,) = harness.claim_all(job_id)
        supervisor.train(2)
    chosen = harness.job(job_id).chosen
    assert chosen.layout.world_size == 2
    with database.write() as connection:
        by_the_scheduler = sa.update(attempts).where(attempts.c.number == 3)
        connection.execute(by_the_scheduler.values(actor="scheduler"))
        command.downgrade(alembic_config(connection), "0034")
    upgrade(database)
    found = harness.job(job_id).chosen
    assert (found.cause, found.actor, found.layout.world_size) == (AttemptCause.RESIZE, "ada", 3)
    assert harness.job(fixed).chosen is None


def test_the_slots_of_a_node_whose_clock_was_wrong_return(
    database: Database, harness: Harness
) -> None:
    node = GpuNode(harness)
    node.register("a", "b")
    wrong = ClockReading(skew_seconds=60.0, error_seconds=0.1)
    node_heartbeat(harness.context, heartbeat(clock=wrong))
    assert [each.reason for each in node.view.withheld] == [CLOCK, CLOCK]
    with database.write() as connection:
        command.downgrade(alembic_config(connection), "0035")
        former = connection.execute(sa.text("SELECT * FROM nodes")).one()
    assert not {"clock_skew_seconds", "clock_is_wrong"} & former._mapping.keys()
    upgrade(database)
    assert node.view.clock_skew_seconds is None
    node.beat(None)
    assert (node.view.free_slots, node.view.withheld, node.view.problems) == (2, (), ())


def test_patterns_of_artifacts_are_forgotten(database: Database, harness: Harness) -> None:
    program = {"command": ["x"], "artifacts": ["*.csv"]}
    job_id, other = harness.submit(), harness.submit()
    of_program = parse_job_spec({"name": "n", "program": program})
    with database.write() as connection:
        connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(spec=of_program))
        command.downgrade(alembic_config(connection), "0048")
        specs = connection.exec_driver_sql("SELECT id, spec FROM jobs").all()
    sections = {row.id: json.loads(row.spec).get("program") for row in specs}
    assert sections[job_id]["command"] == ["x"]
    assert "artifacts" not in sections[job_id]
    assert not sections[other]
    upgrade(database)
    found = harness.job(job_id).spec.program
    assert found is not None
    assert (found.command, found.artifacts) == (("x",), ())


def test_blocks_outlive_both_ways_and_contents_without_a_job_go(
    database: Database, harness: Harness
) -> None:
    jobs_of = {"kept": harness.submit(), "gone": harness.submit()}
    row = {"size": 1, "stored": 1, "complete": True, "touched_at": harness.context.now()}
    contents = [{"id": key, "job_id": job, "digest": "d", **row} for key, job in jobs_of.items()]
    blocks = [{"content_id": key, "number": 0, "content": b"x"} for key in jobs_of]
    with database.write() as connection:
        connection.execute(sa.insert(artifact_contents), contents)
        connection.execute(sa.insert(artifact_blocks), blocks)
        connection.execute(sa.delete(jobs).where(jobs.c.id == jobs_of["gone"]))
        assert connection.scalar(sa.select(sa.func.count()).select_from(artifact_blocks)) == 2
        command.downgrade(alembic_config(connection), "0049")
        stored = connection.exec_driver_sql("SELECT content_id FROM artifact_blocks")
        assert stored.scalars().all() == ["kept"]
    upgrade(database)
    with database.write() as connection:
        connection.execute(sa.delete(jobs).where(jobs.c.id == jobs_of["kept"]))
        query = sa.select(artifact_contents.c.id, artifact_contents.c.job_id)
        assert connection.execute(query).all() == [("kept", None)]
    with database.write() as connection:
        command.downgrade(alembic_config(connection), "0049")
        assert connection.exec_driver_sql("SELECT id FROM artifact_contents").all() == []
    upgrade(database)


def store_specs(harness: Harness) -> str:
    """Store a spec in each place that has one, with every field of later versions; return a job."""
    context = harness.context
    create_project(context, ProjectRequest(name="vision"), actor=ADA)
    harness.add_node(slots=2)
    resources = {"world_size": 2, "min_world_size": 1, "priority": 7}
    selectors = {"node_selector": {"zone": "a"}, "exclude_nodes": ["node-9"]}
    job_id, _ = harness.running(project="vision", resources=resources)
    checkpoint = harness.commit_checkpoint(job_id, 1)
    service.sample(context, checkpoint, SampleRequest(), actor=ADA)
    section = ResourcesSection.model_validate(resources | selectors)
    spec = harness.job(job_id).spec.model_copy(update={"resources": section})
    with context.database.write() as connection:
        manifest = connection.scalars(sa.select(checkpoints.c.manifest)).one()
        task = connection.scalars(sa.select(operations.c.task)).one().read("task")
        sample = task.sample.model_copy(update={"spec": spec})
        overrides = Overrides(resources=section)
        launch = {"cause": AttemptCause.RETRY, "actor": "ada", "layout": spec.layout()}
        pending = PendingLaunch(overrides=overrides, **launch)
        for statement in (
            sa.update(jobs).values(spec=spec, pending=pending),
            sa.update(attempts).values(overrides=overrides),
            sa.update(checkpoints).values(manifest=manifest.model_copy(update={"spec": spec})),
            sa.update(operations).values(task=task.model_copy(update={"sample": sample})),
        ):
            connection.execute(statement)
    return job_id


def stored(connection: sa.Connection) -> Iterator[dict[str, Any]]:
    """Yield each stored spec, and each set of overrides of one."""
    for query, path in (
        ("SELECT spec FROM jobs", ()),
        ("SELECT pending FROM jobs", ("overrides",)),
        ("SELECT overrides FROM attempts", ()),
        ("SELECT manifest FROM checkpoints", ("spec",)),
        ("SELECT task FROM operations", ("sample", "spec")),
    ):
        for text in connection.exec_driver_sql(query).scalars():
            holder = json.loads(text)
            for key in path:
                holder = holder[key]
            yield holder


def test_live_points_are_packed_and_unpacked(database: Database, context: Context) -> None:
    attempt_id = add_attempt(context, add_job(context))
    values = (0.5, math.nan, math.inf, -math.inf, 5e-324)
    points = {
        name: Points.of(range(count), map(float, range(count)), values[:count])
        for name, count in (("train/loss", 5), ("train/lr", 1))
    }
    with database.write() as connection:
        for first in range(5):
            some = {name: own[first : first + 1] for name, own in points.items()}
            store_points(connection, attempt_id, some)
        before = read_tails(connection, (1, 2), first=0, last=9)
        command.downgrade(alembic_config(connection), "0051")
        rows = connection.execute(sa.text("SELECT value, non_finite FROM metric_tail")).all()
        assert sorted(rows, key=str) == sorted(
            [(0.5, 0), (0.5, 0), (None, 1), (None, 2), (None, 3), (5e-324, 0)], key=str
        )
    upgrade(database)
    with database.read() as connection:
        after = read_tails(connection, (1, 2), first=0, last=9)
    assert before.keys() == after.keys() == {1, 2}
    for name, own in points.items():
        for found in (before, after):
            (same,) = (each for each in found.values() if len(each) == len(own))
            assert same.steps.tolist() == own.steps.tolist(), name
            assert same.times.tolist() == own.times.tolist()
            assert np.array_equal(same.values, own.values, equal_nan=True)


def test_tails_of_many_series_are_packed_while_they_are_read(
    database: Database, context: Context
) -> None:
    """More rows than the migration reads at once, of two points each."""
    attempt_id = add_attempt(context, add_job(context))
    points = {
        f"series/{number}": Points.of((1, 2), (1.0, 2.0), (number, -number))
        for number in range(450)
    }
    with database.write() as connection:
        store_points(connection, attempt_id, points)
        command.downgrade(alembic_config(connection), "0051")
        assert connection.scalar(sa.text("SELECT count(*) FROM metric_tail")) == 900
    upgrade(database)
    with database.read() as connection:
        found = read_tails(connection, range(1, 451), first=0, last=9)
    values = sorted(tail.values.tolist() for tail in found.values())
    assert values == [[number, -number] for number in range(450)]
