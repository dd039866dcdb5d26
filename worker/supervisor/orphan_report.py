"""Speaks for a supervisor that was ended itself: sends what it had not sent, and how it ended."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from trainyard.protocol.attempt import AttemptSpec
from trainyard.protocol.worker_messages import Identity
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.record_files import write_exit
from trainyard.run.records import ExitRecord
from worker.launchers.torchrun import Share, tail
from worker.node.cgroup import end_cgroup, make_cgroup, remove_cgroup
from worker.node.files import read_record
from worker.node.node_store import LaunchRecord, WorkerRun
from worker.node.process_identity import identify
from worker.node.process_tree import end_marked, end_user
from worker.supervisor.exit_classification import Findings, judge, last_words
from worker.supervisor.orders import Orders
from worker.supervisor.ranks import RankWatch
from worker.supervisor.reporter import Reporter
from worker.supervisor.spool import Spool

logger = logging.getLogger(__name__)


def speak_for(run: WorkerRun, predecessor: Identity) -> bool:
    """End what the former supervisor left behind and report its attempt to the end.

    Checkpoints that were committed but not reported yet are not lost in this way, and the end of
    the attempt is known as soon as the server is. Returns whether nobody needs to see to it any
    more.
    """
    launch = read_record(run.launch, LaunchRecord)
    if launch is None:
        raise ValueError(f"{run.launch} is missing or no launch record")
    said = tail(run.supervisor_log)  # before this process writes there itself
    _end_leftovers(launch)
    attempt = AttemptSpec.model_validate_json(Path(run.attempt).read_bytes())
    ranks = Share.of(attempt, launch).ranks
    orders = Orders(run, leads=False)
    reporter = Reporter(
        run,
        launch,
        identity=predecessor,
        orders=orders,
        spool=Spool(run, ranks=ranks),
    )
    reporter.finish(_exit_record(run, launch, predecessor, ranks, said))
    reporter.report_until_over()
    return reporter.delivered or orders.outrun


def _end_leftovers(launch: LaunchRecord) -> None:
    cgroup = make_cgroup(launch.attempt_id, node=launch.node)
    if cgroup is not None:
        end_cgroup(cgroup)
    ended = end_marked(launch.attempt_id, node=launch.node)
    ended += end_user(launch.user)
    if cgroup is not None:
        remove_cgroup(cgroup)
    logger.warning("the supervisor is gone; ended %d processes that it left", ended)


def _exit_record(
    run: WorkerRun, launch: LaunchRecord, predecessor: Identity, ranks: range, said: str
) -> ExitRecord:
    written = read_record(Path(run.exit), ExitRecord)
    if written is not None:
        return written
    watch = RankWatch(run, ranks)
    watch.look()
    watch.close()
    outcome, error = last_words(run)
    restarted = _what_was_restarted(predecessor)
    findings = Findings(
        node=launch.node,
        # Ranks that end in a shutdown, one after another, write errors about each other.
        fault=_fault(launch, predecessor, said) if restarted or error is None else None,
        ranks=watch.exits,
        started=watch.started,
        outcome=outcome,
        error=error,
    )
    record = judge(findings, time=time.time())
    write_exit(run, record)
    return record


def _fault(launch: LaunchRecord, predecessor: Identity, said: str) -> Failure:
    """Return why there is no supervisor: all ended with the machine, or it was ended alone."""
    if restarted := _what_was_restarted(predecessor):
        reason, what = FailureReason.NODE_LOST, f"the {restarted} was restarted"
    else:
        reason = FailureReason.LAUNCH_ERROR
        what = f"the supervisor (pid {predecessor.pid}) was ended, and its ranks with it"
    return Failure(reason=reason, message=what, node=launch.node, traceback=said or None)


def _what_was_restarted(predecessor: Identity) -> str | None:
    """Return what ended everything at once, if the predecessor ended so."""
    own = own_identity()
    if predecessor.boot_id != own.boot_id:
        return "machine"
    return "container" if predecessor.pid_namespace != own.pid_namespace else None


def own_identity() -> Identity:
    """Return the identity of this process."""
    identity = identify(os.getpid())
    assert identity is not None
    return identity
