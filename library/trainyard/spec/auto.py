"""Resolve `auto` by device, in pure functions, so that server, planner and trainer agree."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal, TypeVar

from trainyard.base.model_base import Auto
from trainyard.base.problems import divisors
from trainyard.spec.job import FIRST_DEFAULTS, JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.checkpoint import CheckpointSection
from trainyard.spec.sections.parallelism import ParallelismSection
from trainyard.training.known_devices import Slot
from trainyard.training.pipeline_schedule import SPLIT_BACKWARD

DeviceKind = Literal["cpu", "cuda"]
AutoValues = dict[str, bool | int | float | str]
"""Resolved values, by dotted path of the spec field, such as `compile.enabled`."""
Value = TypeVar("Value")

AUTO: Final = "auto"
GPU_LOG_EVERY_STEPS = 10
"""Number of steps between two logged lines on GPUs. Each line costs two collectives and a wait for
the device; torchtitan logs at the same interval."""
GPU_INTERVAL_SECONDS = 600.0
"""Time between two saves on GPUs, so that a failure loses at most ten minutes. A save that stalls a
7B model for 6.3 s (a value from PyTorch for asynchronous DCP) then costs 1 % of the time. By
Young's formula, sqrt(2 x 6.3 s x MTBF), the interval is optimal for one failure every eight hours.
"""


def resolved(spec: JobSpec, device: DeviceKind, layout: Layout | None = None) -> JobSpec:
    """Return the spec with each `auto` replaced by its value; other fields stay.

    Args:
        spec: the job's spec, with or without the overrides of an attempt (`Overrides.apply`).
        device: kind of the slots.
        layout: layout of the attempt; by default the spec's own axes.
    """
    by_section: dict[str, AutoValues] = {}
    for path, value in auto_values(spec, device, layout).items():
        section, _, field = path.partition(".")
        by_section.setdefault(section, {})[field] = value
    update = {
        section: getattr(spec, section).model_copy(update=values)
        for section, values in by_section.items()
    }
    return spec.model_copy(update=update) if update else spec


def auto_values(spec: JobSpec, device: DeviceKind, layout: Layout | None = None) -> AutoValues:
    """Return the resolved value of each field that is `auto`.

    The arguments are those of `resolved`. On CPUs the value is the field's entry in
    `FIRST_DEFAULTS`, unless a rule requires another value. A returned value breaks a rule only if
    no legal value exists. The result is empty for a program, because only the built-in trainer
    reads these fields.
    """
    if spec.program is not None:
        return {}
    steps, seconds = _intervals(spec, device)
    on_gpu = device == "cuda"
    pinned = on_gpu and not spec.optimizer.cpu_offload  # offload keeps tensors on the host
    values: AutoValues = {
        "training.log_every_steps": GPU_LOG_EVERY_STEPS if on_gpu else 1,
        "compile.enabled": _compiles(spec, device, layout or spec.parallelism),
        "checkpoint.interval_steps": steps,
        "checkpoint.interval_seconds": seconds,
        "checkpoint.async_mode": "async_with_pinned_mem" if pinned else "disabled",
    }
    return {path: value for path, value in values.items() if _given(spec, path) == AUTO}


def explicit(value: Value | Auto) -> Value:
    """Return a value of a resolved spec, with a type that excludes `auto`."""
    assert value != AUTO, "the spec is not resolved"
    return value


def expected_device(spec: JobSpec, slots: Collection[Slot] = ()) -> DeviceKind:
    """Return the kind of slot that placement will choose.

    Placement prefers GPUs; without information about the nodes, GPUs are assumed.
    """
    if spec.resources.device != AUTO:
        return spec.resources.device
    kinds = {slot.device for slot in slots}
    return "cpu" if kinds == {"cpu"} else "cuda"


def _given(spec: JobSpec, path: str) -> object:
    section, _, field = path.partition(".")
    return getattr(getattr(spec, section), field)


def _compiles(spec: JobSpec, device: DeviceKind, axes: Layout | ParallelismSection) -> bool:
    mode = spec.activation_checkpoint.mode
    if mode == "memory_budget" or (spec.parallelism.async_tp and axes.tp > 1):
        return True
    is_refused = (axes.tp > 1 and mode == "full") or (
        axes.pp > 1 and spec.parallelism.pp_schedule in SPLIT_BACKWARD
    )
    # Nothing proves that an own model compiles to whole graphs, or that compiled runs repeat
    # to the bit.
    is_unproved = spec.model.is_own or spec.training.deterministic
    return device == "cuda" and not (is_refused or is_unproved)


def _intervals(spec: JobSpec, device: DeviceKind) -> tuple[int, float]:
    """Return the intervals between two saves, in steps and in seconds."""
    section = spec.checkpoint
    steps, seconds = section.interval_steps, section.interval_seconds
    if steps != AUTO:
        return steps, 0.0
    by_clock = device == "cuda" and seconds != 0 and not _validated(spec)
    if by_clock and not section.keep_every_steps:
        return 0, GPU_INTERVAL_SECONDS
    return _interval_steps(spec), 0.0


def _interval_steps(spec: JobSpec) -> int:
    """Among the intervals that retention allows, return the one nearest to the first default."""
    usual: int = FIRST_DEFAULTS["checkpoint", "interval_steps"]
    unit, every = _validated(spec) or 1, spec.checkpoint.keep_every_steps
    if every:
        legal = [steps for steps in divisors(every) if steps % unit == 0]
    else:
        legal = [unit * times for times in (usual // unit, usual // unit + 1) if times]
    return min(legal, key=lambda steps: max(steps, usual) / min(steps, usual), default=unit)


def _validated(spec: JobSpec) -> int:
    """Return the validation interval in steps if `keep_best_k` uses validation, else 0."""
    section: CheckpointSection = spec.checkpoint
    by_validation = section.keep_best_k and section.keep_best_metric == "validation/loss"
    return spec.validation.interval_steps if by_validation else 0
