"""The settings that make torch store a rank's last collectives."""

from __future__ import annotations

import os
from mmap import ACCESS_READ, mmap
from pathlib import Path

import pytest
import torch

from tests.trainer.ranks import run_ranks
from trainer.distributed import record_collectives

SIZE, ON_TIMEOUT, FILE = NAMES = (
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_FR_DUMP_TEMP_FILE",
)


def _told(folder: str) -> dict[str, str | None]:
    record_collectives(Path(folder))
    record_collectives(Path(folder))  # by each rank of a node
    return {name: os.environ.get(name) for name in NAMES}


def test_the_last_collectives_go_into_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "flight_recorder"
    (told,) = run_ranks(1, _told, str(folder))
    assert folder.is_dir()
    # torch appends the rank to the name.
    assert told == {SIZE: "2000", ON_TIMEOUT: "1", FILE: f"{folder}/rank-"}


@pytest.mark.parametrize("name", NAMES)
def test_the_jobs_own_settings_prevail(name: str, tmp_path: Path) -> None:
    (told,) = run_ranks(1, _told, str(tmp_path), env={name: "7"})
    assert told[name] == "7"
    assert all(told[other] not in {None, "7"} for other in NAMES if other != name)


@pytest.mark.parametrize("name", [SIZE, FILE])
def test_torch_knows_the_name(name: str) -> None:
    """Only builds for CUDA know the third."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        assert content.find(name.encode()) >= 0
