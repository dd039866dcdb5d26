"""Carries out operations: claims each one and detaches a supervisor that runs its command.

```
<data_dir>/operations/<id>/<fence>/    task.json and files of the command (protocol.operations)
  launch.json      the OperationLaunch
  operation.log    output of the supervisor and of the command
```
A folder is removed once the server knows that the operation succeeded. After a failure it stays.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from trainyard.base.backoff import Retries
from trainyard.base.ids import is_id
from trainyard.base.model_base import RecordModel
from trainyard.protocol.operations import (
    OUTCOME,
    PROGRESS,
    TASK,
    OperationOrder,
    OperationOutcome,
    OperationProgress,
)
from trainyard.protocol.rest.errors import ApiError
from trainyard.protocol.worker_messages import (
    PROTOCOL,
    OperationClaimReply,
    OperationMessage,
    OperationReport,
)
from trainyard.run.atomic import create_file
from worker.api import BACKOFF, ServerAway, WorkerApi, claimed
from worker.environments.environment_store import MAX_BYTES, MAX_ENTRIES
from worker.environments.node_build import COMMAND as BUILD_COMMAND
from worker.environments.node_build import NodeBuild
from worker.launch import detach
from worker.launchers.rank_environment import code_of, rank_environment
from worker.node.files import read_record, tail
from worker.node.folder_usage import FolderWatch, Limit, remove_tree
from worker.node.node_store import LocalNode, NodeStore
from worker.node.process_tree import ProcessTree, become_subreaper, end_user
from worker.node.users import RUN_CODE, RankUser
from worker.registration import own_token

logger = logging.getLogger(__name__)

LAUNCH, LOG = "launch.json", "operation.log"
LOCK = "operations.lock"
"""Name of the lock in the data folder that is held while a command runs as the operations' user."""
COMMAND = (sys.executable, "-m", "trainer.operations")
AWAY_SECONDS = 120.0
"""Time, in seconds, without a response of the server after which the supervisor ends. The next
claim restarts the operation, which is safe. A node without its server must not run processes for
ever.
"""
POLL_SECONDS = 0.05
BUILD_SECONDS = 3600.0
"""Time limit of a build, in seconds."""
NICENESS = 10
OVER = frozenset({404, 409})


class OperationLaunch(RecordModel):
    """`launch.json`: the supervisor's parameters that the task lacks."""

    operation_id: str
    """Id of the operation."""
    node: str
    """Name of this node."""
    fence: int
    """Fence number, which is the number of the claim."""
    report_seconds: float
    """Maximum pause between two reports, in seconds."""
    data_dir: str
    """Data folder of the node."""
    user: RankUser | None = None
    """User of the command; by default, the worker's own user."""
    environment_days: float = 30.0
    """Number of days without use after which a build removes another environment."""


def start_operation(node: LocalNode, message: OperationMessage, api: WorkerApi) -> bool:
    """Claim an operation and start its supervisor; return whether it was started.

    Raises:
        ServerAway: the server does not respond; it will send the message again.
    """
    operation_id = message.operation_id
    if message.node != node.name or not is_id(operation_id):
        logger.warning("a message for operation %r of node %s", operation_id, message.node)
        return False
    claim = claimed(
        f"operation {operation_id}", lambda: api.claim_operation(operation_id, node.claim)
    )
    if claim is None:
        return False
    try:
        folder = prepare_operation(node, operation_id, claim)
        detach(["operation", str(folder)], log=folder / LOG, folder=folder)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        logger.exception("operation %s cannot be started", operation_id)
        _refuse(node, operation_id, fence=claim.fence, why=str(error), api=api)
        return False
    return True


def _refuse(node: LocalNode, operation_id: str, *, fence: int, why: str, api: WorkerApi) -> None:
    """Report at once, before the lease expires, that this node cannot run an operation."""
    outcome = OperationOutcome(outcome="failed", message=f"{node.name}: {why}"[:4000])
    report = OperationReport(protocol=PROTOCOL, node=node.name, fence=fence, outcome=outcome)
    try:
        api.report_operation(operation_id, report)
    except ApiError as refusal:
        logger.warning("operation %s: %s", operation_id, refusal)


