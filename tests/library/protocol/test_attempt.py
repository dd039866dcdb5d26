"""Values that a resume can change, and values that it cannot."""

import pytest
from pydantic import ValidationError

from trainyard.protocol.attempt import SECTIONS, AttemptSpec, Overrides
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.sections.parallelism import ParallelismSection
from trainyard.spec.sections.resources import ResourcesSection
from trainyard.spec.sections.retry import RetrySection


def test_no_override_changes_nothing_but_pins_the_schedule() -> None:
    spec = parse_job_spec({"training": {"steps": 60}})
    applied = Overrides().apply(spec)
    assert applied.schedule_steps == spec.schedule_steps == 60
    assert applied.lr_schedule.total_steps == 60
    assert applied.model_copy(update={"lr_schedule": spec.lr_schedule}) == spec


@pytest.mark.parametrize(("given", "expected"), [({}, 60), ({"total_steps": 80}, 80)])
def test_more_steps_keep_the_end_of_the_schedule(given: dict[str, int], expected: int) -> None:
    spec = parse_job_spec({"training": {"steps": 60}, "lr_schedule": given})
    once = Overrides(steps=100).apply(spec)
    twice = Overrides(steps=150).apply(once)
    assert (once.training.steps, twice.training.steps) == (100, 150)
    assert once.schedule_steps == twice.schedule_steps == expected


def test_sections_are_replaced_and_the_rest_of_training_stays() -> None:
    spec = parse_job_spec({"training": {"seed": 7, "steps": 60}})
    overrides = Overrides(
        parallelism=ParallelismSection(dp_replicate=2),
        micro_batch_size=2,
        resources=ResourcesSection(world_size=4),
    )
    applied = overrides.apply(spec)
    assert str(applied.layout()) == "HSDP 2x2"
    assert applied.training == spec.training.model_copy(update={"micro_batch_size": 2})
    assert (applied.optimizer, applied.checkpoint) == (spec.optimizer, spec.checkpoint)


def test_offload_is_switched_and_the_rest_of_the_optimizer_stays() -> None:
    spec = parse_job_spec({"optimizer": {"lr": 0.5}})
    applied = Overrides(cpu_offload=True).apply(spec)
    assert applied.optimizer == spec.optimizer.model_copy(update={"cpu_offload": True})
    assert Overrides().apply(applied).optimizer.cpu_offload


@pytest.mark.parametrize(
    "overrides", [Overrides(), Overrides(steps=90, micro_batch_size=2, retry=RetrySection())]
)
def test_the_schedule_alone_differs_without_its_pin(overrides: Overrides) -> None:
    spec = parse_job_spec({"training": {"steps": 60}})
    applied, but_schedule = overrides.apply(spec), overrides.apply_but_schedule(spec)
    assert but_schedule.lr_schedule == spec.lr_schedule != applied.lr_schedule
    assert but_schedule == applied.model_copy(update={"lr_schedule": spec.lr_schedule})


def test_what_the_job_computes_cannot_be_overridden() -> None:
    overridable = {*SECTIONS, "micro_batch_size", "steps", "cpu_offload"}
    assert set(Overrides.model_fields) == overridable
    for name in (set(JobSpec.model_fields) | {"global_batch_size", "seed"}) - overridable:
        with pytest.raises(ValidationError, match="Extra inputs"):
            Overrides.model_validate({name: {}})


def test_a_bare_launch_takes_the_jobs_own_layout() -> None:
    attempt = AttemptSpec.bare(parse_job_spec({}), world_size=3, job_id="by-hand")
    assert (attempt.attempt, attempt.layout.dp_shard, attempt.resume) == (1, 3, None)
    for job_id in ("", "../up", "a/b", ".hidden"):
        with pytest.raises(ValidationError, match="job_id"):
            AttemptSpec.bare(parse_job_spec({}), world_size=1, job_id=job_id)


def test_an_attempt_survives_its_file() -> None:
    attempt = AttemptSpec.model_validate_json(
        """{"job_id": "j", "attempt": 2, "layout": {"dp_shard": 2},
        "allocation": [{"node": "n", "node_rank": 0, "slots": [0, 1]}],
        "overrides": {"micro_batch_size": 2}}"""
    )
    assert AttemptSpec.model_validate_json(attempt.model_dump_json()) == attempt
