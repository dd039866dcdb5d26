"""Launches an attempt's share on this node: claim, run directory, detached supervisor."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainyard.protocol.attempt import AttemptSpec
from trainyard.protocol.rest.errors import ApiError
from trainyard.protocol.worker_messages import ClaimReply, LaunchMessage
from trainyard.run.atomic import create_file
from worker.api import WorkerApi, persist
from worker.launchers.environment import inherited_environment
from worker.node.hardware import Devices
from worker.node.node_store import AttemptLock, LaunchRecord, NodeStore, WorkerRun
from worker.node.users import RankUser, RunAs

logger = logging.getLogger(__name__)

CLAIM_SECONDS = 30.0
DETACH_SECONDS = 60.0


@dataclass(frozen=True)
class AttemptStarter:
    """The settings of the node that the start of an attempt needs."""

    node: NodeStore
    """The node's files."""
    name: str
    """The node's name."""
    roots: Mapping[str, str]
    """Folder or URL of each storage root."""
    devices: Devices
    """What the node offers."""
    allow_code: bool = False
    """Whether the node runs code that a job brings."""
    run_as: RunAs | None = None
    """As whom ranks run; as the worker when absent."""

    def start(self, message: LaunchMessage, api: WorkerApi) -> bool:
        """Claim the node's share of an attempt and start its supervisor; say whether that was done.

        Whatever a message says, nothing is launched that the server does not grant.

        Raises:
            ValueError: the attempt has no id, or the claim cannot be carried out here.
            ServerAway: the server could not be asked; the message will come again.
        """
        if message.node != self.name:
            logger.warning("a message for node %s came to %s", message.node, self.name)
            return False
        lock = self.node.lock(message.attempt_id, create=True)
        if lock is None:
            logger.info("attempt %s is launched already", message.attempt_id)
            return False
        with lock:
            if lock.run is not None:
                logger.info("attempt %s was launched before", message.attempt_id)
                return False
            reply = self._claim(message.attempt_id, api, lock)
            if reply is None:
                return False
            with self.node.users() as taken:
                user = self.run_as.free(taken) if self.run_as is not None else None
                run = self.prepare(message.attempt_id, reply, user=user)
                lock.lead_to(run)
            start_supervisor(run, lock)
        return True

    def _claim(self, attempt_id: str, api: WorkerApi, lock: AttemptLock) -> ClaimReply | None:
        granted: ClaimReply | None = None
        try:
            granted = persist(
                lambda: api.claim(attempt_id, node=self.name), for_seconds=CLAIM_SECONDS
            )
        except ApiError as refusal:
            logger.info("no claim to attempt %s: %s", attempt_id, refusal)
        finally:
            if granted is None:
                lock.forget()
        return granted

    def prepare(
        self, attempt_id: str, claim: ClaimReply, *, user: RankUser | None = None
    ) -> WorkerRun:
        """Write the run directory of an attempt, which must not be there yet."""
        run = self.node.run(claim.attempt.job_id, claim.attempt.attempt)
        run.root.mkdir(parents=True)
        for folder in (run.logs, run.ranks, run.requests):
            Path(folder).mkdir()
        if user is not None:
            run.root.parent.chmod(0o711)
            run.home.mkdir()
            for folder in (run.root, run.home, run.logs, run.ranks, run.requests):
                user.give(Path(folder), 0o1770)  # nobody removes what another one made
        self.node.cache_dir.mkdir(exist_ok=True)
        attempt = claim.attempt.model_copy(
            update={
                "roots": dict(self.roots),
                "cache_dir": str(self.node.cache_dir),
                "device": self._device(claim),
            }
        )
        launch = LaunchRecord(
            attempt_id=attempt_id,
            node=self.name,
            node_rank=claim.node_rank,
            rendezvous=claim.rendezvous,
            others=claim.addresses[: claim.node_rank] + claim.addresses[claim.node_rank + 1 :],
            report_seconds=claim.report_seconds,
            data_dir=str(self.node.data_dir),
            environment=self._environment(claim),
            allow_code=self.allow_code,
            user=user,
        )
        # Its `env` may hold secrets.
        create_file(Path(run.spec), claim.spec.model_dump_json(indent=1) + "\n", mode=0o600)
        if user is not None:
            user.give(Path(run.spec), 0o640)
        create_file(Path(run.attempt), attempt.model_dump_json(indent=1) + "\n")
        create_file(Path(run.secret), claim.attempt_token + "\n", mode=0o600)
        create_file(run.launch, launch.model_dump_json(indent=1) + "\n")
        return run

    def _device(self, claim: ClaimReply) -> Literal["cpu", "cuda"]:
        """Return the kind of the slots that were allocated here: ranks take no other.

        Raises:
            ValueError: GPUs were allocated, and this node offers none.
        """
        allocated, offered = claim.attempt.device, self.devices.hardware.device
        if allocated == "cuda" and offered == "cpu":
            raise ValueError(f"device={allocated!r} was allocated, but this node offers CPU slots")
        return allocated or offered

    def _environment(self, claim: ClaimReply) -> dict[str, str]:
        """Return the variables that depend on the node and the slots: GPUs, threads."""
        visible = self.devices.visible
        on_gpus = self._device(claim) == "cuda"
        slots = slots_of(claim.attempt, claim.node_rank)
        if on_gpus and max(slots) >= len(visible):
            raise ValueError(f"slot {max(slots)} was allocated, but this node has {len(visible)}")
        return {
            "OMP_NUM_THREADS": str(self.devices.threads_per_slot),
            # Empty where the slots are CPU ranks: they must not take a GPU from anybody.
            "CUDA_VISIBLE_DEVICES": (",".join(visible[slot] for slot in slots) if on_gpus else ""),
        }


def slots_of(attempt: AttemptSpec, node_rank: int) -> tuple[int, ...]:
    """Return the slots of one node of an attempt.

    Raises:
        ValueError: the allocation names no such node.
    """
    for allocated in attempt.allocation:
        if allocated.node_rank == node_rank:
            return allocated.slots
    raise ValueError(f"the allocation has no node of rank {node_rank}")


def start_supervisor(run: WorkerRun, lock: AttemptLock) -> None:
    """Start the supervisor of a run directory, detached, with the lock in its hands.

    The command forks and its first process leaves at once: the supervisor is nobody's child but
    that of the machine's first process, which reaps it.
    """
    with run.supervisor_log.open("ab") as log:
        subprocess.run(
            [sys.executable, "-m", "worker", "supervise", str(run.root), f"--lock={lock.fd}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[lock.fd],
            env=inherited_environment(),
            cwd=run.root,
            timeout=DETACH_SECONDS,
            check=True,
        )
