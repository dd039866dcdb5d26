"""Finds a local file system for a pilot's data, which need locks and exclusive file creation."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SHARED = frozenset(
    {
        *("nfs", "nfs4", "lustre", "gpfs", "ceph", "beegfs", "cifs", "smb3", "afs", "9p"),
        *("panfs", "wekafs", "orangefs", "pvfs2", "glusterfs", "ocfs2", "gfs2", "fhgfs", "dvs"),
        *("smbfs", "coda", "virtiofs", "vboxsf", "autofs"),
    }
)
"""Types of shared file systems; `autofs` mounts a shared one."""
LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuseblk"})
"""Local FUSE types: the root of a rootless container, and a local disk in a foreign format."""


@dataclass(frozen=True)
class Mount:
    """A mounted file system."""

    path: str
    """Path of the mount point."""
    kind: str
    """Type of the file system."""

    @property
    def is_shared(self) -> bool:
        """Whether other machines may share the file system; true for FUSE types except
        `LOCAL_FUSE`.
        """
        is_fuse = self.kind == "fuse" or self.kind.startswith("fuse.")
        return self.kind in SHARED or (is_fuse and self.kind not in LOCAL_FUSE)


def mount_of(path: Path, *, mounts: str | None = None) -> Mount:
    """Return the mount that contains a path.

    Args:
        path: a path, which need not exist.
        mounts: text in the form of `/proc/self/mountinfo`; by default, the content of that file.
    """
    place = path.resolve()
    text = mounts
    if text is None:
        with suppress(OSError):
            place.stat()  # an automounter mounts at the first access: then read the list
        text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    best = Mount("/", "unknown")
    for line in text.splitlines():
        words, _, rest = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), words.split(" ")[4])
        # Of several mounts at the same path, the last one hides the earlier ones.
        if place.is_relative_to(point) and len(point) >= len(best.path):
            best = Mount(point, rest.split(" ")[0])
    return best


def make_local_folder(base: Path, name: str, *, setting: str, mounts: str | None = None) -> Path:
    """Create a folder that only this user can enter, on a local file system.

    Args:
        base: parent folder.
        name: name of the new folder.
        setting: name of the setting that holds `base`, for error messages.
        mounts: as for `mount_of`.

    Raises:
        ValueError: `base` lies on a shared file system, the folder cannot be created, or another
            user owns an entry with that name.
    """
    mount = mount_of(base, mounts=mounts)
    if mount.is_shared:
        raise ValueError(
            f"{setting}={base} lies on {mount.path}, a file system of type {mount.kind}: locks of "
            f"a node's data need a local disk. Set {setting} to a folder on one for the pilots"
        )
    folder = base / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        # The engine's listings show the folder's name. In a public /tmp, another user may create
        # that name first; a pilot that runs as root would then use that user's folder or link.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise ValueError(
                f"{setting}={base}: {folder} is a link or belongs to user {found.st_uid}; a folder "
                f"of user {os.geteuid()} is needed: remove it, or set {setting} to a private one"
            )
        folder.chmod(0o700)
    except OSError as error:
        raise ValueError(f"{setting}={base}: {error}") from None
    return folder
