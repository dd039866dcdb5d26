"""Which kind of device ranks of this machine compute on, known without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from trainyard.spec.auto import DeviceKind


def device_kind(wanted: Literal["auto", "cpu", "cuda"]) -> DeviceKind:
    """Return the kind of device that ranks of this launch compute on."""
    if wanted == "auto":
        return "cuda" if gpus_are_given() else "cpu"
    return wanted


def gpus_are_given(
    environment: Mapping[str, str] = os.environ, *, devices: Path = Path("/dev")
) -> bool:
    """Return whether this process has GPUs, by what its launcher or the machine says of it.

    What torch can use is another question: it counts none where the driver is too old for it.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return visible.strip() not in ("", "-1")
    return any(devices.glob("nvidia[0-9]*"))
