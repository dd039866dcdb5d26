"""Accelerators of a node, and samples of their state and of the host.

Quantities carry their unit in the name. A value that a device cannot report is null.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from trainyard.base.model_base import RecordModel, Text

MAX_ACCELERATORS = 256
"""Most devices in one sample: twice the number for 16 GPUs with 7 MIG instances each."""
MAX_DISKS = 64
"""Most folders in one sample."""
DATA_DIR = "data_dir"
"""Name of the node's own data folder among the disks of a sample."""
DATA_DIR_BYTES = 64 * 2**20
"""Least free space in that folder: a launch writes its records and logs there."""
DATA_DIR_FULL = f"the data folder of the node has less than {DATA_DIR_BYTES >> 20} MiB of room"
"""Reason why a node takes no launch."""
DRIVER_SILENT = "the driver does not answer"
"""Reason why a device is unusable while the driver samples none."""
PROCESS = "process "
"""Start of the reason why a device is unusable if foreign processes hold its memory."""
MAX_PROCESSES = 16
"""Most foreign processes of a device in a sample."""
XIDS_KEPT = 16
"""Newest Xid errors of a device in a sample."""

Name = Annotated[Text, Field(max_length=200)]
Problem = Annotated[Text, Field(max_length=500)]
Count = Annotated[int, Field(ge=0, le=2**64 - 1)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Reason = Annotated[Text, Field(max_length=1000)]
UnusableDevices = Annotated[dict[Name, Reason], Field(max_length=MAX_ACCELERATORS)]
"""Reasons why devices are unusable, by UUID."""


def _measured(value: object) -> object:
    """Return a number that a sample can hold, or None if the driver reports another value."""
    if isinstance(value, int | float) and not -(2.0**64) < value < 2.0**64:
        return None
    return value


Measured = Annotated[float | None, BeforeValidator(_measured)]
"""A number of a device: finite and below 2^64, or absent. Any other number becomes absent, so that
the heartbeat still reaches the server."""


class Accelerator(RecordModel):
    """One device that the node offers as a slot: a GPU, or a MIG instance of one."""

    index: Count
    """The driver's index of the GPU; for an instance, the index of its whole GPU."""
    uuid: Name
    """Its UUID, which `CUDA_VISIBLE_DEVICES` accepts."""
    name: Name
    """Its product name."""
    memory_bytes: Count
    """Its memory; 0 if it has no memory of its own."""
    pci_address: Name | None = None
    """PCI address of the board."""
    parent: Name | None = None
    """UUID of a MIG instance's GPU; absent for a whole GPU. Ranks on instances reach no other rank,
    so a job on an instance has world size 1."""
    listed: bool = True
    """Whether the driver lists it. A device that is no longer listed keeps its slot while an
    attempt holds slots of the node, so that the other slots keep their numbers."""


class DeviceProcess(RecordModel):
    """A process that holds memory of a device."""

    pid: Count
    """Its id, in the PID namespace of the driver."""
    memory_bytes: Count | None = None
    """Device memory that it holds; null if the driver does not report it."""
    user: Name | None = None
    """Its user; null if the worker cannot see the process, as from inside a container."""
    command: Name | None = None
    """Its name."""


class XidError(RecordModel):
    """An error of a GPU that NVIDIA's driver reported."""

    code: Count
    """Its number in the catalog of Xid errors."""
    age_seconds: Annotated[float, Field(ge=0, le=10**8)]
    """Time since it was reported."""


class AcceleratorSample(RecordModel):
    """State of one device."""

    uuid: Name
    """UUID of the device, or such as `index 3` if the GPU gave no UUID when the worker started."""
    problem: Problem | None = None
    """Why the device gave no values, such as a lost GPU."""
    utilization_ratio: Ratio | None = None
    """Share of the last sampling period in which a kernel ran."""
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
    """Why the clocks are below their maximum; empty if they are not."""
    nvlink_errors: Count | None = None
    """CRC errors, replays and recoveries of all links, since the driver was loaded."""
    pcie_replays: Count | None = None
    """Replayed packets of the PCIe link."""
    ecc_corrected: Count | None = None
    """Memory errors corrected since the driver was loaded."""
    ecc_uncorrected: Count | None = None
    """Memory errors not corrected since the driver was loaded."""
    ecc_corrected_lifetime: Count | None = None
    """Memory errors corrected over the life of the board."""
    ecc_uncorrected_lifetime: Count | None = None
    """Memory errors not corrected over the life of the board."""
    row_remap_pending: bool | None = None
    """Whether the replacement of a damaged memory row needs a reset."""
    row_remap_failed: bool | None = None
    """Whether a damaged row could not be replaced: the board needs replacement."""
    xids: Annotated[tuple[XidError, ...], Field(max_length=XIDS_KEPT)] = ()
    """The newest Xid errors of the last day since the worker started, the oldest first."""
    foreign: Annotated[tuple[DeviceProcess, ...], Field(max_length=MAX_PROCESSES)] = ()
    """Processes that hold much of its memory, but were not started by a supervisor of this node."""

    @property
    def why_unusable(self) -> str | None:
        """Why no rank can use the device now; the text changes only with the cause."""
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
    """Space of one folder's file system."""

    name: Name
    """A storage root, or `data_dir` for the node's own folder."""
    total_bytes: Count
    """Size."""
    free_bytes: Count
    """Space that an ordinary user can use."""


class HostSample(RecordModel):
    """State of the machine, or of the worker's container."""

    load: Annotated[float, Field(ge=0, lt=2.0**64, allow_inf_nan=False)]
    """Processes of the machine that run or wait for a core, as a mean over one minute."""
    memory_bytes: Count
    """Memory: the limit of the worker's cgroup, or the machine's memory."""
    memory_used_bytes: Count
    """Memory in use without caches that the kernel can drop."""
    disks: Annotated[tuple[DiskSample, ...], Field(max_length=MAX_DISKS)] = ()
    """Space of the storage roots that are folders, and of the node's own folder."""


class NodeSample(RecordModel):
    """A sample that a heartbeat carries."""

    host: HostSample
    """The host."""
    accelerators: Annotated[tuple[AcceleratorSample, ...], Field(max_length=MAX_ACCELERATORS)] = ()
    """The devices, including whole GPUs that are offered as instances."""
    accelerators_problem: Problem | None = None
    """Why no device could be sampled, such as a driver that does not answer."""
    problems: Annotated[tuple[Problem, ...], Field(max_length=16)] = ()
    """Other failures to sample, such as a file system that does not answer."""


def unlisted(uuid: str) -> str:
    """Return the reason why a device that the driver does not list is unusable."""
    return f"the driver does not list {uuid}"
