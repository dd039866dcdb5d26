"""Launches an attempt's share on this node: claim, run directory and detached supervisor."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from trainyard.protocol.node_samples import DATA_DIR, DATA_DIR_BYTES, DATA_DIR_FULL
from trainyard.protocol.worker_messages import PROTOCOL, ClaimReply, LaunchMessage, Report
from trainyard.run.atomic import create_file
from trainyard.run.failures import Failure
from trainyard.run.records import ExitRecord
from trainyard.spec.environment import plain_variables
from worker.api import CLAIM_SECONDS, WorkerApi, claimed, persist
from worker.launchers.base import put_back
from worker.launchers.rank_environment import code_of, inherited_environment
from worker.node.hardware.samples import sample_disk
from worker.node.kernel_store import kernel_key
from worker.node.node_store import AttemptLock, LaunchRecord, LocalNode, WorkerRun
from worker.node.process_identity import own_identity
from worker.node.users import RankUser
from worker.run_as.unix_account import AccountRefusedError
from worker.warm.hand_over import hand_over

logger = logging.getLogger(__name__)

DETACH_SECONDS = 60.0


def launch_attempt(node: LocalNode, message: LaunchMessage, api: WorkerApi) -> bool:
    """Claim the node's share of an attempt and start its supervisor; return whether it was started.

    A message alone starts nothing; first the server must grant the claim.

    Raises:
        ValueError, OSError, SubprocessError: the message has an invalid attempt id, or the claimed
            share cannot be started on this node.
        ServerAway: the server does not respond; it will send the message again.
        ApiError: the server refuses a report that the launch must be placed again.
    """
    if message.node != node.name:
        logger.warning("a message for node %s came to %s", message.node, node.name)
        return False
    lock = node.store.lock(message.attempt_id, create=True)
    if lock is None:
        logger.info("attempt %s is launched already", message.attempt_id)
        return False
    with lock:
        if lock.run is not None:
            logger.info("attempt %s was launched before", message.attempt_id)
            return False
        reply = None
        claim = node.claim.model_copy(update={"secret": secrets.token_urlsafe(32)})
        try:
            reply = claimed(
                f"attempt {message.attempt_id}", lambda: api.claim(message.attempt_id, claim)
            )
        finally:
            if reply is None:
                lock.forget()
        if reply is None:
            return False
        try:
            run = _prepare(node, message.attempt_id, claim=reply, lock=lock)
        except _PutBackError as error:
            try:
                _report(node, message.attempt_id, error.failure, claim=reply, api=api)
            finally:
                lock.forget()  # not before the report: the attempt would count as gone
            return False
        _supervise(node, run, lock=lock, claim=reply)
    return True


class _PutBackError(Exception):
    """This node cannot start the attempt now; nothing of it exists here."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def _prepare(
    node: LocalNode, attempt_id: str, *, claim: ClaimReply, lock: AttemptLock
) -> WorkerRun:
    """Choose the user of an attempt, and write its run directory.

    Raises:
        _PutBackError: the disk may be too full for a run directory, or this node refuses the Unix
            account of the owner.
    """
    if sample_disk(DATA_DIR, node.store.data_dir).free_bytes < DATA_DIR_BYTES:
        message = f"{DATA_DIR_FULL}: {node.store.data_dir} on {node.name}"
        remedy = "Free space there; the next attempt goes to another node, or waits."
        raise _PutBackError(put_back(node.name, message, remedy=remedy))
    run_as = node.run_as
    try:
        found = None if run_as is None else run_as.look_up(claim.account)
    except AccountRefusedError as error:
        remedy = (
            "Add the account on the node, or map the owner to another one; the job waits for a "
            "node with the account."
        )
        raise _PutBackError(put_back(node.name, f"{node.name}: {error}", remedy=remedy)) from None
    with node.store.users() as taken:
        user = None
        if run_as is not None:
            user = run_as.free(taken, found, fresh=node.store.fresh_group)
        run = prepare_run(node, attempt_id, claim, user=user)
        lock.lead_to(run)
    return run


