"""Short ways to write a job for the planner's tests."""

from typing import Any

from specs.job import JobSpec, parse_job_spec


def job(world_size: int = 1, **sections: dict[str, Any]) -> JobSpec:
    """Return a job on `world_size` slots with the given sections."""
    resources = {"world_size": world_size} | sections.pop("resources", {})
    return parse_job_spec({"resources": resources, **sections})
