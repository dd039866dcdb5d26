"""Bring a database to the newest schema (`python -m server migrate`)."""

from __future__ import annotations

from importlib import resources

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from server.core.database.engine import Database
from server.core.secrets import SecretsBox

# Key of the advisory lock that lets one process migrate at a time on PostgreSQL.
MIGRATIONS_LOCK = 7_301_002


def upgrade(database: Database, secrets: SecretsBox | None = None) -> None:
    """Run every migration that the database has not seen; all of them or, on an error, none.

    Args:
        database: what is upgraded.
        secrets: encrypts what former schemas kept in the clear; not needed where nothing is stored.

    Raises:
        KeyFileError: there is something to encrypt, and no file of keys.
    """
    with database.write() as connection:
        if not database.is_sqlite:
            # Between two statements a migration may encrypt or convert every row.
            connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATIONS_LOCK})
        config = alembic_config(connection)
        config.attributes["secrets"] = secrets
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
    config.set_main_option("script_location", str(resources.files("migrations")))
    config.attributes["connection"] = connection
    return config
