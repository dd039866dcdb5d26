"""The slots of a node as placement may use them: numbers that stay, and slots that are withheld."""

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
    was_full: bool = False,
    clock_is_wrong: bool = False,
) -> dict[str, str]:
    """Return why slots are withheld from placement, by their number as text.

    The words stay the same while the cause does: they are part of the reason of waiting jobs.

    Args:
        hardware: what the node offers.
        sample: its newest sample; none where it has just registered, or where the sample failed.
        before: the reasons of before, by UUID; that of a device stays until a sample has the
            device, or the whole driver does not answer.
        was_full: whether the data folder had no room before; so it is until a sample has its room.
        clock_is_wrong: whether the clock of the node withholds its slots.
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
    """Return the reasons that are of one device by its UUID, of listed devices alone."""
    return {
        device.uuid: withheld[str(slot)]
        for slot, device in enumerate(hardware.accelerators)
        if device.listed and withheld.get(str(slot), DATA_DIR_FULL) not in OF_NODES
    }


def withheld_by_launch(
    hardware: Hardware, held: Collection[int], unusable: Mapping[str, str]
) -> dict[str, str]:
    """Return why slots of a share are withheld after its launch, by their number as text.

    Args:
        hardware: what the node offers.
        held: the slots of the share.
        unusable: why no rank could use devices, by UUID.
    """
    return {
        str(slot): unusable[device.uuid]
        for slot, device in enumerate(hardware.accelerators)
        if slot in held and device.uuid in unusable
    }


def withheld_from_placement(
    withheld: Mapping[str, str], held: Iterable[tuple[AttemptNodeState, Collection[int]]]
) -> dict[int, str]:
    """Return the withheld slots, without those of ranks, with their reasons.

    From inside a container the ranks of an attempt may look like foreign processes, and the newest
    sample may have seen those that have ended.

    Args:
        withheld: the reasons of a node's withheld slots, by their number as text.
        held: state and slots of each share that holds some on the node.
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
    """Return whether the data folder of the node has no room, by the newest reading."""
    disks = () if sample is None else sample.host.disks
    rooms = (disk.free_bytes for disk in disks if disk.name == DATA_DIR)
    return next((room < DATA_DIR_BYTES for room in rooms), before)


def _why_withheld(
    device: Accelerator, sample: AcceleratorSample | None, unsampled: str | None
) -> str | None:
    """Return why the slot of a device is withheld; `unsampled` where no sample has the device."""
    if not device.listed:
        return unlisted(device.uuid)
    return unsampled if sample is None else sample.why_unusable
