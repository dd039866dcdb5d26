"""The remains of a forkserver at its end, and the start of its children."""

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

from tests.worker import stand_in
from tests.worker.conftest import wait_for
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

ID = "1" * len(UNMARKED)

Start = Callable[..., Forkserver]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv(MARKER, UNMARKED)
    monkeypatch.setenv(NODE_MARKER, "node-1")
    started = []

    def begin() -> Forkserver:
        with monkeypatch.context() as patch:  # otherwise the output of children is captured
            patch.setattr(sys, "stderr", sys.__stderr__)
            server = Forkserver.start(stand_in, {})
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


def test_a_forkserver_that_was_killed_forks_nothing(start: Start, tmp_path: Path) -> None:
    server = start()
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(ForkserverError, match=r"has ended|cannot be reached"):
        server.fork(request(tmp_path, "succeed", "check", str(tmp_path)))


def test_a_child_without_its_marks_does_not_begin(start: Start, tmp_path: Path) -> None:
    server = start()
    short = {MARKER: "short", NODE_MARKER: "node-1"}
    output = tmp_path / "output.log"
    with suppress(ForkserverError):  # if the child has ended before its gate opens
        server.fork(request(tmp_path, "succeed", "check", str(tmp_path), marks=short))
    wait_for(output.exists, "log of the child")
    wait_for(lambda: "has no value of 5 bytes" in output.read_text(), "end of the child")


def test_a_child_that_runs_late_begins_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it first runs, its forkserver has ended and its parent is the supervisor."""
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
    """Its parent is then this process, which observes its end, and whose end ends it."""
    reader = os.fork()
    if reader == 0:  # a supervisor of its own: no subreaper, so that children become init's
        try:
            server = start()
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
