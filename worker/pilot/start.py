"""Starts a pilot: names the node, chooses the data folder, and runs the worker under `init`."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from pathlib import Path

from worker.init import Init
from worker.node.node_store import NodeStore
from worker.pilot.allocation import find_pilot
from worker.pilot.local_disk import make_local_folder
from worker.pilot.probe import probe
from worker.settings import Settings

logger = logging.getLogger(__name__)

LEFT = 128 + signal.SIGTERM
"""Exit status of a pod's pilot after an orderly drain."""


def run_pilot() -> int:
    """Serve a node until its allocation ends or is unusable, or only check it; return the status.

    Raises:
        ValueError: the process has no allocation of a source, or the disk is unusable.
        ServerAway, ApiError: the server did not accept the findings of a check.
    """
    pilot = find_pilot()
    if pilot is None:
        raise ValueError("TRAINYARD_PILOT_REQUEST is not set; a provisioner starts pilots")
    base = Path(os.environ.get("TMPDIR") or "/tmp")
    if pilot.settings.purpose == "check":
        return probe(pilot, Settings(), base=base)
    folder = make_local_folder(base, pilot.folder, setting="TMPDIR")
    os.environ.update(
        TRAINYARD_NODE_NAME=pilot.name,
        TRAINYARD_DATA_DIR=str(folder),
        TRAINYARD_INBOX="server",
    )
    logger.info("pilot %s (%s), data in %s", pilot.name, pilot.allocation.instance, folder)
    status = Init(most_refusals=5).run()
    # Only a Slurm pilot removes its data. A pod's data vanish with the pod; over ssh, the data are
    # removed once the pilot has provably ended. Unreported data stay for a successor on this
    # machine.
    if pilot.settings.kind == "slurm" and not NodeStore(folder).live():
        shutil.rmtree(folder, ignore_errors=True)
    # A pod that succeeds completes its index for good. So an evicted pod must fail to get a
    # successor.
    return status or (LEFT if pilot.settings.kind == "kubernetes" else 0)
