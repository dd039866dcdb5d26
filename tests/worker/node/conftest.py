"""A folder and an interpreter for other users, and the processes of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.other_users import open_folder, python_for_others


@pytest.fixture(name="open_folder")
def made_open_folder() -> Iterator[Path]:
    """A folder that other users can traverse."""
    with open_folder() as folder:
        yield folder


@pytest.fixture
def python() -> str:
    """An interpreter that any user can start."""
    return python_for_others()


def alive(uid: int) -> list[int]:
    """Return the processes of a user that have not ended."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                status = (folder / "status").read_text()
            except OSError:
                continue
            if f"Uid:\t{uid}\t" in status and "State:\tZ" not in status:
                found.append(int(folder.name))
    return found
