"""Every refusal names the field, the given value, and the legal values."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.library.spec import (
    test_axes,
    test_ignored_fields,
    test_precision,
    test_rules,
    test_size_range,
)
from tests.library.training import test_pipeline_stages
from trainyard.base.problems import Problem, SpecError, named
from trainyard.spec.job import parse_job_spec
from trainyard.spec.rules import check_new_job
from trainyard.training.known_devices import Slot

DOCUMENTS: dict[str, dict[str, Any]] = {
    **{f"axes: {name}": document for name, document, _ in test_axes.REFUSED},
    **{
        f"precision: {name}": document
        for name, document, pointer, _ in test_precision.REFUSED
        if pointer
    },
    **{
        f"pipeline: {text}": test_pipeline_stages.document(**axes)
        for axes, _, text in test_pipeline_stages.REFUSED
    },
    **{f"ignored: {text}": document for document, _, text in test_ignored_fields.REFUSED},
    **{f"rules: {text}": document for document, _, text in test_rules.REFUSED},
    **{f"sizes: {text}": document for document, _, text in test_size_range.REFUSED},
}
ON_GPUS: list[tuple[dict[str, Any], Slot]] = [
    (test_precision.job(test_precision.MX), test_precision.H100),
    (test_precision.job(test_precision.TENSORWISE), test_precision.A100),
    (
        test_precision.job("float8_rowwise", training={"param_dtype": "float32"}),
        test_precision.H100,
    ),
    (
        test_precision.job("none", 2, parallelism={"async_tp": True}, compile={"enabled": True}),
        test_precision.L4,
    ),
    ({"checkpoint": {"async_mode": "async_with_pinned_mem"}}, test_precision.CPU),
]
LEGAL = re.compile(r"\blegal\b[a-z ]*: ?\S")


def refused(document: dict[str, Any], *slots: Slot) -> tuple[Problem, ...]:
    with pytest.raises(SpecError) as error:
        check_new_job(parse_job_spec(document), slots=slots)
    return error.value.problems


def value_at(document: dict[str, Any], pointer: str) -> tuple[str, Any]:
    """Return the field's name and value; raises for a pointer to anything except a field."""
    _, section, field = pointer.split("/")
    spec = parse_job_spec(document)
    value = getattr(getattr(spec, section), field)
    own_shape = section == "model" and value is None and hasattr(spec.architecture, field)
    return field, getattr(spec.architecture, field) if own_shape else value


def hold_to_the_rule(document: dict[str, Any], problems: tuple[Problem, ...]) -> None:
    for problem in problems:
        field, value = value_at(document, problem.pointer)
        given = f"{field} is absent" if value is None else named(field, value)
        assert given in problem.detail
        assert LEGAL.search(problem.detail), problem.detail


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_refusal_names_field_value_and_what_is_legal(name: str) -> None:
    hold_to_the_rule(DOCUMENTS[name], refused(DOCUMENTS[name]))


@pytest.mark.parametrize(("document", "slot"), ON_GPUS)
def test_hardware_is_no_exception(document: dict[str, Any], slot: Slot) -> None:
    hold_to_the_rule(document, refused(document, slot))
