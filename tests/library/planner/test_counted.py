"""Plans of hub models from their counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.library.planner.specs_for_tests import job
from trainyard.base.problems import SpecError
from trainyard.planner.activations import activations_of_a_block, kept_of_a_block
from trainyard.planner.parameters import count_parameters
from trainyard.planner.plan import plan
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.spec.rules import check_job_spec
from trainyard.training.architectures import ARCHITECTURES
from trainyard.training.counted_model import CountedModel
from trainyard.training.flops import attention_flops_per_token, training_flops_per_token

# Mixtral 8x7B: its parts follow from the published shape, and their sum is the published size.
MIXTRAL = {
    "embedding": 131_072_000,
    "attention": 1_342_177_280,
    "feed_forward": 45_098_205_184,
    "norms": 262_144,
    "final_norm": 4096,
    "head": 131_072_000,
    "active": 12_617_515_008,
    "attention_width": 131_072,
    "saved_bytes": 9_000_000,
}
SHAPE = {
    "hugging_face": "models:Mixtral",
    "dim": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 8,
    "ffn_dim": 14_336,
    "vocab_size": 32_000,
    "tied_embeddings": False,
}
BATCH = {"seq_len": 4096, "global_batch_size": 8, "micro_batch_size": 1}


def mixtral(world_size: int = 8, *, mode: str = "none", **counted: Any) -> JobSpec:
    return job(
        world_size,
        model={**SHAPE, "counted": {**MIXTRAL, **counted}},
        training={**BATCH, "param_dtype": "bfloat16"},
        activation_checkpoint={"mode": mode},
    )


def test_all_experts_take_memory_and_the_chosen_ones_take_time() -> None:
    spec = mixtral()
    planned = plan(spec)
    assert planned.parameters.total == 46_702_792_704, "the published size"
    assert planned.parameters.block == sum(
        MIXTRAL[kind] // 32 for kind in ("attention", "feed_forward", "norms")
    )
    assert planned.memory.weights == -(-46_702_792_704 // 8) * 4
    head, attention = 4096 * 32_000, 6 * 131_072 * 4096
    assert planned.flops_per_token == 6 * (12_617_515_008 + head) + attention
    dense = plan(job(8, model=SHAPE, training=BATCH)).parameters.total
    assert dense < 0.2 * planned.parameters.total
    assert [each.pointer for each in planned.warnings if each.pointer.startswith("/model")] == [
        "/model/vocab_size"
    ]


def test_activations_are_the_saved_bytes() -> None:
    spec, tokens = mixtral(), 100
    everything = activations_of_a_block(spec, Layout(), tokens=tokens)
    assert everything == tokens * (9_000_000 // 32)
    assert kept_of_a_block(spec, Layout(), tokens=tokens) == everything
    half = kept_of_a_block(mixtral(mode="selective"), Layout(), tokens=tokens)
    block_input = tokens * 4096 * 2
    assert half == block_input + (everything - block_input) // 2
    assert kept_of_a_block(mixtral(mode="full"), Layout(), tokens=tokens) == block_input
    two = activations_of_a_block(spec, Layout(tp=2), tokens=tokens)
    assert everything / 2 < two < everything, "the inputs of norms are on both ranks"


@pytest.mark.parametrize("window", [1, 100, 1000, 5000])
def test_a_window_limits_the_attended_keys(window: int) -> None:
    seq_len, width = 4000, 64
    sizes = {**MIXTRAL, "attention_width": 0, "sliding_width": width, "window": window}
    shape = replace(ARCHITECTURES["llama3"]["debug"], counted=CountedModel(**sizes))
    keys = sum(min(token, window) for token in range(1, seq_len + 1)) / seq_len
    found = attention_flops_per_token(shape, seq_len)
    assert found == pytest.approx(4 * width * keys, abs=4 * width)
    assert training_flops_per_token(shape, seq_len) - 3 * found == 6 * (
        MIXTRAL["active"] + shape.vocab_size * shape.dim
    )


def test_the_blocks_mean_rounds_down() -> None:
    shape = replace(ARCHITECTURES["llama3"]["debug"], counted=CountedModel(**MIXTRAL))
    odd = replace(shape, n_layers=3)
    counted = count_parameters(odd)
    assert 0 <= counted.total - counted.embedding - counted.head - 4096 - 3 * counted.block < 9


def test_counts_without_a_folder_are_refused() -> None:
    with pytest.raises(SpecError, match=r"counted needs model\.hugging_face"):
        check_job_spec(job(model={"counted": MIXTRAL}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 5}, "window=5 with sliding_width=0"),
        ({"sliding_width": 5}, "window=None with sliding_width=5"),
        ({"active": -1}, "greater than or equal to 0"),
        ({"experts": 3}, "experts"),
    ],
)
def test_inconsistent_counts_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_job_spec({"model": {**SHAPE, "counted": {**MIXTRAL, **changes}}})
