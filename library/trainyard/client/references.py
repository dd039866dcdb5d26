"""References to a job or a checkpoint: id, unique prefix, name, `@last`, `JOB@step-400`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from trainyard.base.ids import ALPHABET, is_id
from trainyard.client.errors import UnknownReferenceError
from trainyard.client.sdk import Client
from trainyard.protocol.node_sources.views import NodeRequestView
from trainyard.protocol.rest.checkpoints import CheckpointView, OperationView
from trainyard.protocol.rest.jobs import JobSummary
from trainyard.run.checkpoints.checkpoint_names import split_checkpoint_id

LAST = "@last"
SHOWN = 5
"""Maximum number of candidates in the error for an ambiguous reference."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_PREFIX = re.compile(rf"[{ALPHABET}]{{1,26}}")
_CHECKPOINT = re.compile(r"(?P<job>.+)@(a(?P<attempt>\d+)\.)?step-(?P<step>\d+)")


Listed = TypeVar("Listed", OperationView, NodeRequestView)


@dataclass(frozen=True)
class Target:
    """The job, and possibly the checkpoint, that a reference names."""

    job_id: str
    """Id of the job."""
    checkpoint_id: str | None = None
    """Id of the checkpoint; None if the reference names only a job."""


def resolve_job(yard: Client, reference: str) -> str:
    """Return the id of the job that a reference names; a whole id is returned unchecked.

    Raises:
        UnknownReferenceError: no job, or more than one job, matches the reference.
    """
    if is_id(reference):
        return reference
    if reference == LAST:
        newest = next(yard.jobs(), None)
        if newest is None:
            raise UnknownReferenceError("There is no job yet. `trainyard submit FILE` submits one.")
        return newest.id
    found: list[JobSummary] = []
    if _NAME.fullmatch(reference):
        found = list(itertools.islice(yard.jobs(name=reference), SHOWN + 1))
    if not found and _PREFIX.fullmatch(reference):
        matches = (j for j in yard.jobs(search=reference) if j.id.startswith(reference))
        found = list(itertools.islice(matches, SHOWN + 1))
    return _only(found, reference).id


def resolve(yard: Client, reference: str, *, exact: bool = False) -> Target:
    """Return the job that a reference names, and the checkpoint that `JOB@step-400` names.

    `JOB@a2.step-400` also names the attempt; `JOB@step-400` prefers the current lineage. Whole ids
    are returned unchecked.

    Args:
        yard: client of the server.
        reference: the text of the reference.
        exact: reject a short name that matches checkpoints of several attempts; for commands that
            cannot be undone.

    Raises:
        UnknownReferenceError: no object, or more than one object, matches the reference.
    """
    match = _CHECKPOINT.fullmatch(reference)
    if match is None:
        try:
            return Target(split_checkpoint_id(reference)[0], reference)
        except ValueError:
            return Target(resolve_job(yard, reference))
    job_id = resolve_job(yard, match["job"])
    step, attempt = int(match["step"]), match["attempt"]
    found = [
        checkpoint
        for checkpoint in yard.checkpoints(job_id)
        if checkpoint.step == step and attempt in {None, str(checkpoint.attempt)}
    ]
    if exact and len(found) > 1:
        raise _ambiguous(found, match)
    return Target(job_id, _checkpoint(found, match).id)


def newest_checkpoint(yard: Client, reference: str) -> str:
    """Return the id of the named checkpoint, or of the newest checkpoint on the job's lineage.

    Raises:
        UnknownReferenceError: nothing matches the reference, or the job has no checkpoint.
    """
    target = resolve(yard, reference)
    if target.checkpoint_id is not None:
        return target.checkpoint_id
    saved = [c for c in yard.checkpoints(target.job_id) if c.on_lineage]
    if not saved:
        raise UnknownReferenceError(f"{reference} has saved no checkpoint to start from.")
    return max(saved, key=lambda c: (c.step, c.attempt)).id


def beginning_with(reference: str, found: Iterable[Listed], noun: str) -> Listed:
    """Return the only item with an id that starts with `reference`.

    Raises:
        UnknownReferenceError: no item, or more than one item, has such an id.
    """
    fitting = [each for each in found if each.id.startswith(reference)]
    if len(fitting) != 1:
        how = f"{len(fitting)} {noun}s have" if fitting else f"no {noun} has"
        raise UnknownReferenceError(f"{how} an id that begins with {reference!r}.")
    return fitting[0]


def _checkpoint(found: list[CheckpointView], match: re.Match[str]) -> CheckpointView:
    reference = match[0]
    # The preflight of a resume saves the step again, so select the newer checkpoint.
    chosen = [c for c in found if c.on_lineage] or found
    if not chosen:
        raise UnknownReferenceError(
            f"{reference}: there is no checkpoint of this step; `trainyard checkpoints "
            f"{match['job']}` lists all."
        )
    on_lineage = chosen[0].on_lineage
    if not on_lineage and len(chosen) > 1:
        raise _ambiguous(chosen, match)
    return max(chosen, key=lambda checkpoint: checkpoint.attempt)


def _ambiguous(found: list[CheckpointView], match: re.Match[str]) -> UnknownReferenceError:
    names = ", ".join(f"{match['job']}@a{c.attempt}.step-{c.step}" for c in found)
    return UnknownReferenceError(f"{match[0]} could be any of {names}: name one of them.")


def _only(found: list[JobSummary], reference: str) -> JobSummary:
    if not found and "@" in reference[1:]:
        raise UnknownReferenceError(
            f"No job is called {reference!r}; write a checkpoint as JOB@step-400, or as "
            "JOB@a2.step-400 for attempt 2."
        )
    if not found:
        raise UnknownReferenceError(
            f"No job is called {reference!r}: give an id, a prefix of one, a name or {LAST}. "
            "`trainyard ps` lists jobs."
        )
    if len(found) > 1:
        ids = ", ".join(f"{job.id} ({job.state})" for job in found[:SHOWN])
        more = " and more" if len(found) > SHOWN else ""
        raise UnknownReferenceError(f"{reference!r} could be any of {ids}{more}: give an id.")
    return found[0]
