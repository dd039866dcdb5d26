"""Archives of compiled kernels: their names, and the largest one."""

from __future__ import annotations

import re

LARGEST_ARCHIVE = 512 * 2**20
"""Most bytes of an archive; kernels of a large model take some tens of MiB."""
NAME = re.compile(r"[0-9a-f]{64}\.zip")


def archive_name(key: str) -> str:
    """Return the file name of an archive.

    Args:
        key: SHA-256 of what shapes its kernels, as hexadecimal digits.
    """
    return f"{key}.zip"


def is_archive_name(name: str) -> bool:
    """Return whether a file name is that of an archive."""
    return NAME.fullmatch(name) is not None
