"""The API for users, and code that all programs of Trainyard share. Only `adapters` needs torch.

Names are imported at their first use, so that `import trainyard` costs nothing, and
`trainyard.init`, `trainyard.run` and `trainyard.data` work in an interpreter without packages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainyard import data
    from trainyard.client.sdk import Client
    from trainyard.run.session import Run, init, log
    from trainyard.spec.job import JobSpec

__version__ = "1.0.0"
__all__ = ["Client", "JobSpec", "Run", "__version__", "data", "init", "log"]

_HOME = {
    "Client": "trainyard.client.sdk",
    "JobSpec": "trainyard.spec.job",
    **dict.fromkeys(("Run", "init", "log"), "trainyard.run.session"),
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use.

    Raises:
        AttributeError: the library has no such name.
    """
    if name == "data":
        return importlib.import_module("trainyard.data")
    if name not in _HOME:
        raise AttributeError(f"module 'trainyard' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
