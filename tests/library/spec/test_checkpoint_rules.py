"""Legal values of the retention fields."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.base.problems import Problem, SpecError
from trainyard.spec.auto import resolved
from trainyard.spec.checkpoint_rules import CHECKPOINT_RULES, most_kept
from trainyard.spec.job import parse_job_spec
from trainyard.spec.rules import check_job_spec

WITHOUT_LATEST = "keep_latest_k, without which every checkpoint is kept"
LEGAL = "legal: 0, or keep_latest_k from 1 on"


def problems(checkpoint: dict[str, Any], validation: int = 0) -> list[Problem]:
    sections = {"checkpoint": checkpoint, "validation": {"interval_steps": validation}}
    spec = resolved(parse_job_spec(sections), "cpu")
    return [problem for rule in CHECKPOINT_RULES for problem in rule(spec)]


@pytest.mark.parametrize(
    ("checkpoint", "validation", "pointer", "detail"),
    [
        (
            {"keep_latest_k": 0, "keep_every_steps": 100},
            0,
            "keep_every_steps",
            f"keep_every_steps=100 goes with {WITHOUT_LATEST}; {LEGAL}",
        ),
        (
            {"keep_latest_k": 2, "keep_every_steps": 250, "interval_steps": 100},
            0,
            "keep_every_steps",
            "keep_every_steps=250 is no multiple of interval_steps=100; nearest legal: 200, 300",
        ),
        (
            {"keep_latest_k": 2, "keep_every_steps": 30, "interval_steps": 100},
            0,
            "keep_every_steps",
            "keep_every_steps=30 is no multiple of interval_steps=100; nearest legal: 100",
        ),
        (
            {"keep_latest_k": 0, "keep_best_k": 3, "keep_best_metric": "train/loss"},
            0,
            "keep_best_k",
            f"keep_best_k=3 goes with {WITHOUT_LATEST}; {LEGAL}",
        ),
        (
            {"keep_latest_k": 1, "keep_best_k": 1, "keep_best_metric": "validation/loss"},
            0,
            "keep_best_metric",
            "keep_best_metric='validation/loss' is never measured; legal: train/loss, or "
            "validation.interval_steps from 1 on",
        ),
        (
            {
                "keep_latest_k": 1,
                "keep_best_k": 1,
                "keep_best_metric": "validation/loss",
                "interval_steps": 50,
            },
            20,
            "interval_steps",
            "interval_steps=50 is no multiple of validation.interval_steps=20, so few "
            "checkpoints have a validation/loss; nearest legal: 40, 60",
        ),
        (
            {
                "keep_latest_k": 1,
                "keep_best_k": 1,
                "keep_best_metric": "validation/loss",
                "interval_steps": 5,
            },
            20,
            "interval_steps",
            "interval_steps=5 is no multiple of validation.interval_steps=20, so few "
            "checkpoints have a validation/loss; nearest legal: 20",
        ),
    ],
)
def test_a_refusal_names_field_value_and_the_nearest_legal_values(
    checkpoint: dict[str, Any], validation: int, pointer: str, detail: str
) -> None:
    assert problems(checkpoint, validation) == [
        Problem(pointer=f"/checkpoint/{pointer}", detail=detail)
    ]


@pytest.mark.parametrize(
    ("checkpoint", "validation"),
    [
        ({"keep_latest_k": 0}, 0),
        ({"keep_latest_k": 0, "keep_best_metric": "validation/loss"}, 0),
        ({"keep_latest_k": 2, "keep_every_steps": 300, "interval_steps": 100}, 0),
        ({"keep_latest_k": 2, "keep_best_k": 1, "keep_best_metric": "train/loss"}, 0),
        (
            {
                "keep_latest_k": 2,
                "keep_best_k": 1,
                "keep_best_metric": "validation/loss",
                "interval_steps": 40,
            },
            20,
        ),
    ],
)
def test_what_goes_together_is_accepted(checkpoint: dict[str, Any], validation: int) -> None:
    assert problems(checkpoint, validation) == []


@pytest.mark.parametrize(
    ("checkpoint", "step", "most"),
    [
        ({"interval_steps": 0}, 0, 1),  # only the last step
        ({"interval_steps": 10}, 0, 10),
        ({"interval_steps": 10}, 99, 1),
        ({"interval_steps": 10}, 100, 0),
        ({"interval_steps": 30}, 0, 4),  # 30, 60, 90 and 100
        ({"interval_steps": 30}, 30, 3),
        ({"interval_steps": 30}, 29, 4),
        ({"interval_steps": 33}, 0, 4),
        ({"interval_steps": 0}, 100, 0),
        ({"interval_steps": 10, "keep_latest_k": 2}, 0, 3),
        ({"interval_steps": 10, "keep_latest_k": 2}, 90, 1),
        ({"interval_steps": 10, "keep_latest_k": 2, "keep_every_steps": 20}, 0, 8),
        ({"interval_steps": 10, "keep_latest_k": 2, "keep_every_steps": 20}, 70, 3),
        ({"interval_steps": 10, "keep_latest_k": 2, "keep_every_steps": 50}, 49, 5),
        ({"interval_steps": 10, "keep_latest_k": 2, "keep_every_steps": 50}, 50, 4),
        ({"interval_steps": 10, "keep_latest_k": 2, "keep_every_steps": 30}, 0, 6),
        ({"interval_steps": 10, "keep_latest_k": 2, "keep_best_k": 3}, 0, 6),
        ({"interval_seconds": 60.0, "interval_steps": 0, "keep_latest_k": 2}, 0, 3),
        ({"interval_seconds": 60.0, "interval_steps": 0, "keep_latest_k": 2}, 99, 1),
    ],
)
def test_how_many_checkpoints_a_job_of_100_steps_holds_at_once(
    checkpoint: dict[str, Any], step: int, most: int
) -> None:
    whole = {"keep_latest_k": 0, "keep_best_metric": "train/loss"} | checkpoint
    spec = resolved(parse_job_spec({"checkpoint": whole, "training": {"steps": 100}}), "cpu")
    assert most_kept(spec, step=step) == most


def test_from_the_start_is_where_no_step_is_named() -> None:
    spec = parse_job_spec({"checkpoint": {"keep_latest_k": 0, "interval_steps": 1}})
    assert most_kept(spec) == most_kept(spec, step=0) > most_kept(spec, step=1)


def test_own_models_have_no_names_for_safetensors() -> None:
    model = {"factory": "gpt:build", "code": "data:own"}
    spec = resolved(
        parse_job_spec({"model": model, "checkpoint": {"export": "safetensors"}}), "cpu"
    )
    (found,) = [problem for rule in CHECKPOINT_RULES for problem in rule(spec)]
    assert found.pointer == "/checkpoint/export"
    assert found.detail.endswith("and model.factory='gpt:build'; legal: dcp, none")
    spec = resolved(parse_job_spec({"model": model, "checkpoint": {"export": "dcp"}}), "cpu")
    assert [problem for rule in CHECKPOINT_RULES for problem in rule(spec)] == []
    hub = parse_job_spec(
        {"model": {"hugging_face": "data:m"}, "checkpoint": {"export": "safetensors"}}
    )
    assert [p for rule in CHECKPOINT_RULES for p in rule(resolved(hub, "cpu"))] == []


def test_a_program_exports_its_own_files() -> None:
    document = {"program": {"command": ["train.py"]}, "checkpoint": {"export": "dcp"}}
    with pytest.raises(SpecError, match=r"export='dcp'.*a program decides itself"):
        check_job_spec(parse_job_spec(document))


def test_the_first_weights_have_one_source() -> None:
    spec = parse_job_spec(
        {
            "model": {"initial_weights": "data:weights"},
            "checkpoint": {"start_from": "torchtitan/a1/step-20"},
        }
    )
    (found,) = [p for rule in CHECKPOINT_RULES for p in rule(resolved(spec, "cpu"))]
    assert found.pointer == "/checkpoint/start_from"
    assert "model.initial_weights='data:weights' both set the first weights" in found.detail


@pytest.mark.parametrize("path", ["../x/a1/step-1", "x/a0/step-1", "x/a1/step-01", "/x/a1/step-1"])
def test_a_job_starts_only_from_the_folder_of_a_checkpoint(path: str) -> None:
    with pytest.raises(SpecError, match="start_from"):
        parse_job_spec({"checkpoint": {"start_from": path}})
