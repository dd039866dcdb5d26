"""All advice rules as one pure function from observations of a job to findings.

Each rule names one remedy, and ignores a cause that takes less than a minimum share of time. The
rules for small micro-batches and full memory have no such share.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from server.telemetry.advice.advice_input import (
    LEAST_SHARE,
    BestSaves,
    Observed,
    RecentSteps,
    gain_of,
)
from trainyard.protocol.goodput import AdviceFinding, Evidence, Hindrance, TimeCategory
from trainyard.spec.job import JobSpec

LEAST_COLLECTIVES = 0.25
"""Share of a step's time that collectives must take for a finding. The share is high because every
layout has collectives.
"""
LEAST_VALIDATION = 0.10
"""Share of the time that validation must take for a finding. The share is high because a person
configured the validation.
"""
LEAST_STARTUP = 0.20
"""Share of the time that start-up must take for a finding. The share is high because start-up
dominates short jobs.
"""
COLLECTED_SHARE = 0.01
"""Share of a step's time that garbage collection still takes after the remedy; such a small share
causes no finding.
"""
FREE_MEMORY = 0.5
"""If the peak is below this share of the device's memory, a micro-batch of twice the size fits,
because activations at most double."""


def findings_of(observed: Observed) -> tuple[AdviceFinding, ...]:
    """Return the findings on what slows a job, the one with the largest share of time first."""
    found: list[AdviceFinding] = []
    if observed.recent is not None:
        for step_rule in (
            *(_data_wait, _collectives, _recompilation, _garbage_collection),
            *(_small_micro_batches, _full_memory),
        ):
            found += step_rule(observed.spec, observed.recent)
    for rule in (_straggler, _saves, _lost_steps, _compilation, _validation, _startup):
        found += rule(observed)
    return tuple(sorted(found, key=lambda each: -each.share))


def _data_wait(spec: JobSpec, recent: RecentSteps) -> Iterator[AdviceFinding]:
    share = min(recent.data / recent.step, 1.0)
    if share < LEAST_SHARE:
        return
    if spec.program is not None:
        field, remedy = None, "Give the script's data loader more workers, or prepare data earlier."
    elif not spec.data.prefetch_batches:
        field = "data.prefetch_batches"
        remedy = "Set data.prefetch_batches to 2: no batch is read ahead now."
    else:
        field = "data.path"
        remedy = (
            "Batches are read ahead, so storage is slower than training: keep the input on a "
            "local disk of the node, or on a root with more bandwidth."
        )
    yield AdviceFinding(
        hindrance=Hindrance.DATA_WAIT,
        words=f"{100 * share:.0f} % of a recent step is spent on waiting for data.",
        share=share,
        evidence=_seconds(("perf/data_seconds", recent.data), ("perf/step_seconds", recent.step)),
        field=field,
        remedy=remedy,
        gain=gain_of(share),
    )


def _collectives(spec: JobSpec, recent: RecentSteps) -> Iterator[AdviceFinding]:
    if recent.own is None or recent.wait is None or recent.own_most is None:
        return
    # Only the wait that all ranks share, because the wait for a slow rank is another finding.
    waited = max(recent.wait - (recent.own_most - recent.own), 0.0)
    share = min(waited / recent.step, 1.0)
    if share < LEAST_COLLECTIVES:
        return
    if spec.program is not None:
        field, remedy = None, "Let the script send less, or overlap it with computation."
    elif spec.parallelism.tp > 1:
        field = "parallelism.tp"
        remedy = f"Lower parallelism.tp={spec.parallelism.tp}: its collectives block compute."
    else:
        field = "training.micro_batch_size"
        remedy = (
            "Give each rank more tokens between two collectives: a larger "
            "training.micro_batch_size, or replicas within nodes by parallelism.dp_replicate."
        )
    yield AdviceFinding(
        hindrance=Hindrance.COLLECTIVES,
        words=f"The median rank spends {100 * share:.0f} % of a recent step in collectives.",
        share=share,
        evidence=_seconds(
            ("ranks/wait_seconds_median", recent.wait),
            ("ranks/own_seconds_median", recent.own),
            ("perf/step_seconds", recent.step),
        ),
        field=field,
        remedy=remedy,
        gain=gain_of(share),
    )


def _recompilation(_: JobSpec, recent: RecentSteps) -> Iterator[AdviceFinding]:
    share = min(recent.recompiled / (recent.step * recent.steps), 1.0)
    if share < LEAST_SHARE:
        return
    yield AdviceFinding(
        hindrance=Hindrance.RECOMPILATION,
        words=f"Blocks were compiled again in recent steps, for {100 * share:.0f} % of their time.",
        share=share,
        evidence=_seconds(("compile/seconds", recent.recompiled)),
        field="env.TORCH_LOGS",
        remedy='Set env.TORCH_LOGS to "recompiles": the log then names the guard that failed. '
        "Shapes that change from step to step are the usual cause.",
        gain=gain_of(share),
    )


def _garbage_collection(spec: JobSpec, recent: RecentSteps) -> Iterator[AdviceFinding]:
    share = min(recent.collected / (recent.step * recent.steps), 1.0)
    if share < LEAST_SHARE:
        return
    # A collection mostly scans live objects, so collecting less often does not make it slower.
    fewer = ceil(share / COLLECTED_SHARE)
    if spec.program is not None:
        field, remedy = None, "Let the script collect less often, on all ranks after the same step."
    else:
        field = "training.gc_freq"
        remedy = (
            f"Set training.gc_freq to {fewer * spec.training.gc_freq:,}: unused reference "
            "cycles then stay in memory longer."
        )
    yield AdviceFinding(
        hindrance=Hindrance.GARBAGE_COLLECTION,
        words=f"Garbage collection took {100 * share:.0f} % of recent steps.",
        share=share,
        evidence=_seconds(("gc/seconds", recent.collected), ("perf/step_seconds", recent.step)),
        field=field,
        remedy=remedy,
        gain=gain_of(share * (1 - 1 / fewer)),
    )


def _small_micro_batches(spec: JobSpec, recent: RecentSteps) -> Iterator[AdviceFinding]:
    if recent.peak_share is None or recent.peak_share >= FREE_MEMORY or spec.program is not None:
        return
    training = spec.training
    ranks = spec.resources.world_size if isinstance(spec.resources.world_size, int) else 1
    if training.global_batch_size < 2 * training.micro_batch_size * ranks:
        return
    yield AdviceFinding(
        hindrance=Hindrance.SMALL_MICRO_BATCHES,
        words=f"The fullest rank uses {100 * recent.peak_share:.0f} % of its device's memory, and "
        "a step consists of several micro-batches.",
        share=0.0,
        evidence=(Evidence(name="peak of memory", value=recent.peak_share, unit=""),),
        field="training.micro_batch_size",
        remedy=f"Set training.micro_batch_size to {2 * training.micro_batch_size}: larger products "
        "use a device better, and the sums stay the same.",
        gain=None,
    )


def _full_memory(spec: JobSpec, recent: RecentSteps) -> Iterator[AdviceFinding]:
    retries = recent.allocation_retries
    if retries < 1 or spec.program is not None:
        return
    mode, sequences = spec.activation_checkpoint.mode, spec.training.micro_batch_size
    more = {"none": "selective", "selective": "full"}
    field: str | None = None
    remedy = "Give the job more slots, which share its weights."
    if mode in more:
        field = "activation_checkpoint.mode"
        remedy = f'Set activation_checkpoint.mode to "{more[mode]}": fewer activations are kept.'
    elif sequences > 1:
        field = "training.micro_batch_size"
        remedy = f"Set training.micro_batch_size to {sequences // 2}."
    yield AdviceFinding(
        hindrance=Hindrance.FULL_MEMORY,
        words=f"The allocator emptied its cache {retries:.0f} times in the last "
        f"{recent.steps:,} steps: each time the device waits.",
        share=0.0,
        evidence=(Evidence(name="memory/allocation_retries", value=retries, unit="times"),),
        field=field,
        remedy=remedy,
        gain=None,
    )


def _straggler(observed: Observed) -> Iterator[AdviceFinding]:
    slow = observed.stragglers
    if not slow or slow[0].share < LEAST_SHARE:
        return
    worst = slow[0]
    others = f", and {len(slow) - 1} more" if len(slow) > 1 else ""
    cause = "waits longer for data" if worst.kind == "data" else "computes longer"
    yield AdviceFinding(
        hindrance=Hindrance.STRAGGLER,
        words=f"Rank {worst.rank} on {worst.node}, slot {worst.slot}, {cause} than its peers"
        f"{others}: all ranks wait for it {100 * worst.share:.0f} % of a step.",
        share=worst.share,
        evidence=(
            Evidence(name="ranks/stragglers", value=float(len(slow)), unit="ranks"),
            Evidence(name="share of a step", value=worst.share, unit=""),
        ),
        field=None,
        remedy=f"Drain {worst.node} (`trainyard nodes drain {worst.node}`), and resume the job.",
        gain=gain_of(worst.share),
    )


def _saves(observed: Observed) -> Iterator[AdviceFinding]:
    share = observed.share(TimeCategory.SAVE_STALL)
    if share < LEAST_SHARE:
        return
    best, program = observed.best_saves, observed.spec.program is not None
    field, remedy, gain = "checkpoint.interval_steps", "Save less often.", gain_of(share)
    if not program and observed.spec.checkpoint.async_mode == "disabled":
        field = "checkpoint.async_mode"
        remedy = 'Set checkpoint.async_mode to "async": training goes on while a save is written.'
    elif best is not None:
        remedy, gain = _every(best, program=program), best.productive_gain
    yield AdviceFinding(
        hindrance=Hindrance.SAVES,
        words=f"Saves held up training for {100 * share:.0f} % of the time on slots.",
        share=share,
        evidence=_of_ledger(observed, TimeCategory.SAVE_STALL),
        field=None if program else field,
        remedy=remedy,
        gain=gain,
    )


def _lost_steps(observed: Observed) -> Iterator[AdviceFinding]:
    share = observed.share(TimeCategory.LOST)
    if share < LEAST_SHARE:
        return
    best = observed.best_saves
    program = observed.spec.program is not None
    yield AdviceFinding(
        hindrance=Hindrance.LOST_STEPS,
        words=f"{100 * share:.0f} % of the time on slots went into steps that failures lost.",
        share=share,
        evidence=_of_ledger(observed, TimeCategory.LOST),
        field=None if program else "checkpoint.interval_steps",
        remedy=_every(best, program=program) if best else "Find out why the attempts failed.",
        gain=best.productive_gain if best is not None else None,
    )


def _compilation(observed: Observed) -> Iterator[AdviceFinding]:
    share = observed.share(TimeCategory.COMPILATION)
    if share < LEAST_SHARE or observed.spec.program is not None:
        return
    yield AdviceFinding(
        hindrance=Hindrance.COMPILATION,
        words=f"Compilation took {100 * share:.0f} % of the time on slots.",
        share=share,
        evidence=_of_ledger(observed, TimeCategory.COMPILATION),
        field="compile.enabled",
        remedy="Set compile.enabled to false for short jobs; each attempt compiles anew.",
        # Steps without a compiler are slower; these records do not show how much slower.
        gain=None,
    )


def _validation(observed: Observed) -> Iterator[AdviceFinding]:
    share = observed.share(TimeCategory.VALIDATION)
    if share < LEAST_VALIDATION or observed.spec.program is not None:
        return
    interval = observed.spec.validation.interval_steps
    yield AdviceFinding(
        hindrance=Hindrance.VALIDATION,
        words=f"Validation took {100 * share:.0f} % of the time on slots.",
        share=share,
        evidence=_of_ledger(observed, TimeCategory.VALIDATION),
        field="validation.interval_steps",
        remedy=f"Set validation.interval_steps to {2 * interval:,}, or take fewer "
        "validation.batches.",
        gain=gain_of(share / 2),
    )


def _startup(observed: Observed) -> Iterator[AdviceFinding]:
    share = observed.share(TimeCategory.STARTUP)
    if share < LEAST_STARTUP:
        return
    yield AdviceFinding(
        hindrance=Hindrance.STARTUP,
        words=f"Start-up took {100 * share:.0f} % of the time on slots, over all attempts.",
        share=share,
        evidence=_of_ledger(observed, TimeCategory.STARTUP),
        field=None,
        remedy="Run longer attempts; the events of the job name the phase that took the time.",
        gain=gain_of(share),
    )


def _every(best: BestSaves, *, program: bool) -> str:
    if program:
        return f"Save every {best.interval_steps:,} steps, the best in a replay."
    return f"Set checkpoint.interval_steps to {best.interval_steps:,}, the best in a replay."


def _of_ledger(observed: Observed, category: TimeCategory) -> tuple[Evidence, ...]:
    return _seconds((category, observed.spent.get(category, 0) / 1000))


def _seconds(*values: tuple[str, float]) -> tuple[Evidence, ...]:
    return tuple(Evidence(name=name, value=value, unit="s") for name, value in values)
