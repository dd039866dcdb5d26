"""Compares the first step of a resumed attempt with its parent checkpoint and its lineage."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from sqlalchemy import Connection, select

from server.core.database.metric_and_log_tables import step_digests
from server.core.database.tables import attempts, checkpoints, events, jobs
from server.jobs.attempts.launch import effective_spec
from server.jobs.attempts.lineage import BEFORE_ALL, AttemptKey, Lineage, attempts_of, lineage_of
from server.telemetry.metrics.continuity.losses import (
    BAND_POINTS,
    OtherLoss,
    check_band,
    check_same_step,
)
from server.telemetry.metrics.series import find_series, read_values
from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.fork_rules import departures, same_steps
from trainyard.protocol.manifest import Manifest, TrainState
from trainyard.protocol.rest.attempts import Continuity, ContinuityCheck
from trainyard.protocol.resume_parts import ALL_PARTS, CheckpointPart, start_state
from trainyard.run.records import MetricRecord
from trainyard.spec.auto import explicit
from trainyard.spec.job import JobSpec
from trainyard.spec.precision import rounding_of
from trainyard.training.data_stream import left_out
from trainyard.training.rounding import Rounding

LOSS, GRAD_NORM = "train/loss", "train/grad_norm"
OF_OTHER_JOB = " of the other job"
UNKNOWN = "the settings of the other job, which its checkpoint does not hold"
MAX_NORMS = 10_000
"""Maximum number of steps from which gradient norms are read; the bound for more steps is too wide
to matter."""


@dataclass(frozen=True)
class Past:
    """Records of one step from other attempts, and the losses of the steps before this step."""

    digests: tuple[tuple[int, str], ...] = ()
    """Number and digest of every other attempt that trained this step, the newest first."""
    same_step: OtherLoss | None = None
    """Loss of the newest other attempt that trained this step."""
    last_losses: tuple[float, ...] = ()
    """The last finite losses of the lineage before this step, the oldest first."""
    of_job: str = ""
    """Text after an attempt's name: ` of the other job` for attempts of the forked job."""


@dataclass(frozen=True)
class Origin:
    """Similarities between a fork and the job that wrote the fork's start checkpoint."""

    parts: tuple[CheckpointPart, ...]
    """Parts of the checkpoint that the fork loads."""
    differs: tuple[str, ...]
    """Omitted parts and changed fields that affect the result, as readable text."""
    same_steps: bool
    """Whether each step of the fork has the same sequences as the other job's step with the same
    number."""
    same_rate: bool
    """Whether the fork's learning rate follows the other job's schedule."""


