"""`up` and `down` end with an error in words when a part fails."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx
import pytest

from embedded.__main__ import main
from embedded.child import Child, any_free_port
from embedded.folders import Folders
from embedded.record import Recorder, RunRecord, identify, write_record
from embedded.stack import Address, Stack, StartError
from trainyard.outside.proxies import ProxyError

IGNORE = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGUSR1, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(600)",
)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """A data folder whose last `up` left a job training."""
    made = Folders(tmp_path / "data")
    made.make()
    port = any_free_port("127.0.0.1")
    Recorder(made.record, url=f"http://127.0.0.1:{port}", port=port).ended(training=("j1",))
    return made


def raising(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise error

    return fail


def test_an_unanswered_request_for_the_dashboard_ends_up_in_words(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    yard = SimpleNamespace(url="http://127.0.0.1:1")
    monkeypatch.setattr(Stack, "start_server", lambda _: yard)
    for name in ("start_scheduler", "start_worker"):
        monkeypatch.setattr(Stack, name, lambda *_: None)
    monkeypatch.setattr("embedded.up.let_user_in", lambda *_, **__: "ada")
    monkeypatch.setattr("embedded.up.UpSignals.listen", lambda _: None)
    monkeypatch.setattr("embedded.access.answers_with_success", raising(httpx.ReadTimeout("")))
    assert main(["up", "--data", str(folders.root)]) == 1
    told = capsys.readouterr().out
    assert "Error: Cannot reach the server at http://127.0.0.1:1: no answer in time." in told


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ("embedded.up.next_free_port", OSError("no free port")),
        ("embedded.stack.Stack.start_server", ProxyError("HTTP_PROXY is invalid")),
    ],
)
def test_what_keeps_down_from_starting_a_server_is_named(
    folders: Folders,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    part: str,
    error: Exception,
) -> None:
    monkeypatch.setattr(part, raising(error))
    assert main(["down", "--data", str(folders.root)]) == 1
    assert f"Error: {error}" in capsys.readouterr().out


def test_down_names_a_missing_token_of_a_running_up(
    folders: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    with subprocess.Popen(IGNORE, stdout=subprocess.PIPE) as up:
        assert up.stdout is not None
        up.stdout.readline()
        record = RunRecord(url="http://127.0.0.1:1", port=1, up=identify(up.pid))
        write_record(folders.record, record)
        try:
            with folders.held():
                assert main(["down", "--data", str(folders.root)]) == 1
        finally:
            up.kill()
    assert f"Error: [Errno 2] No such file or directory: '{folders.admin_token}'" in (
        capsys.readouterr().out
    )


def test_up_waits_for_the_node_of_its_own_machine(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node of another machine is online, and its heartbeats arrive."""
    monkeypatch.setattr("embedded.stack.READY_SECONDS", 0.3)
    monkeypatch.setattr("embedded.stack.POLL_SECONDS", 0.05)
    monkeypatch.setenv("TRAINYARD_NODE_NAME", "mine")
    monkeypatch.setattr("embedded.stack.PYTHON", ("/bin/true",))
    names = ["another"]

    def nodes() -> list[Any]:
        return [
            SimpleNamespace(name=name, online=True, heartbeat_at=datetime.now(UTC))
            for name in names
        ]

    token = SimpleNamespace(secret="ty_join_x")
    yard: Any = SimpleNamespace(nodes=nodes, create_token=lambda *_, **__: token)
    monkeypatch.setattr(Child, "exit_code", lambda _: None)
    stack = Stack(
        folders,
        Address("127.0.0.1", 1),
        slots=1,
        stopping=threading.Event(),
        changed=lambda _: None,
    )
    with pytest.raises(StartError, match="its node to register was not ready"):
        stack.start_worker(yard)
    stack.children["worker"].reap()
    names.append("mine")
    stack.start_worker(yard)
    stack.children["worker"].reap()
