"""Reports the end and the unsent data of an attempt whose supervisor died."""

from __future__ import annotations

import logging
import sys
import threading

from trainyard.protocol.worker_messages import Identity
from trainyard.run.failures import Failure, FailureReason
from worker.artifacts.uploader import ArtifactUploader
from worker.launchers.base import LauncherFactory, Observation, Share, processes_of
from worker.node.files import tail
from worker.node.node_store import LaunchRecord, WorkerRun
from worker.node.process_identity import own_identity
from worker.supervisor.event_tail import event_tail_of
from worker.supervisor.exit_classification import Findings, last_words
from worker.supervisor.orders import Orders
from worker.supervisor.reporter import Reporter
from worker.supervisor.spool import Spool

logger = logging.getLogger(__name__)


def report_orphan(
    run: WorkerRun, launch: LaunchRecord, *, predecessor: Identity, launcher: LauncherFactory
) -> bool:
    """End the processes that a dead supervisor left, and report the end of its attempt.

    The server thus receives unreported commits and the exit of the attempt. Returns whether the
    attempt no longer needs a process on this node.

    Raises:
        ValueError: a record in the run directory is missing or damaged.
        NotEndedError: a process of the attempt may not be ended.
    """
    output = tail(run.supervisor_log)  # read before this process writes to the log
    processes_of(launch).end()  # before reading the other records, which may be damaged
    share = Share.read(run)
    ranks = launcher(share)
    ranks.stop()
    logger.warning("%s has died; ended its processes", predecessor)
    orders = Orders(run, leads=False)
    grace, mask = share.stop_grace_seconds, share.mask
    artifacts = ArtifactUploader(share, lambda: orders.uploads_until(grace))
    reporter = Reporter(
        run,
        share.launch,
        identity=predecessor,
        orders=orders,
        spool=Spool(
            run,
            ranks=share.ranks,
            processes=share.processes_of_program,
            event_tail=event_tail_of(share),
            artifacts=artifacts,
            log_held_bytes=sys.maxsize,  # logs no longer grow; the server may have them
            mask=mask,
        ),
        mask=mask,
    )
    uploading = threading.Thread(target=artifacts.upload_until_over, name="uploader")
    uploading.start()
    artifacts.finish()
    reporter.finish(_findings(share, ranks.observe(), predecessor=predecessor, output=output))
    reporter.report_until_over()
    artifacts.stop()
    uploading.join()
    return reporter.delivered or orders.outrun


def _findings(share: Share, seen: Observation, *, predecessor: Identity, output: str) -> Findings:
    """Return findings; the supervisor's death is the fault unless a rank's error is the cause."""
    if restarted := _what_was_restarted(predecessor):
        reason, what = FailureReason.NODE_LOST, f"the {restarted} was restarted"
    else:
        reason = FailureReason.LAUNCH_ERROR
        what = f"the supervisor (pid {predecessor.pid}) was ended, and its ranks with it"
    node = share.launch.node
    fault = Failure(
        reason=reason, message=what, node=node, traceback=output or None, node_at_fault=True
    )
    outcome, error = last_words(share.run, of_program=share.runs_program)
    return Findings(
        node=node,
        program_ranks=seen.ranks if share.runs_program else None,
        # In a shutdown the ranks end one after another, so their errors only report each other's
        # end.
        fault=fault if restarted or error is None else None,
        ranks=seen.exits,
        started=seen.started,
        outcome=outcome,
        error=error,
        # A machine that lost power may also have lost the last events.
        unreported_commit=share.run.committing.exists() or restarted == "machine",
    )


def _what_was_restarted(predecessor: Identity) -> str | None:
    """Return what restarted and so ended all processes at once; None if nothing restarted."""
    own = own_identity()
    if predecessor.boot_id != own.boot_id:
        return "machine"
    return "container" if predecessor.pid_namespace != own.pid_namespace else None
