"""Slots of a node for placement: stable slot numbers, and withheld slots."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from trainyard.protocol.node_samples import (
    DATA_DIR,
    DATA_DIR_BYTES,
    DATA_DIR_FULL,
    DRIVER_SILENT,
    PROCESS,
    Accelerator,
    AcceleratorSample,
    NodeSample,
    unlisted,
)
from trainyard.protocol.states import AttemptNodeState
from trainyard.protocol.worker_messages import Hardware

CLOCK = "the clock of the node is wrong"
OF_NODES = (DATA_DIR_FULL, CLOCK)
"""Reasons for withholding all slots of a node; every other reason applies to one device."""


def keep_slots(before: Hardware, now: Hardware) -> Hardware:
    """Return the current hardware with the former slot numbers; without GPUs, return `now`.

    A slot is a device. A device that is no longer listed keeps its number, and new devices get the
    last numbers. So a slot number of an attempt means the same device until the attempt ends.
    """
    if before.device != "cuda" or now.device != "cuda":
        return now
    listed = {device.uuid: device for device in now.accelerators}
    kept = [
        listed.pop(device.uuid, device.model_copy(update={"listed": False}))
        for device in before.accelerators
    ]
    accelerators = (*kept, *listed.values())
    return now.model_copy(update={"accelerators": accelerators, "slots": len(accelerators)})


def uuids(hardware: Hardware) -> tuple[str, ...]:
    """Return the UUIDs of the devices by slot."""
    return tuple(device.uuid for device in hardware.accelerators)


def slot_name(hardware: Hardware, uuid: str) -> str:
    """Return the name of a device in texts: its slot, or its UUID if it has no slot."""
    slots = uuids(hardware)
    return f"slot {slots.index(uuid)}" if uuid in slots else uuid


def withheld_slots(
    hardware: Hardware,
    sample: NodeSample | None,
    *,
    before: Mapping[str, str],
    was_full: bool = False,
    clock_is_wrong: bool = False,
) -> dict[str, str]:
    """Return the reasons for withholding slots from placement, by slot number as text.

    A reason keeps its text while its cause stays, because the text is part of the reasons why jobs
    wait.

    Args:
        hardware: hardware of the node.
        sample: newest sample of the node; None after a registration, or if the sample failed.
        before: the former reasons by UUID of the device. If a sample lacks a device, the device
            keeps its former reason, unless the whole driver does not respond.
        was_full: whether the data folder was full before. This value is used if the sample does not
            contain the free space of the folder.
        clock_is_wrong: whether all slots are withheld because the node's clock is wrong.
    """
    of_node = CLOCK if clock_is_wrong else None
    if _is_full(sample, before=was_full):
        of_node = DATA_DIR_FULL
    sampled = {} if sample is None else {each.uuid: each for each in sample.accelerators}
    driver_fails = sample is not None and sample.accelerators_problem is not None
    reasons = {
        str(slot): _why_withheld(
            device,
            sampled.get(device.uuid),
            DRIVER_SILENT if driver_fails else before.get(device.uuid),
        )
        for slot, device in enumerate(hardware.accelerators)
    }
    found = {slot: reason for slot, reason in reasons.items() if reason is not None}
    if of_node is None:
        return found
    return dict.fromkeys(map(str, range(hardware.slots)), of_node) | found


def reasons_by_uuid(hardware: Hardware, withheld: Mapping[str, str]) -> dict[str, str]:
    """Return the reasons that apply to one listed device, by UUID of the device."""
    return {
        device.uuid: withheld[str(slot)]
        for slot, device in enumerate(hardware.accelerators)
        if device.listed and withheld.get(str(slot), DATA_DIR_FULL) not in OF_NODES
    }


def withheld_by_launch(
    hardware: Hardware, held: Collection[int], unusable: Mapping[str, str]
) -> dict[str, str]:
    """Return the reasons for withholding slots after a launch, by slot number as text.

    `held` has the slots of the launched share. `unusable` has, by UUID of the device, the reason
    why ranks could not use the device.
    """
    return {
        str(slot): unusable[device.uuid]
        for slot, device in enumerate(hardware.accelerators)
        if slot in held and device.uuid in unusable
    }


def withheld_from_placement(
    withheld: Mapping[str, str], held: Iterable[tuple[AttemptNodeState, Collection[int]]]
) -> dict[int, str]:
    """Return the withheld slots that ranks do not use, with the reasons for withholding them.

    Slots that ranks use are omitted, because the ranks may look like foreign processes inside a
    container. A slot of an ended share is omitted if a process is the reason, because the newest
    sample may still contain the share's ended ranks. `held` has the state and slots of each share
    on the node.
    """
    in_use: set[int] = set()
    used: set[int] = set()
    for state, slots in held:
        if state == AttemptNodeState.ENDED:
            used.update(slots)
        elif state != AttemptNodeState.SPARE:
            in_use.update(slots)
    return {
        int(slot): why
        for slot, why in withheld.items()
        if int(slot) not in in_use and not (int(slot) in used and why.startswith(PROCESS))
    }


def _is_full(sample: NodeSample | None, *, before: bool) -> bool:
    """Return whether the node's data folder is full.

    If the sample does not contain the free space of the folder, or no sample exists, return
    `before`.
    """
    disks = () if sample is None else sample.host.disks
    rooms = (disk.free_bytes for disk in disks if disk.name == DATA_DIR)
    return next((room < DATA_DIR_BYTES for room in rooms), before)


def _why_withheld(
    device: Accelerator, sample: AcceleratorSample | None, unsampled: str | None
) -> str | None:
    """Return why a device is withheld; `unsampled` is the reason for a device without a sample."""
    if not device.listed:
        return unlisted(device.uuid)
    return unsampled if sample is None else sample.why_unusable
