"""Bring a database to the newest schema (`python -m server migrate`)."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib import resources
from itertools import chain, count
from pathlib import Path
from tempfile import mkstemp

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg.conninfo import make_conninfo
from sqlalchemy import Connection, inspect, text

from server.core.database.engine import Database

logger = logging.getLogger(__name__)

# Key of the PostgreSQL advisory lock that lets only one process migrate at a time.
MIGRATIONS_LOCK = 7_301_002
SCRIPTS = resources.files("migrations")
FIRST_REVISION = "0059"
"""Revision of the first schema; this version of the server has no earlier migrations."""
LAST_FORMER_COMMIT = "33c0abfb"
"""Commit with the migrations that bring an older database to the first schema."""
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class MigrationRefusedError(Exception):
    """The database was not changed; the message names the remedy."""


def upgrade(
    database: Database, *, backup: Path | None = None, backup_taken: bool = False
) -> frozenset[str]:
    """Run every migration that the database lacks; on an error, the database stays unchanged.

    Args:
        database: the database to migrate.
        backup: new file for a copy of the SQLite database or for the output of `pg_dump`. If None,
            an SQLite database is copied to a file next to it, and PostgreSQL is not migrated.
        backup_taken: whether to migrate without a backup, because a person has made one.

    Raises:
        MigrationRefusedError: the database has no schema of this or an earlier version, or no
            backup could be made.
    """
    with database.write() as connection:
        if not database.is_sqlite:
            # A backup, or a single statement of a migration, may take minutes.
            connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATIONS_LOCK})
        config = alembic_config(connection)
        scripts = ScriptDirectory.from_config(config)
        present = _revision_of(connection, scripts)
        if present == scripts.get_current_head():
            logger.info("the database is at revision %s, the newest: nothing to migrate", present)
            return frozenset()
        if present is not None and not backup_taken:
            _save(database, present, to=backup)
        before = inspect(connection).get_table_names()
        command.upgrade(config, "head")
        return frozenset(inspect(connection).get_table_names()) - {*before}


def is_current(database: Database) -> bool:
    """Return whether the database has the schema that this code expects."""
    with database.read() as connection:
        present = MigrationContext.configure(connection).get_current_heads()
        newest = ScriptDirectory.from_config(alembic_config(connection)).get_heads()
    return set(present) == set(newest)


def alembic_config(connection: Connection) -> Config:
    """Return Alembic's configuration; the scripts are in the installed package `migrations`."""
    config = Config()
    # In Alembic's options a percent sign begins the name of another option.
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _revision_of(connection: Connection, scripts: ScriptDirectory) -> str | None:
    """Return the revision of a database that this version can upgrade; None for an empty one.

    Raises:
        MigrationRefusedError: the database has tables but no revision, several revisions, or a
            revision that this version does not have.
    """
    heads = MigrationContext.configure(connection).get_current_heads()
    if not heads:
        tables = sorted({*inspect(connection).get_table_names()} - {"alembic_version"})
        if tables:
            raise MigrationRefusedError(
                f"the database has a table {tables[0]!r} but no revision: it belongs to another "
                "program, or `alembic_version` was emptied; name an empty database, or restore a "
                "backup"
            )
        return None
    if len(heads) > 1:
        raise MigrationRefusedError(
            f"the database is at several revisions ({', '.join(map(str, heads))}): restore a backup"
        )
    (revision,) = heads
    if revision in {script.revision for script in scripts.walk_revisions()}:
        return revision
    if str(revision).isdigit() and str(revision) < FIRST_REVISION:
        raise MigrationRefusedError(
            f"the database is at revision {revision}; this version upgrades {FIRST_REVISION} "
            f"and later ones. Check out commit {LAST_FORMER_COMMIT}, run `python -m server "
            "migrate` there, then run it with this version"
        )
    raise MigrationRefusedError(
        f"the database is at revision {revision}, which this version does not have: a newer "
        "version has migrated it. Use that one, or restore a backup"
    )


# ---- backups -------------------------------------------------------------------------------------


def _save(database: Database, revision: str, *, to: Path | None) -> None:
    if (path := database.path) is not None:
        _copy_sqlite(path, revision, to=to)
    elif to is not None:
        _dump_postgresql(database, to)
    else:
        raise MigrationRefusedError(
            f"the database is at revision {revision} and would be changed: run `python -m server "
            "migrate --backup FILE`, which saves it by pg_dump first, or `--backup-taken` once you "
            "have saved it yourself"
        )


def _copy_sqlite(source: Path, revision: str, *, to: Path | None) -> None:
    """Copy the file of an SQLite database; the caller holds the lock of writers."""
    own = [source.with_name(source.name + end) for end in ("-wal", "-shm", "-journal")]
    if to is not None and to.resolve() in own:
        raise MigrationRefusedError(f"{to} belongs to SQLite: name another file for the backup")
    target = to or _free_name(source.with_name(f"{source.name}.revision-{revision}"))
    with _backup_file(target) as part:
        with (
            closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as read,
            closing(sqlite3.connect(part)) as written,
        ):
            read.backup(written)
            copied = written.execute("SELECT version_num FROM alembic_version").fetchall()
        if copied != [(revision,)]:
            raise MigrationRefusedError(f"the copy of {source} is not at revision {revision}")
    logger.info("the database as it was at revision %s lies in %s", revision, target)


def _free_name(path: Path) -> Path:
    numbered = (path.with_name(f"{path.name}.{number}") for number in count(2))
    return next(each for each in chain([path], numbered) if not each.exists())


def _dump_postgresql(database: Database, file: Path) -> None:
    """Have `pg_dump` write a database; the list of processes never shows the password."""
    _, options = database.engine.dialect.create_connect_args(database.engine.url)
    options.pop("context", None)  # of the driver
    if "sslpassword" in options:
        raise MigrationRefusedError(
            "pg_dump would show the sslpassword of the database's URL to other users: save the "
            "database by other means, and pass `--backup-taken`"
        )
    password = options.pop("password", None)
    environment = os.environ | ({} if password is None else {"PGPASSWORD": str(password)})
    words = ("pg_dump", "--format=custom", "--no-password", f"--dbname={make_conninfo(**options)}")
    with _backup_file(file) as part:
        try:
            done = subprocess.run(
                (*words, f"--file={part}"),
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            raise MigrationRefusedError(
                f"pg_dump cannot be run ({error}): install PostgreSQL's client programs, or save "
                "the database by other means and pass `--backup-taken`"
            ) from error
        if done.returncode or not part.stat().st_size:
            what = done.stderr.strip() or "it wrote nothing"
            raise MigrationRefusedError(f"pg_dump failed: {what}")
    logger.info("the database is saved in %s; pg_restore restores it", file)


def _die_with_parent() -> None:
    """Have the kernel end this process when its parent is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def _backup_file(target: Path) -> Iterator[Path]:
    """Yield a new private file, which is renamed to `target` once the block has written all of it.

    Raises:
        MigrationRefusedError: the name is taken, or the file cannot be written.
    """
    if target.exists():
        raise MigrationRefusedError(f"{target} exists: name another file for the backup")
    try:
        descriptor, name = mkstemp(dir=target.parent, prefix=".backup-", suffix=".part")
        os.close(descriptor)
        part = Path(name)
        try:
            yield part
            part.replace(target)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)
    except (OSError, sqlite3.Error) as error:
        raise MigrationRefusedError(
            f"no backup of the database could be written to {target}: {error}; make room, or name "
            "another file with `--backup FILE`"
        ) from error
