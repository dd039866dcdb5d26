"""The devices of a share at its launch: listed, answering, and free of other programs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from trainyard.protocol.node_samples import DRIVER_SILENT, unlisted
from trainyard.run.failures import Failure
from worker.launchers.base import put_back
from worker.node.hardware.accelerators import sample_once
from worker.node.hardware.foreign import without_own
from worker.node.node_store import LaunchRecord, NodeStore

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 30.0
"""Time in which the driver has to answer; the worker holds it open, so that it is not cold."""
REMEDY = (
    "None is needed: the slots are withheld until their devices can be used, and the next attempt "
    "uses others."
)


def unusable_devices(launch: LaunchRecord) -> dict[str, str]:
    """Return why devices of a share cannot take its ranks, by UUID; empty where all of them can.

    The server places by the last heartbeat, which is some seconds old.
    """
    given = [uuid for uuid in launch.environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if uuid]
    if not given:
        return {}
    supervisors = NodeStore(Path(launch.data_dir)).supervisors
    try:
        samples = without_own(sample_once(seconds=ANSWER_SECONDS), supervisors)
    except Exception:
        # Values that no sample can hold are a fault of the driver too, and none of the ranks.
        logger.exception("%s", DRIVER_SILENT)
        return dict.fromkeys(given, DRIVER_SILENT)
    found = {sample.uuid: sample.why_unusable for sample in samples}
    reasons = {uuid: found.get(uuid, unlisted(uuid)) for uuid in given}
    return {uuid: reason for uuid, reason in reasons.items() if reason is not None}


def without_devices(node: str, unusable: Mapping[str, str]) -> Failure:
    """Return the failure of a launch whose devices cannot take its ranks."""
    named = "; ".join(f"{uuid}: {reason}" for uuid, reason in unusable.items())
    return put_back(node, f"ranks cannot start on {node}: {named}", remedy=REMEDY)
