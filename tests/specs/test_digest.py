"""The spec's digest: the same for the same job, another one for any other."""

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
