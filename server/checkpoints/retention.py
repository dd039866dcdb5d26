"""Which checkpoints retention deletes: a pure decision over the catalog's facts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from trainyard.spec.sections.checkpoint import CheckpointSection


@dataclass(frozen=True)
class Candidate:
    """A checkpoint of the current lineage without a deletion mark."""

    id: str
    attempt: int
    step: int
    verified: bool | None = None
    """None until the first verification."""
    protected: bool = False
    """Whether it is pinned, being loaded, used by an operation, or the origin of a fork."""
    value: float | None = None
    """Value of `keep_best_metric` at its step; None without one."""
    awaited: bool = False
    """Whether that value can still arrive."""

    @property
    def order(self) -> tuple[int, int]:
        """Age along the lineage: by step, and of one step by attempt."""
        return self.step, self.attempt


def deletable(section: CheckpointSection, candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the checkpoints that may be deleted now, oldest first; none where all are kept.

    Kept are the newest `keep_latest_k` steps, the steps at multiples of `keep_every_steps`, the
    `keep_best_k` with the least value and those whose value is awaited, the protected ones, the
    newest one without damage, and at least one verified one. Of several checkpoints of a step the
    newest counts; a damaged one fills no place.
    """
    if section.keep_latest_k == 0:
        return []
    ordered = sorted(candidates, key=lambda candidate: candidate.order)
    sound = [candidate for candidate in ordered if candidate.verified is not False]
    by_step = {candidate.step: candidate for candidate in sound}  # that of the newest attempt
    kept = {c.id for c in list(by_step.values())[-section.keep_latest_k :]}
    every = section.keep_every_steps
    kept |= {c.id for c in by_step.values() if every and c.step > 0 and c.step % every == 0}
    if section.keep_best_k:
        kept |= _best(by_step.values(), section.keep_best_k)
    kept |= {c.id for c in ordered if c.protected}
    if not sound:  # a damaged one is better than none: a person decides
        kept |= {c.id for c in ordered[-1:]}
    return [c for c in ordered if c.id not in kept | _last_verified(sound, kept)]


def _best(candidates: Collection[Candidate], count: int) -> set[str]:
    """Return those with the least values, the newer of equal ones, and all awaited ones."""
    known = [(c.value, -c.step, c.id) for c in candidates if c.value is not None]
    least = {identifier for _, _, identifier in sorted(known)[:count]}
    return least | {c.id for c in candidates if c.awaited}


def _last_verified(sound: Sequence[Candidate], kept: set[str]) -> set[str]:
    """Return the newest verified checkpoint where no verified one is kept."""
    verified = [candidate.id for candidate in sound if candidate.verified]
    return set() if kept.intersection(verified) else set(verified[-1:])
