"""Which processes a forkserver refuses to fork after, and what its end leaves."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.worker.conftest import wait_for
from tests.worker.launchers.process_launcher import STAND_IN_MODULE
from worker.launchers.warm.code_digest import digest_of_code
from worker.launchers.warm.fork_client import UNMARKED, Forkserver, ForkserverError
from worker.launchers.warm.forkserver import (
    ORPHAN_SECONDS,
    ForkedLaunch,
    ForkedProcess,
    fork_all,
)
from worker.node.process_identity import process_stat
from worker.node.process_tree import MARKER, NODE_MARKER, become_subreaper, reap

HERE = "tests.worker.launchers.warm"
ID = "1" * len(UNMARKED)

Start = Callable[..., Forkserver]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    started = []

    def begin(module: str = STAND_IN_MODULE, *, threads: int = 1) -> Forkserver:
        log = tmp_path / "forkserver.log"
        server = Forkserver.start(node="node-1", log=log, threads=threads, module=module)
        started.append(server)
        return server

    yield begin
    for server in started:
        server.end()
        wait_for(partial(gone, server.pid), "end of the forkserver")


def gone(pid: int) -> bool:
    reap()
    stat = process_stat(pid)
    return stat is None or stat.ended


def request(
    folder: Path,
    *words: str,
    marks: dict[str, str] | None = None,
    supervisor: int | None = None,
) -> ForkedLaunch:
    return ForkedLaunch(
        run=str(folder),
        supervisor=supervisor or os.getpid(),
        processes=[ForkedProcess(list(words), str(folder / "output.log"))],
        environment={"RANK": "0", "PATH": os.environ["PATH"]},
        marks={MARKER: ID, NODE_MARKER: "node-1"} if marks is None else marks,
    )


@pytest.mark.parametrize(
    ("module", "message"), [("threaded", "has 2 threads"), ("leaking", "left /etc/passwd open")]
)
def test_it_forks_nothing_after_imports_that_leave_something(
    start: Start, module: str, message: str
) -> None:
    with pytest.raises(ForkserverError, match=message):
        start(f"{HERE}.{module}").await_ready()


def test_a_module_that_cannot_be_imported_ends_it(start: Start) -> None:
    with pytest.raises(ForkserverError, match="has ended"):
        start(f"{HERE}.missing").await_ready()


def test_the_imports_of_the_trainer_leave_one_thread_whatever_the_threads_of_a_rank(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # the node's own number comes first
    server = start("trainer.__main__", threads=4)
    server.await_ready()
    assert server.environment["OMP_NUM_THREADS"] == "4"


def test_nothing_that_lies_in_the_folder_of_temporary_files_keeps_it_from_starting(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user of the node may write there."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "worker")
    (tmp_path / "torchinductor_worker").touch()
    start("trainer.__main__").await_ready()


def test_a_forkserver_that_was_killed_forks_nothing(start: Start, tmp_path: Path) -> None:
    server = start()
    server.await_ready()
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(ForkserverError, match=r"has ended|cannot be reached"):
        server.fork(request(tmp_path, "succeed", "check", str(tmp_path)))


def test_a_child_without_its_marks_does_not_begin(start: Start, tmp_path: Path) -> None:
    server = start()
    server.await_ready()
    short = {MARKER: "short", NODE_MARKER: "node-1"}
    output = tmp_path / "output.log"
    with suppress(ForkserverError):  # where the child has ended before its gate opens
        server.fork(request(tmp_path, "succeed", "check", str(tmp_path), marks=short))
    wait_for(output.exists, "log of the child")
    wait_for(lambda: "has no value of 5 bytes" in output.read_text(), "end of the child")


def test_a_child_that_runs_late_begins_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its forkserver has ended, and its parent is the supervisor, when it first runs."""
    supervisor = os.fork()
    if supervisor == 0:
        try:
            become_subreaper()
            gate, opener = os.pipe()
            if os.fork() == 0:
                fork, pid = os.fork, os.getpid()

                def late() -> int:
                    child = fork()
                    while child == 0 and os.getppid() == pid:
                        time.sleep(0.01)
                    return child

                monkeypatch.setattr(os, "fork", late)
                module = SimpleNamespace(__name__="module", enter=lambda: os._exit(7))
                fork_all(request(tmp_path, marks={}, supervisor=os.getppid()), module, gate=gate)
                os._exit(0)
            os.write(opener, b"\0")
            began = time.monotonic()
            ends = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)]
            os._exit(0 if ends == [0, 7] and time.monotonic() - began < ORPHAN_SECONDS / 2 else 1)
        finally:
            os._exit(1)
    assert os.waitpid(supervisor, 0) == (supervisor, 0)


def test_no_child_begins_before_the_forkserver_has_ended(start: Start, tmp_path: Path) -> None:
    """Its parent is this process then, which sees its end and with which it ends."""
    reader = os.fork()
    if reader == 0:  # a supervisor of its own: no subreaper, so that children become init's
        try:
            server = start()
            server.await_ready()
            server.fork(request(tmp_path, "check_lasts", "check", str(tmp_path)))
            time.sleep(1)
        finally:
            os._exit(0)
    os.waitpid(reader, 0)
    output = tmp_path / "output.log"
    assert output.read_text() == "", "a child of another process ends in silence"


def test_the_digest_of_the_code_changes_with_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "trainer", None)
    monkeypatch.delitem(sys.modules, "trainer")
    before = digest_of_code()
    assert digest_of_code() == before
    (package / "loop.py").write_text("steps = 1\n")
    changed = digest_of_code()
    assert changed != before
    (tmp_path / "torch-9.9.dist-info").mkdir()
    assert digest_of_code() != changed