def _supervise(node: LocalNode, run: WorkerRun, *, lock: AttemptLock, claim: ClaimReply) -> None:
    """Hand a launch to the idle process; if that fails or the job has code, start a supervisor."""
    if claim.spec.program is not None or claim.spec.model.runs_code:
        start_supervisor(run, lock)  # no forkserver has imported the code of a job
        return
    why = hand_over(node.store, run, lock) if node.warm else "TRAINYARD_WARM is false on the node"
    if why is not None:
        logger.info("a cold launch: %s", why)
        start_supervisor(run, lock, why_cold=why)


def _report(
    node: LocalNode, attempt_id: str, failure: Failure, *, claim: ClaimReply, api: WorkerApi
) -> None:
    """Report the end of a launch that has no supervisor."""
    logger.warning("attempt %s is put back: %s", attempt_id, failure.message)
    record = ExitRecord(outcome="failed", failure=failure, ranks=(), time=time.time())
    report = Report(protocol=PROTOCOL, node=node.name, identity=own_identity(), exit=record)
    with WorkerApi(api.url, claim.attempt_token, ca_file=api.ca_file) as of_attempt:
        persist(lambda: of_attempt.report(attempt_id, report), for_seconds=CLAIM_SECONDS)


def prepare_run(
    node: LocalNode, attempt_id: str, claim: ClaimReply, *, user: RankUser | None = None
) -> WorkerRun:
    """Write the run directory of an attempt; it must not exist yet, and no failure leaves it."""
    run = node.store.run(claim.attempt.job_id, claim.attempt.attempt)
    run.root.mkdir(parents=True)
    try:
        _fill(run, node, attempt_id, claim=claim, user=user)
    except BaseException:
        shutil.rmtree(run.root, ignore_errors=True)  # it may hold secrets, and has no supervisor
        raise
    return run


def _fill(
    run: WorkerRun,
    node: LocalNode,
    attempt_id: str,
    *,
    claim: ClaimReply,
    user: RankUser | None,
) -> None:
    folders = (run.logs, run.ranks, run.requests, run.rank_metrics, run.artifacts, run.outputs)
    for folder in folders:
        Path(folder).mkdir()
    if user is not None:
        run.root.parent.chmod(0o711)
        run.home.mkdir()
        user.close(run.root)
        for folder in (run.home, *folders):
            user.give(Path(folder), 0o1770)  # sticky: no user can remove another user's files
    node.store.cache_dir.mkdir(exist_ok=True)
    node.store.kernels.mkdir(exist_ok=True)
    node.store.kernels.chmod(0o755)  # ranks run as other users and read these files
    attempt = claim.attempt.model_copy(
        update={
            "roots": dict(node.roots),
            "cache_dir": str(_cache_folder(node, user)),
            "kernel_cache": _kernel_archive(node, claim),
            "device": _device(node, claim),
        }
    )
    launch = LaunchRecord(
        attempt_id=attempt_id,
        node=node.name,
        node_rank=claim.node_rank,
        rendezvous=claim.rendezvous,
        others=claim.addresses[: claim.node_rank] + claim.addresses[claim.node_rank + 1 :],
        report_seconds=claim.report_seconds,
        data_dir=str(node.store.data_dir),
        environment=_environment(node, claim),
        allow_code=node.allow_code,
        user=user,
        run_bytes=node.run_bytes,
    )
    # The spec's `env` may hold secrets.
    create_file(run.spec, claim.spec.model_dump_json(indent=1) + "\n", mode=0o600)
    if user is not None:
        user.give(run.spec, 0o640)
    if claim.secrets:
        create_file(run.delivered, json.dumps(claim.secrets) + "\n", mode=0o600)
    create_file(run.attempt, attempt.model_dump_json(indent=1) + "\n")
    create_file(run.secret, claim.attempt_token + "\n", mode=0o600)
    create_file(run.launch, launch.model_dump_json(indent=1) + "\n")


