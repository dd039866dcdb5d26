"""The traffic of the axes against the collectives of the trainer's step."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.one_rank import costs_of_a_step
from trainyard.planner.speed.quantities import NodeKind
from trainyard.planner.speed.step_work import step_work
from trainyard.spec.job import JobSpec, parse_job_spec

NODE = NodeKind("cpu", "a processor", slots=8, cores=8)


def job(ranks: int, *, recompute: str = "none", **axes: Any) -> JobSpec:
    return parse_job_spec(
        {
            "model": {"size": "debug"},
            "training": {"seq_len": 32, "micro_batch_size": 2, "global_batch_size": 16},
            "parallelism": axes,
            "activation_checkpoint": {"mode": recompute},
            "lr_schedule": {"warmup_steps": 0},
            "compile": {"enabled": False},
            "resources": {"world_size": ranks, "device": "cpu"},
        }
    )


CASES = {
    "fsdp": job(4),
    "never": job(4, reshard_after_forward="never"),
    "always": job(4, reshard_after_forward="always"),
    "hsdp": job(4, dp_replicate=2),
    "tp": job(2, tp=2),
    "tp without sequence parallelism": job(2, tp=2, sequence_parallel=False),
    "fsdp and tp": job(4, tp=2),
}


@pytest.mark.slow
def test_the_axes_send_what_the_trainer_sends() -> None:
    counted = costs_of_a_step([(spec, 0) for spec in CASES.values()])
    for (name, spec), cost in zip(CASES.items(), counted, strict=True):
        assert _sent(spec) == pytest.approx(sum(cost.sent.values()), rel=0.02), name


@pytest.mark.slow
def test_a_stage_in_the_middle_sends_twice_what_the_first_one_sends() -> None:
    piped, alone = job(4, pp=2), job(2)
    counted = costs_of_a_step([(piped, 0), (piped, 3)])
    sends = [cost.sent["send"] for cost in counted]
    rest = sum(counted[0].sent.values()) - sends[0]
    assert _sent(piped) == pytest.approx(rest + 2 * max(sends), rel=0.02)
    assert _sent(alone) > rest  # a pipeline gathers weights once a step


def _sent(spec: JobSpec) -> float:
    layout = spec.layout()
    return step_work(spec, layout, partition=spec.batch_partition(layout), node=NODE).quantities[
        "node_bytes"
    ]