def check(
    connection: Connection, attempt_id: str, records: Sequence[MetricRecord]
) -> Continuity | None:
    """Compare the first step of a resumed attempt, if `records` contain it, with the lineage.

    A value is checked only if there is a record to compare it with. The checks are:

    - Counters: consumed sequences and tokens equal the ones of the parent checkpoint plus one step,
    and the learning rate equals the one in the schedule.
    - If another attempt of the job trained this step, on the lineage or on an abandoned branch: the
    data digest is equal, and rounding explains the difference of the losses (`loss_bound`). An
    attempt that left out other windows of the stream does not count, because its data differ on
    purpose.
    - Otherwise: the difference between the loss and the mean of the last 20 finite losses of the
    lineage is at most 5 standard deviations or a tenth of the mean, whichever is more.
    - The digest of the code of a user-defined model equals the one in the checkpoint.

    For a program, only digest and loss are compared, and only if the program gives a digest and
    another attempt trained the step. A fork from another job's checkpoint is compared with that
    job. The digest is compared if the steps of both jobs have the same sequences. The loss is
    compared if, in addition, the settings that affect the loss are equal.

    Returns:
        The checks; None for a fresh start, if `records` do not contain the first step, for a parent
        that is not in the catalog (except a program's), or for a program without digests to
        compare.
    """
    attempt = connection.execute(
        select(
            *(attempts.c.id, attempts.c.job_id, attempts.c.number, attempts.c.start_step),
            *(attempts.c.parent_checkpoint_id, jobs.c.forked_from, jobs.c.fork_parts),
        )
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .where(attempts.c.id == attempt_id)
    ).one()
    step = attempt.start_step + 1
    of_step = [record for record in records if record.step == step]
    if not of_step or attempt.parent_checkpoint_id is None:
        return None
    # A program records the digest and the values separately.
    record = next((record for record in of_step if record.data_digest is not None), of_step[0])
    spec = effective_spec(connection, attempt_id)
    job_id, number = attempt.job_id, attempt.number
    if spec.program is not None:
        past = _past(connection, job_id, number=number, step=step, every=1, sequences=0)
        own = _values(connection, [attempt_id], LOSS, first=step, last=step)
        return of_program(record, past, own.get(attempt_id, {}).get(step))
    manifest = connection.scalar(
        select(checkpoints.c.manifest).where(checkpoints.c.id == attempt.parent_checkpoint_id)
    )
    if not isinstance(manifest, Manifest):
        return None
    every = explicit(spec.training.log_every_steps)
    sequences = step * spec.training.global_batch_size
    find = partial(_past, connection, step=step, every=every, sequences=sequences)
    past = find(job_id, number=number)
    parent, origin = manifest.train_state, None
    if attempt.parent_checkpoint_id == attempt.forked_from:
        digest = parent.data.dataset_digest  # any digest will do, because no check reads it
        parent = start_state(parent, attempt.fork_parts, dataset_digest=digest)
        origin = _origin_of(manifest, spec, attempt.fork_parts)
        if origin.same_steps and not past.digests:
            found = find(manifest.job_id, number=manifest.attempt, with_itself=True)
            past = _of_origin(found, origin)
    code = _code_digests(connection, job_id, number)
    return compare(spec, parent, record=record, past=past, code=code, origin=origin)


def _origin_of(manifest: Manifest, spec: JobSpec, parts: tuple[CheckpointPart, ...]) -> Origin:
    before = manifest.spec
    if before is None:  # a checkpoint of an older version
        return Origin(parts, (UNKNOWN,), same_steps=False, same_rate=False)
    return Origin(
        parts,
        departures(before, spec, parts),
        same_steps=same_steps(before, spec, parts),
        same_rate=CheckpointPart.COUNTERS in parts and before.schedule == spec.schedule,
    )


def compare(
    spec: JobSpec,
    parent: TrainState,
    *,
    record: MetricRecord,
    past: Past,
    code: tuple[str, str] | None = None,
    origin: Origin | None = None,
) -> Continuity:
    """Check the first step after the state `parent`.

    For a fork, `parent` is the part of the checkpoint's state that the fork takes over. `code` has
    two digests of the code of a user-defined model: in the checkpoint and in the attempt.
    """
    checks = (
        *_counters(spec, parent, record),
        *_digest(record, past),
        *_loss(record, past, rounding_of(spec)),
        *_code(code),
    )
    ok = all(check.ok for check in checks)
    differs = origin.differs if origin else ()
    return Continuity(
        ok=ok,
        step=record.step,
        checks=checks,
        exact=ok and bool(past.digests) and not differs,
        differs=differs,
        summary=_summary(checks, origin),
    )


def of_program(record: MetricRecord, past: Past, loss: float | None) -> Continuity | None:
    """Check the digest of a program's samples, and its loss if the program logs one.

    Return None if this attempt or every other attempt lacks a digest of the step.
    """
    if record.data_digest is None or not past.digests:
        return None
    values = {} if loss is None else {LOSS: loss}
    of_step = replace(record, values=values)
    checks = (*_digest(of_step, past), *(_loss(of_step, past, None) if values else ()))
    broken = [check.name for check in checks if not check.ok]
    bound = next((check.within for check in checks if check.name == "loss"), None)
    compared = f"loss within {bound}" if bound else "loss not compared"
    return Continuity(
        ok=not broken,
        step=record.step,
        checks=checks,
        exact=not broken,
        summary=f"differs in {', '.join(broken)}" if broken else f"order exact, {compared}",
    )


