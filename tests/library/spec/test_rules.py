"""Consistency rules between the fields of a spec."""

from typing import Any

import pytest

from trainyard.base.problems import SpecError
from trainyard.spec.job import parse_job_spec
from trainyard.spec.rules import check_job_spec
from trainyard.training.architectures import ARCHITECTURES

SLOTS: dict[str, Any] = {"resources": {"world_size": 2}}
VALIDATED: dict[str, Any] = {
    "data": {"validation_fraction": 0.1},
    "validation": {"interval_steps": 30},
}


def problems_of(document: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(SpecError) as refused:
        check_job_spec(parse_job_spec(document))
    return [(problem.pointer, problem.detail) for problem in refused.value.problems]


def test_the_defaults_and_every_size_may_run() -> None:
    check_job_spec(parse_job_spec({}))
    for family, sizes in ARCHITECTURES.items():
        for size in sizes:
            check_job_spec(parse_job_spec({"model": {"family": family, "size": size}}))


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (
        {"model": {"size": "9B"}},
        "/model/size",
        "size='9B' is unknown; legal: debug, 1B, 3B, 8B, 70B, 405B",
    ),
    (
        {"model": {"dim": 66}},
        "/model/n_heads",
        "n_heads=4 must divide dim=66 into even head widths; nearest legal: 3, 11, or as "
        "dim: 64, 72",
    ),
    (
        {"model": {"dim": 12}},  # heads of 3
        "/model/n_heads",
        "n_heads=4 must divide dim=12 into even head widths; nearest legal: 3, 6, or as dim: 8, 16",
    ),
    (
        {"model": {"family": "qwen3", "head_dim": 33}},
        "/model/head_dim",
        "head_dim=33 is odd, but features turn in pairs; nearest legal: 32, 34",
    ),
    (
        {"model": {"n_kv_heads": 3}},
        "/model/n_kv_heads",
        "n_kv_heads=3 does not divide n_heads=4; nearest legal: 2, 4",
    ),
    (
        {"model": {"vocab_size": 258}},
        "/model/vocab_size",
        "vocab_size=258 is below the byte tokenizer's 259; legal: 259 or more",
    ),
    (
        {"model": {"code": "data:code"}},
        "/model/code",
        "code='data:code' needs model.factory; legal: no code",
    ),
    (
        {"model": {"factory": "gpt:build"}, "parallelism": {"tp": 2}, **SLOTS},
        "/parallelism/tp",
        "tp=2 divides matrices of a model of model.factory, but model.plans=[] has no "
        "'tensor'; legal: tp=1, or a model that gives this plan",
    ),
    (
        {
            "model": {"factory": "gpt:build", "plans": ["tensor"]},
            "parallelism": {"pp": 2},
            **SLOTS,
        },
        "/parallelism/pp",
        "pp=2 divides the layers of a model of model.factory, but model.plans=['tensor'] "
        "has no 'pipeline'; legal: pp=1, or a model that gives this plan",
    ),
    (
        {
            "model": {"factory": "gpt:build", "plans": ["tensor", "pipeline"]},
            "parallelism": {"cp": 2},
            **SLOTS,
        },
        "/parallelism/cp",
        "cp=2 divides a sequence, but a model of model.factory has its own attention, which needs "
        "whole sequences; legal: cp=1",
    ),
    (
        {"model": {"plans": ["tensor"]}},
        "/model/plans",
        'plans=["tensor"] needs model.factory; legal: no plans',
    ),
    (
        {"model": {"factory": "gpt:build", "dropout": 0.1}},
        "/model/dropout",
        "dropout=0.1, but a model of model.factory has its own; legal: 0, with the model's own "
        "options in model.arguments",
    ),
    (
        {"model": {"factory": "gpt:build", "initial_weights": "data:x"}},
        "/model/initial_weights",
        "initial_weights='data:x', but a model of model.factory has no published names; "
        "legal: none",
    ),
    (
        {"model": {"factory": "gpt:build"}, "data": {"document_masks": True}},
        "/data/document_masks",
        "document_masks=true, but a model of model.factory is given tokens only; legal: false",
    ),
    (
        {"data": {"path": "data:x"}},
        "/data/path",
        "path='data:x', but a built-in corpus has none; legal: no path, or source text, "
        "jsonl, parquet, huggingface",
    ),
    (
        {"data": {"source": "text"}},
        "/data/path",
        "path is absent, but source='text' reads one; legal: a place, such as data:text",
    ),
    (
        {"data": {"source": "parquet"}},
        "/data/path",
        "path is absent, but source='parquet' reads one; legal: a place, such as data:text",
    ),
    (
        {"data": {"text_field": "body"}},
        "/data/text_field",
        "text_field='body', but source='corpus' has no fields; legal: no text_field, or "
        "source jsonl, parquet, huggingface",
    ),
    (
        {"data": {"source": "jsonl", "path": "data:x", "split": "test"}},
        "/data/split",
        "split='test', but source='jsonl' has none; legal: no split, or source huggingface",
    ),
    (
        {"data": {"tokenizer_path": "data:x"}},
        "/data/tokenizer_path",
        "tokenizer_path='data:x', but the byte tokenizer has no file; legal: no "
        "tokenizer_path, or tokenizer='huggingface'",
    ),
    (
        {"data": {"tokenizer": "huggingface"}},
        "/data/tokenizer_path",
        "tokenizer_path is absent, but tokenizer='huggingface' reads one; legal: the place "
        "of a tokenizer.json, such as data:tokenizer.json",
    ),
    (
        {"parallelism": {"dp_shard": 0}},
        "/parallelism/dp_shard",
        "dp_shard=0 must be positive, or -1 to fill the slots; nearest legal: -1, 1",
    ),
    (
        {"parallelism": {"dp_shard": 3}, "resources": {"world_size": 4}},
        "/parallelism/dp_shard",
        "dp_shard=3 makes dp_replicate x dp_shard x cp x tp x pp = 3, but world_size=4; "
        "legal: 4, -1, or world_size=3",
    ),
    (
        {"parallelism": {"dp_replicate": 3}, "resources": {"world_size": 4}},
        "/parallelism/dp_replicate",
        "dp_replicate=3 makes dp_replicate x cp x tp x pp = 3, which does not divide "
        "world_size=4; nearest legal: 2, 4, or as world_size: 3, 6",
    ),
    (
        {"resources": {"world_size": 5}},
        "/training/micro_batch_size",
        "dp=5 is more than the 4 micro-batches of global_batch_size=16 with "
        "micro_batch_size=4; legal: dp up to 4 or micro_batch_size up to 3",
    ),
    (
        {"resources": {"world_size": 17}},
        "/training/micro_batch_size",
        "dp=17 is more than the 4 micro-batches of global_batch_size=16 with "
        "micro_batch_size=4; legal: dp up to 4",
    ),
    (
        {"resources": {"world_size": 4, "nodes": 3}},
        "/resources/nodes",
        "nodes=3 does not divide world_size=4; nearest legal: 2, 4",
    ),
    (
        {"optimizer": {"name": "adam", "weight_decay": 0.05}},
        "/optimizer/weight_decay",
        "weight_decay=0.05, but adam has none; legal: 0, or name='adamw'",
    ),
    (
        {"optimizer": {"state_dtype": "bfloat16", "beta2": 0.999}},
        "/optimizer/beta2",
        "beta2=0.999 takes away 0.001 of a moment in a step, which bfloat16 rounds away: it "
        "would never shrink; legal: up to 0.996, or state_dtype='float32'",
    ),
    (
        {"training": {"weight_dtype": "bfloat16"}, "optimizer": {"state_dtype": "bfloat16"}},
        "/training/param_dtype",
        "param_dtype='float32' is wider than training.weight_dtype='bfloat16'; legal: "
        "bfloat16, or weight_dtype='float32'",
    ),
    (
        {"training": {"weight_dtype": "bfloat16", "param_dtype": "bfloat16"}},
        "/optimizer/state_dtype",
        "state_dtype='float32' is wider than training.weight_dtype='bfloat16'; legal: "
        "bfloat16, or weight_dtype='float32'",
    ),
    (
        {"validation": {"interval_steps": 10}},
        "/data/validation_fraction",
        "validation_fraction=0 holds nothing out, but validation.interval_steps=10 requires "
        "validation; legal: above 0 and below 1, such as 0.01",
    ),
    (
        {"lr_schedule": {"warmup_steps": 101}},
        "/lr_schedule/warmup_steps",
        "warmup_steps=101 is beyond the schedule's 100 steps; legal: up to 100",
    ),
    (
        {"lr_schedule": {"decay_steps": 51, "total_steps": 50}},
        "/lr_schedule/decay_steps",
        "decay_steps=51 is beyond the schedule's 50 steps; legal: up to 50",
    ),
    (
        {"lr_schedule": {"warmup_tokens": 5000, "total_tokens": 4096}},
        "/lr_schedule/warmup_tokens",
        "warmup_tokens=5000 is beyond the schedule's 4096 tokens; legal: up to 4096",
    ),
    (
        {"lr_schedule": {"warmup_steps": 3, "total_tokens": 4096}},
        "/lr_schedule/warmup_steps",
        "warmup_steps=3 is beyond the schedule's 2 steps; legal: up to 2",
    ),
    (
        {"lr_schedule": {"decay_tokens": 5000, "decay_steps": 7}},
        "/lr_schedule/decay_tokens",
        "decay_tokens=5000 and decay_steps=7 both give this length; legal: one of them",
    ),
    (
        {"checkpoint": {"keep_latest_k": 0, "keep_every_steps": 100}},
        "/checkpoint/keep_every_steps",
        "keep_every_steps=100 goes with keep_latest_k, without which every checkpoint is "
        "kept; legal: 0, or keep_latest_k from 1 on",
    ),
    (
        {"checkpoint": {"keep_latest_k": 2, "keep_every_steps": 250, "interval_steps": 100}},
        "/checkpoint/keep_every_steps",
        "keep_every_steps=250 is no multiple of interval_steps=100; nearest legal: 200, 300",
    ),
    (
        {"checkpoint": {"keep_best_k": 1, "keep_latest_k": 0, "interval_steps": 30}, **VALIDATED},
        "/checkpoint/keep_best_k",
        "keep_best_k=1 goes with keep_latest_k, without which every checkpoint is kept; "
        "legal: 0, or keep_latest_k from 1 on",
    ),
    (
        {"checkpoint": {"keep_best_k": 1, "keep_latest_k": 1}},
        "/checkpoint/keep_best_metric",
        "keep_best_metric='validation/loss' is never measured; legal: train/loss, or "
        "validation.interval_steps from 1 on",
    ),
    (
        {"checkpoint": {"keep_best_k": 1, "keep_latest_k": 1, "interval_steps": 100}, **VALIDATED},
        "/checkpoint/interval_steps",
        "interval_steps=100 is no multiple of validation.interval_steps=30, so few"
        " checkpoints have a validation/loss; nearest legal: 90, 120",
    ),
    (
        {"checkpoint": {"writers": 3}, **SLOTS},
        "/checkpoint/writers",
        "writers=3, but world_size=2; legal: 1 to 2, 'all'",
    ),
    (
        {"checkpoint": {"staging_gib": 1.0}},
        "/checkpoint/staging_gib",
        "staging_gib=1, but with writers='auto' no rank writes shards of others; legal: a "
        "number as writers, or no staging_gib",
    ),
    (
        {"checkpoint": {"async_mode": "async_with_pinned_mem"}, "resources": {"device": "cpu"}},
        "/checkpoint/async_mode",
        "async_mode='async_with_pinned_mem' speeds up copies from an accelerator, but the "
        "job runs on CPUs; legal: disabled, async",
    ),
    (
        {"parallelism": {"tp": 2, "cp": 2}, "resources": {"world_size": 7}},
        "/resources/world_size",
        "world_size=7 is no multiple of dp_replicate x cp x tp x pp = 4; nearest legal: 4, 8",
    ),
    (
        {"parallelism": {"tp": 2, "dp_shard": 2}, "resources": {"world_size": 7}},
        "/resources/world_size",
        "world_size=7, but dp_replicate x dp_shard x cp x tp x pp = 4; legal: 4, or other axes",
    ),
]


