"""Input and result of a check: its environment, and the file with its figures."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trainyard.prove.figures import judged
from trainyard.run.atomic import replace_file

RESULT = "result.json"

DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Here:
    """Environment of a check."""

    device: DeviceKind
    """Device under test."""
    scratch: Path
    """Empty folder of this check."""
    lines: Path
    """File with the lines of all checks so far."""


def run_check(
    function: str, arguments: dict[str, Any], *, device: DeviceKind, scratch: str, lines: str
) -> None:
    """Call `module:function`, and write its result for the runner atomically.

    Raises:
        Exception: any error of the check; the process ends with its traceback.
    """
    module, _, name = function.partition(":")
    here = Here(device, Path(scratch), Path(lines))
    result = judged(getattr(importlib.import_module(module), name)(here, **arguments))
    replace_file(here.scratch / RESULT, json.dumps(result))
