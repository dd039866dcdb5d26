"""The spec's digest: equal for the same job, different for any other."""

import hashlib
from typing import Any

import pytest

from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.sections.training import TrainingSection


def test_it_survives_writing_and_reading() -> None:
    spec = JobSpec(name="a", training=TrainingSection(seed=3))
    assert parse_job_spec(spec.model_dump_json()).digest == spec.digest
    assert len(spec.digest) == 64


def test_it_changes_with_any_value() -> None:
    specs = [JobSpec(), JobSpec(name="a"), JobSpec(training=TrainingSection(seed=1))]
    assert len({spec.digest for spec in specs}) == 3


def test_a_default_that_is_spelled_out_changes_nothing() -> None:
    assert JobSpec(training=TrainingSection(seed=0)).digest == JobSpec().digest


FORMER: dict[str, dict[str, Any]] = {
    "training": {"log_every_steps": 1},
    "compile": {"enabled": False},
    "checkpoint": {"interval_steps": 100, "interval_seconds": 0.0, "async_mode": "disabled"},
}
"""Defaults from before `auto` existed, in stored jobs."""


def stored(**sections: dict[str, Any]) -> JobSpec:
    """Return a job as stored before `auto` existed: with a value in every field."""
    document: dict[str, Any] = {name: dict(fields) for name, fields in FORMER.items()}
    for name, fields in sections.items():
        document[name] = document.get(name, {}) | fields
    return parse_job_spec(document)


@pytest.mark.parametrize(
    ("sections", "digest"),
    [
        ({}, "05ca0d0cf7b65609430417a8d921612736fe96745f47ff7691693796ad3fcabb"),
        (
            {
                "training": {"log_every_steps": 10},
                "compile": {"enabled": True},
                "checkpoint": {
                    "interval_steps": 0,
                    "interval_seconds": 600.0,
                    "async_mode": "async_with_pinned_mem",
                },
            },
            "3b210b7aa206183dbe8b6e365d81e0d73ea38496b34c4287b7e38159f1f11fb2",
        ),
    ],
)
def test_fields_that_became_auto_do_not_change_the_digests_of_stored_jobs(
    sections: dict[str, dict[str, Any]], digest: str
) -> None:
    """These digests are from before `auto` existed."""
    assert stored(**sections).digest == digest
    assert JobSpec().digest != digest


def test_a_default_that_changed_does_not_change_the_digests_of_stored_jobs() -> None:
    """The first default of `keep_latest_k` was 0; these digests are of that time."""
    kept_all = stored(checkpoint={"keep_latest_k": 0})
    assert kept_all.digest == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert JobSpec().digest != kept_all.digest
    three = parse_job_spec({"checkpoint": {"keep_latest_k": 3}})
    assert three.digest == JobSpec().digest
    other = {"root": "elsewhere", "keep_latest_k": 0}
    old = hashlib.sha256(b'{"checkpoint": {"root": "elsewhere"}}').hexdigest()
    assert stored(checkpoint=other).digest == old


def test_values_of_the_environment_are_left_out() -> None:
    """A digest with values would let others guess them; without `env` it is unchanged."""
    plain = stored(training={"steps": 3}, checkpoint={"keep_latest_k": 0})
    plain = plain.model_copy(update={"name": "a"})
    assert plain.digest == "68270d0a23d73a87856ae6b2337bf7fc7f950e40113b48c1daa9df68807e6607"
    assert plain.model_copy(update={"env": {"A_TOKEN": "hunter2"}}).digest == plain.digest
