"""Limit of open files in a process. Sockets count too, so the usual limit of 1,024 is soon
exceeded."""

from __future__ import annotations

import resource


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard limit; return the hard limit.

    Child processes inherit the limit. A process opens several files for each rank with which it
    communicates; a server opens one file for each client.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
