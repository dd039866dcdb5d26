"""What the section on checkpoints demands of its fields and of the nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from trainyard.base.problems import Problem
from trainyard.spec.job import JobSpec
from trainyard.spec.precision import slots_for
from trainyard.spec.sections.checkpoint import CheckpointSection
from trainyard.training.devices import Slot


def writers(spec: JobSpec) -> Iterator[Problem]:
    """A number of writers is one of the job's ranks."""
    number, ranks = spec.checkpoint.writers, spec.resources.world_size
    if isinstance(number, int) and number > ranks:
        yield Problem(
            pointer="/checkpoint/writers",
            detail=f"writers={number}, but world_size={ranks}; legal: 1 to {ranks}, 'all'",
        )


def staging(spec: JobSpec) -> Iterator[Problem]:
    """Only a number of writers has shards streamed: another ceiling would do nothing."""
    section = spec.checkpoint
    default = CheckpointSection().staging_gib
    if not isinstance(section.writers, int) and section.staging_gib != default:
        yield Problem(
            pointer="/checkpoint/staging_gib",
            detail=f"staging_gib={section.staging_gib:g}, but with writers={section.writers!r} no "
            "rank writes shards of others; legal: a number as writers, or no staging_gib",
        )


def accelerator(spec: JobSpec, slots: Collection[Slot]) -> Iterator[Problem]:
    """Pinned memory serves the copies of an accelerator.

    Args:
        spec: the job.
        slots: what the nodes offer; nothing is known of them when empty.
    """
    kinds = {slot.device for slot in slots_for(spec, slots)} | {spec.resources.device} - {"auto"}
    if spec.checkpoint.async_mode == "async_with_pinned_mem" and kinds == {"cpu"}:
        yield Problem(
            pointer="/checkpoint/async_mode",
            detail="async_mode='async_with_pinned_mem' speeds up copies from an accelerator, but "
            "the job runs on CPUs; legal: disabled, async",
        )


SAVING: tuple[Callable[[JobSpec], Iterator[Problem]], ...] = (writers, staging)
"""What must agree in the section."""
