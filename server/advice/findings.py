"""The rules of advice: a pure function from what was observed of a job to findings.

Each rule has a least share below which its matter is not worth a person's time, and names one
remedy. Gains are upper bounds: the time that the matter took, as if all of it were gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainyard.protocol.goodput import (
    JOB_CATEGORIES,
    SLOT_CATEGORIES,
    AdviceFinding,
    Evidence,
    Hindrance,
    TimeCategory,
)
from trainyard.spec.job import JobSpec

LEAST_SHARE = 0.03
"""Share of the time below which a finding is noise for a person."""
LEAST_COLLECTIVES = 0.25
"""Least share of a step in collectives: some is the price of any layout."""
LEAST_VALIDATION = 0.10
"""Least share of validation: a person chose it."""
LEAST_STARTUP = 0.20
"""Least share of start-up: a short job consists of it."""
FREE_MEMORY = 0.5
"""Share of the device's memory below whose peak a larger micro-batch fits: activations at most
double with it."""
ON_SLOTS = frozenset(JOB_CATEGORIES) & frozenset(SLOT_CATEGORIES)
"""Categories of the time in which a job holds slots."""


@dataclass(frozen=True, slots=True)
class RecentSteps:
    """Means over the recent steps of an attempt; seconds of a step."""

    attempt: int
    """Number of the attempt."""
    steps: int
    """Steps that the means cover."""
    step: float
    """A step, with its wait for data."""
    data: float
    """Waiting for data on the rank that waits longest."""
    own: float | None = None
    """Median over ranks of the time outside of collectives; None on one rank."""
    own_most: float | None = None
    """Largest of all ranks."""
    wait: float | None = None
    """Median over ranks of the time in collectives."""
    peak_share: float | None = None
    """Peak of the device's memory as a share of all of it; None where either is not known."""
    recompiled: float = 0.0
    """Seconds of compilation in all of these steps, without those of the start."""
    allocation_retries: float = 0.0
    """How often the allocator emptied its cache to find memory, in all of these steps."""


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that is slower than its peers at present."""

    rank: int
    node: str
    slot: int
    waits_for_data: bool
    """Whether most of its excess is in waiting for data."""
    share: float
    """Part of each step that it costs the job."""


@dataclass(frozen=True, slots=True)
class BestSaves:
    """A replay of the job's records with the best interval between two saves."""

    interval_steps: int
    productive_gain: float
    """Goodput with it, as a multiple of the recorded one, minus 1."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What the records of a job show."""

    spec: JobSpec
    spent: Mapping[TimeCategory, int]
    """Milliseconds by category, of the whole job."""
    recent: RecentSteps | None
    slow_ranks: Sequence[SlowRank]
    """The present stragglers, the costliest first."""
    best_saves: BestSaves | None
    """None where another interval would not be better, or none can be replayed."""

    @property
    def on_slots(self) -> int:
        """Milliseconds in which the job held slots."""
        return sum(time for category, time in self.spent.items() if category in ON_SLOTS)

    def share(self, category: TimeCategory) -> float:
        """Return the part of the time on slots that a category took."""
        return self.spent.get(category, 0) / self.on_slots if self.on_slots else 0.0


def findings_of(observed: Observed) -> tuple[AdviceFinding, ...]:
    """Return what slows a job, the largest share first."""
    found = (finding for rule in RULES for finding in rule(observed))
    return tuple(sorted(found, key=lambda each: -each.share))


