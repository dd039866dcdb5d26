"""`shell`: from the command line over the server and a real supervisor to a process and back."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from server.api.auth.admin import ensure_admin_token
from server.core.context import Context
from server.core.database.engine import Database
from server.core.settings import Settings
from tests.library.conftest import PresentClock, Run, serving
from tests.server.harness import Harness, Supervisor
from tests.worker.conftest import Supervising, make_place, processes_of, wait_for
from tests.worker.fake_server import FakeServer
from tests.worker.launchers.process_launcher import PROCESSES, STAND_IN
from trainyard.client.sdk import Client
from worker.launch import prepare_run
from worker.node.node_store import WorkerRun

NODE = "node-1"
LOCAL_FLAGS = 3
"""Index of the local flags in what `termios.tcgetattr` returns."""
BEGIN = ("--", "sh", "-c", "echo begun; sleep 600")


@dataclass
class Training:
    """A job that trains on its own supervisor, and the server that the command uses."""

    job_id: str
    attempt_id: str
    runs: dict[str, WorkerRun]
    client: Client

    def start(self, *words: str, **streams: int) -> subprocess.Popen[bytes]:
        """Start the command in its own process, which Ctrl-C reaches.

        A run that a shell started in the background ignores SIGINT, and so would the command.
        """
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            self._command(words),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            **streams,
        )

    def output_of(self, *words: str, given: bytes = b"") -> tuple[int, bytes]:
        """Run the command; return its exit code and its output."""
        done = subprocess.run(
            self._command(words), input=given, capture_output=True, timeout=90, check=False
        )
        assert done.stderr == b"", done.stderr
        return done.returncode, done.stdout

    def _command(self, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "trainyard", "shell", self.job_id, *words]


@pytest.fixture
def allowing() -> bool:
    """Whether the nodes run code of people."""
    return True


@pytest.fixture
def nodes() -> tuple[str, ...]:
    """Nodes of the job, of two ranks each."""
    return (NODE,)


@pytest.fixture
def training(
    migrated: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    allowing: bool,
    nodes: tuple[str, ...],
) -> Iterator[Training]:
    path = shutil.copyfile(migrated, tmp_path / "trainyard.db")
    settings = Settings(database_url=f"sqlite:///{path}", state_dir=tmp_path, allow_code=True)
    clock = PresentClock()
    context = Context(settings=settings, database=Database(settings.database_url), clock=clock)
    token = ensure_admin_token(context)
    assert token is not None
    unused = FakeServer()
    unused.close()
    with serving(context) as url, ExitStack() as started:
        harness, runs = Harness(context, clock), {}
        for node in nodes:
            harness.add_node(node, slots=2)
        job_id = harness.submit(resources={"world_size": 2 * len(nodes), "nodes": len(nodes)})
        assert harness.place() == 1
        attempt_id = harness.dispatcher.sent[-1].attempt_id
        monkeypatch.setenv("TRAINYARD_URL", url)
        monkeypatch.setenv("TRAINYARD_TOKEN", token.read_text().strip())
        for node in nodes:
            place = make_place(tmp_path, unused, name=node)
            place.local = replace(place.local, allow_code=allowing)
            place.node.remember_server(url)
            claim = Supervisor(harness, attempt_id, node=node).reply
            claim = claim.model_copy(update={"report_seconds": 0.1})
            runs[node] = prepare_run(place.local, attempt_id, claim)
            with in_background():
                supervisor = place.supervise(attempt_id, runs[node], PROCESSES, *STAND_IN, "loop")
            started.callback(_end, attempt_id, node, supervisor)
        with Client() as client:
            wait_for(lambda: client.job(job_id).state == "running", "a job that trains")
            yield Training(job_id, attempt_id, runs, client)
    context.database.dispose()


@contextmanager
def in_background() -> Iterator[None]:
    """Start processes like a shell's background jobs: they ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(attempt_id: str, node: str, supervisor: Supervising) -> None:
    supervisor.kill()
    supervisor.wait()
    for pid in processes_of(attempt_id, node):
        os.kill(pid, signal.SIGKILL)


