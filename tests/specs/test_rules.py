"""What must agree between fields, and what is refused until it has an engine."""

from typing import Any

import pytest

from specs.architectures import ARCHITECTURES
from specs.job import parse_job_spec
from specs.problems import SpecError
from specs.rules import check_job_spec

SLOTS: dict[str, Any] = {"resources": {"world_size": 2}}


def problems_of(document: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(SpecError) as refused:
        check_job_spec(parse_job_spec(document))
    return [(problem.pointer, problem.detail) for problem in refused.value.problems]


def test_the_defaults_and_every_size_may_run() -> None:
    check_job_spec(parse_job_spec({}))
    for family, sizes in ARCHITECTURES.items():
        for size in sizes:
            check_job_spec(parse_job_spec({"model": {"family": family, "size": size}}))


@pytest.mark.parametrize(
    ("document", "pointer", "detail"),
    [
        (
            {"model": {"size": "9B"}},
            "/model/size",
            "'9B' is no size; legal: debug, 1B, 3B, 8B, 70B, 405B",
        ),
        (
            {"model": {"dim": 66}},
            "/model/n_heads",
            "n_heads=4 must divide dim=66 into even head widths",
        ),
        (
            {"model": {"dim": 12}},  # heads of 3
            "/model/n_heads",
            "n_heads=4 must divide dim=12 into even head widths",
        ),
        (
            {"model": {"family": "qwen3", "head_dim": 33}},
            "/model/head_dim",
            "head_dim=33 is odd, but features turn in pairs; nearest legal: 32, 34",
        ),
        (
            {"model": {"n_kv_heads": 3}},
            "/model/n_kv_heads",
            "n_kv_heads=3 does not divide n_heads=4",
        ),
        (
            {"model": {"vocab_size": 258}},
            "/model/vocab_size",
            "vocab_size=258 is below the byte tokenizer's 259",
        ),
        ({"model": {"code": "data:code"}}, "/model/code", "code goes with model.factory"),
        (
            {"model": {"factory": "gpt:build"}, "parallelism": {"tp": 2}, **SLOTS},
            "/parallelism/tp",
            "tp=2 shares out matrices of a model of model.factory, but model.plans=[] has no "
            "'tensor'; legal: tp=1, or a model that gives this plan",
        ),
        (
            {
                "model": {"factory": "gpt:build", "plans": ["tensor"]},
                "parallelism": {"pp": 2},
                **SLOTS,
            },
            "/parallelism/pp",
            "pp=2 shares out the layers of a model of model.factory, but model.plans=['tensor'] "
            "has no 'pipeline'; legal: pp=1, or a model that gives this plan",
        ),
        (
            {
                "model": {"factory": "gpt:build", "plans": ["tensor", "pipeline"]},
                "parallelism": {"cp": 2},
                **SLOTS,
            },
            "/parallelism/cp",
            "cp=2 shares out a sequence, whose tokens a model of model.factory attends to in a way "
            "of its own; legal: cp=1",
        ),
        ({"model": {"plans": ["tensor"]}}, "/model/plans", "plans goes with model.factory"),
        (
            {"model": {"factory": "gpt:build", "dropout": 0.1}},
            "/model/dropout",
            "a model of model.factory has its own; give it in model.arguments",
        ),
        (
            {"model": {"factory": "gpt:build", "initial_weights": "data:x"}},
            "/model/initial_weights",
            "a model of model.factory has no published names",
        ),
        (
            {"model": {"factory": "gpt:build"}, "data": {"document_masks": True}},
            "/data/document_masks",
            "a model of model.factory is given tokens only",
        ),
        ({"data": {"path": "data:x"}}, "/data/path", "a built-in corpus has no path"),
        ({"data": {"source": "text"}}, "/data/path", "source 'text' needs a path to read"),
        ({"data": {"source": "parquet"}}, "/data/path", "source 'parquet' needs a path to read"),
        (
            {"data": {"text_field": "body"}},
            "/data/text_field",
            "source 'corpus' has no fields; legal: jsonl, parquet, huggingface",
        ),
        (
            {"data": {"source": "jsonl", "path": "data:x", "split": "test"}},
            "/data/split",
            "source 'jsonl' has no splits; legal: huggingface",
        ),
        (
            {"data": {"tokenizer_path": "data:x"}},
            "/data/tokenizer_path",
            "the byte tokenizer has no file; legal: tokenizer='huggingface', or no path",
        ),
        (
            {"data": {"tokenizer": "huggingface"}},
            "/data/tokenizer_path",
            "tokenizer 'huggingface' needs the place of a tokenizer.json",
        ),
        (
            {"parallelism": {"dp_shard": 0}},
            "/parallelism",
            "dp_shard=0 must be positive, or -1 to fill the slots",
        ),
        (
            {"parallelism": {"dp_shard": 3}, "resources": {"world_size": 4}},
            "/parallelism",
            "dp_replicate x dp_shard x cp x tp x pp = 3, but world_size=4",
        ),
        (
            {"parallelism": {"dp_replicate": 3}, "resources": {"world_size": 4}},
            "/parallelism",
            "dp_replicate x cp x tp x pp = 3 does not divide world_size=4",
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
            "nodes=3 does not divide world_size=4",
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
            {
                "training": {"weight_dtype": "bfloat16"},
                "optimizer": {"state_dtype": "bfloat16"},
            },
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
            "validation_fraction=0 holds nothing out, but validation.interval_steps=10 asks for "
            "validation; legal: above 0 and below 1, such as 0.01",
        ),
        (
            {"lr_schedule": {"warmup_steps": 101}},
            "/lr_schedule/warmup_steps",
            "warmup_steps=101 is beyond the schedule's 100 steps",
        ),
        (
            {"lr_schedule": {"decay_steps": 51, "total_steps": 50}},
            "/lr_schedule/decay_steps",
            "decay_steps=51 is beyond the schedule's 50 steps",
        ),
        (
            {"lr_schedule": {"warmup_tokens": 5000, "total_tokens": 4096}},
            "/lr_schedule/warmup_tokens",
            "warmup_tokens=5000 is beyond the schedule's 4096 tokens",
        ),
        (
            {"lr_schedule": {"warmup_steps": 3, "total_tokens": 4096}},
            "/lr_schedule/warmup_steps",
            "warmup_steps=3 is beyond the schedule's 2 steps",
        ),
        (
            {"lr_schedule": {"decay_tokens": 5000, "decay_steps": 7}},
            "/lr_schedule/decay_tokens",
            "decay_tokens=5000 and decay_steps=7 both give this length; legal: one of them",
        ),
    ],
)
def test_fields_that_disagree(document: dict[str, Any], pointer: str, detail: str) -> None:
    assert problems_of(document) == [(pointer, detail)]


def test_sixteen_sequences_may_run_on_three_ranks() -> None:
    check_job_spec(parse_job_spec({"resources": {"world_size": 3}}))


# One document for each row of the table, in its order: it asks for what has no engine.
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


@pytest.mark.parametrize(
    ("section", "detail"),
    [
        (
            {"keep_every_steps": 100},
            "goes with keep_latest_k, without which every checkpoint is kept",
        ),
        (
            {"keep_latest_k": 2, "keep_every_steps": 250},
            "keep_every_steps=250 is no multiple of interval_steps=100; nearest legal: 200, 300",
        ),
    ],
)
def test_what_is_kept_for_good_agrees_with_what_is_saved(
    section: dict[str, Any], detail: str
) -> None:
    assert problems_of({"checkpoint": section}) == [("/checkpoint/keep_every_steps", detail)]
    legal = {"keep_latest_k": 2, "keep_every_steps": 250, "interval_steps": 0}
    check_job_spec(parse_job_spec({"checkpoint": legal}))


@pytest.mark.parametrize(
    ("checkpoint", "validated", "pointer", "detail"),
    [
        ({"keep_best_k": 1}, 100, "keep_best_k", "goes with keep_latest_k"),
        ({"keep_best_k": 1, "keep_latest_k": 1}, 0, "keep_best_metric", "is never measured"),
        (
            {"keep_best_k": 1, "keep_latest_k": 1, "interval_steps": 100},
            30,
            "interval_steps",
            "nearest legal: 90, 120",
        ),
    ],
)
def test_what_is_best_can_be_told(
    checkpoint: dict[str, Any], validated: int, pointer: str, detail: str
) -> None:
    rest = {"data": {"validation_fraction": 0.1}, "validation": {"interval_steps": validated}}
    ((at, said),) = problems_of({"checkpoint": checkpoint} | (rest if validated else {}))
    assert at == f"/checkpoint/{pointer}"
    assert detail in said
    legal = {"keep_best_k": 1, "keep_latest_k": 1, "keep_best_metric": "train/loss"}
    check_job_spec(parse_job_spec({"checkpoint": legal}))


def test_every_problem_is_named_at_once() -> None:
    document = {"model": {"size": "9B"}, "data": {"path": "data:x", "split": "test"}}
    assert [p for p, _ in problems_of(document)] == [
        "/model/size",
        "/data/path",
        "/data/split",
    ]
