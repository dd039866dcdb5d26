"""The memory model against the peaks that a GPU reserved, from the stored lines of its check."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.trainer import Case, spec_of
from tools.gpu_check.stages.speed import PLANNER, on_cuda
from trainyard.planner.plan import plan

ROOT = Path(__file__).parents[3]
LINES = ROOT / "benchmarks" / "results" / "gpu-check-h200.jsonl"
DOCS = ROOT / "docs" / "planner.md"


def peaks() -> Iterator[tuple[str, str, float]]:
    """Return size, way and GiB of the newest line with a peak of each check."""
    lines = map(json.loads, LINES.read_text().splitlines())
    newest = {
        line["check"]: line["figures"]["peak_gib"]
        for line in lines
        if "peak_gib" in line.get("figures", ())
    }
    for check, peak in newest.items():
        size, way = check.split("_")
        yield size, way, peak


PEAKS = tuple(peaks())


def estimated(size: str, way: str) -> float:
    return plan(spec_of(on_cuda(size, way))).memory.total / 2**30


@pytest.mark.parametrize(("size", "way", "peak"), PEAKS)
def test_the_estimate_is_within_the_bound_of_the_check(size: str, way: str, peak: float) -> None:
    assert abs(estimated(size, way) / peak - 1) <= PLANNER


def test_every_way_of_every_size_was_measured_and_is_documented() -> None:
    ways = {(size, way) for size in ("1B", "3B", "8B") for way in ("eager", "compiled", "float8")}
    assert {(size, way) for size, way, _ in PEAKS} == ways - {("3B", "float8")}
    text = DOCS.read_text()
    for size, way, peak in PEAKS:
        now = estimated(size, way)
        assert f"| {peak:.1f} | {now:.1f} | {now / peak - 1:+.0%} |" in text, (size, way)


@pytest.mark.parametrize(
    ("quantization", "saves"),
    [
        ({"recipe": "float8_tensorwise"}, True),
        ({"recipe": "float8_tensorwise", "min_dim": 2**20}, False),
        ({"recipe": "float8_tensorwise", "exclude": ["feed_forward.w2"]}, False),
        ({"recipe": "float8_rowwise"}, False),
    ],
    ids=str,
)
def test_only_layers_in_the_measured_float8_save_memory(
    quantization: dict[str, Any], *, saves: bool
) -> None:
    document = on_cuda("1B", "compiled").document
    plain, quantized = (
        plan(spec_of(Case(document | more))).memory.activations
        for more in ({}, {"quantization": quantization})
    )
    assert (quantized < plain) is saves
