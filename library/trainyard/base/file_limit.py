"""The limit of open files of a process: sockets count, and the usual 1,024 end early."""

from __future__ import annotations

import resource


def raise_file_limit() -> int:
    """Allow this process, and those that it starts, as many open files as it may; return them.

    Every rank that a process talks to takes several, and every client of the server one.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
