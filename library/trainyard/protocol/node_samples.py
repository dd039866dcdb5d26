"""Accelerators of a node, and samples of the state of the accelerators and the host.

The name of a quantity ends in its unit. A value that a device cannot report is null.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from trainyard.base.model_base import RecordModel, Text

MAX_ACCELERATORS = 256
"""Maximum number of devices in one sample: twice the number for 16 GPUs with 7 MIG instances
each."""
MAX_DISKS = 64
"""Maximum number of folders whose disk space one sample reports."""
DATA_DIR = "data_dir"
"""Name of the node's own data folder in a sample's list of disks."""
DATA_DIR_BYTES = 64 * 2**20
"""Minimum free space in the node's data folder, in bytes; each launch writes records and logs
there."""
DATA_DIR_FULL = f"the data folder of the node has less than {DATA_DIR_BYTES >> 20} MiB of room"
"""Reason why a node with a full data folder accepts no launch."""
DRIVER_SILENT = "the driver does not answer"
"""Reason given for unusable devices while the driver returns no samples."""
PROCESS = "process "
"""First words of the reason given for an unusable device if other programs hold its memory."""
MAX_PROCESSES = 16
"""Maximum number of foreign processes per device in a sample."""
XIDS_KEPT = 16
"""Maximum number of Xid errors per device in a sample; the newest are kept."""

Name = Annotated[Text, Field(max_length=200)]
Problem = Annotated[Text, Field(max_length=500)]
Count = Annotated[int, Field(ge=0, le=2**64 - 1)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Reason = Annotated[Text, Field(max_length=1000)]
UnusableDevices = Annotated[dict[Name, Reason], Field(max_length=MAX_ACCELERATORS)]
"""Reasons for which devices are unusable, by UUID of the device."""


def _measured(value: object) -> object:
    """Return a number unless it is too large for a sample; otherwise None."""
    if isinstance(value, int | float) and not -(2.0**64) < value < 2.0**64:
        return None
    return value


Measured = Annotated[float | None, BeforeValidator(_measured)]
"""A number that a device reports: finite and below 2^64 in magnitude, or absent. Any other number
is stored as absent, because otherwise the server would reject the whole heartbeat."""


class Accelerator(RecordModel):
    """A device that a node offers as a slot: a GPU, or a MIG instance of a GPU."""

    index: Count
    """The driver's index of the GPU; for a MIG instance, the index of the GPU that contains the
    instance."""
    uuid: Name
    """UUID of the device, which `CUDA_VISIBLE_DEVICES` accepts."""
    name: Name
    """Product name of the device."""
    memory_bytes: Count
    """Memory of the device; 0 if it has no memory of its own."""
    pci_address: Name | None = None
    """PCI address of the board."""
    parent: Name | None = None
    """UUID of the GPU that contains a MIG instance; absent for a whole GPU. A rank on an instance
    cannot communicate with other ranks, so a job on an instance has world size 1."""
    listed: bool = True
    """Whether the driver lists the device. While an attempt holds slots of the node, a device that
    is no longer listed keeps its slot, so that the other slots keep their numbers."""


class DeviceProcess(RecordModel):
    """A process that holds memory of a device."""

    pid: Count
    """Id of the process, in the PID namespace of the driver."""
    memory_bytes: Count | None = None
    """Device memory that the process holds; null if the driver does not report it."""
    user: Name | None = None
    """User of the process; null if the worker cannot see the process, for example from inside a
    container."""
    command: Name | None = None
    """Name of the process."""


class XidError(RecordModel):
    """An error of a GPU that NVIDIA's driver reported."""

    code: Count
    """Number of the error in NVIDIA's catalog of Xid errors."""
    age_seconds: Annotated[float, Field(ge=0, le=10**8)]
    """Time since the error was reported."""


