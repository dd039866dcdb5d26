"""A rank's own measurements: names, units, and omission of unknown values."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.ranks import run_ranks
from trainer.metrics.measure import (
    HardwareUse,
    compile_seconds,
    device_name,
    largest_of_ranks,
    memory,
    precision_of,
)
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.training.flops import training_flops_per_token
from trainyard.training.known_devices import peak_flops

H100 = "NVIDIA H100 80GB HBM3"


def job(**sections: Any) -> JobSpec:
    return parse_job_spec(sections)


def test_mfu_is_the_share_of_the_devices_peak() -> None:
    spec = job(model={"size": "8B"}, training={"seq_len": 8192, "param_dtype": "bfloat16"})
    values = HardwareUse(spec, H100).values(10_000.0)
    flops = training_flops_per_token(spec.architecture, 8192) * 10_000.0
    peak = peak_flops(H100, "bfloat16")
    assert peak is not None
    assert peak == pytest.approx(989.4e12)
    assert values == pytest.approx(
        {"perf/model_tflops_per_device": flops / 1e12, "perf/mfu": flops / peak}
    )
    assert 0.4 < values["perf/mfu"] < 0.6


@pytest.mark.parametrize(
    ("sections", "precision"),
    [
        ({}, "float32"),
        ({"training": {"param_dtype": "bfloat16"}}, "bfloat16"),
        ({"quantization": {"recipe": "float8_rowwise"}}, "float8"),
    ],
)
def test_the_peak_is_that_of_the_numbers_which_are_multiplied(
    sections: dict[str, Any], precision: str
) -> None:
    assert precision_of(job(**sections)) == precision


def test_an_unknown_device_has_no_mfu_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="trainer"):
        use = HardwareUse(job(), device_name(torch.device("cpu")))
        assert list(use.values(1.0)) == ["perf/model_tflops_per_device"]
        assert list(use.values(2.0)) == ["perf/model_tflops_per_device"]
    assert caplog.messages == ["no perf/mfu: the float32 peak of 'cpu' is not known"]


def test_an_own_model_has_no_flops_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="trainer"):
        assert HardwareUse(job(model={"factory": "package.module:build"}), H100).values(1.0) == {}
    assert caplog.messages == ["no model FLOPs: the FLOPs of an own model are unknown"]


def test_a_hub_model_with_counts_has_flops() -> None:
    names = ("embedding", "attention", "feed_forward", "norms", "final_norm", "head")
    counted = dict.fromkeys(names, 10**6) | {
        "active": 10**9,
        "attention_width": 4096,
        "saved_bytes": 10**5,
    }
    spec = job(
        model={"hugging_face": "models:m", "counted": counted}, training={"param_dtype": "bfloat16"}
    )
    values = HardwareUse(spec, H100).values(10_000.0)
    assert values["perf/model_tflops_per_device"] > 6 * 10**9 * 10_000.0 / 1e12
    assert 0 < values["perf/mfu"] < 1


def test_memory_of_a_cpu_rank_is_its_resident_set() -> None:
    held = torch.ones(64 * 2**20 // 4)
    values = memory(torch.device("cpu"))
    assert list(values) == ["memory/peak_rss_gib"]
    assert values["memory/peak_rss_gib"] > held.nbytes / 2**30


@pytest.mark.cuda
def test_memory_of_a_gpu_is_the_allocators() -> None:
    held = torch.ones(64 * 2**20 // 4, device="cuda")
    values = memory(held.device)
    assert values["memory/peak_reserved_gib"] >= values["memory/peak_active_gib"] >= 1 / 16
    assert values["memory/ooms"] == values["memory/allocation_retries"] == 0


def test_compilation_is_timed() -> None:
    before = compile_seconds()
    compiled = torch.compile(lambda x: x.sin() + 1, backend="aot_eager")
    compiled(torch.ones(3))
    once = compile_seconds()
    assert once > before
    compiled(torch.ones(3))
    assert compile_seconds() == once


def _largest() -> dict[str, float]:
    group = dist.group.WORLD
    assert group is not None
    return largest_of_ranks({"a": float(dist.get_rank()), "b": -float(dist.get_rank())}, group)


def test_the_largest_of_all_ranks_is_written() -> None:
    assert run_ranks(3, _largest) == [{"a": 2.0, "b": 0.0}] * 3
