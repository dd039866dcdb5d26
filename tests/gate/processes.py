"""Gives tests to the processes of a run: the tests of a file to one, and those of some folders.

Such a folder has a fixture that takes long to start. Its tests begin first, since they are one
process's work for the longest time.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

TOGETHER = {
    "tests/e2e": "a control plane",
    "tests/web": "a browser, and servers with played scenes",
}
"""Folders whose tests share one process, without the folders below them; what they share."""


def scope_of(nodeid: str) -> str:
    """Return what goes to one process as a whole: the folder of a test, or its file."""
    file = nodeid.split("::", 1)[0]
    folder = file.rpartition("/")[0]
    return folder if folder in TOGETHER else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Let xdist keep together what `scope_of` does, where it would keep files."""
    if config.getvalue("dist") != "loadfile":
        return None
    scheduling = LoadFileScheduling(config, log)
    scheduling._split_scope = scope_of
    return scheduling


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the folders of `TOGETHER`."""
    items.sort(key=lambda item: scope_of(item.nodeid) not in TOGETHER)
