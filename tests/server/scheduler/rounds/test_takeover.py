"""Processes of the scheduler on one database: stopped, continued, killed, ended."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sqlalchemy import select

from server.core.context import Context
from server.core.database.engine import Database
from server.core.database.tables import leaders
from tests.server.api.serving import PATIENCE
from tests.server.scheduler.rounds.test_leader import wait_until


class SchedulerProcess:
    """A process of the scheduler, with a log file."""

    def __init__(self, database_url: str, state_dir: Path, log: Path) -> None:
        self._log = log
        with log.open("w") as written:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "server", "scheduler"],
                env={
                    "PATH": "/usr/bin:/bin",
                    "TRAINYARD_DATABASE_URL": database_url,
                    "TRAINYARD_STATE_DIR": str(state_dir),
                    "TRAINYARD_BROKER_URL": "redis://127.0.0.1:1/0",
                },
                stderr=written,
            )

    def logged(self, words: str) -> bool:
        """Return whether the log holds these words."""
        return words in self._log.read_text()

    def leads(self, database: Database) -> bool:
        """Return whether the row names this process."""
        return f":{self.process.pid}:" in (holder_of(database) or "")


@contextmanager
def scheduler(database_url: str, folder: Path, name: str) -> Iterator[SchedulerProcess]:
    """Run a scheduler with its own state folder until the block ends."""
    started = SchedulerProcess(database_url, folder / name, folder / f"{name}.log")
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def holder_of(database: Database) -> str | None:
    with database.read() as connection:
        return connection.scalar(select(leaders.c.holder))


def epoch_of(database: Database) -> int:
    with database.read() as connection:
        return int(connection.execute(select(leaders.c.epoch)).scalar_one())


def stop_outside_a_transaction(database: Database, process: subprocess.Popen[bytes]) -> None:
    """Stop a process while it holds no SQLite lock, which no other process can break."""
    while True:
        os.kill(process.pid, signal.SIGSTOP)
        if database.path is None:
            return
        probe = sqlite3.connect(database.path, timeout=0.5, isolation_level=None)
        try:
            probe.execute("BEGIN IMMEDIATE")
            probe.execute("ROLLBACK")
            return
        except sqlite3.OperationalError:
            os.kill(process.pid, signal.SIGCONT)
        finally:
            probe.close()


def test_the_lead_passes_on_where_a_scheduler_stops_dies_or_ends(
    context: Context, database_url: str, tmp_path: Path
) -> None:
    """`test_leader` proves how soon, on a clock that a busy machine does not move."""
    database = context.database
    with ExitStack() as running:
        first = running.enter_context(scheduler(database_url, tmp_path, "first"))
        wait_until(lambda: first.leads(database))
        second = running.enter_context(scheduler(database_url, tmp_path, "second"))
        wait_until(lambda: second.logged("leads in epoch 1; this scheduler stands by"))

        stop_outside_a_transaction(database, first.process)
        wait_until(lambda: second.leads(database))
        os.kill(first.process.pid, signal.SIGCONT)
        wait_until(lambda: first.logged("the lead of epoch 1 was taken over"))
        assert second.leads(database)

        second.process.kill()
        wait_until(lambda: first.leads(database))
        assert epoch_of(database) == 3

        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(PATIENCE) == 0
        assert holder_of(database) is None, "given back at once"
