"""The environment of a program under the rank wrapper, and the error of a failing one."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainyard.run.directory import RunDirectory
from worker.node.process_tree import WRAPPER
from worker.node.rank_wrapper import LAUNCHER_PID

BACKGROUND = """
import os, signal, sys
for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
    signal.signal(ignored, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Becomes a command like a background job of a shell, or like `nohup`."""
SIGNALS = ("HUP", "INT", "QUIT", "USR1", "PIPE", "TERM", "XFSZ")
"""Those that `BACKGROUND` or the wrapper's own interpreter ignores or blocks."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run directory."""
    for name in ("logs", "ranks"):
        (tmp_path / name).mkdir()
    return tmp_path


def started(kind: str, folder: Path, command: Sequence[str]) -> tuple[int, str]:
    """Run a command by the wrapper; return its exit code and its output."""
    subject = [str(os.getpid()), "-"] if kind == "tie" else [str(folder)]
    words = [*WRAPPER, kind, *subject, "--", *command]
    done = subprocess.run(
        [sys.executable, "-c", BACKGROUND, *words],
        env={**os.environ, "RANK": "0", LAUNCHER_PID: str(os.getpid())},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    log = Path(RunDirectory(folder).log(0))
    return done.returncode, done.stdout + (log.read_text() if log.exists() else "")


@pytest.mark.parametrize("kind", ["tie", "rank"])
@pytest.mark.parametrize("name", SIGNALS)
def test_no_signal_of_the_worker_is_ignored_or_blocked(kind: str, name: str, folder: Path) -> None:
    code, output = started(kind, folder, ["sh", "-c", f"kill -{name} $$; echo survived"])
    number = signal.Signals[f"SIG{name}"]
    assert (code, output) == (-number if kind == "tie" else 128 + number, "")


@pytest.mark.parametrize("kind", ["tie", "rank"])
def test_no_core_file_is_written_also_if_the_node_allows_it(
    kind: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    former = resource.getrlimit(resource.RLIMIT_CORE)
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_CORE, former))
    resource.setrlimit(resource.RLIMIT_CORE, (former[1], former[1]))
    assert started(kind, folder, ["sh", "-c", "ulimit -c"]) == (0, "0\n")


@pytest.mark.parametrize("kind", ["tie", "rank"])
@pytest.mark.parametrize(
    ("name", "mode", "code", "why"),
    [
        ("missing", None, 127, "No such file or directory"),
        ("closed", 0o644, 126, "Permission denied"),
        ("garbage", 0o755, 126, "Exec format error"),
    ],
)
def test_a_program_that_cannot_start_is_named_with_the_reason(
    kind: str, folder: Path, name: str, mode: int | None, code: int, why: str
) -> None:
    program = folder / name
    if mode is not None:
        program.write_bytes(b"\0\1\2")
        program.chmod(mode)
    assert started(kind, folder, [str(program)]) == (code, f"{program}: {why}\n")


@pytest.mark.parametrize(
    ("number", "name"),
    [(int(signal.SIGKILL), "SIGKILL"), (35, "SIGRTMIN+1"), (63, "SIGRTMIN+29"), (64, "SIGRTMAX")],
)
def test_the_end_by_any_signal_is_recorded(number: int, name: str, folder: Path) -> None:
    code, output = started("rank", folder, ["sh", "-c", f"kill -{number} $$"])
    end = json.loads((folder / "ranks" / "0.end").read_text(encoding="utf-8"))
    assert (end["signal"], end["exit_code"]) == (name, None)
    assert (code, output) == (128 + number, "")
