"""Interface to the node's accelerators; each vendor's library has an implementation."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from trainyard.protocol.node_samples import Accelerator, AcceleratorSample
from worker.node.hardware.nvml import Nvml

DEVICE_FILES = Path("/dev")
OPEN_SECONDS = 60.0
"""Time limit, in seconds, for a driver to list its devices; a cold driver takes some seconds per
device.
"""

Found = TypeVar("Found")


class Accelerators(Protocol):
    """Devices of one vendor; any call may block for ever if the driver hangs."""

    @property
    def driver(self) -> str:
        """Version of the driver."""
        ...

    def devices(self) -> tuple[Accelerator, ...]:
        """Return the devices that can be slots, in the order of the vendor's indices.

        A divided GPU (MIG) counts only as its instances.
        """
        ...

    def sample(self) -> tuple[AcceleratorSample, ...]:
        """Return the state of each device, or a problem if the device does not respond.

        `foreign` lists all processes that hold much memory of the device, also the node's own.
        """
        ...


def open_accelerators(
    *, device_files: Path | None = None, seconds: float = OPEN_SECONDS
) -> Accelerators | None:
    """Return this machine's GPUs; None without GPUs, or if the worker may use none.

    Args:
        device_files: folder that holds `nvidia0` and so on.
        seconds: time limit for the driver to respond.

    Raises:
        ValueError: the machine has GPUs, but the driver does not list them.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return None
    there = sorted(path.name for path in (device_files or DEVICE_FILES).glob("nvidia[0-9]*"))
    try:
        opened = _within(seconds, Nvml)
    except (OSError, ValueError) as error:
        if there:
            raise ValueError(_unlisted(there, error)) from error
        return None
    if there and not opened.devices():
        raise ValueError(_unlisted(there, "it lists none"))
    return opened if opened.devices() else None


def sample_once(*, seconds: float) -> tuple[AcceleratorSample, ...]:
    """List and sample this machine's devices again, in a process that keeps no device open.

    Args:
        seconds: time limit for the driver to respond.

    Raises:
        OSError: the driver does not respond, or fails for every device.
    """
    return _within(seconds, Nvml.sample_once)


def visible_devices(devices: Sequence[Accelerator], visible: str | None) -> tuple[Accelerator, ...]:
    """Return the devices in the worker's `CUDA_VISIBLE_DEVICES`, which NVML ignores.

    Args:
        devices: all devices of the driver, in its order.
        visible: value of the variable: indices of GPUs or prefixes of UUIDs. A divided GPU stands
            for its instances. A device named twice is one slot.

    Raises:
        ValueError: devices exist, but the variable names none of them.
    """
    if visible is None:
        return tuple(devices)
    words = [word.strip() for word in visible.split(",") if word.strip()]
    named = {device.uuid: device for word in words for device in devices if _is_named(device, word)}
    if devices and not named:
        listed = ", ".join(f"{device.index} ({device.uuid})" for device in devices)
        raise ValueError(
            f"CUDA_VISIBLE_DEVICES={visible!r} names no GPU of this machine, which are {listed}; "
            "set TRAINYARD_DEVICE=cpu to offer CPU slots"
        )
    return tuple(named.values())


def _is_named(device: Accelerator, word: str) -> bool:
    if word.isdigit():
        return device.index == int(word)
    return any(uuid.startswith(word) for uuid in (device.uuid, device.parent or ""))


def _within(seconds: float, call: Callable[[], Found]) -> Found:
    """Return the result of a call in a thread; abandon the thread after the time limit.

    Raises:
        OSError: the call exceeds the time limit.
        Exception: error of the call itself.
    """
    found: list[Found] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001 - raised below, in the thread of the caller
            failed.append(error)

    thread = threading.Thread(target=run, name="open accelerators", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return found[0]


def _unlisted(there: Sequence[str], why: object) -> str:
    """Return the error for GPUs that the driver hides, to prevent silent training on CPUs."""
    return (
        f"this machine has GPUs (/dev/{there[0]}), but NVML fails: {why}; mend the driver, or set "
        "TRAINYARD_DEVICE=cpu to offer CPU slots"
    )
