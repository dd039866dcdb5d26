"""Requirements of each axis: every refusal names field, value and the nearest legal values."""

from typing import Any

import pytest

from trainyard.base.problems import SpecError
from trainyard.protocol.attempt import Overrides
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.spec.rules import check_job_spec
from trainyard.spec.sections.parallelism import ParallelismSection

HEADS = {"n_heads": 8, "n_kv_heads": 4}
STAGES = [["tok_embeddings", "layers.0"], ["layers.1", "layers.2", "layers.3", "norm", "output"]]
BATCH = {"global_batch_size": 32, "micro_batch_size": 1}


def job(axes: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    sizes = [axes.get(name, 1) for name in ("dp_replicate", "dp_shard", "cp", "tp", "pp")]
    world_size = 1
    for size in sizes:
        world_size *= size
    sections = {"training": {}} | sections
    sections["training"] = BATCH | sections["training"]
    resources = {"world_size": world_size} | sections.pop("resources", {})
    return {"parallelism": axes, "resources": resources, **sections}


def problems_of(document: dict[str, Any]) -> dict[str, str]:
    try:
        check_job_spec(parse_job_spec(document))
    except SpecError as error:
        return {problem.pointer: problem.detail for problem in error.problems}
    return {}


REFUSED: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    (
        "heads",
        job({"tp": 3}, model={"vocab_size": 321}, training={"seq_len": 129}),
        {"/parallelism/tp": "tp=3 does not divide n_heads=4, n_kv_heads=2; nearest legal: 1"},
    ),
    (
        "key heads",
        job({"tp": 4}),
        {"/parallelism/tp": "tp=4 does not divide n_kv_heads=2; nearest legal: 2"},
    ),
    (
        "feed-forward",
        job({"tp": 4}, model={**HEADS, "ffn_dim": 198}),
        {"/parallelism/tp": "tp=4 does not divide ffn_dim=198; nearest legal: 2"},
    ),
    (
        "vocabulary",
        job({"tp": 4}, model={**HEADS, "vocab_size": 322}),
        {"/parallelism/tp": "tp=4 does not divide vocab_size=322; nearest legal: 2"},
    ),
    (
        "tokens under sequence parallelism",
        job({"tp": 4}, model=HEADS, training={"seq_len": 126}),
        {
            "/parallelism/tp": "tp=4 with sequence_parallel cuts a sequence into cp x tp = 4 "
            "parts, but seq_len=126; nearest legal: 3, 6, or sequence_parallel=false"
        },
    ),
    (
        "tokens under context and sequence parallelism",
        job({"tp": 4, "cp": 2}, model=HEADS, training={"seq_len": 132}),
        {
            "/parallelism/tp": "tp=4 with sequence_parallel cuts a sequence into cp x tp = 8 "
            "parts, but seq_len=132; nearest legal: 3, 6, or sequence_parallel=false"
        },
    ),
    (
        "tokens, head-tail",
        job({"cp": 4}, training={"seq_len": 124}),
        {
            "/parallelism/cp": "cp=4 with allgather_kv cuts a sequence into 8 parts, but "
            "seq_len=124; nearest legal: 2, 31"
        },
    ),
    (
        "tokens, ulysses",
        job({"cp": 4, "cp_method": "ulysses"}, model=HEADS, training={"seq_len": 126}),
        {
            "/parallelism/cp": "cp=4 with ulysses cuts a sequence into 4 parts, but seq_len=126; "
            "nearest legal: 3, 6"
        },
    ),
    (
        "heads, ulysses",
        job({"cp": 4, "cp_method": "ulysses"}),
        {
            "/parallelism/cp": "cp=4 with ulysses gives cp x tp = 4 ranks heads of their own, but "
            "n_kv_heads=2; nearest legal: 2, or cp_method='allgather_kv'"
        },
    ),
    (
        "heads, ulysses on tensor parallel ranks",
        job({"cp": 4, "tp": 2, "cp_method": "ulysses"}, model=HEADS),
        {
            "/parallelism/cp": "cp=4 with ulysses gives cp x tp = 8 ranks heads of their own, but "
            "n_kv_heads=4; nearest legal: 2, or cp_method='allgather_kv'"
        },
    ),
    (
        "tied embeddings",
        job({"pp": 2}, model={"size": "1B"}),
        {
            "/parallelism/pp": "pp=2, but embedding and head of model.size='1B' are one weight, "
            "which one stage must hold; legal: pp=1"
        },
    ),
    (
        "layers",
        job({"pp": 8}),
        {
            "/parallelism/pp": "pp=8 with 1F1B makes 8 stages, but the model has 4 layers; "
            "legal: pp up to 4"
        },
    ),
    (
        "layers, two stages a rank",
        job({"pp": 4, "pp_schedule": "ZBVZeroBubble"}),
        {
            "/parallelism/pp": "pp=4 with ZBVZeroBubble makes 8 stages, but the model has 4 "
            "layers; legal: pp up to 2"
        },
    ),
    (
        "micro-batches",
        job({"pp": 4}, training={"global_batch_size": 12, "micro_batch_size": 4}),
        {
            "/parallelism/pp": "1F1B on pp=4 needs at least 4 micro-batches on each rank, but dp=1 "
            "leaves 3 of global_batch_size=12 with micro_batch_size=4; legal: pp up to 3, "
            "micro_batch_size up to 3, or another pp_schedule"
        },
    ),
    (
        "stages without a pipeline",
        job({"pp_stage_modules": STAGES}),
        {
            "/parallelism/pp_stage_modules": 'pp_stage_modules=[["tok_embeddings", "layers.0"], '
            '["layers.1", "layers.2", "layers.3", "norm",...: pp=1 has no pipeline; '
            "legal: no stages, or pp from 2 on"
        },
    ),
    (
        "a split backward of compiled blocks",
        job({"pp": 2, "pp_schedule": "ZBVZeroBubble"}, compile={"enabled": True}),
        {
            "/parallelism/pp_schedule": "pp_schedule='ZBVZeroBubble' computes gradients of "
            "inputs and of weights apart, which compiled blocks cannot; "
            "legal: GPipe, 1F1B, Interleaved1F1B, or compile.enabled=false"
        },
    ),
    (
        "a split backward of blocks that are computed again in part",
        job({"pp": 2, "pp_schedule": "ZBVZeroBubble"}, activation_checkpoint={"mode": "selective"}),
        {
            "/parallelism/pp_schedule": "pp_schedule='ZBVZeroBubble' computes gradients of "
            "inputs and of weights apart, which selective activation checkpointing cannot; "
            "legal: GPipe, 1F1B, Interleaved1F1B, or activation_checkpoint.mode='full' or 'none'"
        },
    ),
    (
        "asynchronous without ranks",
        job({"async_tp": True}, compile={"enabled": True}),
        {
            "/parallelism/async_tp": "async_tp=true needs ranks that share a matrix, but tp=1; "
            "legal: false, or tp from 2 on"
        },
    ),
    (
        "asynchronous without shards",
        job({"async_tp": True, "tp": 2, "sequence_parallel": False}, compile={"enabled": True}),
        {
            "/parallelism/async_tp": "async_tp=true needs sequence_parallel, but it is false; "
            "legal: false, or sequence_parallel=true"
        },
    ),
    (
        "asynchronous without a compiler",
        job({"async_tp": True, "tp": 2}, compile={"enabled": False}),
        {
            "/parallelism/async_tp": "async_tp=true needs the compiler, but "
            "compile.enabled=false; legal: false, or compile.enabled=true"
        },
    ),
    (
        "asynchronous on CPUs",
        job(
            {"async_tp": True, "tp": 2},
            compile={"enabled": True},
            resources={"device": "cpu"},
        ),
        {
            "/parallelism/async_tp": "async_tp=true needs CUDA with symmetric memory, but "
            "device='cpu'; legal: false, or device='cuda'"
        },
    ),
]


