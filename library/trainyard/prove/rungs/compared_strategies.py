"""The table of strategies: speed, memory and loss of one model under each way to distribute it."""

from __future__ import annotations

import statistics

from trainyard.prove.bench import Bench, NotPossibleError
from trainyard.prove.course import Course
from trainyard.prove.figures import Figure, at_most, equal, largest_difference, reported
from trainyard.prove.strategies import GPU_SIZES, USES, ComparedStrategy, strategies
from trainyard.spec.job import parse_job_spec

WARMUP = 0.25
"""Share of the steps that the speed leaves out, because they include compilation."""
TOLERANCE = {"float32": 1e-3, "bfloat16": 1e-2, "float8": 2e-2}
"""Maximum relative difference of the final loss from the first strategy's, by dtype of the
products."""
LOSS, MFU = "train/loss", "perf/mfu"
SPEED = "perf/compute_tokens_per_second_per_device"
ON_GPU, ON_CPU = "memory/peak_reserved_gib", "memory/peak_rss_gib"
SERIES = (LOSS, MFU, SPEED, ON_GPU, ON_CPU)


def strategy(bench: Bench, *, name: str, steps: int) -> list[Figure]:
    """Train the model of the table under one strategy, and compare it with the first strategy."""
    every = _table(bench, steps)
    chosen = next((each for each in every if each.name == name), None)
    if chosen is None:
        raise NotPossibleError(f"{every[0].words} needs more than one device")
    if chosen.missing is not None:
        raise NotPossibleError(chosen.missing)
    bench.require(document(chosen, steps))
    reference = bench.reference(document(every[0], steps))
    job = reference if chosen is every[0] else bench.finish(document(chosen, steps))
    found = bench.course(job.id, *SERIES)
    attempt = job.current_attempt
    expected = bench.course(reference.id, LOSS)
    return [
        reported("model", chosen.words),
        reported("layout", attempt.layout_name if attempt else "unknown"),
        reported("tokens_per_second_per_device", _steady(found, SPEED)),
        reported("peak_gib", _peak(found)),
        *([reported("mfu", _steady(found, MFU))] if found.of(MFU) else []),
        equal("compared_after_steps", _last_common_step(found, expected), steps),
        at_most("final_loss_off", _loss_off(found, expected), _tolerance(chosen, steps)),
        reported("use", USES[name]),
    ]


def _table(bench: Bench, steps: int) -> list[ComparedStrategy]:
    """Return the strategies with the largest model whose reference fits into the slots."""
    usual = strategies(bench.slots, device=bench.device)
    if bench.device == "cpu" or bench.fits(document(usual[0], steps)):
        return usual
    smaller = [strategies(bench.slots, device=bench.device, size=size) for size in GPU_SIZES[1:]]
    return next((every for every in smaller if bench.fits(document(every[0], steps))), smaller[-1])


def document(chosen: ComparedStrategy, steps: int) -> dict[str, object]:
    """Return the spec of a strategy's job."""
    spec = chosen.with_steps(steps)
    return spec | {"name": f"prove-strategy-{spec['name']}".lower(), "retry": {"max_retries": 0}}


def _tolerance(chosen: ComparedStrategy, steps: int) -> float:
    spec = parse_job_spec(chosen.with_steps(steps))
    quantized = spec.quantization.recipe != "none"
    return TOLERANCE["float8" if quantized else spec.training.param_dtype]


def _steady(found: Course, name: str) -> float:
    """Return the median of a metric over the steps after the warm-up."""
    values = found.of(name)
    first = WARMUP * max(values, default=0)
    return statistics.median([v for step, v in values.items() if step > first] or [float("nan")])


def _peak(found: Course) -> float:
    return max((found.of(ON_GPU) or found.of(ON_CPU)).values(), default=float("nan"))


def _last_common_step(found: Course, reference: Course) -> int:
    return max(found.of(LOSS).keys() & reference.of(LOSS).keys(), default=0)


def _loss_off(found: Course, reference: Course) -> float:
    losses, others = found.of(LOSS), reference.of(LOSS)
    if not losses or losses.keys() != others.keys():
        return float("nan")
    last = max(losses)
    return largest_difference([losses[last]], [others[last]])
