"""Digest of a job's pace: jobs with the same digest have equally long steps."""

from __future__ import annotations

import hashlib
import json

from trainyard.spec.job import TRAINER_SECTIONS, JobSpec

SECTIONS = (*(name for name in TRAINER_SECTIONS if name != "lr_schedule"), "program", "checkpoint")
"""Sections of a spec that determine what a step computes and what happens between two steps."""
WITHOUT = {"training": {"steps", "seed"}, "optimizer": {"lr"}, "program": {"steps"}}
"""Fields of `SECTIONS` that do not affect the duration of a step, such as the number of steps."""


def pace_digest(spec: JobSpec) -> str:
    """Return a digest; specs with the same digest have equally long steps on equal hardware.

    The digest has the submitted section `parallelism`, not the layout of an attempt, so code that
    compares digests must compare layouts as well. The values of `env` may change the pace, too, but
    the digest omits them because they may be secrets.
    """
    given = spec.model_dump(mode="json", exclude_defaults=True, include=set(SECTIONS))
    for section, fields in WITHOUT.items():
        if section in given:
            given[section] = {k: v for k, v in given[section].items() if k not in fields}
    kept = {section: fields for section, fields in given.items() if fields}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