@pytest.mark.parametrize(
    ("document", "problems"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_what_an_axis_cannot_share_out_is_refused(
    document: dict[str, Any], problems: dict[str, str]
) -> None:
    assert problems_of(document) == problems


@pytest.mark.parametrize(
    "document",
    [
        job({"dp_replicate": 2, "dp_shard": 2, "cp": 2, "tp": 2, "pp": 2}),
        job({"tp": 2, "sequence_parallel": False}, training={"seq_len": 127}),
        job({"cp": 2, "cp_method": "ulysses"}),
        job({"pp": 2, "pp_stage_modules": STAGES}),
        job({"pp": 2, "pp_schedule": "GPipe", "pp_microbatches": 8}),
        job({"tp": 2, "async_tp": True}, compile={"enabled": True}),
        # A field that only tunes an unused axis does no harm.
        job({"pp_schedule": "ZBVZeroBubble", "pp_microbatches": 3, "pp_layers_per_stage": 9}),
        job({"sequence_parallel": False, "loss_parallel": False, "cp_method": "ulysses"}),
    ],
)
def test_what_can_be_shared_out_may_run(document: dict[str, Any]) -> None:
    assert problems_of(document) == {}


def test_every_axis_may_change_on_a_resume_and_is_checked_again() -> None:
    spec = parse_job_spec(job({"pp": 2, "pp_stage_modules": STAGES, "pp_microbatches": 4}))
    for axis in Layout.model_fields:
        section = ParallelismSection.model_validate({axis: 2})
        moved = Overrides(parallelism=section).apply(spec).on_layout(Layout(**{axis: 2}))
        check_job_spec(moved)
        assert moved.layout() == Layout(**{axis: 2})
    bad = Overrides(parallelism=ParallelismSection(tp=4)).apply(spec).on_layout(Layout(tp=4))
    with pytest.raises(SpecError, match="tp=4 does not divide n_kv_heads=2"):
        check_job_spec(bad)


def test_what_was_chosen_for_one_size_of_an_axis_stays_behind() -> None:
    axes: dict[str, Any] = {"dp_shard": 1, "pp": 2, "tp": 2, "async_tp": True}
    axes |= {"pp_stage_modules": STAGES, "pp_microbatches": 4}
    spec = parse_job_spec(job(axes, compile={"enabled": True}))
    same = spec.on_layout(Layout(pp=2, tp=2))
    assert same == spec
    wider = spec.on_layout(Layout(pp=2, tp=2, dp_shard=2)).parallelism
    assert (wider.pp_stage_modules, wider.pp_microbatches) == (
        spec.parallelism.pp_stage_modules,
        None,
    )
    alone = spec.on_layout(Layout()).parallelism
    assert (alone.pp_stage_modules, alone.pp_microbatches, alone.async_tp) == ((), None, False)
    layers = parse_job_spec(job({"pp": 2, "pp_layers_per_stage": 3}))
    assert layers.on_layout(Layout(pp=4)).parallelism.pp_layers_per_stage is None
