"""The choice of writing ranks, by layout and storage."""

from pathlib import Path

import pytest

from trainer.checkpoint.writer.save_plan import (
    Writers,
    filesystem_type,
    is_shared,
    writing_ranks,
)
from trainyard.spec.layout import Layout

HSDP = Layout(dp_replicate=2, dp_shard=2)


@pytest.mark.parametrize(
    ("writers", "layout", "shared", "expected"),
    [
        ("all", HSDP, True, (0, 1, 2, 3)),
        ("one_replica", HSDP, False, (0, 1)),
        ("auto", HSDP, False, (0, 1, 2, 3)),
        ("auto", HSDP, True, (0, 1)),
        ("one_replica", Layout(dp_replicate=4), False, (0,)),
        ("one_replica", Layout(dp_shard=4), False, (0, 1, 2, 3)),
        # pp is the slowest axis: each stage has a first replica of its own.
        ("one_replica", Layout(dp_replicate=2, tp=2, pp=2), False, (0, 1, 4, 5)),
        ("one_replica", Layout(dp_replicate=2, dp_shard=2, cp=2), False, (0, 1, 2, 3)),
        (1, HSDP, False, (0,)),
        (2, HSDP, False, (0, 2)),
        (3, Layout(dp_shard=8), False, (0, 2, 5)),
        (4, HSDP, True, (0, 1, 2, 3)),
    ],
)
def test_the_ranks_that_write(
    writers: Writers, layout: Layout, shared: bool, expected: tuple[int, ...]
) -> None:
    assert writing_ranks(writers, layout, shared=shared) == expected


MOUNTS = r"""
20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
21 20 0:20 / /mnt rw - tmpfs tmpfs rw
22 21 0:30 / /mnt/a\040share rw - nfs4 host:/x rw
23 21 0:31 / /mnt/bucket rw - fuse.s3fs s3fs rw
24 21 0:32 / /mnt/usb rw - fuseblk /dev/sdb1 rw
25 21 0:33 / /mnt/over rw - ext4 /dev/sdc1 rw
26 25 0:34 / /mnt/over rw - lustre host:/y rw
""".lstrip()


@pytest.mark.parametrize(
    ("place", "kind", "shared"),
    [
        ("/data/checkpoints", "ext4", False),
        ("/mnt", "tmpfs", False),
        ("/mnt/a share/deep/down", "nfs4", True),
        ("/mnt/a sharer", "tmpfs", False),
        ("/mnt/bucket/x", "fuse.s3fs", True),
        ("/mnt/usb/x", "fuseblk", False),
        ("/mnt/over/x", "lustre", True),
    ],
)
def test_the_kind_of_storage(tmp_path: Path, place: str, kind: str, shared: bool) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert filesystem_type(Path(place), mounts=mounts) == kind
    assert is_shared(Path(place), mounts=mounts) is shared


def test_the_mounts_of_this_machine_are_read() -> None:
    assert filesystem_type(Path("/proc/self")) == "proc"
    assert not is_shared(Path("/dev/shm/not/there"))
