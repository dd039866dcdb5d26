"""The file system of a pilot's data: locks and exclusive creation need a local one."""

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
"""Types of file systems shared by machines, or placeholders for one: autofs mounts it."""
LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuseblk"})
"""The root of a rootless container, and a local disk in another system's format."""


@dataclass(frozen=True)
class Mount:
    """A mounted file system."""

    path: str
    """Where it is mounted."""
    kind: str
    """Its type."""

    @property
    def is_shared(self) -> bool:
        """Whether it is shared with other machines, or may be: FUSE can be anything."""
        is_fuse = self.kind == "fuse" or self.kind.startswith("fuse.")
        return self.kind in SHARED or (is_fuse and self.kind not in LOCAL_FUSE)


def mount_of(path: Path, *, mounts: str | None = None) -> Mount:
    """Return the mount that contains a path.

    Args:
        path: a path, existing or not.
        mounts: text in the form of `/proc/self/mountinfo`; that file's when absent.
    """
    place = path.resolve()
    text = mounts
    if text is None:
        with suppress(OSError):
            place.stat()  # an automounter mounts at the first access; only then read the list
        text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    best = Mount("/", "unknown")
    for line in text.splitlines():
        words, _, rest = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), words.split(" ")[4])
        # Of several mounts at the same path the last one hides the others.
        if place.is_relative_to(point) and len(point) >= len(best.path):
            best = Mount(point, rest.split(" ")[0])
    return best


def make_local_folder(base: Path, name: str, *, setting: str, mounts: str | None = None) -> Path:
    """Create a folder that only this user can enter, on a local file system.

    Args:
        base: its parent folder.
        name: its name.
        setting: the setting of `base`, for errors.
        mounts: as in `mount_of`.

    Raises:
        ValueError: `base` lies on a shared file system, the folder cannot be created, or another
            user owns an entry of that name.
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
        # The engine's listings show its name: in a public /tmp another user may create it first,
        # and a pilot that runs as root would use that user's folder or link.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise ValueError(
                f"{setting}={base}: {folder} is a link or belongs to user {found.st_uid}; a folder "
                f"of user {os.geteuid()} is needed: remove it, or set {setting} to a private one"
            )
        folder.chmod(0o700)
    except OSError as error:
        raise ValueError(f"{setting}={base}: {error}") from None
    return folder
