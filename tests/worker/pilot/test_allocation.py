"""A pilot's place in its allocation, the allocation's end, and legal disks for its data."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from tests.worker.conftest import wait_for
from tests.worker.outer_launch import OUTER
from trainyard.base.ids import make_id
from trainyard.protocol.node_sources.messages import PilotIdentity
from worker.launchers.rank_environment import (
    inherited_environment,
    output_of,
    rank_environment,
)
from worker.pilot.allocation import EndWatch, OwnPilot, SlurmAllocation, find_pilot
from worker.pilot.local_disk import make_local_folder, mount_of

REQUEST = make_id(milliseconds=1, entropy=bytes(10))


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without an allocation, with the variables of every provisioner."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "TRAINYARD_PILOT", "JOB_COMPLETION")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRAINYARD_PILOT_SOURCE", "far-away")
    monkeypatch.setenv("TRAINYARD_PILOT_REQUEST", REQUEST)
    return monkeypatch


def found() -> OwnPilot:
    pilot = find_pilot()
    assert pilot is not None
    return pilot


def squeue(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program of this name first in the path."""
    program = folder / "squeue"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_task_of_slurm_knows_its_place(given: pytest.MonkeyPatch) -> None:
    given.setenv("TRAINYARD_PILOT_KIND", "slurm")
    given.setenv("SLURM_JOB_ID", "4711")
    given.setenv("SLURM_PROCID", "3")
    pilot = found()
    assert pilot.identity == PilotIdentity(request_id=REQUEST, index=3, instance="4711.0.3")
    assert pilot.name == f"far-away-{REQUEST}-3"
    given.setenv("SLURM_RESTART_COUNT", "2")
    assert found().allocation.instance == "4711.2.3"


def test_a_pod_and_a_machine_know_their_place(given: pytest.MonkeyPatch) -> None:
    given.setenv("TRAINYARD_PILOT_KIND", "kubernetes")
    given.setenv("TRAINYARD_PILOT_INSTANCE", "0f0e-uid")
    given.setenv("JOB_COMPLETION_INDEX", "1")
    assert (found().allocation.index, found().allocation.end()) == (1, None)
    given.setenv("TRAINYARD_PILOT_KIND", "ssh")
    given.setenv("TRAINYARD_PILOT_INDEX", "5")
    given.setenv("TRAINYARD_PILOT_ENDS_AT", "1700000000")
    assert (found().allocation.index, found().allocation.end()) == (5, 1_700_000_000)


def test_what_is_missing_is_named(given: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="TRAINYARD_PILOT_KIND"):
        find_pilot()
    given.setenv("TRAINYARD_PILOT_KIND", "slurm")
    with pytest.raises(ValueError, match="SLURM_JOB_ID is not set; srun sets it"):
        find_pilot()
    given.setenv("TRAINYARD_PILOT_KIND", "kubernetes")
    given.setenv("TRAINYARD_PILOT_INSTANCE", "uid")
    with pytest.raises(ValueError, match="JOB_COMPLETION_INDEX is not set"):
        find_pilot()
    given.delenv("TRAINYARD_PILOT_REQUEST")
    assert find_pilot() is None


@pytest.mark.parametrize(("answer", "end"), [("1700000123", 1_700_000_123), ("N/A", None)])
def test_the_end_of_a_slurm_job_is_that_of_its_present_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, end: float | None
) -> None:
    squeue(tmp_path, monkeypatch, f'[ "$SLURM_TIME_FORMAT" = %s ] && echo "{answer}"')
    assert SlurmAllocation(0, "7.0.0", "7").end() == end


def test_without_an_answer_the_last_end_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue(tmp_path, monkeypatch, f"cat {tmp_path}/end")
    (tmp_path / "end").write_text("100")
    watch = EndWatch(SlurmAllocation(0, "7.0.0", "7"), seconds=0.01)
    watch.poll()
    assert watch.ends_at == 100
    watch.start()
    (tmp_path / "end").unlink()  # squeue fails
    watch.poll()
    assert watch.ends_at == 100
    (tmp_path / "end").write_text("200")  # the limit was changed
    wait_for(lambda: watch.ends_at == 200, "new end")
    watch.stop()
    watch.join()


