"""Advice rules on the time on slots: saves, lost steps, compilation, validation, start-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from server.telemetry.advice.advice_input import LEAST_SHARE, BestSaves, Observed, gain_of
from trainyard.protocol.goodput import AdviceFinding, Evidence, Hindrance, TimeCategory

LEAST_VALIDATION = 0.10
"""Minimum share of validation for a finding, high because a person chose the validation."""
LEAST_STARTUP = 0.20
"""Minimum share of start-up for a finding, high because start-up dominates short jobs."""


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
        words=f"Saves held up training for {100 * share:.0f} % of the time on slots.",
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
        words=f"{100 * share:.0f} % of the time on slots went into steps that failures lost.",
        share=share,
        evidence=(_of_ledger(observed, TimeCategory.LOST),),
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
        evidence=(_of_ledger(observed, TimeCategory.COMPILATION),),
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
        words=f"Start-up took {100 * share:.0f} % of the time on slots, over all attempts.",
        share=share,
        evidence=(_of_ledger(observed, TimeCategory.STARTUP),),
        field=None,
        remedy="Run longer attempts; the events of the job name the phase that took the time.",
        gain=gain_of(share),
    )


def _every(best: BestSaves, *, program: bool) -> str:
    if not best.interval_steps:
        return "Save only at the end: no failure was recorded."
    if program:
        return f"Save every {best.interval_steps:,} steps, the best in a replay."
    return f"Set checkpoint.interval_steps to {best.interval_steps:,}, the best in a replay."


def _of_ledger(observed: Observed, category: TimeCategory) -> Evidence:
    return Evidence(name=category, value=observed.spent.get(category, 0) / 1000, unit="s")


SLOT_RULES: tuple[Callable[[Observed], Iterator[AdviceFinding]], ...] = (
    *(_saves, _lost_steps, _compilation, _validation, _startup),
)
