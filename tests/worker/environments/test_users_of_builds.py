"""Builds with a command that runs as its own user, which the next operation uses too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.other_users import needs_root, open_folder
from tests.worker.conftest import Place, environment, make_place, wait_for
from tests.worker.fake_server import NODE_TOKEN, FakeOperation, FakeServer
from trainyard.base.ids import make_id
from trainyard.protocol.operations import BuildTask, OperationKind, OperationTask
from trainyard.protocol.worker_messages import OperationClaimReply
from trainyard.run.atomic import replace_file
from worker.environments.build_request import BuildRequest
from worker.environments.environment_store import EnvironmentStore
from worker.environments.interpreters import cuda_version, python_facts
from worker.node.process_identity import process_stat
from worker.node.users import RunAs
from worker.operations import prepare_operation

pytestmark = needs_root
RUN_AS = "nobody:61960-8"
UID = 61_960
DONE = '{"outcome":"succeeded","message":"it is done"}'
PLANT = 'while :; do for each in {places}; do touch "$each/planted.pth"; done; sleep 0.02; done'


@pytest.fixture
def place() -> Iterator[Place]:
    """A node with users, in a folder that these can traverse."""
    server = FakeServer()
    with open_folder() as folder:
        made = make_place(folder, server)
        replace_file(made.node.token, NODE_TOKEN, mode=0o600)
        run_as = RunAs.parse(RUN_AS)
        run_as.prepare_node(slots=4, data_dir=made.node.data_dir, shared=[])
        made.local = replace(made.local, allow_code=True, run_as=run_as)
        yield made
        server.close()


def prepared(place: Place) -> tuple[FakeOperation, Path]:
    """Claim a build on this node, and return it with its folder."""
    store = EnvironmentStore(Path(place.local.roots["checkpoints"]))
    python = python_facts(None)
    request = BuildRequest(python=python, cuda=cuda_version(), lock=f"# {os.urandom(8).hex()}\n")
    store.request(request)
    operation_id = make_id(milliseconds=1, entropy=os.urandom(10))
    task = OperationTask(
        kind=OperationKind.BUILD,
        job_id="job1",
        root="checkpoints",
        paths=(),
        build=BuildTask(digest=request.digest),
    )
    claim = OperationClaimReply(task=task, storage=None, fence=1, report_seconds=0.05)
    seen = place.server.operations[operation_id] = FakeOperation(claim)
    return seen, prepare_operation(place.local, operation_id, claim)


@contextmanager
def supervised(folder: Path, script: str, **limits: float) -> Iterator[subprocess.Popen[bytes]]:
    """Supervise an operation whose command is a shell script; `$0` is its folder.

    In a process of its own, since a supervisor ends all of its descendants.
    """
    changes = "".join(f"operations.{name} = {limit}; " for name, limit in limits.items())
    code = (
        "from pathlib import Path; from worker import operations; "
        "operations.FolderWatch.__init__.__kwdefaults__.update(seconds=0.05); "
        f"{changes}operations.OperationSupervisor("
        f"Path({str(folder)!r}), command=['sh', '-c', {script!r}]).supervise()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env=environment())
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def left_process(script: str) -> Iterator[int]:
    """Run a leftover of an earlier operation: a process of the user of operations."""
    ids = (f"--reuid={UID}", f"--regid={UID}", "--clear-groups")
    process = subprocess.Popen(["setpriv", *ids, "sh", "-c", script], stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_what_a_former_operation_left_writes_into_no_build(place: Place) -> None:
    """The contents of a build's folder become a part of an environment of another job."""
    own = place.folder / "own"
    own.mkdir()
    own.chmod(0o777)
    environments = place.folder / "checkpoints" / "environments"
    places = f"{environments}/.*.partial {place.node.data_dir}/operations/*/* {own}"
    with left_process(PLANT.format(places=places)) as pid:
        seen, folder = prepared(place)
        for _ in range(3):  # it scans all folders repeatedly
            wait_for((own / "planted.pth").exists, "what it plants")
            (own / "planted.pth").unlink()
        script = f'find "$0" {environments} -name planted.pth; echo \'{DONE}\' > "$0/outcome.json"'
        (built,) = environments.glob(".*.partial")
        assert not [*folder.rglob("planted.pth"), *built.rglob("planted.pth")]
        with supervised(folder, script):
            outcome = wait_for(lambda: seen.outcome, "outcome of the build")
        stat = process_stat(pid)
    assert stat is None or stat.ended
    assert outcome.message.endswith("MiB"), outcome.message
    environment = next(each for each in environments.iterdir() if len(each.name) == 64)
    assert [path.name for path in environment.iterdir()] == ["environment.json"]


def test_the_end_of_a_former_operation_ends_nothing_of_the_next_one(place: Place) -> None:
    """Its claim has ended, and its supervisor learns that late."""
    (_, first), (seen, second) = prepared(place), prepared(place)
    begun, script = (
        second / "begun",
        f'touch "$0/begun"; sleep 3; echo \'{DONE}\' > "$0/outcome.json"',
    )
    with supervised(first, 'touch "$0/begun"; sleep 600') as former:
        wait_for((first / "begun").exists, "the first one")
        former.send_signal(signal.SIGSTOP)
        with supervised(second, script):
            with suppress(AssertionError):
                wait_for(begun.exists, "a second one that does not wait", seconds=10)
            former.send_signal(signal.SIGCONT)
            outcome = wait_for(lambda: seen.outcome, "outcome of the second one")
    assert outcome.outcome == "succeeded", outcome.message


@pytest.mark.parametrize(
    ("seconds", "size", "reason"),
    [
        (1.0, 2**30, "was ended: it took longer than 1 s"),
        (3600.0, 2**20, "was ended: {folder} takes more than 1,048,576 bytes of disk"),
    ],
)
def test_a_build_that_stops_its_own_command_is_bounded(
    place: Place, seconds: float, size: int, reason: str
) -> None:
    """A package's code runs as the user of the command, and may stop a watcher of that user."""
    seen, folder = prepared(place)
    script = 'head -c 2097152 /dev/zero > "$0/large"; kill -STOP $$'
    with supervised(folder, script, BUILD_SECONDS=seconds, MAX_BYTES=size):
        outcome = wait_for(lambda: seen.outcome, "outcome of the build")
    assert outcome.message == reason.format(folder=folder)
