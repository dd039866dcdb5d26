"""The spec's digest: the same for the same job, another one for any other."""

import hashlib

from specs.job import JobSpec, parse_job_spec
from specs.sections.training import TrainingSection


def test_it_survives_writing_and_reading() -> None:
    spec = JobSpec(name="a", training=TrainingSection(seed=3))
    assert parse_job_spec(spec.model_dump_json()).digest == spec.digest
    assert len(spec.digest) == 64


def test_it_changes_with_any_value() -> None:
    specs = [JobSpec(), JobSpec(name="a"), JobSpec(training=TrainingSection(seed=1))]
    assert len({spec.digest for spec in specs}) == 3


def test_a_default_that_is_spelled_out_changes_nothing() -> None:
    assert JobSpec(training=TrainingSection(seed=0)).digest == JobSpec().digest


def test_a_default_that_changed_does_not_change_the_digests_of_stored_jobs() -> None:
    """The first default of `keep_latest_k` was 0; these digests are of that time."""
    kept_all = parse_job_spec({"checkpoint": {"keep_latest_k": 0}})
    assert kept_all.digest == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert JobSpec().digest != kept_all.digest
    three = parse_job_spec({"checkpoint": {"keep_latest_k": 3}})
    assert three.digest == JobSpec().digest
    other = {"root": "elsewhere", "keep_latest_k": 0}
    old = hashlib.sha256(b'{"checkpoint": {"root": "elsewhere"}}').hexdigest()
    assert parse_job_spec({"checkpoint": other}).digest == old


def test_values_of_the_environment_are_left_out() -> None:
    """A stored digest would let others try values; without `env` it is what it always was."""
    plain = parse_job_spec(
        {"name": "a", "training": {"steps": 3}, "checkpoint": {"keep_latest_k": 0}}
    )
    assert plain.digest == "68270d0a23d73a87856ae6b2337bf7fc7f950e40113b48c1daa9df68807e6607"
    assert plain.model_copy(update={"env": {"A_TOKEN": "hunter2"}}).digest == plain.digest
