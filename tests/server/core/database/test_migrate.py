"""The migrations make exactly the tables that the code uses, on both databases."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect

from server.cluster.nodes.labeling import set_labels
from server.cluster.nodes.queries import list_nodes
from server.cluster.nodes.series import read_metrics
from server.cluster.projects.queries import list_projects
from server.cluster.projects.service import create_project
from server.core.context import Context
from server.core.database.engine import Database
from server.core.database.metric_and_log_tables import metric_chunks
from server.core.database.migrate import alembic_config, is_current, upgrade
from server.core.database.scheduler_tables import demands
from server.core.database.schema import metadata
from server.core.database.tables import attempt_nodes, attempts, events, jobs, nodes, tokens
from server.jobs.jobs.service import set_priority
from server.scheduler.rounds.leader import Leader
from server.telemetry.goodput.step_sums import RecordedSteps, read_trainings
from server.telemetry.metrics.points import CHUNK_POINTS, Points
from server.telemetry.metrics.store import store_points
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.records import add_attempt, add_job
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.node_samples import Accelerator
from trainyard.protocol.rest.projects import ProjectRequest
from trainyard.protocol.states import JobState
from trainyard.spec.auto import auto_values, resolved
from trainyard.spec.job import JobSpec
from trainyard.spec.sections.parallelism import CompileSection
from trainyard.spec.sections.retry import RetrySection


def test_models_and_migrations_agree(database: Database) -> None:
    with database.read() as connection:
        migration = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(migration, metadata) == []


def test_the_migrated_schema_is_the_one_of_the_tables(database: Database) -> None:
    """Constraints included, which Alembic's own comparison leaves out."""
    with database.write() as connection:
        migrated = schema_of(connection)
        metadata.drop_all(connection)
        metadata.create_all(connection)
        assert schema_of(connection) == migrated


def test_upgrading_again_changes_nothing(database: Database) -> None:
    upgrade(database)
    assert is_current(database)


def test_downgrade_leaves_nothing(database: Database) -> None:
    with database.write() as connection:
        command.downgrade(alembic_config(connection), "base")
        assert inspect(connection).get_table_names() == ["alembic_version"]
    assert not is_current(database)


def test_an_empty_database_is_not_current(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'new.db'}")
    assert not is_current(database)
    upgrade(database)
    assert is_current(database)
    database.dispose()


def test_a_migration_that_fails_leaves_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.write() as connection:
        command.downgrade(alembic_config(connection), "base")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("interrupted")

    with monkeypatch.context() as patch:
        patch.setattr("alembic.op.create_index", fail)
        with pytest.raises(RuntimeError, match="interrupted"):
            upgrade(database)
    with database.read() as connection:
        assert inspect(connection).get_table_names() == ["alembic_version"]
    upgrade(database)
    assert is_current(database)


def test_jobs_from_before_retention_keep_all_checkpoints(
    database: Database, harness: Harness
) -> None:
    old, new = harness.submit(), harness.submit(name="new")
    with database.write() as connection:
        table = sa.table("jobs", sa.column("id"), sa.column("spec", sa.Text))
        text = connection.scalar(sa.select(table.c.spec).where(table.c.id == old))
        document = json.loads(text or "")
        del document["checkpoint"]["keep_latest_k"]
        connection.execute(
            table.update().where(table.c.id == old).values(spec=json.dumps(document))
        )
        command.downgrade(alembic_config(connection), "0013")
    upgrade(database)
    assert harness.job(old).spec.checkpoint.keep_latest_k == 0
    assert harness.job(new).spec.checkpoint.keep_latest_k == 3


