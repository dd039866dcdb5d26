"""Hub models train on every layout as on one rank."""

from __future__ import annotations

from functools import cache

import pytest

from tests.trainer.models.hub.architectures import ARCHITECTURES, WITH_TENSOR_PLAN
from tests.trainer.models.hub.training import Case, Courses, courses_on
from trainyard.spec.layout import Layout

TIED = "gemma3_text"
CASES: dict[str, Case] = {kind: (kind, {}, {}) for kind in ARCHITECTURES}
STAGED: dict[str, Case] = {kind: case for kind, case in CASES.items() if kind != TIED}
STAGED[f"{TIED}, untied"] = (TIED, {"tie_word_embeddings": False}, {})
SPLIT: dict[str, Case] = {kind: CASES[kind] for kind in WITH_TENSOR_PLAN}
RELATIVE = 1e-6


@cache
def on_one_rank() -> Courses:
    courses = courses_on(Layout(), CASES | STAGED)
    for name, course in courses.items():
        assert course[-1][0] < course[0][0], f"{name} must learn"
    return courses


@pytest.mark.parametrize(
    ("layout", "cases"),
    [
        (Layout(dp_shard=2), CASES),
        (Layout(dp_replicate=2, dp_shard=2), CASES),
        (Layout(tp=2), SPLIT),
        (Layout(pp=2), STAGED),
    ],
    ids=["FSDP", "HSDP", "TP", "PP"],
)
def test_a_layout_computes_what_one_rank_computes(layout: Layout, cases: dict[str, Case]) -> None:
    found, expected = courses_on(layout, cases), on_one_rank()
    assert found.keys() == cases.keys()
    for name, course in found.items():
        for (loss, norm), (loss_of_one, norm_of_one) in zip(course, expected[name], strict=True):
            assert loss == pytest.approx(loss_of_one, rel=RELATIVE), name
            assert norm == pytest.approx(norm_of_one, rel=100 * RELATIVE), name
