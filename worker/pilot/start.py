"""Starts a pilot: names the node, finds room for its data, and runs the worker under an init."""

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
"""Status of a pod's pilot that has left in order."""


def run_pilot() -> int:
    """Serve a node until the allocation is over or nothing may be done in it; returns a status.

    Raises:
        ValueError: this is no allocation of a source, or its disk cannot be used.
        ServerAway, ApiError: the findings of a check were not accepted.
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
    # A pod takes its data along, and over ssh they go with the proof that the pilot has ended. What
    # an attempt has not reported stays for a successor on this machine.
    if pilot.settings.kind == "slurm" and not NodeStore(folder).live():
        shutil.rmtree(folder, ignore_errors=True)
    # A pod that succeeds completes its index for good: one that was evicted would get no successor.
    return status or (LEFT if pilot.settings.kind == "kubernetes" else 0)
