"""A migration that is killed leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.server.api.serving import until


def test_a_killed_migration_takes_pg_dump_with_it(tmp_path: Path) -> None:
    stand_in = tmp_path / "bin" / "pg_dump"
    stand_in.parent.mkdir()
    pid = tmp_path / "pid"
    stand_in.write_text(f"#!/bin/sh\necho $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 60\n")
    stand_in.chmod(0o755)
    code = (
        "import pathlib, sys\n"
        "from server.core.database import engine, migrate\n"
        "database = engine.Database('postgresql+psycopg://nowhere.test/db')\n"
        "migrate._dump_postgresql(database, pathlib.Path(sys.argv[1]))\n"
    )
    words = (sys.executable, "-c", code, str(tmp_path / "before.dump"))
    path = f"{stand_in.parent}:{os.environ['PATH']}"
    with subprocess.Popen(words, env=os.environ | {"PATH": path}) as migration:
        until(pid.exists)
        child = Path("/proc", pid.read_text().strip(), "stat")
        assert is_running(child)
        migration.send_signal(signal.SIGKILL)
    until(lambda: not is_running(child), seconds=20)


def is_running(stat_file: Path) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return stat_file.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
