"""What kind of storage a folder lies on: disks of this machine, or one that machines share."""

from __future__ import annotations

from pathlib import Path

from trainer.storage.root import StoragePath

MOUNTS = Path("/proc/self/mountinfo")
SHARED = frozenset(
    {
        *("9p", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "gfs2", "glusterfs", "gpfs"),
        *("lustre", "nfs", "nfs3", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3"),
        *("smbfs", "vboxsf", "virtiofs", "wekafs"),
    }
)
"""Types of file systems that are reached over a network or from several machines."""
LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.ntfs-3g"})
"""What runs in user space on a local disk; all else there stands for a bucket or a server."""


def is_shared(folder: StoragePath, *, mounts: Path = MOUNTS) -> bool:
    """Return whether a folder, which need not exist yet, lies on storage that machines share.

    Args:
        folder: its nearest existing parent decides; symbolic links are followed.
        mounts: the mounts of this process, as `mountinfo` of proc(5).
    """
    if not isinstance(folder, Path):
        return True  # an object store
    kind = filesystem_type(folder, mounts=mounts)
    in_user_space = kind == "fuse" or kind.startswith("fuse.")
    return kind in SHARED or (in_user_space and kind not in LOCAL_FUSE)


def filesystem_type(folder: Path, *, mounts: Path = MOUNTS) -> str:
    """Return the type of the file system that holds a folder, such as `ext4` or `nfs4`."""
    place = folder.resolve()
    found, kind = Path("/"), ""
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        fields, _, rest = line.partition(" - ")
        point = Path(_unescaped(fields.split(" ")[4]))
        # The last mount at a point hides those before it, so later lines win.
        if place.is_relative_to(point) and len(point.parts) >= len(found.parts):
            found, kind = point, rest.split(" ")[0]
    return kind


def _unescaped(text: str) -> str:
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        text = text.replace(f"\\{code}", character)
    return text