@pytest.mark.parametrize(("document", "pointer", "detail"), REFUSED)
def test_fields_that_disagree(document: dict[str, Any], pointer: str, detail: str) -> None:
    assert problems_of(document) == [(pointer, detail)]


def test_sixteen_sequences_may_run_on_three_ranks() -> None:
    check_job_spec(parse_job_spec({"resources": {"world_size": 3}}))


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "adam"},
        {"name": "adam", "weight_decay": 0.0},
        {"state_dtype": "bfloat16"},
        {"state_dtype": "bfloat16", "beta1": 0.996, "beta2": 0.996},
        {"beta2": 0.999},
    ],
)
def test_optimizers_that_run(optimizer: dict[str, Any]) -> None:
    check_job_spec(parse_job_spec({"optimizer": optimizer}))


@pytest.mark.parametrize(
    "data",
    [
        {"source": "jsonl", "path": "data:x", "text_field": "body"},
        {"source": "parquet", "path": "data:x", "document_masks": True},
        {"source": "huggingface", "path": "data:x", "split": "test", "text_field": "body"},
        {"tokenizer": "huggingface", "tokenizer_path": "data:tokenizer.json"},
    ],
)
def test_inputs_that_are_read(data: dict[str, Any]) -> None:
    check_job_spec(parse_job_spec({"data": data}))


def test_what_is_kept_for_good_agrees_with_what_is_saved() -> None:
    legal = {"keep_latest_k": 2, "keep_every_steps": 250, "interval_steps": 0}
    check_job_spec(parse_job_spec({"checkpoint": legal}))


def test_what_is_best_can_be_told() -> None:
    legal = {"keep_best_k": 1, "keep_latest_k": 1, "keep_best_metric": "train/loss"}
    check_job_spec(parse_job_spec({"checkpoint": legal}))


def test_every_problem_is_named_at_once() -> None:
    document = {"model": {"size": "9B"}, "data": {"path": "data:x", "split": "test"}}
    assert [p for p, _ in problems_of(document)] == [
        "/model/size",
        "/data/path",
        "/data/split",
    ]
