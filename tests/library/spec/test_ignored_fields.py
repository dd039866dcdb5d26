"""Fields without effect: refused in a new job, reported for an existing one."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.base.problems import SpecError
from trainyard.planner.plan import plan
from trainyard.protocol.attempt import Overrides
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.spec.rules import check_job_spec, check_new_job

OVERLAPPED: dict[str, Any] = {
    "parallelism": {"tp": 2, "async_tp": True},
    "compile": {"enabled": True, "backend": "aot_eager"},
    "resources": {"world_size": 2},
}
COSINE = "does nothing with name='cosine', which decays from the warm-up to the end; "
LAYERS = (
    "legal: parts of output and of layers.0 to layers.3, each with attention.wq, attention.wo, "
    "attention.wk, attention.wv, feed_forward.w1, feed_forward.w2, feed_forward.w3"
)
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (
        OVERLAPPED,
        "/parallelism/async_tp",
        "async_tp=true does nothing with compile.backend='aot_eager'; legal: false, or "
        "compile.backend='inductor'",
    ),
    (
        {"lr_schedule": {"name": "cosine", "decay_steps": 20}},
        "/lr_schedule/decay_steps",
        f"decay_steps=20 {COSINE}legal: no decay_steps, or name='warmup_stable_decay'",
    ),
    (
        {"lr_schedule": {"name": "cosine", "decay_tokens": 20}},
        "/lr_schedule/decay_tokens",
        f"decay_tokens=20 {COSINE}legal: no decay_tokens, or name='warmup_stable_decay'",
    ),
    (
        {"lr_schedule": {"name": "cosine", "decay_shape": "sqrt"}},
        "/lr_schedule/decay_shape",
        f"decay_shape='sqrt' {COSINE}legal: no decay_shape, or name='warmup_stable_decay'",
    ),
    (
        {"quantization": {"recipe": "mxfp8", "exclude": ["output", "wx", "layers.4."]}},
        "/quantization/exclude",
        'exclude=["output", "wx", "layers.4."]: no layer has wx, layers.4. in its name; ' + LAYERS,
    ),
    (
        {"optimizer": {"no_decay": ["tok_embeddings", "attention_norm"]}},
        "/optimizer/no_decay",
        'no_decay=["tok_embeddings", "attention_norm"]: no layer has attention_norm in its name; '
        + LAYERS.replace("output", "tok_embeddings, output"),
    ),
    (
        {"retry": {"on": ["hang", "out_of_memory", "disk_limit"]}},
        "/retry/on",
        'on=["hang", "out_of_memory", "disk_limit"]: out_of_memory, disk_limit would recur in '
        "every retry and is never retried; legal: non_finite_loss, loss_spike, checkpoint_error, "
        "hang, node_lost, preempted, launch_error, trainer_error, program_error",
    ),
]


def warnings_of(document: dict[str, Any]) -> dict[str, str]:
    return {w.pointer: w.detail for w in plan(parse_job_spec(document)).warnings}


@pytest.mark.parametrize(("document", "pointer", "detail"), REFUSED)
def test_a_new_job_with_an_ignored_field_is_refused(
    document: dict[str, Any], pointer: str, detail: str
) -> None:
    with pytest.raises(SpecError) as refused:
        check_new_job(parse_job_spec(document))
    assert [(p.pointer, p.detail) for p in refused.value.problems] == [(pointer, detail)]


@pytest.mark.parametrize(("document", "pointer", "detail"), REFUSED)
def test_a_stored_job_with_an_ignored_field_continues_with_a_warning(
    document: dict[str, Any], pointer: str, detail: str
) -> None:
    stored = parse_job_spec(parse_job_spec(document).model_dump_json())
    check_job_spec(Overrides(steps=200).apply(stored))
    assert warnings_of(document)[pointer] == detail


@pytest.mark.parametrize(
    "document",
    [
        {"lr_schedule": {"name": "cosine"}},
        {"lr_schedule": {"decay_steps": 20, "decay_shape": "sqrt"}},
        {**OVERLAPPED, "compile": {"enabled": True}},
        {"quantization": {"recipe": "mxfp8", "exclude": ["output", "wq", "layers.3.feed"]}},
        {"quantization": {"recipe": "none", "exclude": ["of another model"]}},
        {"optimizer": {"no_decay": ["tok_embeddings", "wo"]}},
        {"optimizer": {"no_decay": ["wte"]}, "model": {"factory": "gpt:b"}},
        {"quantization": {"recipe": "mxfp8", "exclude": ["head"]}, "model": {"factory": "gpt:b"}},
    ],
)
def test_what_does_something_is_legal(document: dict[str, Any]) -> None:
    check_new_job(parse_job_spec(document))


def test_what_serves_another_layout_is_no_reason_to_refuse() -> None:
    axes: dict[str, Any] = {"dp_shard": 1, "pp": 2, "pp_schedule": "GPipe"}
    axes |= {"pp_layers_per_stage": 2, "pp_microbatches": 2}
    cut = {"parallelism": axes, "resources": {"world_size": 2}}
    assert "/parallelism/pp_schedule" not in warnings_of(cut)
    moved = parse_job_spec(cut).on_layout(Layout())
    check_new_job(moved)
    (warning,) = plan(moved).warnings
    assert warning.pointer == "/parallelism/pp_schedule"
    assert warning.detail == (
        "pp_schedule='GPipe' does nothing with pp=1; it applies to layouts with a pipeline"
    )
    whole = {"parallelism": {"pp_layers_per_stage": 2, "pp_microbatches": 2}}
    assert set(warnings_of(whole)) == {
        "/parallelism/pp_layers_per_stage",
        "/parallelism/pp_microbatches",
    }


def test_a_fixed_size_that_never_shrinks_is_said() -> None:
    given = {"resources": {"shrink_after_seconds": 30.0}}
    check_new_job(parse_job_spec(given))
    assert warnings_of(given) == {
        "/resources/shrink_after_seconds": "shrink_after_seconds=30 does nothing without "
        "min_world_size, max_world_size or spare_nodes"
    }
    assert warnings_of({"resources": {"shrink_after_seconds": 30.0, "max_world_size": 2}}) == {}
    spare = {"nodes": 1, "spare_nodes": 1}
    assert warnings_of({"resources": {"shrink_after_seconds": 30.0} | spare}) == {}


def test_a_budget_that_no_mode_keeps_is_said() -> None:
    given = {"activation_checkpoint": {"mode": "full", "memory_budget": 0.3}}
    check_new_job(parse_job_spec(given))
    assert warnings_of(given) == {
        "/activation_checkpoint/memory_budget": "memory_budget=0.3 does nothing with mode='full'"
    }
