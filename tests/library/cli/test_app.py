"""The command itself: its version, and the end of its output."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.library.conftest import Run
from trainyard import __version__


def test_the_version_is_that_of_the_library(run: Run) -> None:
    assert run("--version").output == f"trainyard {__version__}\n"


@pytest.mark.parametrize("lines", [1, 1_000_000])
def test_a_reader_that_leaves_early_is_no_traceback(lines: int) -> None:
    code = (
        "from trainyard.cli import app\n"
        f"app.app = lambda **_: print('line\\n' * {lines}, end='')\n"
        "app.main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"input()\n{code}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as command:
        assert command.stdout is not None
        command.stdout.close()
        _, err = command.communicate(b"\n", timeout=60)
    assert (command.returncode, err) == (1, b"")


def test_a_full_disk_is_an_error_in_words() -> None:
    code = "from trainyard.cli import app; app.app = lambda **_: print('line'); app.main()"
    with open("/dev/full", "wb") as full:  # noqa: PTH123 (a device)
        command = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert command.returncode == 1
    assert b"Error: the output cannot be written" in command.stderr
    assert b"Traceback" not in command.stderr
