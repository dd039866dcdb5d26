"""Legal layouts of a world size, asked of the rules that the job itself must pass."""

from __future__ import annotations

from collections.abc import Iterator

from planner.batch import legal_micro_batch_size, plan_batch
from planner.memory import estimate_memory
from specs.batch import BatchDeal
from specs.job import JobSpec
from specs.layout import Layout
from specs.plan import LayoutOption, ResumeOption
from specs.problems import SpecError
from specs.rules import NOT_SUPPORTED_YET, check_job_spec

AXES = ("dp_replicate", "dp_shard", "cp", "tp", "pp")


def layouts_of(
    spec: JobSpec, world_size: int, *, device_memory_bytes: int | None = None
) -> ResumeOption:
    """Return every legal layout of the job on `world_size` slots, or the reason why there is none.

    Each has the job's own micro-batch size where that is legal, else the largest legal smaller one.
    First comes the layout that the job's own axes give, if they do; then the fewest replicas.
    """
    legal: list[LayoutOption] = []
    reasons: dict[str, None] = {}  # in order, each once
    for layout in _candidates(spec, world_size):
        try:
            candidate = _candidate(spec, layout)
            check_job_spec(candidate)
        except SpecError as error:
            reasons |= {problem.detail: None for problem in error.problems}
        except ValueError as error:
            reasons[str(error)] = None
        else:
            legal.append(option(candidate, layout, device_memory_bytes=device_memory_bytes))
    own = _own_layout(spec, world_size)
    legal.sort(key=lambda o: (o.layout != own, *(getattr(o.layout, axis) for axis in AXES)))
    return ResumeOption(
        world_size=world_size,
        layouts=tuple(legal),
        reason=None if legal else "; ".join(reasons),
    )


def option(
    spec: JobSpec, layout: Layout, *, device_memory_bytes: int | None = None
) -> LayoutOption:
    """Return a layout with its batch and its memory."""
    deal = BatchDeal(spec.training.global_batch_size, spec.training.micro_batch_size, layout.dp)
    memory = estimate_memory(spec, layout, deal)
    return LayoutOption(
        layout=layout,
        name=str(layout),
        batch=plan_batch(deal),
        memory=memory,
        fits=None if device_memory_bytes is None else memory.total <= device_memory_bytes,
    )


def _candidates(spec: JobSpec, world_size: int) -> Iterator[Layout]:
    """Yield each way to write `world_size` as a product of the axes that have an engine."""
    axes = [axis for axis in AXES if _has_engine(spec, axis)]
    for sizes in _factorizations(world_size, len(axes)):
        yield Layout(**dict(zip(axes, sizes, strict=True)))


def _has_engine(spec: JobSpec, axis: str) -> bool:
    asking = spec.model_copy(update={"parallelism": spec.parallelism.model_copy(update={axis: 2})})
    return not any(
        pointer == f"/parallelism/{axis}" and asked_for(asking)
        for pointer, asked_for, _ in NOT_SUPPORTED_YET
    )


def _factorizations(product: int, factors: int) -> Iterator[tuple[int, ...]]:
    if factors == 1:
        yield (product,)
        return
    for first in range(1, product + 1):
        if product % first == 0:
            for rest in _factorizations(product // first, factors - 1):
                yield (first, *rest)


def _candidate(spec: JobSpec, layout: Layout) -> JobSpec:
    """Return the job on another layout.

    Raises:
        ValueError: no micro-batch size gives each data-parallel rank a micro-batch.
    """
    training, given = spec.training, spec.training.micro_batch_size
    size = legal_micro_batch_size(training.global_batch_size, layout.dp, at_most=given)
    if size is None:
        raise ValueError(
            f"{layout.dp} data-parallel ranks are more than the "
            f"global_batch_size={training.global_batch_size} sequences of a step"
        )
    resized = training.model_copy(update={"micro_batch_size": size})
    return spec.on_layout(layout).model_copy(update={"training": resized})


def _own_layout(spec: JobSpec, world_size: int) -> Layout | None:
    try:
        return spec.layout(world_size)
    except ValueError:
        return None
