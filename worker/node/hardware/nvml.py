"""NVIDIA GPUs through the management library (NVML); field names are those of its reference."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import pynvml as nvml

from trainyard.protocol.node_samples import (
    MAX_PROCESSES,
    XIDS_KEPT,
    Accelerator,
    AcceleratorSample,
    DeviceProcess,
    XidError,
)

logger = logging.getLogger(__name__)

ABSENT = frozenset(
    {
        nvml.NVML_ERROR_INVALID_ARGUMENT,  # a MIG instance lacks some values of the board
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_NO_PERMISSION,
        nvml.NVML_ERROR_NOT_FOUND,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,  # an older driver
        nvml.NVML_ERROR_NO_DATA,
    }
)
"""Errors for a value that a device lacks; all other errors are problems of the device."""
MEMORY_HELD_BYTES = 100 << 20
"""Minimum memory, in bytes, of the processes in a sample. A CUDA context takes several times this
memory; the MPS server, and a display without windows, take less.
"""
WAIT_MILLISECONDS = 1000
"""Maximum duration of a call that waits for an event, in milliseconds."""
XID_SECONDS = 86_400.0
"""Maximum age of an Xid error in samples, in seconds."""
XID = nvml.nvmlEventTypeXidCriticalError
THROTTLE_REASONS: Mapping[int, str] = {
    nvml.nvmlClocksEventReasonApplicationsClocksSetting: "application clocks",
    nvml.nvmlClocksEventReasonSwPowerCap: "power cap",
    nvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
    nvml.nvmlClocksEventReasonSyncBoost: "sync boost",
    nvml.nvmlClocksEventReasonSwThermalSlowdown: "temperature (driver)",
    nvml.nvmlClocksEventReasonHwThermalSlowdown: "temperature (hardware)",
    nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
    nvml.nvmlClocksEventReasonDisplayClockSetting: "display clocks",
}
"""Throttle reasons except `idle`, because an idle GPU lowers its clocks too."""
NVLINK_ERRORS = (
    nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    nvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
)


@dataclass(frozen=True)
class _Device:
    """A handle of NVML, with the identifiers of its GPU or instance."""

    handle: Any
    accelerator: Accelerator
    divided: bool
    """Whether the GPU is divided; then only its instances are offered as slots."""


class Nvml:
    """GPUs that the driver lists at construction; `sample` and `devices` use this list.

    A GPU that fails during construction is not a slot, and has a problem in every sample.
    """

    def __init__(self, *, xids: bool = True) -> None:
        """Open the library, list the devices and start waiting for Xid errors.

        Args:
            xids: whether a thread collects Xid errors.

        Raises:
            OSError: the machine has no driver, or the driver fails for every GPU.
        """
        try:
            nvml.nvmlInit()
            self.driver: str = nvml.nvmlSystemGetDriverVersion()
            self._devices, self._failed = _list_devices()
        except nvml.NVMLError as error:
            raise OSError(str(error)) from error
        # Error code and time on the monotonic clock, by UUID of the GPU.
        self._xids: dict[str, deque[tuple[int, float]]] = defaultdict(
            lambda: deque(maxlen=XIDS_KEPT)
        )
        if xids:
            threading.Thread(target=self._wait_for_xids, name="xid events", daemon=True).start()

    @classmethod
    def sample_once(cls) -> tuple[AcceleratorSample, ...]:
        """List and sample the devices, then close the library, so that no device stays open.

        Raises:
            OSError: the machine has no driver, or the driver fails for every GPU.
        """
        samples = cls(xids=False).sample()
        with contextlib.suppress(nvml.NVMLError):  # harmless, because the samples are complete
            nvml.nvmlShutdown()
        return samples

    def devices(self) -> tuple[Accelerator, ...]:
        """Return the possible slots: whole GPUs, and the instances of GPUs in MIG mode."""
        return tuple(device.accelerator for device in self._devices if not device.divided)

    def sample(self) -> tuple[AcceleratorSample, ...]:
        """Return the state of each device, including the temperature of divided GPUs."""
        return (*(self._sample(device) for device in self._devices), *self._failed)

    def _sample(self, device: _Device) -> AcceleratorSample:
        uuid = device.accelerator.uuid
        values: dict[str, Any] = {"uuid": uuid, "xids": self._recent_xids(uuid)}
        try:
            for name, read in READINGS.items():
                values[name] = _value(read, device.handle)
            values["foreign"] = () if device.divided else _processes(device.handle)
        except nvml.NVMLError as error:
            values["problem"] = str(error)
        return AcceleratorSample(**values)

    def _recent_xids(self, uuid: str) -> tuple[XidError, ...]:
        now = time.monotonic()
        ages = [(code, now - at) for code, at in tuple(self._xids[uuid])]
        return tuple(XidError(code=c, age_seconds=age) for c, age in ages if age <= XID_SECONDS)

    def _wait_for_xids(self) -> None:
        """Collect Xid errors until the process ends; a driver without events reports none."""
        logged = ""
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            logger.warning("Xid errors are not collected: %s", error)
            return
        for device in self._devices:
            if device.accelerator.parent is None:
                try:
                    nvml.nvmlDeviceRegisterEvents(device.handle, XID, events)
                except nvml.NVMLError as error:
                    uuid = device.accelerator.uuid
                    logger.warning("GPU %s: Xid errors are not collected: %s", uuid, error)
        while True:
            try:
                event = nvml.nvmlEventSetWait_v2(events, WAIT_MILLISECONDS)
                uuid = nvml.nvmlDeviceGetUUID(event.device)
            except nvml.NVMLError_Timeout:
                continue
            except nvml.NVMLError as error:  # one lost GPU ends the wait for all GPUs
                if str(error) != logged:
                    logger.warning("Xid errors may be missed: %s", error)
                logged = str(error)
                time.sleep(WAIT_MILLISECONDS / 1000)
                continue
            logger.error("GPU %s: Xid %d", uuid, event.eventData)
            self._xids[uuid].append((event.eventData, time.monotonic()))


def _list_devices() -> tuple[tuple[_Device, ...], tuple[AcceleratorSample, ...]]:
    """Return the devices that work, and for each failing GPU a sample with its problem.

    The driver also lists GPUs that this process may not open, such as those of other containers.
    The result omits them.

    Raises:
        NVMLError: every GPU fails.
    """
    devices: list[_Device] = []
    failed: list[AcceleratorSample] = []
    last: nvml.NVMLError | None = None
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            devices += tuple(_open_gpu(index))
        except nvml.NVMLError as error:
            logger.warning("GPU %d is no slot: %s", index, error)
            last = error
            if error.value != nvml.NVML_ERROR_NO_PERMISSION:
                failed.append(AcceleratorSample(uuid=f"index {index}", problem=str(error)))
    if last is not None and not devices:
        raise last
    return tuple(devices), tuple(failed)


def _open_gpu(index: int) -> Iterator[_Device]:
    """Yield a GPU and, in MIG mode, its instances."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    mode = _value(nvml.nvmlDeviceGetMigMode, handle)
    divided = mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE
    board = _describe(handle, index)
    yield _Device(handle, board, divided)
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if divided else 0):
        find = partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, index=place)
        instance = _value(find, handle)
        if instance is not None:
            described = _describe(instance, index)
            parts = {"parent": board.uuid, "pci_address": board.pci_address}
            yield _Device(instance, described.model_copy(update=parts), divided=False)