def prepare_operation(node: LocalNode, operation_id: str, claim: OperationClaimReply) -> Path:
    """Write the folder for a claim; the folder must not exist yet.

    Raises:
        ValueError: this node does not define the storage root, cannot build the environment,
            refuses the owner's account, or does not allow the job's code, which the operation would
            run.
        OSError: the folder cannot be written.
    """
    sample = claim.task.sample
    if sample is not None and not node.allow_code and (refused := code_of(sample.spec)):
        raise ValueError(refused)
    build = claim.task.build
    if build is not None and not node.allow_code:
        raise ValueError(
            "a build may run code of the packages; TRAINYARD_ALLOW_CODE=true for the worker of the "
            "node allows it"
        )
    root = node.roots.get(claim.task.root)
    if root is None:
        raise ValueError(f"root {claim.task.root!r} is not defined on node {node.name}")
    user = None
    if node.run_as is not None:
        fresh = node.store.fresh_group
        user = node.run_as.for_operation(claim.task.kind, claim.account, fresh=fresh)
    data_dir = node.store.data_dir
    folder = data_dir / "operations" / operation_id / str(claim.fence)
    folder.mkdir(mode=0o700, parents=True)
    order = OperationOrder(
        task=claim.task, root_path=root, root_id=claim.storage, roots=dict(node.roots)
    )
    launch = OperationLaunch(
        operation_id=operation_id,
        node=node.name,
        fence=claim.fence,
        report_seconds=claim.report_seconds,
        data_dir=str(data_dir),
        user=user,
        environment_days=node.environment_days,
    )
    if build is not None:
        NodeBuild(Path(root), build).prepare(folder)
    create_file(folder / TASK, order.model_dump_json(indent=1) + "\n")
    # The last file, because it marks the folder as complete.
    create_file(folder / LAUNCH, launch.model_dump_json(indent=1) + "\n")
    return folder


