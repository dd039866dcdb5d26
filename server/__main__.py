"""Command line: `python -m server api | scheduler | migrate | admin-token | rotate-key | audit`."""

from __future__ import annotations

import argparse
import gc
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from alembic.util.exc import CommandError
from sqlalchemy.exc import SQLAlchemyError

from server.api.auth.admin import ensure_admin_token
from server.api.wire.configuration import Server, configured
from server.api.wire.connections import connections_possible
from server.app.admin_command import add_options, rotate_admin_token
from server.app.audit_command import add_audit_options, audit_command, begin_audit_log
from server.app.factory import create_app
from server.app.keys import ensure_key, rotate
from server.core.audit.audit_tables import audit_marks
from server.core.context import Context, SystemClock
from server.core.database.engine import Database
from server.core.database.migrate import (
    MigrationRefusedError,
    is_current,
    upgrade,
)
from server.core.secrets import KeyFileError
from server.core.settings import Settings, setting_problems

logger = logging.getLogger("server")


def api(context: Context) -> int:
    """Serve the REST API and the dashboard until SIGTERM."""
    path = ensure_admin_token(context)
    if path is not None:
        logger.info("the admin token lies in %s", path)
    # uvicorn raises SIGTERM again after its shutdown; the process then exits normally.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    app = create_app(context)
    config = configured(app, context.settings, connections=connections_possible())
    server = Server(config, before_end=app.state.inboxes.close)
    # A full garbage collection of the objects made at the start takes 50 ms, during which the
    # server answers no request.
    gc.collect()
    gc.freeze()
    with suppress(KeyboardInterrupt):
        server.run()
    return 0 if server.started else 1


def scheduler(context: Context) -> int:
    """Place jobs and watch leases until SIGTERM."""
    # Only this process needs Celery.
    from server.app.periodic_work import periodic_work
    from server.scheduler.rounds.loop import run

    try:
        broker_url = context.settings.whole_broker_url()
    except ValueError as error:
        return _refused(error)
    run(context, periodic_work, broker_url=broker_url)
    return 0


def migrate(context: Context, given: argparse.Namespace) -> int:
    """Bring the database to the newest schema."""
    # An exception ends pg_dump, too, and removes what it has written.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        made = upgrade(context.database, backup=given.backup, backup_taken=given.backup_taken)
    except (MigrationRefusedError, CommandError, SQLAlchemyError, OSError) as error:
        logger.error("nothing was migrated: %s", error)
        return 1
    if audit_marks.name in made:
        # Only now: a server that did this at each start would also sign an emptied log.
        begin_audit_log(context)
    return 0


def _add_migrate_options(parser: argparse.ArgumentParser) -> None:
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--backup",
        type=Path,
        metavar="FILE",
        help="save the database there before it is changed: a copy of SQLite (default: next to its "
        "file), what pg_dump writes of PostgreSQL",
    )
    choice.add_argument(
        "--backup-taken", action="store_true", help="change the database without saving it first"
    )


def rotate_key(context: Context) -> int:
    """Encrypt every stored value of `env` with a new key."""
    try:
        count = rotate(context)
    except KeyFileError as error:
        logger.error("%s", error.detail)
        return 1
    sys.stdout.write(f"{count} jobs are encrypted with a new key in {context.secrets.path}\n")
    return 0


COMMANDS: dict[str, Callable[[Context], int]] = {
    "api": api,
    "scheduler": scheduler,
    "rotate-key": rotate_key,
}
ADMIN_TOKEN, MIGRATE, AUDIT = "admin-token", "migrate", "audit"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one process of the server, set up by `TRAINYARD_*`, and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m server", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.__doc__)
    _add_migrate_options(
        commands.add_parser(MIGRATE, help=migrate.__doc__, description=migrate.__doc__)
    )
    words = "Replace the admin token, print the new one, and list tokens that the former one made."
    add_options(commands.add_parser(ADMIN_TOKEN, help=words, description=words))
    words = "Check, sign or export the audit log."
    add_audit_options(commands.add_parser(AUDIT, help=words, description=words))
    given = parser.parse_args(arguments)
    name = given.command
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if name != MIGRATE:  # Alembic would log each check of the schema's version
        logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        settings = Settings()
        database = Database(settings.whole_database_url())
    except ValueError as error:
        return _refused(error)
    logging.getLogger("server").setLevel(settings.log_level)
    context = Context(settings=settings, database=database, clock=SystemClock())
    try:
        if name == MIGRATE:
            return migrate(context, given)
        if not _is_ready(context):
            return 1
        if name == ADMIN_TOKEN:
            return rotate_admin_token(context, given)
        if name == AUDIT:
            return audit_command(context, given)
        return COMMANDS[name](context)
    finally:
        context.database.dispose()


def _refused(error: ValueError) -> int:
    """Log the problems of the settings, and return the exit status."""
    for problem in setting_problems(error):
        logger.error("%s", problem)
    return 2


def _is_ready(context: Context) -> bool:
    if is_current(context.database):
        if (error := ensure_key(context)) is not None:
            logger.error("%s; jobs without env are not affected", error)
        return True
    logger.error("the schema is not the newest: run `python -m server migrate` first")
    return False


if __name__ == "__main__":
    sys.exit(main())
