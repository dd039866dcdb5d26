"""Bring a database to the newest schema (`python -m server migrate`)."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib import resources
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg.conninfo import make_conninfo
from sqlalchemy import Connection, inspect, text

from server.core.database.engine import Database

logger = logging.getLogger(__name__)

# Key of the advisory lock that lets one process migrate at a time on PostgreSQL.
MIGRATIONS_LOCK = 7_301_002
SCRIPTS = resources.files("migrations")
FIRST_REVISION = "0059"
"""The first schema; the migrations before it are no longer here."""
LAST_FORMER_COMMIT = "33c0abfb"
"""Commit that brings a database of an earlier revision to the first schema."""

Backup = Callable[[Database, str], None]
"""Saves a database at a revision before it is migrated."""


class MigrationRefusedError(Exception):
    """The database stays as it is; the message names what to do."""


def upgrade(database: Database, *, backup: Backup | None = None) -> None:
    """Run every migration that the database has not seen; all of them or, on an error, none.

    Args:
        database: what is upgraded.
        backup: saves what the database holds before a migration changes it. Without one SQLite
            copies its file, and PostgreSQL is not migrated.

    Raises:
        MigrationRefusedError: the database has no schema of this version or before, or no backup
            could be made.
    """
    with database.write() as connection:
        if not database.is_sqlite:
            # A backup, or one statement of a migration, may take minutes.
            connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATIONS_LOCK})
        config = alembic_config(connection)
        scripts = ScriptDirectory.from_config(config)
        present = _revision_of(connection, scripts)
        if present is not None and present != scripts.get_current_head():
            (backup or default_backup(database))(database, present)
        command.upgrade(config, "head")


def is_current(database: Database) -> bool:
    """Return whether the database has the schema that this code expects."""
    with database.read() as connection:
        present = MigrationContext.configure(connection).get_current_heads()
        newest = ScriptDirectory.from_config(alembic_config(connection)).get_heads()
    return set(present) == set(newest)


def alembic_config(connection: Connection) -> Config:
    """Return Alembic's configuration; the scripts lie in the installed package `migrations`."""
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.attributes["connection"] = connection
    return config


def _revision_of(connection: Connection, scripts: ScriptDirectory) -> str | None:
    """Return the revision of a database, which this version can upgrade; None of an empty one.

    Raises:
        MigrationRefusedError: it has tables without a revision, or a revision of another version.
    """
    heads = MigrationContext.configure(connection).get_current_heads()
    if not heads:
        if inspect(connection).has_table("jobs"):
            raise MigrationRefusedError(
                "the database has a table 'jobs' but no revision: it belongs to another program, "
                "or `alembic_version` was emptied; name an empty database, or restore a backup"
            )
        return None
    known = {script.revision for script in scripts.walk_revisions()}
    for revision in heads:
        if revision in known:
            continue
        if revision.isdigit() and revision < FIRST_REVISION:
            raise MigrationRefusedError(
                f"the database is at revision {revision}; this version upgrades {FIRST_REVISION} "
                f"and later ones. Check out commit {LAST_FORMER_COMMIT}, run `python -m server "
                "migrate` there, then run it with this version"
            )
        raise MigrationRefusedError(
            f"the database is at revision {revision}, which this version does not have: a newer "
            "version has migrated it. Use that one, or restore a backup"
        )
    return heads[0]


# ---- backups -------------------------------------------------------------------------------------


def default_backup(database: Database) -> Backup:
    """Return the backup that needs no choice of a person: of SQLite, a copy next to its file."""
    path = database.path
    return partial(_copy_sqlite, to=None) if path is not None else _refuse


def backup_to(file: Path) -> Backup:
    """Return the backup that writes a file: a copy of SQLite, or what `pg_dump` writes.

    `pg_restore` restores the latter. An existing file is not overwritten.
    """
    return lambda database, revision: (
        _copy_sqlite(database, revision, to=file)
        if database.is_sqlite
        else _dump_postgresql(database, file)
    )


def no_backup(database: Database, revision: str) -> None:
    """Rely on a backup that a person has taken."""
    del database, revision


def _refuse(database: Database, revision: str) -> None:
    del database
    raise MigrationRefusedError(
        f"the database is at revision {revision} and would be changed: run `python -m server "
        "migrate --backup FILE`, which saves it by pg_dump first, or `--backup-taken` once you "
        "have saved it yourself"
    )


def _copy_sqlite(database: Database, revision: str, *, to: Path | None) -> None:
    """Copy the file of a database; the caller holds the lock of writers.

    Without a place the copy lies next to the file, and replaces one of the same revision.
    """
    source = database.path
    assert source is not None, "a database in memory is always new"
    target = source.with_name(f"{source.name}.revision-{revision}") if to is None else to
    if to is not None and to.exists():
        raise MigrationRefusedError(f"{to} exists: name another file for the backup")
    part = target.with_name(f"{target.name}.part")
    try:
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with (
            closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as read,
            closing(sqlite3.connect(part)) as written,
        ):
            read.backup(written)
        part.replace(target)
    except (OSError, sqlite3.Error) as error:
        part.unlink(missing_ok=True)
        raise MigrationRefusedError(
            f"no copy of the database could be written to {target}: {error}; make room, or name "
            "another file with `--backup FILE`"
        ) from error
    logger.info("the database as it was at revision %s lies in %s", revision, target)


def _dump_postgresql(database: Database, file: Path) -> None:
    """Have `pg_dump` write a database; its password stays out of the list of processes."""
    url = database.engine.url
    environment = os.environ | ({} if url.password is None else {"PGPASSWORD": str(url.password)})
    place = url.set(password=None).translate_connect_args(username="user", database="dbname")
    target = make_conninfo(**{**place, **url.query})
    words = ("pg_dump", "--format=custom", "--no-password", f"--file={file}", f"--dbname={target}")
    if file.exists():
        raise MigrationRefusedError(f"{file} exists: name another file for the backup")
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise MigrationRefusedError(
            f"pg_dump cannot be run ({error}): install PostgreSQL's client programs, or save the "
            "database by other means and pass `--backup-taken`"
        ) from error
    if done.returncode:
        file.unlink(missing_ok=True)
        raise MigrationRefusedError(f"pg_dump failed: {done.stderr.strip()}")
    logger.info("the database is saved in %s; pg_restore restores it", file)