class OperationSupervisor:
    """Parent of an operation's command; as a subreaper, it ends all processes of the command."""

    def __init__(self, folder: Path, *, command: Sequence[str] | None = None) -> None:
        """Read the folder of the operation; nothing starts yet.

        Args:
            folder: folder of the operation.
            command: replaces the usual command of the kind; the folder is appended.

        Raises:
            ValueError: the folder does not belong to an operation.
        """
        launch = read_record(folder / LAUNCH, OperationLaunch)
        order = read_record(folder / TASK, OperationOrder)
        if launch is None or order is None:
            raise ValueError(f"{folder} is no folder of an operation")
        build = order.task.build
        self._build = NodeBuild(Path(order.root_path), build) if build is not None else None
        self._kind = order.task.kind
        self._until = math.inf
        self._watches: Sequence[FolderWatch] = ()
        self._found: OperationOutcome | None = None
        self._excess: str | None = None
        self._folder = folder
        self._launch = launch
        self._owner = launch.user.uid if launch.user else None
        self._node = NodeStore(Path(launch.data_dir))
        own = COMMAND if self._build is None else BUILD_COMMAND
        self._words = [*(command or own), str(folder)]
        self._processes = ProcessTree(user=launch.user)

    def supervise(self) -> bool:
        """Run the command and report its end; return whether the server has stored the end."""
        become_subreaper()
        os.nice(NICENESS)  # training on this node has priority
        user = self._launch.user
        if user is not None:
            user.join_group()
        shared = None if user is None or user.is_fresh else user
        with nullcontext() if shared is None else _alone(self._node.data_dir, shared):
            return self._supervise(user)

    def _supervise(self, user: RankUser | None) -> bool:
        environment = {
            **rank_environment(user),
            "PYTHONUNBUFFERED": "1",
            "CUDA_VISIBLE_DEVICES": "",  # the GPUs belong to training
            "OMP_NUM_THREADS": "1",
        }
        if user is not None:
            if self._build is not None:
                self._build.admit(self._folder, user)
            user.admit(self._folder)
            environment |= user.environment(self._launch.operation_id, self._folder)
        if self._kind in RUN_CODE:
            self._watch()
        pid = self._processes.spawn(self._words, environment=environment, output=self._folder / LOG)
        try:
            reported = self._report_until_over(pid)
        finally:
            self._processes.end()
            for watch in self._watches:
                watch.stop()
                watch.make_room({self._folder / LOG}, {self._folder / LAUNCH})
            if self._build is not None:
                self._build.discard(self._folder)
            if user is not None:
                user.close(self._folder)  # in a pool, the next operation has the same user
        if reported and self._found is not None and self._found.outcome == "succeeded":
            remove_tree(self._folder.parent)
        return reported

    def _report_until_over(self, pid: int) -> bool:
        retries = Retries(BACKOFF, for_seconds=AWAY_SECONDS)
        url, ca_file = self._node.server_url or "", self._node.server_ca
        with WorkerApi(url, own_token(self._node), ca_file=ca_file) as api:
            while True:
                status = self._status(pid)
                try:
                    report = self._report(status)
                    if api.report_operation(self._launch.operation_id, report).ended:
                        return True
                    retries.succeeded()
                    pause: float | None = self._launch.report_seconds
                except (ApiError, ServerAway) as error:
                    if isinstance(error, ApiError) and error.status in OVER:
                        logger.warning("the server refuses reports of this claim: %s", error)
                        return False
                    pause = self._note_outage(api, error, retries)
                if pause is None:
                    logger.warning("no answer for %.0f s: left to the next claim", AWAY_SECONDS)
                    return False
                self._wait(pid, pause, ended=status is not None)

    def _report(self, status: int | None) -> OperationReport:
        return OperationReport(
            protocol=PROTOCOL,
            node=self._launch.node,
            fence=self._launch.fence,
            progress=read_record(self._folder / PROGRESS, OperationProgress, owner=self._owner),
            outcome=None if status is None else self._outcome(status),
        )

    def _outcome(self, status: int) -> OperationOutcome:
        """Return the outcome; first publish a finished build, but only once."""
        if self._found is None:
            self._found = self._of_command(status)
            if self._build is not None:
                self._processes.end()  # a package's code must not change the finished build
                days = self._launch.environment_days
                self._found = self._build.finish(self._folder, self._found, unused_days=days)
        return self._found

    def _of_command(self, status: int) -> OperationOutcome:
        """Return the command's outcome, or a failure from its exit status and log."""
        if self._excess is not None:
            return OperationOutcome(outcome="failed", message=f"was ended: {self._excess}")
        outcome = read_record(self._folder / OUTCOME, OperationOutcome, owner=self._owner)
        if outcome is not None:
            return outcome
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        message = f"the command ended {how} without an outcome: {tail(self._folder / LOG)}"
        return OperationOutcome(outcome="failed", message=message[:4000])

    def _note_outage(self, api: WorkerApi, error: Exception, retries: Retries) -> float | None:
        """Read URL and token again; return the pause before the next report, or None to give up."""
        logger.info("no report: %s", error)
        api.url = self._node.server_url or api.url
        api.token = own_token(self._node)
        return retries.failed()

    def _wait(self, pid: int, seconds: float, *, ended: bool) -> None:
        """Wait until the next report is due, or until the command ends."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and (ended or self._status(pid) is None):
            time.sleep(POLL_SECONDS)

    def _watch(self) -> None:
        """Watch the command's resources here, because the command could stop its own watch."""
        folders = [self._folder]
        if self._build is not None:
            self._until = time.monotonic() + BUILD_SECONDS
            target = self._build.target(self._folder)
            folders += [] if target is None else [target]
        limit = Limit(MAX_BYTES, MAX_ENTRIES)
        self._watches = [FolderWatch(path, limit, user=self._launch.user) for path in folders]
        for watch in self._watches:
            watch.start()

    def _status(self, pid: int) -> int | None:
        """Return the command's exit code; end a command that exceeds its time or disk space."""
        status = self._processes.status(pid)
        if status is not None or self._excess is not None:
            return status
        self._excess = next((watch.excess for watch in self._watches if watch.excess), None)
        if time.monotonic() > self._until:
            self._excess = f"it took longer than {BUILD_SECONDS:.0f} s"
        if self._excess is not None:
            self._processes.end()
        return self._processes.status(pid)


@contextmanager
def _alone(data_dir: Path, user: RankUser) -> Iterator[None]:
    """Reserve the operations' user while the block runs; first end all processes of this user.

    Otherwise two operations could run at once, because an operation whose claim has ended may still
    run, for example just after its cancellation. Its code could write to the user's new files, and
    its supervisor finally ends all processes of the user.
    """
    lock = os.open(data_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _try_to_lock(lock):
            end_user(user)
            time.sleep(POLL_SECONDS)
        end_user(user)
        yield
    finally:
        os.close(lock)


def _try_to_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def run_detached_operation(folder: Path) -> int:
    """Supervise the operation in a folder; return the exit code for this process."""
    try:
        OperationSupervisor(folder).supervise()
    except (OSError, ValueError):
        logger.exception("the operation cannot be done")
        return 1
    return 0
