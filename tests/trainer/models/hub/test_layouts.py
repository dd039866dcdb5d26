"""Hub models train on every layout as on one rank."""

from __future__ import annotations

from functools import cache

import pytest

from tests.trainer.models.hub.architectures import ARCHITECTURES, WITH_TENSOR_PLAN
from tests.trainer.models.hub.training import Case, Courses, courses_on
from trainyard.spec.layout import Layout

UNTIED = {"tie_word_embeddings": False}
CASES: dict[str, Case] = {kind: (kind, {}, {}) for kind in ARCHITECTURES}
STAGED: dict[str, Case] = {kind: (kind, UNTIED, {}) for kind in ARCHITECTURES}
SPLIT: dict[str, Case] = {kind: CASES[kind] for kind in WITH_TENSOR_PLAN}
GATHERED = {"parallelism": {"sequence_parallel": False, "loss_parallel": False}}
RELATIVE = 1e-6


@cache
def on_one_rank(*, staged: bool = False) -> Courses:
    courses = courses_on(Layout(), STAGED if staged else CASES)
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
    found, expected = courses_on(layout, cases), on_one_rank(staged=cases is STAGED)
    for name, course in found.items():
        for (loss, norm), (loss_of_one, norm_of_one) in zip(course, expected[name], strict=True):
            assert loss == pytest.approx(loss_of_one, rel=RELATIVE), name
            assert norm == pytest.approx(norm_of_one, rel=100 * RELATIVE), name
