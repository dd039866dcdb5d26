"""What one rank sends and holds, counted without the others: against formulas, and real ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed import get_world_size

from benchmarks.one_rank import Collectives, costs_of_a_step, micro_batches
from tests.library.planner.test_memory_of_the_trainer import peak_of_a_step
from tests.trainer.ranks import run_ranks
from trainer.loop.build import assemble
from trainer.loop.step import TrainStep
from trainyard.planner.parameters import count_parameters
from trainyard.spec.job import JobSpec, parse_job_spec


def job(ranks: int, *, sequences: int = 8, **axes: Any) -> JobSpec:
    return parse_job_spec(
        {
            "model": {"size": "debug"},
            "training": {"seq_len": 32, "micro_batch_size": 2, "global_batch_size": sequences},
            "parallelism": axes,
            "lr_schedule": {"warmup_steps": 0},
            "resources": {"world_size": ranks, "device": "cpu"},
        }
    )


def changed(spec: JobSpec, **sections: dict[str, Any]) -> JobSpec:
    return parse_job_spec(spec.model_dump(mode="json") | sections)


def sent_for_real(spec: JobSpec) -> dict[str, int]:
    layout = spec.layout()
    assert get_world_size() == layout.world_size
    parts = assemble(spec, layout, torch.device("cpu"))
    step = TrainStep(parts.forward_backward, parts.optimizer, spec, stages=parts.stages)
    step(1, micro_batches(spec, layout))
    with Collectives() as collectives:
        step(2, micro_batches(spec, layout))
    return dict(sorted(collectives.sent.items()))


@pytest.mark.slow
def test_weights_are_gathered_as_often_as_set_and_gradients_summed() -> None:
    settings = ("never", "always", "default")
    # Two micro-batches on each of four ranks.
    specs = [job(4, sequences=16, reshard_after_forward=setting) for setting in settings]
    never, always, default = costs_of_a_step([(spec, 0) for spec in specs])
    # In float32, three quarters of everything come from the other ranks.
    parameters = count_parameters(specs[0].architecture)
    once, embedding = parameters.total * 4 * 3 // 4, parameters.embedding * 4 * 3 // 4
    assert never.sent["all_gather"] == 2 * once
    assert never.sent["reduce_scatter"] == once
    # Backward needs no weights of the embedding.
    assert always.sent["all_gather"] == 4 * once - 2 * embedding
    assert always.sent["reduce_scatter"] == default.sent["reduce_scatter"] == 2 * once
    assert never.sent["all_gather"] < default.sent["all_gather"] < always.sent["all_gather"]
    assert always.peak <= default.peak < never.peak


@pytest.mark.parametrize(
    ("ranks", "axes"),
    [
        pytest.param(2, {}, id="fsdp"),
        pytest.param(4, {"pp": 2}, id="fsdp-pp"),
        pytest.param(4, {"tp": 2}, id="fsdp-tp", marks=pytest.mark.slow),
        pytest.param(4, {"dp_replicate": 2}, id="hsdp", marks=pytest.mark.slow),
    ],
)
def test_real_ranks_send_what_is_counted_without_them(ranks: int, axes: dict[str, int]) -> None:
    spec = job(ranks, **axes)
    real = run_ranks(ranks, sent_for_real, spec)
    counted = costs_of_a_step([(spec, 0), (spec, ranks - 1)])
    assert [cost.sent for cost in counted] == [real[0], real[-1]]
    assert all(cost.sent for cost in counted)


def test_float8_changes_no_count_but_that_of_gathered_weights() -> None:
    plain = job(2)
    float8 = changed(plain, quantization={"recipe": "float8_tensorwise"})
    eager, low = costs_of_a_step([(plain, 0), (float8, 0)])
    assert low.sent["reduce_scatter"] == eager.sent["reduce_scatter"]
    assert low.sent["all_gather"] < 0.5 * eager.sent["all_gather"]


@pytest.mark.parametrize(
    ("ranks", "model", "training"),
    [
        # Full at the loss; at the sum of the embedding's gradients; in a block.
        pytest.param(8, {"size": "8B"}, {"seq_len": 2048, "param_dtype": "bfloat16"}, id="long"),
        pytest.param(8, {"size": "8B"}, {"seq_len": 64, "param_dtype": "bfloat16"}, id="short"),
        pytest.param(4, {"size": "debug"}, {"seq_len": 32, "micro_batch_size": 2}, id="small"),
        pytest.param(1, {"size": "debug"}, {"seq_len": 128, "micro_batch_size": 2}, id="alone"),
    ],
)
def test_the_peak_is_that_of_torchs_own_tracker(
    ranks: int, model: dict[str, Any], training: dict[str, Any]
) -> None:
    batch = ranks * training.setdefault("micro_batch_size", 1)
    spec = changed(
        job(ranks, sequences=batch),
        model=model | {"n_layers": 2},
        training=training | {"global_batch_size": batch},
    )
    (cost,) = costs_of_a_step([(spec, 0)])
    (tracked,) = run_ranks(1, peak_of_a_step, spec, 1, initialize=False)
    # The labels and some scalars are unknown to the other one.
    assert 0 <= cost.peak - tracked <= 16 * spec.training.seq_len + 1024
