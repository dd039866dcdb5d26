"""The kind of device of this machine's ranks, determined without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from trainyard.spec.auto import DeviceKind


def device_kind(wanted: Literal["auto", "cpu", "cuda"]) -> DeviceKind:
    """Return the kind of device of this launch; `auto` prefers GPUs."""
    if wanted == "auto":
        return "cuda" if gpus_are_given() else "cpu"
    return wanted


def gpus_are_given(
    environment: Mapping[str, str] = os.environ, *, devices: Path = Path("/dev")
) -> bool:
    """Return whether the launcher's environment or the machine gives this process GPUs.

    Not `torch.cuda.is_available()`, which is also False if the driver is too old: that is an error
    of the node, and training must not fall back to the CPU.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return visible.strip() not in ("", "-1")
    return any(devices.glob("nvidia[0-9]*"))
