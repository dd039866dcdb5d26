"""Faults of the storage of checkpoints and of the disks of nodes."""

from __future__ import annotations

import contextlib
import errno

from tests.chaos.case import Case, silence
from tests.chaos.cluster import Setup
from tests.chaos.conditions import full
from tests.chaos.fault import AWAY, fault
from tests.e2e.control_plane import wait_for

PRELOADED = Setup(preloaded=True)


@fault("the storage of checkpoints is full until a person frees space")
def storage_full(case: Case) -> None:
    with full(case.cluster.checkpoints):
        _wait_for_failed_save(case)


@fault("the quota of the storage is used up (EDQUOT), until it is raised", setup=PRELOADED)
def storage_quota(case: Case) -> None:
    with case.cluster.preload.storage_error(errno.EDQUOT):
        _wait_for_failed_save(case)


@fault("the storage forgets its file handles (ESTALE) until it is mounted again", setup=PRELOADED)
def storage_stale(case: Case) -> None:
    with case.cluster.preload.storage_error(errno.ESTALE):
        _wait_for_failed_save(case)


@fault(
    f"the disk of a node is full for {AWAY:g} s: its rank fails, and no attempt goes there",
    attempts=2,
    retries_used=1,
    retry={"backoff_seconds": 3},
)
def node_disk_full(case: Case) -> None:
    with contextlib.ExitStack() as filled:
        with case.held():
            filled.enter_context(full(case.nodes()[0].data))
        silence(AWAY)


def _wait_for_failed_save(case: Case) -> None:
    yard = case.cluster.yard
    wait_for(
        lambda: any(event.kind == "save_failed" for event in yard.events(case.job_id)),
        "save that failed",
    )