def test_a_command_runs_in_the_environment_of_the_ranks(training: Training) -> None:
    script = "pwd; echo $TRAINYARD_ATTEMPT_ID $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES.; exit 7"
    code, output = training.output_of("--rank", "1", "--", "sh", "-c", script)
    assert (code, output.decode().splitlines()) == (
        7,
        [str(training.runs[NODE].root), f"{training.attempt_id} 1 1 ."],
    )
    code, output = training.output_of("--", "env")
    secret = training.runs[NODE].secret.read_bytes().strip()
    assert secret not in output
    assert os.environ["TRAINYARD_TOKEN"].encode() not in output
    # Piped input arrives with unchanged bytes, also more than the server holds.
    given = os.urandom(600_000)
    code, output = training.output_of("--", "cat", given=given)
    assert (code, output == given) == (0, True)
    code, output = training.output_of("--", "no-such-program")
    assert (code, output) == (127, b"no-such-program: No such file or directory\n")
    code, output = training.output_of("--", "/dev/null")
    assert (code, output) == (126, b"/dev/null: Permission denied\n")
    code, output = training.output_of("--", "sh", "-c", "kill -TERM $$")
    assert code == 128 + signal.SIGTERM
    kinds = [event.kind for event in training.client.events(training.job_id)]
    assert (kinds.count("shell_opened"), kinds.count("shell_closed")) == (6, 6)


def test_a_shell_has_the_terminal_of_the_person(
    training: Training, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    here, there = pty.openpty()
    os.set_blocking(here, False)
    command = training.start(stdin=there, stdout=there)
    os.close(there)
    request.addfinalizer(command.wait)
    request.addfinalizer(command.kill)
    shown = b""

    def shows(text: bytes) -> bool:
        nonlocal shown
        with suppress(BlockingIOError):
            shown += os.read(here, 65536)
        return text in shown

    wait_for(lambda: not termios.tcgetattr(here)[LOCAL_FLAGS] & termios.ECHO, "raw mode")
    os.write(here, b"echo $((6 * 7))-$TERM; tty\r")
    wait_for(lambda: shows(b"42-xterm-256color"), "output of the shell")
    wait_for(lambda: shows(b"/dev/pts/"), "its terminal")
    os.write(here, b"sleep 600\r")
    wait_for(lambda: len(processes_of(training.attempt_id, NODE)) >= 4, "the program")
    os.write(here, b"\x03exit 5\r")  # Ctrl-C ends the program, not the command line
    assert command.wait(60) == 5
    os.close(here)


@pytest.mark.parametrize("nodes", [("node-1", "node-2")])
def test_a_command_runs_on_the_node_that_is_named(
    training: Training, nodes: tuple[str, ...], run: Run
) -> None:
    """Both nodes of the attempt are on this machine, each with a run directory."""
    script = ("--", "sh", "-c", "pwd; echo $TRAINYARD_NODE $RANK.$LOCAL_RANK")

    def where(*words: str) -> list[str]:
        code, output = training.output_of(*words, *script)
        assert code == 0
        return output.decode().splitlines()

    first, second = (str(training.runs[node].root) for node in nodes)
    assert where() == where("--node", "node-1") == [first, "node-1 ."]
    assert where("--node", "node-2") == [second, "node-2 ."]
    assert where("--rank", "3") == [second, "node-2 3.1"]
    for words, why in (
        (("--node", "elsewhere"), "node='elsewhere' is none of node-1, node-2"),
        (("--node", "node-1", "--rank", "2"), "rank 2 runs on node-2, not on node-1"),
    ):
        refused = run("shell", training.job_id, *words, *script)
        assert (refused.exit_code != 0, why in refused.stderr) == (True, True), refused.stderr


def test_a_command_ends_when_the_person_leaves(training: Training) -> None:
    before = set(processes_of(training.attempt_id, NODE))
    with training.start(*BEGIN, stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"begun\n"
        command.send_signal(signal.SIGINT)
        assert command.wait(60) == 130
    wait_for(lambda: set(processes_of(training.attempt_id, NODE)) <= before, "its end")


def test_a_command_ends_with_the_attempt(training: Training) -> None:
    with training.start(*BEGIN, stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"begun\n"
        ordered_at = time.monotonic()
        training.client.cancel(training.job_id)
        assert command.wait(60) in {1, 128 + signal.SIGKILL}
    assert time.monotonic() - ordered_at < 30
    assert processes_of(training.attempt_id, NODE) == []


@pytest.mark.parametrize("allowing", [False])
def test_a_node_that_runs_no_code_refuses_a_command(training: Training, run: Run) -> None:
    refused = run("shell", training.job_id, "--", "ls")
    assert refused.exit_code == 1
    assert "TRAINYARD_ALLOW_CODE=true for its worker" in refused.stderr


def test_what_cannot_run_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_URL", "http://127.0.0.1:1")
    refused = run("shell", "@last")
    assert refused.exit_code == 2
    assert "without a terminal, a command is required" in refused.stderr