def test_stored_jobs_keep_the_defaults_from_before_auto(
    database: Database, harness: Harness
) -> None:
    """A field that a stored text lacks gets its first default, and an attempt its nodes' device."""
    harness.add_node("gpu", device="cuda")
    old = harness.launched()[0]
    waiting = harness.submit(name="waiting", compile={"enabled": True})
    overrides = Overrides(compile=CompileSection(enabled=True), retry=RetrySection())
    with database.write() as connection:
        connection.execute(sa.update(attempts).values(overrides=overrides))
        for name, column, path in (
            ("jobs", "spec", ()),
            ("jobs", "pending", ("overrides",)),
            ("attempts", "overrides", ()),
        ):
            _forget_fields(connection, name, column, path)
        command.downgrade(alembic_config(connection), "0016")
    upgrade(database)
    for job_id in (old, waiting):
        spec = harness.job(job_id).spec
        assert auto_values(spec, "cuda") == {}
        assert resolved(spec, "cuda") == resolved(JobSpec(name=spec.name), "cpu")
    attempt = harness.attempt(old)
    assert attempt.device == "cuda"
    assert attempt.overrides == overrides.model_copy(
        update={"compile": CompileSection(enabled=False)}
    )


def test_schedulers_elect_a_leader_in_a_database_from_before(
    database: Database, harness: Harness
) -> None:
    job_id = harness.submit()
    with database.write() as connection:
        command.downgrade(alembic_config(connection), "0021")
    upgrade(database)
    assert harness.job(job_id).name == "tiny"
    first, second = Leader(database), Leader(database)
    assert (first.held(), second.held()) == (1, None)


def test_chunks_from_before_step_sums_are_decoded(database: Database, context: Context) -> None:
    attempt_id = add_attempt(context, add_job(context))
    steps = range(1, CHUNK_POINTS + 1)
    points = Points.of(steps, map(float, steps), [0.5] * len(steps))
    recorded = RecordedSteps(attempt_id, 1, 0, until=CHUNK_POINTS)
    with database.write() as connection:
        store_points(connection, attempt_id, {"perf/step_seconds": points})
        before = read_trainings(connection, [recorded])
        command.downgrade(alembic_config(connection), "0022")
    upgrade(database)
    with database.read() as connection:
        assert connection.scalar(sa.select(metric_chunks.c.step_sum)) is None
        assert read_trainings(connection, [recorded]) == before
    assert before[attempt_id].productive == 500 * CHUNK_POINTS


def test_nodes_from_before_samples_are_whole_and_go_on(
    database: Database, harness: Harness
) -> None:
    harness.add_node("node-1", slots=2)
    with database.write() as connection:
        command.downgrade(alembic_config(connection), "0024")
    upgrade(database)
    (view,) = list_nodes(harness.context)
    assert (view.name, view.free_slots, view.problems) == ("node-1", 2, ())
    job_id = harness.submit()
    harness.placer.run()
    assert harness.job(job_id).state is JobState.STARTING
    assert read_metrics(harness.context, "node-1", hours=1)["curves"] == []


def test_a_downgrade_leaves_of_a_node_what_the_former_version_reads(
    database: Database, harness: Harness
) -> None:
    harness.add_node("node-1", slots=1)
    gpu = Accelerator(index=0, uuid="GPU-0", name="H100", memory_bytes=1 << 30)
    with database.write() as connection:
        hardware = connection.scalars(sa.select(nodes.c.hardware)).one()
        offered = hardware.model_copy(update={"accelerators": (gpu,), "driver": "580.65"})
        connection.execute(sa.update(nodes).values(hardware=offered))
        command.downgrade(alembic_config(connection), "0024")
        stored = json.loads(connection.exec_driver_sql("SELECT hardware FROM nodes").scalar_one())
    former = hardware.model_dump(mode="json", exclude={"accelerators", "driver"})
    assert stored == former
    upgrade(database)
    with database.read() as connection:
        assert connection.scalars(sa.select(nodes.c.hardware)).one() == hardware


def test_a_downgrade_deletes_the_events_that_the_former_version_cannot_read(
    database: Database, harness: Harness
) -> None:
    job_id = harness.submit()
    kinds = sa.select(events.c.kind).order_by(events.c.id)
    with database.read() as connection:
        before = connection.scalars(kinds).all()
    set_priority(harness.context, job_id, 10, actor=ADA)
    with database.write() as connection:
        assert connection.scalars(kinds).all() == [*before, "priority_changed"]
        command.downgrade(alembic_config(connection), "0022")
        assert connection.scalars(kinds).all() == before
    upgrade(database)
    assert harness.job(job_id).priority == 10


