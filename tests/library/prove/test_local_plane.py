"""A plane that cannot start is an error with its reason, at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from trainyard.client.errors import UsageError
from trainyard.prove.local_plane import local_plane, this_machine


def test_a_folder_that_no_plane_can_use_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "a,b"
    with (
        pytest.raises(UsageError, match=r"no control plane started in .*the path holds ','"),
        local_plane(folder, 1),
    ):
        pytest.fail("the plane started")


def test_the_machine_has_the_versions_under_its_plane() -> None:
    found = this_machine()
    assert found["torch"] == torch.__version__
    assert found["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["kernel"] == os.uname().release
    assert found["system"]
