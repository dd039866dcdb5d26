"""Operations on a node: claimed once, run detached by the real commands, reported to the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.other_users import needs_root
from tests.worker.conftest import NODE, Place, environment, wait_for
from tests.worker.fake_server import NODE_TOKEN, FakeOperation, FakeServer
from trainyard.base.ids import make_id
from trainyard.protocol.operations import (
    TASK,
    OperationKind,
    OperationOrder,
    OperationTask,
    SampleTask,
)
from trainyard.protocol.worker_messages import OperationClaimReply, OperationMessage
from trainyard.run.atomic import replace_file
from trainyard.spec.job import parse_job_spec
from worker.api import WorkerApi
from worker.node.files import read_record
from worker.node.node_store import LocalNode
from worker.node.process_identity import process_stat
from worker.node.users import RankUser
from worker.operations import (
    LAUNCH,
    LOG,
    OperationLaunch,
    prepare_operation,
    start_operation,
)

SLOW = """
import json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "pid").write_text(str(os.getpid()))
for done in range(1, 1000):
    part = folder / "part"
    part.write_text(json.dumps({"doing": "waits", "done": done, "total": 1000}))
    part.replace(folder / "progress.json")
    time.sleep(0.05)
"""
WORDLESS = "import sys; print('no room here'); sys.exit(3)"


@pytest.fixture
def local(place: Place) -> LocalNode:
    """A node that has joined."""
    replace_file(place.node.token, NODE_TOKEN)
    return place.local


@pytest.fixture
def api(server: FakeServer) -> Iterator[WorkerApi]:
    with WorkerApi(server.url, NODE_TOKEN) as connection:
        yield connection


def given(
    server: FakeServer,
    *paths: str,
    root: str = "checkpoints",
    fence: int = 1,
    kind: OperationKind = OperationKind.DELETE,
    sample: SampleTask | None = None,
) -> str:
    """Make the server send an operation to the node; return its id."""
    operation_id = make_id(milliseconds=1, entropy=os.urandom(10))
    task = OperationTask(kind=kind, job_id="job1", root=root, paths=paths, sample=sample)
    claim = OperationClaimReply(task=task, storage=None, fence=fence, report_seconds=0.05)
    server.operations[operation_id] = FakeOperation(claim)
    return operation_id


def supervise(folder: Path, *, script: str, tmp_path: Path) -> subprocess.Popen[bytes]:
    """Supervise an operation with a script of the test as its command."""
    path = tmp_path / f"{uuid.uuid4().hex}.py"
    path.write_text(script)
    code = (
        "from pathlib import Path; "
        "from worker.operations import OperationSupervisor; "
        f"OperationSupervisor(Path({str(folder)!r}), "
        f"command=[{sys.executable!r}, {str(path)!r}]).supervise()"
    )
    return subprocess.Popen([sys.executable, "-c", code], env=environment())


def is_alive(pid: int) -> bool:
    stat = process_stat(pid)
    return stat is not None and not stat.ended


def test_an_operation_is_done_by_the_real_command(
    place: Place, server: FakeServer, local: LocalNode, api: WorkerApi
) -> None:
    checkpoint = place.folder / "checkpoints" / "job1" / "a1" / "step-4"
    checkpoint.mkdir(parents=True)
    for name in ("COMMITTED", "manifest.json", "__0_0.distcp"):
        (checkpoint / name).write_text("x")
    operation_id = given(server, "job1/a1/step-4")
    assert start_operation(local, OperationMessage(operation_id=operation_id, node=NODE), api)
    assert not start_operation(
        local, OperationMessage(operation_id=operation_id, node=NODE), api
    )  # doubled
    outcome = wait_for(lambda: server.operations[operation_id].outcome, "outcome")
    assert (outcome.outcome, outcome.files) == ("succeeded", 3)
    assert not checkpoint.exists()
    folder = place.node.data_dir / "operations" / operation_id
    wait_for(lambda: not folder.exists(), "end of the operation's folder")


def test_a_message_for_another_node_is_dropped(
    server: FakeServer, local: LocalNode, api: WorkerApi
) -> None:
    operation_id = given(server, "job1/a1/step-4")
    assert not start_operation(
        local, OperationMessage(operation_id=operation_id, node="node-2"), api
    )
    assert not start_operation(local, OperationMessage(operation_id="../up", node=NODE), api)
    assert not server.operations[operation_id].claimed


def test_a_root_that_is_not_here_is_said_at_once(
    server: FakeServer, local: LocalNode, api: WorkerApi
) -> None:
    operation_id = given(server, "job1/a1/step-4", root="elsewhere")
    assert not start_operation(local, OperationMessage(operation_id=operation_id, node=NODE), api)
    outcome = server.operations[operation_id].outcome
    assert outcome is not None
    assert outcome.message == "node-1: root 'elsewhere' is not defined on node node-1"


def test_code_of_a_job_runs_only_where_the_node_allows_it(
    place: Place, server: FakeServer, local: LocalNode, api: WorkerApi
) -> None:
    own = parse_job_spec({"model": {"factory": "gpt:build", "code": "data:own"}})
    asked = SampleTask(spec=own, prompt="", max_tokens=1, temperature=0, seed=0)
    operation_id = given(server, "job1/a1/step-4", kind=OperationKind.SAMPLE, sample=asked)
    assert not start_operation(local, OperationMessage(operation_id=operation_id, node=NODE), api)
    outcome = server.operations[operation_id].outcome
    assert outcome is not None
    assert "this node runs no code that a job brings" in outcome.message
    allowing = replace(local, allow_code=True)
    folder = prepare_operation(allowing, operation_id, server.operations[operation_id].claim)
    order = OperationOrder.model_validate_json((folder / TASK).read_bytes())
    assert order.roots == {name: str(path) for name, path in place.local.roots.items()}


def test_a_command_without_a_word_is_a_failure_with_its_output(
    server: FakeServer, local: LocalNode, tmp_path: Path
) -> None:
    operation_id = given(server, "job1/a1/step-4")
    folder = prepare_operation(local, operation_id, server.operations[operation_id].claim)
    supervise(folder, script=WORDLESS, tmp_path=tmp_path).wait()
    outcome = server.operations[operation_id].outcome
    assert outcome is not None
    assert outcome.outcome == "failed"
    assert outcome.message == "the command ended with status 3 without an outcome: no room here"
    assert (folder / LOG).exists()


def test_progress_goes_on_through_an_outage(
    server: FakeServer, local: LocalNode, tmp_path: Path
) -> None:
    operation_id = given(server, "job1/a1/step-4")
    folder = prepare_operation(local, operation_id, server.operations[operation_id].claim)
    supervisor = supervise(folder, script=SLOW, tmp_path=tmp_path)
    reports = server.operations[operation_id].reports
    try:
        wait_for(lambda: reports and reports[-1].progress, "progress")
        server.close()
        before = len(reports)
        server.open()
        wait_for(lambda: len(reports) > before + 1, "reports after the outage")
        assert reports[-1].progress is not None
        assert reports[-1].progress.done > 1
    finally:
        server.operations[operation_id].current = False
        supervisor.wait(timeout=30)


def test_one_that_is_outrun_ends_its_command(
    server: FakeServer, local: LocalNode, tmp_path: Path
) -> None:
    operation_id = given(server, "job1/a1/step-4")
    folder = prepare_operation(local, operation_id, server.operations[operation_id].claim)
    supervisor = supervise(folder, script=SLOW, tmp_path=tmp_path)
    wait_for(lambda: server.operations[operation_id].reports, "a report")
    pid = int(wait_for(lambda: _text(folder / "pid"), "pid of the command"))
    server.operations[operation_id].current = False
    assert supervisor.wait(timeout=30) == 0
    assert not is_alive(pid)


def test_a_killed_supervisor_takes_its_command_along(
    server: FakeServer, local: LocalNode, tmp_path: Path
) -> None:
    operation_id = given(server, "job1/a1/step-4")
    folder = prepare_operation(local, operation_id, server.operations[operation_id].claim)
    supervisor = supervise(folder, script=SLOW, tmp_path=tmp_path)
    pid = int(wait_for(lambda: _text(folder / "pid"), "pid of the command"))
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait()
    wait_for(lambda: not is_alive(pid), "end of the command")


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@needs_root
def test_the_folder_of_a_failed_operation_is_closed_to_its_user(
    server: FakeServer, local: LocalNode, tmp_path: Path
) -> None:
    operation_id = given(server, "job1/a1/step-4")
    folder = prepare_operation(local, operation_id, server.operations[operation_id].claim)
    user = RankUser(uid=61_945, groups=())
    launch = read_record(folder / LAUNCH, OperationLaunch)
    assert launch is not None
    changed = launch.model_copy(update={"user": user})
    replace_file(folder / LAUNCH, changed.model_dump_json())
    user.give(folder, 0o1770)
    supervise(folder, script=WORDLESS, tmp_path=tmp_path).wait()
    outcome = server.operations[operation_id].outcome
    assert outcome is not None
    assert outcome.outcome == "failed"
    assert folder.stat().st_mode & 0o7777 == 0o1700
