"""The limit of open files of a process; sockets count, so the usual 1,024 are soon used up."""

from __future__ import annotations

import resource


def raise_file_limit() -> int:
    """Raise the limit of open files to the hard limit, also for child processes; return it.

    A process needs several files for each rank that it talks to; the server needs one per client.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
