"""What the pace of a job follows from: jobs that agree in it take equally long steps."""

from __future__ import annotations

import hashlib
import json

from trainyard.spec.job import TRAINER_SECTIONS, JobSpec

SECTIONS = (*(name for name in TRAINER_SECTIONS if name != "lr_schedule"), "program", "checkpoint")
"""Sections that decide what a step computes, and what happens between two steps."""
WITHOUT = {"training": {"steps", "seed"}, "optimizer": {"lr"}, "program": {"steps"}}
"""Fields of these that change the number of the steps, or the values in them."""


def pace_digest(spec: JobSpec) -> str:
    """Return a digest that is equal for specs whose steps take equally long on equal hardware.

    The section `parallelism` is in it as it was submitted: besides the layout it has what changes
    the pace. Each attempt has a layout of its own, which who reads the digest compares too. Values
    of `env` may be secrets and are not in it, although they may change the pace.
    """
    given = spec.model_dump(mode="json", exclude_defaults=True, include=set(SECTIONS))
    for section, fields in WITHOUT.items():
        if section in given:
            given[section] = {k: v for k, v in given[section].items() if k not in fields}
    kept = {section: fields for section, fields in given.items() if fields}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
