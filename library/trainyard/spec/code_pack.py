"""Packs of program code: gzipped tar archives of limited size, each named by its digest."""

from __future__ import annotations

from pathlib import PurePosixPath

PACK_DIGEST = r"^sha256:[0-9a-f]{64}$"
"""Format of a pack's name: the SHA-256 of its archive."""
MAX_PACK_BYTES = 64 * 2**20
"""Maximum size of a pack's compressed archive, in bytes."""
MAX_UNPACKED_BYTES, MAX_ENTRIES = 512 * 2**20, 20_000
"""Limits of an unpacked pack: its size in bytes, and its number of files, folders and links."""


def stays_inside(name: str, target: str) -> bool:
    """Return whether a symbolic link of a pack stays inside the pack.

    `..` is legal only at the start of the target, and must not lead above the pack. A `..` after
    another name could leave the pack, because that name may be a link itself.

    Args:
        name: relative path of the link.
        target: path that the link holds.
    """
    path = PurePosixPath(target)
    climbs = next((i for i, part in enumerate(path.parts) if part != ".."), len(path.parts))
    if not target or path.is_absolute() or ".." in path.parts[climbs:]:
        return False
    return climbs < len(PurePosixPath(name).parts)