def _summary(checks: Sequence[ContinuityCheck], origin: Origin | None) -> str:
    """Name the checks that failed; if none failed, name the checks that were made and the bound."""
    if broken := [check.name for check in checks if not check.ok]:
        return f"differs in {', '.join(broken)}"
    made = {check.name: check for check in checks}
    loss = made.get("loss")
    compared = (
        *_counted("data_digest" in made, origin),
        "same learning rate" if origin is None or origin.same_rate else "own learning rate",
        f"loss within {loss.within}" if loss else "loss not compared",
        *(("same code",) if "code" in made else ()),
    )
    return ", ".join(compared)


def _counted(proved: bool, origin: Origin | None) -> tuple[str, ...]:
    parts = ALL_PARTS if origin is None else origin.parts
    if CheckpointPart.COUNTERS not in parts:
        return ("sequences and tokens counted from 0",)
    if CheckpointPart.DATA not in parts:
        return "data from position 0", "same token count"
    # Without a digest, only the number of sequences is known to be equal.
    return "same sequences" if proved else "as many sequences", "same token count"


def _counters(spec: JobSpec, parent: TrainState, record: MetricRecord) -> Iterator[ContinuityCheck]:
    counted: tuple[tuple[Literal["sequences", "tokens"], int], ...] = (
        ("sequences", parent.data.consumed + spec.training.global_batch_size),
        ("tokens", parent.tokens + spec.tokens_per_step),
    )
    for name, expected in counted:
        got = record.values.get(f"train/{name}", math.nan)
        yield ContinuityCheck(
            name=name, ok=got == expected, expected=str(expected), got=f"{got:.0f}"
        )
    lr = spec.schedule.rate(record.step)
    got = record.values.get("train/lr", math.nan)
    yield ContinuityCheck(
        name="lr", ok=math.isclose(got, lr, rel_tol=1e-9), expected=repr(lr), got=repr(got)
    )


def _digest(record: MetricRecord, past: Past) -> Iterator[ContinuityCheck]:
    if not past.digests:
        return
    other = next(((n, d) for n, d in past.digests if d != record.data_digest), past.digests[0])
    yield ContinuityCheck(
        name="data_digest",
        ok=other[1] == record.data_digest,
        expected=f"{other[1]} (attempt {other[0]}{past.of_job})",
        got=record.data_digest or "none",
    )


def _loss(record: MetricRecord, past: Past, rounding: Rounding | None) -> Iterator[ContinuityCheck]:
    loss, norm = (record.values.get(name, math.nan) for name in (LOSS, GRAD_NORM))
    if past.same_step is not None:
        yield check_same_step(loss, norm, other=past.same_step, rounding=rounding)
    elif past.last_losses:
        yield check_band(loss, past.last_losses)


def _code(digests: tuple[str, str] | None) -> Iterator[ContinuityCheck]:
    if digests is not None:
        before, now = digests
        yield ContinuityCheck(name="code", ok=before == now, expected=before, got=now)


def _code_digests(connection: Connection, job_id: str, number: int) -> tuple[str, str] | None:
    """Return the code digests that the trainer compared before it loaded the checkpoint."""
    of_attempt = (events.c.job_id == job_id, events.c.attempt == number)
    data = connection.scalar(
        select(events.c.data)
        .where(*of_attempt, events.c.kind == EventKind.RESUMED)
        .order_by(events.c.id.desc())
        .limit(1)
    )
    code = data.get("code") if data else None
    return (str(code["before"]), str(code["now"])) if isinstance(code, dict) else None


def _of_origin(found: Past, origin: Origin) -> Past:
    """Return the forked job's records; omit their losses if the fork differs from that job."""
    if origin.differs:
        return replace(found, of_job=OF_OTHER_JOB, same_step=None, last_losses=())
    other = found.same_step and replace(
        found.same_step, attempt=found.same_step.attempt + OF_OTHER_JOB
    )
    return replace(found, of_job=OF_OTHER_JOB, same_step=other)