class AcceleratorSample(RecordModel):
    """State of one device."""

    uuid: Name
    """UUID of the device. If the GPU had no UUID when the worker started: its index, such as `index
    3`."""
    problem: Problem | None = None
    """Reason for which the device returned no values, such as a lost GPU."""
    utilization_ratio: Ratio | None = None
    """Time for which a kernel ran, as a share of the last sampling period."""
    memory_used_bytes: Count | None = None
    """Memory in use."""
    power_watts: Measured = None
    """Power draw of the board."""
    temperature_celsius: Measured = None
    """Temperature of the chip."""
    sm_clock_hertz: Count | None = None
    """Clock of the multiprocessors."""
    memory_clock_hertz: Count | None = None
    """Clock of the memory."""
    throttle_reasons: Annotated[tuple[Name, ...], Field(max_length=16)] | None = None
    """Reasons for which the clocks are below their maximum; empty if they are at the maximum."""
    nvlink_errors: Count | None = None
    """CRC errors, replays and recoveries of all NVLinks since the driver was loaded."""
    pcie_replays: Count | None = None
    """Replayed packets of the PCIe link."""
    ecc_corrected: Count | None = None
    """Number of corrected memory errors since the driver was loaded."""
    ecc_uncorrected: Count | None = None
    """Number of uncorrected memory errors since the driver was loaded."""
    ecc_corrected_lifetime: Count | None = None
    """Number of corrected memory errors over the life of the board."""
    ecc_uncorrected_lifetime: Count | None = None
    """Number of uncorrected memory errors over the life of the board."""
    row_remap_pending: bool | None = None
    """Whether the replacement of a damaged memory row waits for a reset of the GPU."""
    row_remap_failed: bool | None = None
    """Whether the replacement of a damaged memory row failed, so that the board needs
    replacement."""
    xids: Annotated[tuple[XidError, ...], Field(max_length=XIDS_KEPT)] = ()
    """Newest Xid errors of the last day, oldest first. Errors before the start of the worker are
    not listed."""
    foreign: Annotated[tuple[DeviceProcess, ...], Field(max_length=MAX_PROCESSES)] = ()
    """Processes that hold much memory of the device and were not started by a supervisor of this
    node."""

    @property
    def why_unusable(self) -> str | None:
        """Reason for which no rank can use the device now; the text changes only if the cause
        changes."""
        if self.problem is not None:
            return f"the device does not answer: {self.problem}"
        if not self.foreign:
            return None
        process = self.foreign[0]
        command = f" ({process.command})" if process.command is not None else ""
        user = f" of {process.user}" if process.user is not None else ""
        more = len(self.foreign) - 1
        others = f" and {more} other{'s' if more > 1 else ''}" if more else ""
        hold = "hold" if more else "holds"
        return f"{PROCESS}{process.pid}{command}{user}{others} {hold} its memory"


class DiskSample(RecordModel):
    """Space of the file system that contains a folder."""

    name: Name
    """Name of the storage root, or `data_dir` for the node's own folder."""
    total_bytes: Count
    """Size of the file system."""
    free_bytes: Count
    """Space that an unprivileged user can use."""


class HostSample(RecordModel):
    """State of the machine, or of the worker's container."""

    load: Annotated[float, Field(ge=0, lt=2.0**64, allow_inf_nan=False)]
    """Number of processes that run or wait for a core of the machine, as a mean over one minute."""
    memory_bytes: Count
    """Memory limit of the worker's cgroup; without a limit, memory of the machine."""
    memory_used_bytes: Count
    """Memory in use, without caches that the kernel can drop."""
    disks: Annotated[tuple[DiskSample, ...], Field(max_length=MAX_DISKS)] = ()
    """Disk space of each storage root that is a folder, and of the node's own folder."""


class NodeSample(RecordModel):
    """State of a node, carried by its heartbeat."""

    host: HostSample
    """State of the host."""
    accelerators: Annotated[tuple[AcceleratorSample, ...], Field(max_length=MAX_ACCELERATORS)] = ()
    """State of the devices, including GPUs that are offered as MIG instances."""
    accelerators_problem: Problem | None = None
    """Reason for which no device was sampled, such as an unresponsive driver."""
    problems: Annotated[tuple[Problem, ...], Field(max_length=16)] = ()
    """Other sampling failures, such as an unresponsive file system."""


def unlisted(uuid: str) -> str:
    """Return the reason why a device that the driver does not list is unusable."""
    return f"the driver does not list {uuid}"
