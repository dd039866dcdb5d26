"""Short ways to write a job for the planner's tests."""

from typing import Any

from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.training.known_devices import Slot


def job(world_size: int = 1, **sections: dict[str, Any]) -> JobSpec:
    """Return a job on `world_size` slots with the given sections."""
    resources = {"world_size": world_size} | sections.pop("resources", {})
    return parse_job_spec({"resources": resources, **sections})


def slots_of(memory_bytes: int | None) -> tuple[Slot, ...]:
    """Return one slot of `memory_bytes` on a GPU of unknown model; none if it is None."""
    return () if memory_bytes is None else (Slot("cuda", "a GPU", memory_bytes),)
