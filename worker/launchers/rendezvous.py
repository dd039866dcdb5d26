"""The port at which the nodes of an attempt meet: free on the first node, else no launch."""

from __future__ import annotations

import errno
import socket

from trainyard.run.failures import Failure, FailureReason, Remedy
from worker.launchers.base import Share

REMEDY = Remedy(text="None is needed: the next attempt meets at another port.")


def taken_port(share: Share) -> Failure | None:
    """Return the failure of a launch whose port another process of this node holds.

    Only the first of several nodes binds the port; a single node takes a free one of its own.
    """
    launch = share.launch
    if share.nodes == 1 or launch.node_rank != 0:
        return None
    if not _is_taken(int(launch.rendezvous.rpartition(":")[2])):
        return None
    return Failure(
        reason=FailureReason.LAUNCH_ERROR,
        message=f"{launch.rendezvous}, where the nodes of the attempt meet, is taken on "
        f"{launch.node}",
        node=launch.node,
        remedy=REMEDY,
        free_retry=True,
    )


def _is_taken(port: int) -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        # As torch binds: to all addresses of both kinds, also after an earlier owner has left.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            probe.bind(("::", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
