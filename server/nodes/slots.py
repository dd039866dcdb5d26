"""The slots of a node as placement may use them: numbers that stay, and slots that are withheld."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trainyard.protocol.node_samples import (
    DATA_DIR,
    DATA_DIR_BYTES,
    DATA_DIR_FULL,
    Accelerator,
    AcceleratorSample,
    NodeSample,
)
from trainyard.protocol.worker_messages import Hardware

CLOCK = "the clock of the node is wrong"
OF_NODES = (DATA_DIR_FULL, CLOCK)
"""Reasons that withhold all slots of a node; the others are of one device."""


def keep_slots(before: Hardware, now: Hardware) -> Hardware:
    """Return hardware with the slot numbers of before, for a node of which attempts hold slots.

    A slot is a device. One that is listed no more keeps its number, and new ones come last: so the
    slots of an attempt mean the same devices for as long as it lives.

    Args:
        before: what the node offered.
        now: what its worker lists, in its own order.
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
    """Return the UUID of the device of each slot."""
    return tuple(device.uuid for device in hardware.accelerators)


def withheld_slots(
    hardware: Hardware,
    sample: NodeSample | None,
    *,
    before: Mapping[str, str],
    clock_is_wrong: bool = False,
) -> dict[str, str]:
    """Return why slots are withheld from placement, by their number as text.

    The words stay the same while the cause does: they are part of the reason of waiting jobs.

    Args:
        hardware: what the node offers.
        sample: its newest sample; none where it has just registered, or where the sample failed.
        before: the reasons of before, by UUID; that of a device stays until a sample has the
            device, or the whole driver does not answer.
        clock_is_wrong: whether the clock of the node withholds its slots.
    """
    of_node = CLOCK if clock_is_wrong else None
    if sample is not None and _is_full(sample):
        of_node = DATA_DIR_FULL
    sampled = {} if sample is None else {each.uuid: each for each in sample.accelerators}
    driver_fails = sample is not None and sample.accelerators_problem is not None
    reasons = {
        str(slot): _why_withheld(
            device,
            sampled.get(device.uuid),
            "the driver does not answer" if driver_fails else before.get(device.uuid),
        )
        for slot, device in enumerate(hardware.accelerators)
    }
    found = {slot: reason for slot, reason in reasons.items() if reason is not None}
    if of_node is None:
        return found
    return dict.fromkeys(map(str, range(hardware.slots)), of_node) | found


def reasons_by_uuid(hardware: Hardware, withheld: Mapping[str, str]) -> dict[str, str]:
    """Return the reasons that are of one device by its UUID, of listed devices alone."""
    return {
        device.uuid: withheld[str(slot)]
        for slot, device in enumerate(hardware.accelerators)
        if device.listed and withheld.get(str(slot), DATA_DIR_FULL) not in OF_NODES
    }


def withheld_from_placement(withheld: Mapping[str, str], held: Collection[int]) -> dict[int, str]:
    """Return the withheld slots that no attempt holds, with their reasons.

    From inside a container the ranks of an attempt may look like foreign processes.

    Args:
        withheld: the reasons of a node's withheld slots, by their number as text.
        held: slots that attempts hold on the node.
    """
    return {int(slot): why for slot, why in withheld.items() if int(slot) not in held}


def _is_full(sample: NodeSample) -> bool:
    """Return whether the data folder of the node has no room for a launch."""
    rooms = (disk.free_bytes for disk in sample.host.disks if disk.name == DATA_DIR)
    return any(room < DATA_DIR_BYTES for room in rooms)


def _why_withheld(
    device: Accelerator, sample: AcceleratorSample | None, unsampled: str | None
) -> str | None:
    """Return why the slot of a device is withheld; `unsampled` where no sample has the device."""
    if not device.listed:
        return f"the driver does not list {device.uuid}"
    if sample is None:
        return unsampled
    if sample.problem is not None:
        return f"the device does not answer: {sample.problem}"
    if not sample.foreign:
        return None
    process = sample.foreign[0]
    command = f" ({process.command})" if process.command is not None else ""
    user = f" of {process.user}" if process.user is not None else ""
    more = len(sample.foreign) - 1
    others = f" and {more} other{'s' if more > 1 else ''}" if more else ""
    hold = "hold" if more else "holds"
    return f"process {process.pid}{command}{user}{others} {hold} its memory"