def test_a_downgrade_ends_lost_shares_and_forgets_the_range_of_a_job(
    database: Database, harness: Harness
) -> None:
    harness.add_node("node-1", slots=2)
    resources = {"world_size": 2, "min_world_size": 1, "shrink_after_seconds": 20.0}
    job_id, _ = harness.running(resources=resources)
    share = attempt_nodes.c
    with database.write() as connection:
        connection.execute(sa.update(attempt_nodes).values(lost_at=harness.clock.now()))
        command.downgrade(alembic_config(connection), "0029")
        stored = json.loads(connection.exec_driver_sql("SELECT spec FROM jobs").scalar_one())
        states = connection.exec_driver_sql("SELECT state FROM attempt_nodes").scalars().all()
    assert stored["resources"].keys() == {"world_size", "nodes", "device", "priority"}
    assert states == ["ended"]
    upgrade(database)
    assert harness.job(job_id).spec.resources.size_range is None
    with database.read() as connection:
        assert connection.scalars(sa.select(share.lost_at)).all() == [None]


def test_queued_jobs_of_former_groups_keep_their_reason_and_get_groups_anew(
    database: Database, harness: Harness
) -> None:
    harness.add_node("node-1", slots=2)
    waiting = harness.submit(resources={"world_size": 4}, parallelism={"tp": 2})
    harness.place()
    reason = "needs 4 slots, 2 are online"
    assert harness.job(waiting).reason == reason
    with database.write() as connection:
        command.downgrade(alembic_config(connection), "0025")
        former = {"key": "k", "shape": [4, None, "auto", ["checkpoints"], None, []]}
        connection.execute(sa.insert(demands).values(**former, reason="needs 4 slots"))
        connection.execute(sa.update(jobs).values(demand="k", reason=None))
    upgrade(database)
    assert harness.job(waiting).reason == "needs 4 slots"
    harness.place()
    assert harness.job(waiting).reason == reason


def test_jobs_from_before_projects_belong_to_the_default_one(
    database: Database, harness: Harness
) -> None:
    create_project(harness.context, ProjectRequest(name="vision"), actor=ADA)
    old = harness.submit(project="vision")
    with database.write() as connection:
        command.downgrade(alembic_config(connection), "0026")
        kinds = connection.scalars(sa.select(events.c.kind)).all()
        assert set(kinds) == {"submitted"}
    upgrade(database)
    assert harness.job(old).project == "default"
    assert [view.name for view in list_projects(harness.context)] == ["default"]
    harness.submit(project="default")


def test_a_downgrade_deletes_labels_and_groups_with_selectors(
    database: Database, harness: Harness
) -> None:
    harness.add_node("node-1", slots=2)
    waiting = harness.submit(resources={"node_selector": {"zone": "a"}})
    harness.place()
    reason = harness.job(waiting).reason
    set_labels(harness.context, "node-1", {"zone": "b"}, actor=ADA)
    with database.write() as connection:
        command.downgrade(alembic_config(connection), "0030")
        assert connection.scalars(sa.select(demands.c.key)).all() == []
        assert "node_labeled" not in connection.scalars(sa.select(events.c.kind)).all()
    upgrade(database)
    assert harness.job(waiting).reason == reason
    assert list_nodes(harness.context)[0].labels == {}