def _past(
    connection: Connection,
    job_id: str,
    *,
    number: int,
    step: int,
    every: int,
    sequences: int,
    with_itself: bool = False,
) -> Past:
    """Return a job's records for the comparison with its attempt `number`.

    Another attempt counts only if its first `sequences` sequences are the same. `every` is the
    number of steps from one logged loss to the next. With `with_itself`, attempt `number` itself
    counts as another attempt.
    """
    keys = attempts_of(connection, job_id)
    if number not in keys:
        return Past()
    numbers = {key.id: n for n, key in keys.items() if with_itself or n != number}
    same_data = _same_data(connection, job_id, number=number, sequences=sequences)
    same = {attempt_id: n for attempt_id, n in numbers.items() if n in same_data}
    columns = step_digests.c
    query = select(columns.attempt_id, columns.digest)
    digests = connection.execute(query.where(columns.attempt_id.in_(same), columns.step == step))
    losses = _values(connection, numbers, LOSS, first=step - BAND_POINTS * every, last=step)
    taken = [(same[i], found[step]) for i, found in losses.items() if i in same and step in found]
    before: dict[int, float] = {}
    for segment in lineage_of(keys, number).segments:
        found, until = losses.get(segment.attempt_id, {}), min(segment.until, step - 1)
        before |= {s: loss for s, loss in found.items() if segment.after < s <= until}
    finite = [loss for _, loss in sorted(before.items()) if math.isfinite(loss)]
    return Past(
        digests=tuple(sorted(((same[i], digest) for i, digest in digests), reverse=True)),
        same_step=_other_loss(connection, keys, number, *max(taken), step) if taken else None,
        last_losses=tuple(finite[-BAND_POINTS:]),
    )


def _other_loss(
    connection: Connection,
    keys: dict[int, AttemptKey],
    number: int,
    other: int,
    loss: float,
    step: int,
) -> OtherLoss:
    courses = lineage_of(keys, number), lineage_of(keys, other)
    parted = courses[0].parted_from(courses[1])
    if parted == BEFORE_ALL:  # both start from scratch or from another job's checkpoint
        roots = {keys[course.segments[0].number].start_step for course in courses}
        parted = roots.pop() if len(roots) == 1 else 0
    parted = min(parted, step - 1)  # a fork diverges at the checkpoint that it loads
    first = max(parted + 1, step - MAX_NORMS)
    norm = _largest_norm(connection, courses, first=first, last=step)
    return OtherLoss(f"attempt {other}", loss, grad_norm=norm, steps=step - parted)


def _largest_norm(
    connection: Connection, courses: Collection[Lineage], *, first: int, last: int
) -> float:
    """Return the largest gradient norm of two lineages in these steps; NaN without a norm."""
    segments = {each for course in courses for each in course.segments}
    attempt_ids = {each.attempt_id for each in segments if each.until >= first}
    values = _values(connection, attempt_ids, GRAD_NORM, first=first, last=last)
    norms = (
        norm
        for each in segments
        for step, norm in values.get(each.attempt_id, {}).items()
        if each.after < step <= each.until and math.isfinite(norm)
    )
    return max(norms, default=math.nan)


def _same_data(connection: Connection, job_id: str, *, number: int, sequences: int) -> set[int]:
    """Return numbers of attempts whose first `sequences` sequences equal those of this attempt."""
    query = select(attempts.c.number, attempts.c.skip).where(attempts.c.job_id == job_id)
    rows = connection.execute(query)
    jumped = {row.number: left_out(row.skip, sequences=sequences) for row in rows}
    return {other for other, windows in jumped.items() if windows == jumped[number]}


def _values(
    connection: Connection, attempt_ids: Collection[str], name: str, *, first: int, last: int
) -> dict[str, dict[int, float]]:
    """Return values of a metric in these steps, by attempt id and step."""
    series = find_series(connection, attempt_ids, [name])
    owners = {series_id: attempt_id for (attempt_id, _), series_id in series.items()}
    values = read_values(connection, list(owners), first=max(first, 0), last=last)
    return {
        owners[series_id]: dict(zip(steps.tolist(), losses.tolist(), strict=True))
        for series_id, (steps, losses) in values.items()
    }
