"""From `--set` to the overrides of a resume: whole sections, based on the current values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainyard.client.errors import UsageError
from trainyard.client.spec_file import Assignment, apply
from trainyard.protocol.attempt import SECTIONS, SINGLE_FIELDS
from trainyard.protocol.rest.jobs import JobView

OVERRIDES = {field: name for name, field in SINGLE_FIELDS.items()}
"""Fields that a resume may change without their section, and their names in the overrides."""


def overrides_from(job: JobView, assignments: Iterable[Assignment]) -> dict[str, Any]:
    """Return the overrides for the assignments.

    An override replaces a whole section, so each one starts from the section as the newest attempt
    has it.

    Raises:
        UsageError: a resume may not change one of the fields.
    """
    listed = list(assignments)
    for assignment in listed:
        _check(assignment)
    spec = job.current_attempt.overrides.apply(job.spec) if job.current_attempt else job.spec
    document = spec.model_dump(mode="json")
    changed = apply(document, listed)
    overrides: dict[str, Any] = {}
    for assignment in listed:
        section, field = assignment.path[0], ".".join(assignment.path)
        if field in OVERRIDES:
            overrides[OVERRIDES[field]] = changed[section][assignment.path[1]]
        else:
            overrides[section] = changed[section]
    return overrides


def _check(assignment: Assignment) -> None:
    field = ".".join(assignment.path)
    if assignment.path[0] in SECTIONS and len(assignment.path) > 1:
        return
    if field in OVERRIDES and assignment.text:
        return
    legal = ", ".join([*OVERRIDES, *(f"{section}.*" for section in SECTIONS)])
    raise UsageError(f"{assignment}: it would change the result.\n  A resume may change {legal}.")