def test_ranks_see_nothing_of_another_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (*OUTER, "SLURM_JOB_ID", "PMI_RANK", "PMIX_ID", "OMPI_COMM_WORLD_SIZE", "TRAINYARD_URL")
    for name in (*names, "HTTPS_PROXY"):
        monkeypatch.setenv(name, "x")
    passed = inherited_environment()
    assert not set(names) & passed.keys()
    assert passed["HTTPS_PROXY"] == "x"


@pytest.mark.parametrize(
    ("proxy", "seen"),
    [
        ("http://proxy:3128", "http://proxy:3128"),
        ("http://ada:p%40ss@proxy:3128", "http://proxy:3128"),
        ("http://ada:p@ss/w:rd@[fd00::1]:3128/", "http://[fd00::1]:3128/"),
        ("ada:secret@proxy:3128", "proxy:3128"),
        ("localhost,10.0.0.0/8", "localhost,10.0.0.0/8"),
    ],
)
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "no_proxy"])
def test_ranks_learn_no_password_of_a_proxy(
    monkeypatch: pytest.MonkeyPatch, name: str, proxy: str, seen: str
) -> None:
    monkeypatch.setenv(name, proxy)
    assert rank_environment()[name] == seen
    assert inherited_environment()[name] == proxy  # the supervisor logs in through the proxy
    assert (
        output_of([sys.executable, "-c", f"import os; print(os.environ[{name!r}])"], seconds=60)
        == seen
    )


MOUNTS = """\
20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
21 20 0:40 / /home rw shared:2 - nfs4 filer:/home rw
22 21 8:2 / /home/local\\040disk rw shared:3 - xfs /dev/sdb rw
23 20 0:41 / /scratch rw shared:4 - lustre mds:/scratch rw
24 20 0:42 / /cloud rw - fuse.gcsfuse bucket rw
25 20 0:43 / /box rw - fuse.fuse-overlayfs fuse-overlayfs rw
26 20 8:3 / /over rw - ext4 /dev/sdc rw
27 20 0:44 / /over rw - beegfs nodev rw
28 20 0:45 / /net rw - autofs auto.net rw
29 28 0:46 / /net/disk rw - ext4 /dev/sdd rw
30 20 0:47 / /direct rw - autofs auto.direct rw
31 30 0:48 / /direct rw - xfs /dev/sde rw
"""


@pytest.mark.parametrize(
    ("path", "mount", "shared"),
    [
        ("/tmp/x", "/", False),
        ("/home/ada", "/home", True),
        ("/home/local disk/x", "/home/local disk", False),
        ("/homework", "/", False),
        ("/scratch", "/scratch", True),
        ("/cloud/x", "/cloud", True),
        ("/box/tmp", "/box", False),
        ("/over", "/over", True),
        ("/net/filer", "/net", True),
        ("/net/disk/x", "/net/disk", False),
        ("/direct/x", "/direct", False),
    ],
)
def test_the_mount_of_a_path(path: str, mount: str, shared: bool) -> None:
    found = mount_of(Path(path), mounts=MOUNTS)
    assert (found.path, found.is_shared) == (mount, shared)


def test_data_on_a_shared_file_system_are_refused(tmp_path: Path) -> None:
    mounts = f"20 1 0:1 / {tmp_path} rw - nfs4 filer:/tmp rw"
    with pytest.raises(ValueError, match=rf"TMPDIR={tmp_path}/a lies on {tmp_path}, .* type nfs4"):
        make_local_folder(tmp_path / "a", "data", setting="TMPDIR", mounts=mounts)
    folder = make_local_folder(tmp_path, "data", setting="TMPDIR", mounts=MOUNTS)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_data_folder_that_somebody_else_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(ValueError, match=r"link is a link or belongs to user"):
        make_local_folder(tmp_path, "link", setting="TMPDIR", mounts=MOUNTS)
    (tmp_path / "link").unlink()
    assert make_local_folder(tmp_path, "target", setting="TMPDIR", mounts=MOUNTS).is_dir()
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(ValueError, match=rf"target is a link or belongs to user {own};"):
        make_local_folder(tmp_path, "target", setting="TMPDIR", mounts=MOUNTS)
