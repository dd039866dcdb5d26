"""Checks of a launch: devices are present and free, and the launcher accepts its input."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from signal import SIGTERM

from trainyard.protocol.node_samples import DRIVER_SILENT, unlisted
from trainyard.run.failures import Failure, FailureReason
from worker.launchers.base import Share, put_back
from worker.node.files import read_record, tail
from worker.node.hardware.accelerators import sample_once
from worker.node.hardware.foreign import without_own
from worker.node.node_store import LaunchRecord, NodeStore
from worker.node.rank_wrapper import signal_name
from worker.supervisor.exit_classification import without_claims
from worker.supervisor.orders import Orders

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 30.0
"""Time limit, in seconds, for a driver's response; the driver is warm, because the worker keeps it
open.
"""
CHECK_SECONDS = 600.0
REMEDY = (
    "None is needed: the slots are withheld until their devices can be used, and the next attempt "
    "uses others."
)


def unusable_devices(launch: LaunchRecord) -> dict[str, str]:
    """Return why devices cannot run a share's ranks, by UUID; empty if all can.

    The check is needed because the server chose the devices from a heartbeat that is some seconds
    old.
    """
    given = [uuid for uuid in launch.environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if uuid]
    if not given:
        return {}
    supervisors = NodeStore(Path(launch.data_dir)).supervisors
    try:
        samples = without_own(sample_once(seconds=ANSWER_SECONDS), supervisors)
    except Exception:
        # Values that do not fit into a sample are also a fault of the driver, not of the ranks.
        logger.exception("%s", DRIVER_SILENT)
        return dict.fromkeys(given, DRIVER_SILENT)
    found = {sample.uuid: sample.why_unusable for sample in samples}
    reasons = {uuid: found.get(uuid, unlisted(uuid)) for uuid in given}
    return {uuid: reason for uuid, reason in reasons.items() if reason is not None}


def without_devices(node: str, unusable: Mapping[str, str]) -> Failure:
    """Return the failure of a launch whose devices cannot run its ranks."""
    named = "; ".join(f"{uuid}: {reason}" for uuid, reason in unusable.items())
    return put_back(node, f"ranks cannot start on {node}: {named}", remedy=REMEDY)


class InputCheck:
    """The process that checks a launch's spec and input, or loads an image."""

    def __init__(self, share: Share, pid: int) -> None:
        """Watch a child of this process that runs the check."""
        self._share = share
        self._pid = pid
        self._began_at = time.monotonic()
        self.pidfd = os.pidfd_open(pid)
        """Pidfd, readable once the check has ended; valid until `close`."""

    @property
    def over(self) -> bool:
        """Whether the check has ended, or has exceeded its time limit."""
        return self._status is not None or self._is_late

    def refusal(self, orders: Orders) -> Failure | None:
        """Return why ranks cannot run; None if the check passed, or the leaving node ended it."""
        if self._status == -SIGTERM and orders.leaves_soon():
            return None
        return self._failure()

    def _failure(self) -> Failure | None:
        """Return why the ranks cannot run; None if the check found no failure.

        An end of the check by a signal, for example for lack of memory, proves no error in the
        input.
        """
        reason, what = FailureReason.DATA_ERROR, "check of spec and input"
        if self._share.runs_program:
            reason, what = FailureReason.LAUNCH_ERROR, "loading of the image"
        node, run, status = self._share.launch.node, self._share.run, self._status
        if status is None and self._is_late:
            message = f"the {what} took longer than {CHECK_SECONDS:.0f} s"
            return Failure(reason=reason, message=message, node=node)
        if not status:
            return None
        error = read_record(run.check_error, Failure, owner=run.writer)
        if error is not None:
            return replace(without_claims(error, of_program=False), rank=None, node=node)
        signal = signal_name(-status) if status < 0 else None
        end = f"ended with status {status}" if signal is None else f"was ended by {signal}"
        return Failure(
            reason=reason if signal is None else FailureReason.LAUNCH_ERROR,
            message=f"the {what} {end}",
            node=node,
            signal=signal,
            traceback=tail(run.log(self._share.ranks[0]), mask=self._share.mask) or None,
        )

    def close(self) -> None:
        """Close the pidfd; the process tree ends and reaps the process."""
        os.close(self.pidfd)

    @property
    def _status(self) -> int | None:
        return self._share.processes.status(self._pid)

    @property
    def _is_late(self) -> bool:
        return time.monotonic() - self._began_at > CHECK_SECONDS
