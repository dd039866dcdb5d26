"""Packs, the code of programs: a gzipped tar archive within bounds, named by its content."""

from __future__ import annotations

from pathlib import PurePosixPath

PACK_DIGEST = r"^sha256:[0-9a-f]{64}$"
"""A pack, by the SHA-256 of its archive."""
MAX_PACK_BYTES = 64 * 2**20
"""Largest pack, compressed."""
MAX_UNPACKED_BYTES, MAX_ENTRIES = 512 * 2**20, 20_000
"""Most bytes of the archive once it is decompressed, and most files, folders and links in it."""


def stays_inside(name: str, target: str) -> bool:
    """Return whether a symbolic link of a pack leads nowhere but into the pack.

    `..` is legal only in front, and no higher than the pack itself: behind other names it could
    climb from wherever a link among them leads.

    Args:
        name: relative path of the link.
        target: what it holds.
    """
    path = PurePosixPath(target)
    climbs = next((i for i, part in enumerate(path.parts) if part != ".."), len(path.parts))
    if not target or path.is_absolute() or ".." in path.parts[climbs:]:
        return False
    return climbs < len(PurePosixPath(name).parts)
