"""The range of sizes of an elastic job: it holds the job's size, and both ends are legal."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.base.problems import SpecError
from trainyard.spec.job import parse_job_spec
from trainyard.spec.rules import check_job_spec

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (
        {"resources": {"world_size": 2, "min_world_size": 3}},
        "/resources/min_world_size",
        "min_world_size=3 is more than world_size=2; legal: 1 to 2",
    ),
    (
        {"resources": {"world_size": 2, "max_world_size": 1}},
        "/resources/max_world_size",
        "max_world_size=1 is less than world_size=2; legal: 2 or more",
    ),
    (
        {"parallelism": {"tp": 2}, "resources": {"world_size": 4, "min_world_size": 1}},
        "/resources/min_world_size",
        "min_world_size=1 has no legal layout that changes only dp_replicate and dp_shard; "
        "nearest legal: 2",
    ),
    (
        {"resources": {"world_size": 2, "max_world_size": 17}},
        "/resources/max_world_size",
        "max_world_size=17 has no legal layout that changes only dp_replicate and dp_shard; "
        "nearest legal: 16",
    ),
    (
        {"checkpoint": {"writers": 2}, "resources": {"world_size": 2, "min_world_size": 1}},
        "/resources/min_world_size",
        "min_world_size=1 has no legal layout that changes only dp_replicate and dp_shard; "
        "nearest legal: 2",
    ),
]


@pytest.mark.parametrize(("document", "pointer", "detail"), REFUSED)
def test_a_range_that_no_job_could_use(document: dict[str, Any], pointer: str, detail: str) -> None:
    with pytest.raises(SpecError) as refused:
        check_job_spec(parse_job_spec(document))
    assert [(p.pointer, p.detail) for p in refused.value.problems] == [(pointer, detail)]


@pytest.mark.parametrize(
    ("resources", "size_range"),
    [
        ({"world_size": 4}, None),
        ({"world_size": 4, "min_world_size": 2}, (2, 4)),
        ({"world_size": 4, "max_world_size": 16}, (4, 16)),
        ({"world_size": 4, "min_world_size": 3, "max_world_size": 6}, (3, 6)),
    ],
)
def test_one_end_of_a_range_of_sizes_completes_the_other(
    resources: dict[str, Any], size_range: tuple[int, int] | None
) -> None:
    spec = parse_job_spec({"resources": resources})
    check_job_spec(spec)
    assert spec.resources.size_range == size_range
    shrunk = spec.resources.model_copy(update={"world_size": 2})
    assert parse_job_spec({"resources": shrunk.model_dump()}).resources.size_range == size_range
