"""The examples are legal specs, and the two forms of one are equal."""

from __future__ import annotations

import tomllib
from pathlib import Path

from trainyard.spec.job import parse_job_spec
from trainyard.spec.rules import check_new_job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_debug_job_is_legal_and_the_same_in_both_forms() -> None:
    from_toml = parse_job_spec(tomllib.loads((EXAMPLES / "debug.toml").read_text()))
    check_new_job(from_toml)
    assert parse_job_spec((EXAMPLES / "debug.json").read_bytes()) == from_toml


def test_the_own_model_is_legal_for_a_few_steps() -> None:
    document = tomllib.loads((EXAMPLES / "own_model" / "job.toml").read_text())
    document["training"]["steps"] = 5
    check_new_job(parse_job_spec(document))
