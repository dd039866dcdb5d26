"""Packs, the code of programs: gzipped tar archives of limited size, named by their digest."""

from __future__ import annotations

from pathlib import PurePosixPath

PACK_DIGEST = r"^sha256:[0-9a-f]{64}$"
"""Name of a pack: the SHA-256 of its archive."""
MAX_PACK_BYTES = 64 * 2**20
"""Largest pack, compressed."""
MAX_UNPACKED_BYTES, MAX_ENTRIES = 512 * 2**20, 20_000
"""Limits of a pack: bytes after decompression, and files, folders and links."""


def stays_inside(name: str, target: str) -> bool:
    """Return whether a symbolic link of a pack stays inside the pack.

    `..` is legal only at the start of the target, and no higher than the pack. After other names
    it could climb out of the target of another link.

    Args:
        name: relative path of the link.
        target: path that the link holds.
    """
    path = PurePosixPath(target)
    climbs = next((i for i, part in enumerate(path.parts) if part != ".."), len(path.parts))
    if not target or path.is_absolute() or ".." in path.parts[climbs:]:
        return False
    return climbs < len(PurePosixPath(name).parts)