def _cache_folder(node: LocalNode, user: RankUser | None) -> Path:
    """Return the folder of token caches; an account has a folder of its own."""
    if user is None or user.account is None:
        return node.store.cache_dir
    folder = node.store.cache_dir / str(user.uid)
    folder.mkdir(mode=0o700, exist_ok=True)
    os.chown(folder, user.uid, user.gid, follow_symlinks=False)
    return folder


def _kernel_archive(node: LocalNode, claim: ClaimReply) -> str | None:
    """Return the archive of compiled kernels that this attempt shares with others, or None.

    torch loads kernels as code, so an attempt shares no archive to which a job's code could write.
    This excludes attempts with their own code, and all attempts on a node that runs code of jobs as
    the worker's user or under accounts. Attempts of several nodes are excluded too, because ranks
    trust each other, and a person may run a command on another node of the attempt.
    """
    others_write = node.allow_code if node.run_as is None else not node.run_as.shares_kernels
    if others_write or len(claim.attempt.allocation) > 1 or code_of(claim.spec) is not None:
        return None
    spec = claim.attempt.overrides.apply_but_schedule(claim.spec)
    threads = plain_variables(spec.env).get("OMP_NUM_THREADS", str(node.devices.threads_per_slot))
    key = kernel_key(spec, claim.attempt.layout, threads=threads)
    return str(node.store.kernels / f"{key}.zip")


def _device(node: LocalNode, claim: ClaimReply) -> Literal["cpu", "cuda"]:
    """Return the device type of the slots allocated on this node.

    Raises:
        ValueError: GPUs were allocated, but this node has none.
    """
    allocated, offered = claim.attempt.device, node.devices.hardware.device
    if allocated == "cuda" and offered == "cpu":
        raise ValueError(f"device={allocated!r} was allocated, but this node offers CPU slots")
    return allocated or offered


def _environment(node: LocalNode, claim: ClaimReply) -> dict[str, str]:
    """Return the variables for GPUs and threads; ValueError if this node lacks a slot."""
    visible = node.devices.visible
    on_gpus = _device(node, claim) == "cuda"
    ranks = {share.node_rank: share.slots for share in claim.attempt.allocation}
    slots = ranks[claim.node_rank]
    if on_gpus and max(slots) >= len(visible):
        raise ValueError(f"slot {max(slots)} was allocated, but this node has {len(visible)}")
    return {
        "OMP_NUM_THREADS": str(node.devices.threads_per_slot),
        # Empty for CPU ranks, which must not use the GPU of another attempt.
        "CUDA_VISIBLE_DEVICES": (",".join(visible[slot] for slot in slots) if on_gpus else ""),
    }


def start_supervisor(run: WorkerRun, lock: AttemptLock, *, why_cold: str | None = None) -> None:
    """Start a detached supervisor, which inherits the attempt's lock, for a run directory.

    The command forks, and its first process exits immediately (`worker.__main__`). So the
    supervisor outlives this worker, as a child of the machine's first process, which reaps it. The
    errors are those of `detach`.

    Args:
        run: the run directory.
        lock: the attempt's lock.
        why_cold: reason why the idle process did not take the launch, for the attempt's provenance.
    """
    reason = [] if why_cold is None else [f"--why-cold={why_cold}"]
    detach(
        ["supervise", str(run.root), f"--lock={lock.fd}", *reason],
        log=run.supervisor_log,
        folder=run.root,
        pass_fds=[lock.fd],
    )


def detach(
    words: Sequence[str],
    *,
    log: Path,
    folder: Path,
    pass_fds: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a `python -m worker` command that forks and exits; its child continues.

    Args:
        words: the command and its arguments.
        log: receives the output of the child.
        folder: working directory.
        pass_fds: descriptors that the child inherits.
        environment: variables of the command; by default those of this process without the worker's
            own.

    Raises:
        OSError, SubprocessError: the command could not be started.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(log, flags, 0o644), "ab") as output:
        subprocess.run(
            # -P: this process must not import modules that ranks wrote to the working directory.
            [sys.executable, "-P", "-m", "worker", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=pass_fds,
            env=inherited_environment() if environment is None else environment,
            cwd=folder,
            timeout=DETACH_SECONDS,
            check=True,
        )
