"""One bare machine for the tests of a file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.install.bare_machine import BareMachine


@pytest.fixture(scope="module")
def machine() -> Iterator[BareMachine]:
    """A bare machine; nothing is left of what ran in it."""
    subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
    made = BareMachine()
    yield made
    made.close()
