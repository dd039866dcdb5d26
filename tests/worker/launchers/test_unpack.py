"""Packs are unpacked within their folder and their bounds, or not at all."""

from __future__ import annotations

import errno
import gzip
import io
import os
import resource
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from worker.launchers import pack_reader
from worker.launchers import unpack as unpacking
from worker.launchers.pack_cache import PutBackError
from worker.launchers.pack_reader import read_pack
from worker.launchers.unpack import unpack


class Archive:
    """An archive under construction, with members of any kind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.parent / "code"
        self.folder.mkdir()
        self.tar = tarfile.open(path, "w:gz")  # noqa: SIM115 - closed by `unpack`

    def add(self, name: str, content: bytes = b"", **fields: object) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        for field, value in fields.items():
            setattr(member, field, value)
        self.tar.addfile(member, io.BytesIO(content))

    def link(self, name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> None:
        self.add(name, type=kind, linkname=target)

    def unpack(self) -> None:
        self.tar.close()
        unpack(self.path, self.folder, user=None)

    def read(self) -> None:
        """Unpack in this process."""
        self.tar.close()
        read_pack(self.path, self.folder, group=None)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """An empty archive, and the folder for it."""
    return Archive(tmp_path / "pack.tar.gz")


def test_files_folders_modes_and_links_that_stay_inside(archive: Archive) -> None:
    archive.add("train.py", b"print(1)")
    archive.add("bin/run", b"#!/bin/sh", mode=0o6777)
    archive.add("empty", type=tarfile.DIRTYPE)
    archive.link("bin/train.py", "../train.py")
    archive.unpack()
    folder = archive.folder
    assert (folder / "bin" / "train.py").read_bytes() == b"print(1)"
    assert (folder / "bin" / "run").stat().st_mode & 0o7777 == 0o755
    assert (folder / "train.py").stat().st_mode & 0o7777 == 0o644
    assert (folder / "empty").is_dir()


@pytest.mark.parametrize("name", ["/etc/evil", "../evil", "a/../../evil"])
def test_a_name_that_leaves_is_refused(archive: Archive, name: str) -> None:
    archive.add(name, b"evil")
    with pytest.raises(ValueError, match="no path inside the folder"):
        archive.unpack()
    assert list(archive.folder.iterdir()) == []


@pytest.mark.parametrize("target", ["/etc", "..", "../..", "b/../../..", "b/..", ""])
def test_a_link_that_may_leave_is_refused(archive: Archive, target: str) -> None:
    archive.link("link", target)
    with pytest.raises(ValueError, match="not inside the folder"):
        archive.unpack()


@pytest.mark.parametrize(
    "kind", [tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_hard_links_devices_and_pipes_are_refused(archive: Archive, kind: bytes) -> None:
    archive.add("train.py", b"x")
    archive.link("other", "train.py", kind)
    with pytest.raises(ValueError, match="neither a file"):
        archive.unpack()


def test_no_file_is_written_through_a_link(archive: Archive) -> None:
    archive.link("here", "inner")
    archive.add("here/evil", b"evil")
    with pytest.raises(ValueError, match=r"code\.pack"):
        archive.unpack()


def test_a_name_given_twice_is_refused(archive: Archive) -> None:
    archive.add("train.py", b"1")
    archive.add("train.py", b"2")
    with pytest.raises(ValueError, match=r"exists: train\.py"):
        archive.unpack()


def test_the_size_is_bounded(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_reader, "MAX_UNPACKED_BYTES", 10**6)
    archive.add("zeros", bytes(2 * 10**6))  # 2 KB in the archive
    with pytest.raises(ValueError, match="more than"):
        archive.read()


def test_the_number_of_entries_is_bounded(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_reader, "MAX_ENTRIES", 3)
    for number in range(4):
        archive.add(f"{number}")
    with pytest.raises(ValueError, match="more than 3 files"):
        archive.read()


@pytest.mark.parametrize("damage", [b"no archive", b""])
def test_a_damaged_archive_is_refused(archive: Archive, damage: bytes) -> None:
    archive.path.write_bytes(damage)
    with pytest.raises(ValueError, match=r"code\.pack"):
        unpack(archive.path, archive.folder, user=None)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the size of this process's files, like a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_puts_the_launch_back(archive: Archive) -> None:
    archive.add("big", os.urandom(10**6))
    archive.tar.close()
    with largest_file(1000), pytest.raises(PutBackError) as refusal:
        unpack(archive.path, archive.folder, user=None)
    assert os.strerror(errno.EFBIG) in str(refusal.value)
    assert "Free space" in refusal.value.remedy


def test_a_sparse_file_is_refused_before_its_holes_fill_the_disk(archive: Archive) -> None:
    hole = {"GNU.sparse.size": str(2**40), "GNU.sparse.map": "0,0", "GNU.sparse.name": "big"}
    archive.add("big", pax_headers=hole)
    with pytest.raises(ValueError, match="'big' is a sparse file"):
        archive.unpack()
    assert list(archive.folder.iterdir()) == []


def test_a_header_of_any_length_is_not_held_in_memory(archive: Archive) -> None:
    for number in range(4):  # the remainders of the bounds do not add up
        archive.add(f"small-{number}", b"x")
    archive.add("large", pax_headers={"comment": "x" * 3 * 2**20})
    with pytest.raises(ValueError, match="a header is longer than 1,048,576 bytes"):
        archive.unpack()


@pytest.mark.parametrize("chained", ["pax", "gnu"])
def test_headers_that_name_each_other_are_the_fault_of_the_pack(
    archive: Archive, chained: str
) -> None:
    """`tarfile` reads the header after a header recursively."""
    blocks = b"".join(header(chained) for _ in range(2000))
    archive.path.write_bytes(gzip.compress(blocks + bytes(1024)))
    with pytest.raises(ValueError, match=r"code\.pack: its headers cannot be read: Recursion"):
        unpack(archive.path, archive.folder, user=None)


def header(kind: str) -> bytes:
    """A header that belongs to the next one, with its content."""
    member = tarfile.TarInfo("x")
    member.type = tarfile.XHDTYPE if kind == "pax" else tarfile.GNUTYPE_LONGNAME
    content = b"13 comment=x\n" if kind == "pax" else b"name\0"
    member.size = len(content)
    return member.tobuf(tarfile.USTAR_FORMAT) + content.ljust(512, b"\0")


def test_a_node_that_gives_its_reader_no_time_puts_the_launch_back(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.add("train.py", b"print(1)")
    monkeypatch.setattr(unpacking, "LONGEST_SECONDS", 0.001)
    with pytest.raises(PutBackError, match="not unpacked after"):
        archive.unpack()


def test_a_reader_that_the_system_ends_puts_the_launch_back(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, -signal.SIGKILL, "", "")

    monkeypatch.setattr(subprocess, "run", killed)
    with pytest.raises(PutBackError, match="ended by signal 9"):
        archive.unpack()


def test_an_archive_that_takes_too_long_to_read_is_refused(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 MiB of empty gzip members decompress to nothing, for eleven seconds."""
    archive.path.write_bytes(gzip.compress(b"") * (64 * 2**20 // 20))
    monkeypatch.setattr(unpacking, "PROCESSOR_SECONDS", 1)
    with pytest.raises(ValueError, match=r"code\.pack: it takes more than 1 s of a processor"):
        unpack(archive.path, archive.folder, user=None)