def test_offsets_of_shares_that_may_report_are_kept(database: Database, harness: Harness) -> None:
    """A share that ended long ago reports no more: there are as many as there were attempts."""
    harness.add_node("node-1", slots=4)
    ended_at = {
        "running": None,
        "ended first": None,  # other shares of its attempt have not ended
        "just ended": datetime.now(UTC) - timedelta(minutes=5),
        "ended": datetime.now(UTC) - timedelta(days=1),
    }
    attempt_ids = {
        name: harness.attempt(harness.launched(name=name.replace(" ", "-"))[0]).id
        for name in ended_at
    }
    share = attempt_nodes.c
    with database.write() as connection:
        for name, attempt_id in attempt_ids.items():
            mine = attempts.c.id == attempt_id
            connection.execute(sa.update(attempts).where(mine).values(ended_at=ended_at[name]))
        ended = share.attempt_id.in_([attempt_ids[name] for name in ended_at if "ended" in name])
        connection.execute(sa.update(attempt_nodes).where(ended).values(state="ended"))
        command.downgrade(alembic_config(connection), "0040")
        connection.exec_driver_sql(
            "INSERT INTO spool_offsets (attempt_id, node, file, acknowledged) "
            "SELECT attempt_id, node, 'log:0', 7 FROM attempt_nodes"
        )
    upgrade(database)
    query = sa.select(share.attempt_id, share.acknowledged)
    with database.read() as connection:
        stored = dict(connection.execute(query).all())
    kept = {"log:0": 7}
    assert {name: stored[each] for name, each in attempt_ids.items()} == {
        "running": kept,
        "ended first": kept,
        "just ended": kept,
        "ended": {},
    }


def _forget_fields(connection: Connection, name: str, column: str, path: tuple[str, ...]) -> None:
    """Take the fields that are `auto` out of the stored texts."""
    table = sa.table(name, sa.column("id"), sa.column(column, sa.Text))
    for row_id, text in connection.execute(sa.select(table.c.id, table.c[column])).all():
        if text is None:
            continue
        document = json.loads(text)
        holder = document
        for key in path:
            holder = holder[key]
        for field_path in auto_values(JobSpec(), "cpu"):
            section, _, field = field_path.partition(".")
            (holder.get(section) or {}).pop(field, None)
        values = {column: json.dumps(document)}
        connection.execute(table.update().where(table.c.id == row_id).values(values))


def schema_of(connection: Connection) -> dict[str, Any]:
    inspector = inspect(connection)
    kinds: dict[str, Any] = {
        "columns": inspector.get_multi_columns(),
        "keys": inspector.get_multi_pk_constraint(),
        "foreign": inspector.get_multi_foreign_keys(),
        "indexes": inspector.get_multi_indexes(),
        "unique": inspector.get_multi_unique_constraints(),
        "checks": inspector.get_multi_check_constraints(),
    }
    return {
        kind: {
            name: sorted(map(shown, rows)) if isinstance(rows, list) else rows
            for (_, name), rows in tables.items()
            if name != "alembic_version"
        }
        for kind, tables in kinds.items()
    }


def shown(row: Any) -> str:
    """Return what was found as text; SQLite's condition of an index is an object without one."""
    options = {name: str(value) for name, value in row.get("dialect_options", {}).items()}
    return repr({**row, "dialect_options": options})


def test_jobs_from_before_have_the_token_of_their_name_where_one_had_it(
    database: Database, context: Context, harness: Harness
) -> None:
    job_ids = [harness.submit(name=name) for name in ("once", "twice", "never")]
    rows = (("token-1", "ada", "api"), ("token-2", "eve", "api"), ("token-3", "eve", "api"))
    with database.write() as connection:
        for token_id, name, kind in rows:
            values = {"id": token_id, "name": name, "kind": kind, "hash": token_id}
            connection.execute(sa.insert(tokens).values(**values, created_at=context.now()))
        for job_id, name in zip(job_ids, ("ada", "eve", "bob"), strict=True):
            connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(created_by=name))
    with database.write() as connection:
        command.downgrade(alembic_config(connection), "0053")
    upgrade(database)
    with database.read() as connection:
        found = {
            row.id: row.token_id
            for row in connection.execute(sa.select(jobs.c.id, jobs.c.token_id))
        }
    assert [found[job_id] for job_id in job_ids] == ["token-1", None, None]
