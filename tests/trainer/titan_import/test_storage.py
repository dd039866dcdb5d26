"""A conversion on a full disk, and on storage that keeps unlinked files while they are mapped."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.titan_import.titan_files import root_of, saved, spec_of, titan_state
from trainer.errors import CheckpointError
from trainer.titan_import.convert import convert

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A root on a disk that holds less than the checkpoint."""
    root = root_of(tmp_path)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", root], check=True)
    try:
        yield root
    finally:
        subprocess.run(["umount", "--lazy", root], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_fails_the_conversion_and_gets_its_space_back(
    small_disk: Path, tmp_path: Path
) -> None:
    step = saved(tmp_path, titan_state(spec_of()))
    spec = tmp_path / "job.json"
    spec.write_text(spec_of().model_dump_json(exclude_defaults=True))
    command = [sys.executable, "-m", "trainer", "convert-torchtitan", str(step)]
    words = ["--spec", str(spec), "--to", str(small_disk)]
    ran = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    assert ran.returncode == 1, "an error, not a signal"
    assert "No space left on device" in ran.stderr
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "damaged"])
def test_no_file_is_mapped_when_its_folder_is_removed(
    tmp_path: Path, damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS keeps an unlinked file in the folder for as long as it is mapped."""
    mapped: list[int] = []
    close = tempfile.TemporaryDirectory.cleanup

    def closing(scratch: tempfile.TemporaryDirectory[str]) -> None:
        mapped.append(Path("/proc/self/maps").read_text().count(scratch.name))
        close(scratch)

    monkeypatch.setattr(tempfile.TemporaryDirectory, "cleanup", closing)
    step = saved(tmp_path, titan_state(spec_of()))
    if damaged:
        (file,) = step.glob("*.distcp")
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
        with pytest.raises(CheckpointError, match="cannot be read"):
            convert(step, spec_of(), to=root_of(tmp_path), name="torchtitan")
        assert mapped[0] <= 1, "the traceback holds the last tensor"
    else:
        convert(step, spec_of(), to=root_of(tmp_path), name="torchtitan")
        assert mapped == [0]