def _data_wait(observed: Observed) -> Iterator[AdviceFinding]:
    recent = observed.recent
    if recent is None or recent.step <= 0:
        return
    share = min(recent.data / recent.step, 1.0)
    if share < LEAST_SHARE:
        return
    if observed.spec.program is not None:
        field, remedy = None, "Give the script's data loader more workers, or prepare data before."
    elif not observed.spec.data.prefetch_batches:
        field = "data.prefetch_batches"
        remedy = "Set data.prefetch_batches to 2: none is read ahead."
    else:
        field = "data.path"
        remedy = (
            "Batches are read ahead, so storage is slower than training: keep the input on a "
            "local disk of the node, or on a root with more bandwidth."
        )
    yield AdviceFinding(
        hindrance=Hindrance.DATA_WAIT,
        words=f"{share:.0%} of a recent step is spent on waiting for data.",
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
    # What all ranks wait: a median that a slow rank causes is a straggler's.
    waited = max(recent.wait - (recent.own_most - recent.own), 0.0)
    share = min(waited / recent.step, 1.0) if recent.step > 0 else 0.0
    if share < LEAST_COLLECTIVES:
        return
    sections = observed.spec
    if sections.program is not None:
        field, remedy = None, "Let the script send less, or overlap it with computation."
    elif sections.parallelism.tp > 1:
        field = "parallelism.tp"
        remedy = f"Lower parallelism.tp={sections.parallelism.tp}: its collectives stand in line."
    else:
        field = "training.micro_batch_size"
        remedy = (
            "Give each rank more tokens between two collectives: a larger "
            "training.micro_batch_size, or replicas within nodes by parallelism.dp_replicate."
        )
    yield AdviceFinding(
        hindrance=Hindrance.COLLECTIVES,
        words=f"The median rank spends {share:.0%} of a recent step in collectives.",
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
        f"{others}: all ranks wait for it {worst.share:.0%} of a step.",
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
    section = observed.spec.checkpoint
    best = observed.best_saves
    if observed.spec.program is None and section.async_mode == "disabled":
        field, gain = "checkpoint.async_mode", gain_of(share)
        remedy = 'Set checkpoint.async_mode to "async": training goes on while a save is written.'
    elif best is not None:
        field, gain = "checkpoint.interval_steps", best.productive_gain
        remedy = _every(best, program=observed.spec.program is not None)
    else:
        field, gain = "checkpoint.interval_steps", gain_of(share)
        remedy = "Save less often."
    yield AdviceFinding(
        hindrance=Hindrance.SAVES,
        words=f"Saves held up training for {share:.0%} of the time on slots.",
        share=share,
        evidence=(_of_ledger(observed, TimeCategory.SAVE_STALL),),
        field=None if observed.spec.program is not None else field,
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
        words=f"{share:.0%} of the time on slots went into steps that were lost in failures.",
        share=share,
        evidence=(_of_ledger(observed, TimeCategory.LOST),),
        field=None if program else "checkpoint.interval_steps",
        remedy=_every(best, program=program) if best else "Look at what the attempts failed of.",
        gain=best.productive_gain if best is not None else None,
    )


def _compilation(observed: Observed) -> Iterator[AdviceFinding]:
    share = observed.share(TimeCategory.COMPILATION)
    if share < LEAST_SHARE or observed.spec.program is not None:
        return
    yield AdviceFinding(
        hindrance=Hindrance.COMPILATION,
        words=f"Compilation took {share:.0%} of the time on slots.",
        share=share,
        evidence=(_of_ledger(observed, TimeCategory.COMPILATION),),
        field="compile.enabled",
        remedy="Set compile.enabled to false for short jobs; each attempt compiles anew.",
        # Steps without a compiler are slower: what that costs is not in these records.
        gain=None,
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
        words=f"Blocks were compiled again in recent steps, for {share:.0%} of their time.",
        share=share,
        evidence=(Evidence(name="compile/seconds", value=recent.recompiled, unit="s"),),
        field="env.TORCH_LOGS",
        remedy='Set env.TORCH_LOGS to "recompiles": the log then names the guard that failed. '
        "Shapes that change from step to step are the usual cause.",
        gain=gain_of(share),
    )


def _validation(observed: Observed) -> Iterator[AdviceFinding]:
    share = observed.share(TimeCategory.VALIDATION)
    if share < LEAST_VALIDATION or observed.spec.program is not None:
        return
    interval = observed.spec.validation.interval_steps
    yield AdviceFinding(
        hindrance=Hindrance.VALIDATION,
        words=f"Validation took {share:.0%} of the time on slots.",
        share=share,
        evidence=(_of_ledger(observed, TimeCategory.VALIDATION),),
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
        words=f"Starting took {share:.0%} of the time on slots, over all attempts.",
        share=share,
        evidence=(_of_ledger(observed, TimeCategory.STARTUP),),
        field=None,
        remedy="Run longer attempts; the events of the job name the phase that took the time.",
        gain=gain_of(share),
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
        words=f"The fullest rank uses {recent.peak_share:.0%} of its device's memory, and a step "
        "consists of several micro-batches.",
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
        remedy = f'Set activation_checkpoint.mode to "{more[mode]}": backward then keeps less.'
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


RULES: tuple[Callable[[Observed], Iterator[AdviceFinding]], ...] = (
    *(_data_wait, _collectives, _straggler, _saves, _lost_steps, _compilation),
    *(_recompilation, _validation, _startup, _small_micro_batches, _full_memory),
)


def gain_of(share: float) -> float:
    """Return the gain in speed if a share of the time were gone; at most ninefold."""
    return 1 / (1 - min(share, 0.9)) - 1


def _every(best: BestSaves, *, program: bool) -> str:
    if not best.interval_steps:
        return "Save at the end alone: no failure was recorded."
    if program:
        return f"Save every {best.interval_steps:,} steps, the best in a replay."
    return f"Set checkpoint.interval_steps to {best.interval_steps:,}, the best in a replay."


def _of_ledger(observed: Observed, category: TimeCategory) -> Evidence:
    return Evidence(name=category, value=observed.spent.get(category, 0) / 1000, unit="s")
