"""The benchmark of checkpoint plans runs small, and reaches its targets there."""

from __future__ import annotations

import json
import subprocess
import sys
from html import escape
from pathlib import Path

import pytest

from benchmarks.checkpoint_plans.__main__ import Case
from benchmarks.checkpoint_plans.gloo_descriptors import DescriptorLaw
from benchmarks.checkpoint_plans.log_picture import log_picture
from trainyard.spec.layout import Layout


def test_a_small_model_on_four_ranks(tmp_path: Path) -> None:
    # In a process of its own: each has one fork server, and other tests load other modules.
    command = [sys.executable, "-m", "benchmarks.checkpoint_plans", "--check", f"--to={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    *lines, descriptors = lines
    assert descriptors["benchmark"] == "checkpoint_plans_gloo_descriptors"
    assert [ranks for ranks, _ in descriptors["measured"]] == [2, 4, 8]
    assert all(count > 0 for _, count in descriptors["measured"])
    assert {line["benchmark"].removeprefix("checkpoint_plans_") for line in lines} == {
        *("first_plan", "later_plan", "resume_plan", "resharding_plan"),
        *("commit", "evenness", "first_plan_of_dcp", "save_stall"),
    }
    assert all(line["figure"] > 0 and line["ranks"] == 4 for line in lines)
    # DCP's planner receives a list of each rank, and ours one of each stage.
    (gathered, *_) = (line["gathered_bytes"] for line in lines if "gathered_bytes" in line)
    (named, *_) = (line["named_bytes"] for line in lines if "named_bytes" in line)
    assert gathered > 4 * named
    picture = (tmp_path / "checkpoint-plans.svg").read_text()
    assert all(name in picture for name in ("debug FSDP", "debug HSDP", escape("DCP's plan")))


def test_descriptors_follow_the_law_that_fits_better() -> None:
    by_doubling = DescriptorLaw(((8, 27), (16, 33), (32, 39), (64, 45)))
    assert by_doubling.at(512) == pytest.approx(63)
    by_rank = DescriptorLaw(((8, 10), (16, 18), (32, 34), (64, 66)))
    assert by_rank.at(512) == pytest.approx(514)


def test_a_case_belongs_to_the_curve_of_its_size_and_axes() -> None:
    assert Case("8B", Layout(dp_shard=8)).family == "8B FSDP"
    assert Case("8B", Layout(dp_replicate=2, tp=4, pp=2)).family == "8B HSDP x TP x PP"


def test_a_picture_joins_points_and_dashes_what_it_compares_with() -> None:
    curves = {"one": [(8, 0.01), (64, 0.1)], "two": [(64, 0.2)]}
    drawn = log_picture(curves, caption="some", yardstick=("other", {"one": [(8, 1.0), (64, 2.0)]}))
    lines = [line for line in drawn.splitlines() if 'fill="none"' in line]
    assert len(lines) == 2, "a single point is no line"
    assert ["dasharray" in line for line in lines] == [False, True]
    assert drawn.count("<circle") == 5
    assert ">other</text>" in drawn


def test_a_picture_needs_points() -> None:
    with pytest.raises(ValueError, match="a picture needs points"):
        log_picture({}, caption="none")
    assert "1024" in log_picture({"one": [(8, 0.01), (1024, 2.0)]}, caption="some")