def _describe(handle: Any, index: int) -> Accelerator:
    pci = _value(nvml.nvmlDeviceGetPciInfo, handle)
    memory = _value(nvml.nvmlDeviceGetMemoryInfo, handle)  # None if the GPU uses the host's memory
    return Accelerator(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        memory_bytes=0 if memory is None else memory.total,
        pci_address=None if pci is None else pci.busId,
    )


def _value(read: Callable[[Any], Any], handle: Any) -> Any:
    """Return the result of a call; None for a value that the device lacks.

    Raises:
        NVMLError: the device fails, for example because it is lost.
    """
    try:
        return read(handle)
    except nvml.NVMLError as error:
        if error.value in ABSENT:
            return None
        raise


def _throttle_reasons(handle: Any) -> tuple[str, ...]:
    bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)  # all drivers know this name
    return tuple(name for bit, name in THROTTLE_REASONS.items() if bits & bit)


def _nvlink_errors(handle: Any) -> int | None:
    values = nvml.nvmlDeviceGetFieldValues(handle, NVLINK_ERRORS)
    counts = [value.value.ullVal for value in values if value.nvmlReturn == nvml.NVML_SUCCESS]
    return sum(counts) if counts else None


def _clock(kind: int) -> Callable[[Any], int]:
    return lambda handle: nvml.nvmlDeviceGetClockInfo(handle, kind) * 1_000_000


def _ecc(kind: int, counter: int) -> Callable[[Any], int]:
    return lambda handle: nvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter)


def _processes(handle: Any) -> tuple[DeviceProcess, ...]:
    """Return up to `MAX_PROCESSES` processes with much or, of CUDA, unknown memory, by pid.

    NVML's versioned functions are called, because the errors of the unversioned ones depend on the
    driver's version.
    """
    memory: dict[int, int | None] = {}
    for process in _value(nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, handle) or ():
        memory[process.pid] = process.usedGpuMemory or 0
    for process in _value(nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle) or ():
        memory[process.pid] = process.usedGpuMemory
    found = sorted(memory.items())
    held = (pair for pair in found if pair[1] is None or pair[1] >= MEMORY_HELD_BYTES)
    return tuple(
        DeviceProcess(pid=pid, memory_bytes=size) for pid, size in islice(held, MAX_PROCESSES)
    )


CORRECTED = nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
UNCORRECTED = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED

READINGS: Mapping[str, Callable[[Any], Any]] = {
    "utilization_ratio": lambda handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
    "memory_used_bytes": lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).used,
    "power_watts": lambda handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "temperature_celsius": lambda handle: nvml.nvmlDeviceGetTemperature(
        handle, nvml.NVML_TEMPERATURE_GPU
    ),
    "sm_clock_hertz": _clock(nvml.NVML_CLOCK_SM),
    "memory_clock_hertz": _clock(nvml.NVML_CLOCK_MEM),
    "throttle_reasons": _throttle_reasons,
    "nvlink_errors": _nvlink_errors,
    "pcie_replays": nvml.nvmlDeviceGetPcieReplayCounter,
    "ecc_corrected": _ecc(CORRECTED, nvml.NVML_VOLATILE_ECC),
    "ecc_uncorrected": _ecc(UNCORRECTED, nvml.NVML_VOLATILE_ECC),
    "ecc_corrected_lifetime": _ecc(CORRECTED, nvml.NVML_AGGREGATE_ECC),
    "ecc_uncorrected_lifetime": _ecc(UNCORRECTED, nvml.NVML_AGGREGATE_ECC),
    "row_remap_pending": lambda handle: bool(nvml.nvmlDeviceGetRemappedRows(handle)[2]),
    "row_remap_failed": lambda handle: bool(nvml.nvmlDeviceGetRemappedRows(handle)[3]),
}
"""Functions that read the values of a sample from a handle."""
