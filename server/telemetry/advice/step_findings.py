"""Advice rules on recent steps: waits, slow ranks, recompilation, garbage, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil

from server.telemetry.advice.advice_input import LEAST_SHARE, Observed, gain_of
from trainyard.protocol.goodput import AdviceFinding, Evidence, Hindrance

LEAST_COLLECTIVES = 0.25
"""Minimum share of a step in collectives for a finding; every layout has some collectives."""
COLLECTED_SHARE = 0.01
"""Share of a step that garbage collection takes after the remedy; too small for a finding."""
FREE_MEMORY = 0.5
"""Peak share of the device's memory below which a micro-batch of twice the size fits, because
activations at most double."""


def _data_wait(observed: Observed) -> Iterator[AdviceFinding]:
    recent = observed.recent
    if recent is None or recent.step <= 0:
        return
    share = min(recent.data / recent.step, 1.0)
    if share < LEAST_SHARE:
        return
    if observed.spec.program is not None:
        field, remedy = None, "Give the script's data loader more workers, or prepare data earlier."
    elif not observed.spec.data.prefetch_batches:
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
        evidence=(
            Evidence(name="perf/data_seconds", value=recent.data, unit="s"),
            Evidence(name="perf/step_seconds", value=recent.step, unit="s"),
        ),
        field=field,
        remedy=remedy,
        gain=gain_of(share),
    )


def _collectives(observed: Observed) -> Iterator[AdviceFinding]:
    recent = observed.recent
    if recent is None or recent.own is None or recent.wait is None or recent.own_most is None:
        return
    # Only the wait that all ranks share, because the wait for a slow rank is another finding.
    waited = max(recent.wait - (recent.own_most - recent.own), 0.0)
    share = min(waited / recent.step, 1.0) if recent.step > 0 else 0.0
    if share < LEAST_COLLECTIVES:
        return
    sections = observed.spec
    if sections.program is not None:
        field, remedy = None, "Let the script send less, or overlap it with computation."
    elif sections.parallelism.tp > 1:
        field = "parallelism.tp"
        remedy = f"Lower parallelism.tp={sections.parallelism.tp}: its collectives block compute."
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
        evidence=(
            Evidence(name="ranks/wait_seconds_median", value=recent.wait, unit="s"),
            Evidence(name="ranks/own_seconds_median", value=recent.own, unit="s"),
            Evidence(name="perf/step_seconds", value=recent.step, unit="s"),
        ),
        field=field,
        remedy=remedy,
        gain=gain_of(share),
    )


def _straggler(observed: Observed) -> Iterator[AdviceFinding]:
    slow = observed.slow_ranks
    if not slow or slow[0].share < LEAST_SHARE:
        return
    worst = slow[0]
    others = f", and {len(slow) - 1} more" if len(slow) > 1 else ""
    cause = "waits longer for data" if worst.waits_for_data else "computes longer"
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


def _recompilation(observed: Observed) -> Iterator[AdviceFinding]:
    recent = observed.recent
    if recent is None or recent.step <= 0:
        return
    share = min(recent.recompiled / (recent.step * recent.steps), 1.0)
    if share < LEAST_SHARE:
        return
    yield AdviceFinding(
        hindrance=Hindrance.RECOMPILATION,
        words=f"Blocks were compiled again in recent steps, for {100 * share:.0f} % of their time.",
        share=share,
        evidence=(Evidence(name="compile/seconds", value=recent.recompiled, unit="s"),),
        field="env.TORCH_LOGS",
        remedy='Set env.TORCH_LOGS to "recompiles": the log then names the guard that failed. '
        "Shapes that change from step to step are the usual cause.",
        gain=gain_of(share),
    )


def _garbage_collection(observed: Observed) -> Iterator[AdviceFinding]:
    recent, program = observed.recent, observed.spec.program
    if recent is None or recent.step <= 0:
        return
    share = min(recent.collected / (recent.step * recent.steps), 1.0)
    if share < LEAST_SHARE:
        return
    # A collection mostly scans live objects, so collecting less often does not make it slower.
    fewer = ceil(share / COLLECTED_SHARE)
    if program is not None:
        field, remedy = None, "Let the script collect less often, on all ranks after the same step."
    else:
        field = "training.gc_freq"
        remedy = (
            f"Set training.gc_freq to {fewer * observed.spec.training.gc_freq:,}: unused reference "
            "cycles then stay in memory longer."
        )
    yield AdviceFinding(
        hindrance=Hindrance.GARBAGE_COLLECTION,
        words=f"Garbage collection took {100 * share:.0f} % of recent steps.",
        share=share,
        evidence=(
            Evidence(name="gc/seconds", value=recent.collected, unit="s"),
            Evidence(name="perf/step_seconds", value=recent.step, unit="s"),
        ),
        field=field,
        remedy=remedy,
        gain=gain_of(share * (1 - 1 / fewer)),
    )


def _small_micro_batches(observed: Observed) -> Iterator[AdviceFinding]:
    recent, spec = observed.recent, observed.spec
    if recent is None or recent.peak_share is None or spec.program is not None:
        return
    training = spec.training
    ranks = spec.resources.world_size if isinstance(spec.resources.world_size, int) else 1
    more = training.global_batch_size >= 2 * training.micro_batch_size * ranks
    if recent.peak_share >= FREE_MEMORY or not more:
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


def _full_memory(observed: Observed) -> Iterator[AdviceFinding]:
    recent = observed.recent
    if recent is None or recent.allocation_retries < 1 or observed.spec.program is not None:
        return
    mode = observed.spec.activation_checkpoint.mode
    sequences = observed.spec.training.micro_batch_size
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
        words=f"The allocator emptied its cache {recent.allocation_retries:.0f} times in the last "
        f"{recent.steps:,} steps: each time the device waits.",
        share=0.0,
        evidence=(
            Evidence(
                name="memory/allocation_retries", value=recent.allocation_retries, unit="times"
            ),
        ),
        field=field,
        remedy=remedy,
        gain=None,
    )


STEP_RULES: tuple[Callable[[Observed], Iterator[AdviceFinding]], ...] = (
    *(_data_wait, _collectives, _straggler, _recompilation, _garbage_collection),
    *(_small_micro_batches, _full_memory),
)
