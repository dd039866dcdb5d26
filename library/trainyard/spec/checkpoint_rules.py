"""Rules of the section `checkpoint`, and the maximum number of checkpoints that a job holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from trainyard.base.problems import Problem, multiples, nearest
from trainyard.spec.auto import explicit
from trainyard.spec.job import JobSpec
from trainyard.spec.precision import slots_for
from trainyard.spec.sections.checkpoint import CheckpointSection
from trainyard.training.known_devices import Slot


def most_kept(spec: JobSpec, *, step: int = 0) -> int:
    """Return how many checkpoints from after a step a job holds at the same time, at most.
    Saves on request are not counted, because their number is unknown. Without `keep_latest_k`,
    saves by the clock are not counted either. With `keep_latest_k` the job holds one checkpoint
    more than it keeps, because the oldest is deleted only after the newest is committed; and yet
    one more with `export="safetensors"`, because a running export keeps its checkpoint.

    Args:
        spec: the job, resolved.
        step: completed steps.
    """
    section = spec.checkpoint
    if step >= spec.training.steps:
        return 0
    saves = saves_to_come(explicit(section.interval_steps), spec, step=step)
    if not section.keep_latest_k:
        return saves
    if explicit(section.interval_seconds):
        saves = spec.training.steps - step  # by the clock: at most one save per step
    return min(saves, section.keep_latest_k + kept_besides(spec, step=step))


def kept_besides(spec: JobSpec, *, step: int) -> int:
    """Return how many checkpoints from after a step a job holds in addition to `keep_latest_k`."""
    section = spec.checkpoint
    exporting = section.export == "safetensors"
    return kept_for_good(spec, step=step) + section.keep_best_k + 1 + exporting


def saves_to_come(interval: int, spec: JobSpec, *, step: int) -> int:
    """Return the number of saves after a step: saves at this interval, and the final save."""
    by_steps = (spec.training.steps - 1) // interval - step // interval if interval else 0
    return by_steps + 1  # the save at the end


def kept_for_good(spec: JobSpec, *, step: int) -> int:
    """Return the number of checkpoints after `step` that `keep_every_steps` will keep."""
    every = spec.checkpoint.keep_every_steps
    return spec.training.steps // every - step // every if every else 0


def retention(spec: JobSpec) -> Iterator[Problem]:
    """`keep_every_steps` and `keep_best_k` need `keep_latest_k`."""
    section = spec.checkpoint
    for field in ("keep_every_steps", "keep_best_k"):
        value = getattr(section, field)
        if value and not section.keep_latest_k:
            yield Problem(
                pointer=f"/checkpoint/{field}",
                detail=f"{field}={value} goes with keep_latest_k, without which every checkpoint "
                "is kept; legal: 0, or keep_latest_k from 1 on",
            )


def _every_steps(spec: JobSpec) -> Iterator[Problem]:
    section = spec.checkpoint
    every, interval = section.keep_every_steps, explicit(section.interval_steps)
    if every and section.keep_latest_k and interval and every % interval:
        yield Problem(
            pointer="/checkpoint/keep_every_steps",
            detail=f"keep_every_steps={every} is no multiple of interval_steps={interval}; "
            f"{nearest(every, multiples(interval, every))}",
        )


def _best(spec: JobSpec) -> Iterator[Problem]:
    section, validated = spec.checkpoint, spec.validation.interval_steps
    interval = explicit(section.interval_steps)
    if not section.keep_best_k or section.keep_best_metric != "validation/loss":
        return
    if not validated:
        yield Problem(
            pointer="/checkpoint/keep_best_metric",
            detail="keep_best_metric='validation/loss' is never measured; legal: train/loss, or "
            "validation.interval_steps from 1 on",
        )
    elif interval % validated:
        yield Problem(
            pointer="/checkpoint/interval_steps",
            detail=f"interval_steps={interval} is no multiple of validation.interval_steps="
            f"{validated}, so few checkpoints have a validation/loss; "
            f"{nearest(interval, multiples(validated, interval))}",
        )


def writers(spec: JobSpec) -> Iterator[Problem]:
    """The number of writers must not exceed the number of ranks."""
    number, ranks = spec.checkpoint.writers, spec.resources.world_size
    if isinstance(number, int) and number > ranks:
        yield Problem(
            pointer="/checkpoint/writers",
            detail=f"writers={number}, but world_size={ranks}; legal: 1 to {ranks}, 'all'",
        )


def staging(spec: JobSpec) -> Iterator[Problem]:
    """`staging_gib` needs a number as `writers`, because only then do ranks stream shards to
    others."""
    section = spec.checkpoint
    default = CheckpointSection().staging_gib
    if not isinstance(section.writers, int) and section.staging_gib != default:
        yield Problem(
            pointer="/checkpoint/staging_gib",
            detail=f"staging_gib={section.staging_gib:g}, but with writers={section.writers!r} no "
            "rank writes shards of others; legal: a number as writers, or no staging_gib",
        )


def _export(spec: JobSpec) -> Iterator[Problem]:
    factory = spec.model.factory
    if spec.checkpoint.export == "safetensors" and factory is not None:
        yield Problem(
            pointer="/checkpoint/export",
            detail=f"export='safetensors', but only families and hub models have weight names on "
            f"the hub, and model.factory={factory!r}; legal: dcp, none",
        )


def _start(spec: JobSpec) -> Iterator[Problem]:
    if spec.checkpoint.start_from is not None and spec.model.initial_weights is not None:
        yield Problem(
            pointer="/checkpoint/start_from",
            detail=f"start_from={spec.checkpoint.start_from!r} and model.initial_weights="
            f"{spec.model.initial_weights!r} both set the first weights; legal: one of them",
        )
    if 0 < spec.checkpoint.start_step >= spec.training.steps:
        yield Problem(
            pointer="/training/steps",
            detail=f"steps={spec.training.steps}, but checkpoint.start_from="
            f"{spec.checkpoint.start_from!r} starts at step {spec.checkpoint.start_step}; legal: "
            "more steps, because they count from the start of the other run",
        )


def accelerator(spec: JobSpec, slots: Collection[Slot]) -> Iterator[Problem]:
    """Pinned memory is illegal on CPUs, because it only speeds up copies from an accelerator.

    Args:
        spec: the job.
        slots: slots of the nodes; empty if the nodes are unknown.
    """
    kinds = {slot.device for slot in slots_for(spec, slots)} | {spec.resources.device} - {"auto"}
    if spec.checkpoint.async_mode == "async_with_pinned_mem" and kinds == {"cpu"}:
        yield Problem(
            pointer="/checkpoint/async_mode",
            detail="async_mode='async_with_pinned_mem' speeds up copies from an accelerator, but "
            "the job runs on CPUs; legal: disabled, async",
        )


CHECKPOINT_RULES: tuple[Callable[[JobSpec], Iterator[Problem]], ...] = (
    writers,
    staging,
    retention,
    _every_steps,
    _best,
    _export,
    _start,
)
"""Rules across the fields of the section `checkpoint`."""
