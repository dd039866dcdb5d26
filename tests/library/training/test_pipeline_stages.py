"""Stages of a pipeline: how the model is cut, who runs what, and in how many micro-batches."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.axes.pp import microbatches_of, stages_of
from trainyard.base.problems import SpecError
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.training.pipeline_schedule import PipelineSchedule, can_run, rank_of_stage, runs_of
from trainyard.training.pipeline_stages import head_cost, module_names

EIGHT_LAYERS = {"n_layers": 8}
SCHEDULES: tuple[PipelineSchedule, ...] = (
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
)


def document(pp: int = 2, *, model: dict[str, Any] = EIGHT_LAYERS, **axes: Any) -> dict[str, Any]:
    training = axes.pop("training", {})
    sections = {"model": model, "training": training, "parallelism": {"pp": pp, **axes}}
    return sections | {"resources": {"world_size": pp}}


def job(pp: int = 2, *, model: dict[str, Any] = EIGHT_LAYERS, **axes: Any) -> JobSpec:
    return parse_job_spec(document(pp, model=model, **axes))


def layers_of(spec: JobSpec) -> list[int]:
    return [stage.layers for stage in stages_of(spec.facts(Layout(pp=spec.parallelism.pp)))]


def cut_and_dealt(spec: JobSpec) -> tuple[int, int]:
    layout = Layout(pp=spec.parallelism.pp)
    return len(stages_of(spec.facts(layout))), microbatches_of(spec.facts(layout))


def refusal(spec: JobSpec) -> tuple[str, str]:
    with pytest.raises(SpecError) as refused:
        cut_and_dealt(spec)
    (problem,) = refused.value.problems
    return problem.pointer, problem.detail


@given(
    schedule=st.sampled_from(SCHEDULES),
    pp=st.integers(2, 9),
    n_layers=st.integers(18, 60),
    vocab_size=st.integers(300, 20_000),
)
def test_every_module_stands_in_one_stage_and_every_rank_has_as_many(
    schedule: PipelineSchedule, pp: int, n_layers: int, vocab_size: int
) -> None:
    model = {"n_layers": n_layers, "vocab_size": vocab_size}
    spec = job(pp, model=model, pp_schedule=schedule)
    stages = stages_of(spec.facts(Layout(pp=pp)))
    assert [stage.index for stage in stages] == list(range(len(stages)))
    names = [name for stage in stages for name in stage.modules]
    assert tuple(names) == module_names(spec.architecture)
    per_rank = [[s.index for s in stages if s.rank == rank] for rank in range(pp)]
    assert {len(of_rank) for of_rank in per_rank} == {len(stages) // pp}
    # No stage could give a layer to another and leave the longest shorter.
    costs = [float(stage.layers) for stage in stages]
    costs[0] += 0.1
    costs[-1] += head_cost(spec.architecture, seq_len=spec.training.seq_len)
    for stage, cost in zip(stages, costs, strict=True):
        assert stage.layers == 1 or cost <= min(costs) + 1 + 1e-9


def test_the_head_of_8b_counts_for_two_blocks() -> None:
    spec = job(4, model={"size": "8B"}, training={"seq_len": 8192})
    assert head_cost(spec.architecture, seq_len=spec.training.seq_len) == pytest.approx(
        525.3 / (218.1 + 33.6), rel=1e-3
    )
    assert layers_of(spec) == [8, 9, 9, 6]
    assert layers_of(job(2, model={"size": "debug"})) == [2, 2]


def test_one_stage_holds_everything_without_a_pipeline() -> None:
    (stage,) = stages_of(job(1).facts(Layout(dp_shard=4)))
    assert stage.modules == module_names(job(1).architecture)
    assert stage.modules[0] == "tok_embeddings"
    assert stage.modules[-2:] == ("norm", "output")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_go_round_or_there_and_back(schedule: PipelineSchedule) -> None:
    ranks = [stage.rank for stage in stages_of(job(2, pp_schedule=schedule).facts(Layout(pp=2)))]
    expected = {"GPipe": [0, 1], "1F1B": [0, 1], "ZBVZeroBubble": [0, 1, 1, 0]}
    assert ranks == expected.get(schedule, [0, 1, 0, 1])
    assert [rank_of_stage("ZBVZeroBubble", i, pp=3) for i in range(6)] == [0, 1, 2, 2, 1, 0]


def test_layers_per_stage_leave_the_rest_to_the_last() -> None:
    assert layers_of(job(2, pp_layers_per_stage=5)) == [5, 3]
    assert layers_of(job(2, pp_schedule="Interleaved1F1B", pp_layers_per_stage=1)) == [1] * 8


def test_stages_may_be_given_by_name() -> None:
    first = ["tok_embeddings", "layers.0"]
    last = [*(f"layers.{i}" for i in range(1, 8)), "norm", "output"]
    stages = stages_of(job(2, pp_stage_modules=[first, last]).facts(Layout(pp=2)))
    assert [list(stage.modules) for stage in stages] == [first, last]


MODULES = ["tok_embeddings", *(f"layers.{i}" for i in range(8)), "norm", "output"]
LEGAL = "legal: tok_embeddings, layers.0 to layers.7, norm, output, each once and in this order"
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (
        {"pp": 9},
        "pp",
        "pp=9 with 1F1B makes 9 stages, but the model has 8 layers; legal: pp up to 8",
    ),
    (
        {"pp": 5, "pp_schedule": "ZBVZeroBubble"},
        "pp",
        "pp=5 with ZBVZeroBubble makes 10 stages, but the model has 8 layers; legal: pp up to 4",
    ),
    (
        {"pp_layers_per_stage": 2},
        "pp_layers_per_stage",
        "pp_layers_per_stage=2 cuts 8 layers into 4 stages, but 1F1B on pp=2 needs 2; "
        "nearest legal: 4",
    ),
    (
        {"pp_layers_per_stage": 3, "pp_schedule": "Interleaved1F1B"},
        "pp_layers_per_stage",
        "pp_layers_per_stage=3 cuts 8 layers into 3 stages, but Interleaved1F1B on pp=2 needs a "
        "multiple of 2 from 4 on; nearest legal: 2",
    ),
    (
        {"pp_layers_per_stage": 8, "pp_schedule": "ZBVZeroBubble"},
        "pp_layers_per_stage",
        "pp_layers_per_stage=8 cuts 8 layers into 1 stages, but ZBVZeroBubble on pp=2 needs 4; "
        "nearest legal: 2",
    ),
    (
        {"pp_layers_per_stage": 4, "pp_stage_modules": [MODULES[:4], MODULES[4:]]},
        "pp_stage_modules",
        "pp_layers_per_stage=4 gives stages too; legal: one of them",
    ),
    ({"pp_stage_modules": [MODULES[:4], MODULES[5:]]}, "pp_stage_modules", "missing: layers.3"),
    (
        {"pp_stage_modules": [MODULES[:5], MODULES[4:]]},
        "pp_stage_modules",
        "given twice: layers.3",
    ),
    (
        {"pp_stage_modules": [MODULES[4:], MODULES[:4]]},
        "pp_stage_modules",
        "out of order: layers.3, layers.4, layers.5, ...",
    ),
    (
        {"pp_stage_modules": [MODULES, ["layers.8"]]},
        "pp_stage_modules",
        "unknown: layers.8",
    ),
    (
        {"pp_stage_modules": [MODULES, []]},
        "pp_stage_modules",
        "stage 1 has no module; legal: one or more in each",
    ),
    (
        {"pp_stage_modules": [MODULES[:2], MODULES[2:4], MODULES[4:]]},
        "pp_stage_modules",
        "3 stages, but 1F1B on pp=2 needs other numbers; legal: 2",
    ),
    (
        {"pp": 1, "pp_stage_modules": [MODULES]},
        "pp_stage_modules",
        "pp=1 has no pipeline; legal: no stages, or pp from 2 on",
    ),
    (
        {"pp": 4, "training": {"global_batch_size": 8}},
        "pp",
        "1F1B on pp=4 needs at least 4 micro-batches on each rank, but dp=1 leaves 2 of "
        "global_batch_size=8 with micro_batch_size=4; legal: pp up to 2, micro_batch_size up to 2, "
        "or another pp_schedule",
    ),
    (
        {"pp_microbatches": 5},
        "pp_microbatches",
        "1F1B on pp=2 cannot run pp_microbatches=5 together: a rank has 4 micro-batches in a "
        "step; nearest legal: 4",
    ),
    (
        {
            "pp": 4,
            "pp_microbatches": 11,
            "pp_schedule": "Interleaved1F1B",
            "training": {"global_batch_size": 22, "micro_batch_size": 1},
        },
        "pp_microbatches",
        "Interleaved1F1B on pp=4 cannot run pp_microbatches=11 together: a rank has 22 "
        "micro-batches in a step; nearest legal: 10, 12",
    ),
]


@pytest.mark.parametrize(("axes", "field", "detail"), REFUSED, ids=[row[2] for row in REFUSED])
def test_what_cannot_be_cut_or_run_is_named(axes: dict[str, Any], field: str, detail: str) -> None:
    pointer, said = refusal(job(**axes))
    assert pointer == f"/parallelism/{field}"
    assert said.endswith((detail, f"{detail}; {LEGAL}"))


def test_micro_batches_are_all_of_a_step_or_those_given() -> None:
    training = {"global_batch_size": 24, "micro_batch_size": 1}
    layout = Layout(dp_shard=2, pp=2)
    assert microbatches_of(job(training=training).facts(layout)) == 12
    assert microbatches_of(job(training=training, pp_microbatches=5).facts(layout)) == 5
    assert [m for m in range(1, 13) if can_run("Interleaved1F1B", m, pp=4)] == [
        *(1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
    ]


@pytest.mark.parametrize(
    ("schedule", "rounds", "microbatches", "runs"),
    [
        ("Interleaved1F1B", 22, 24, 1),  # six groups of four, two of all without a sequence
        ("Interleaved1F1B", 13, 15, 1),
        ("Interleaved1F1B", 3, 3, 1),
        ("InterleavedZeroBubble", 22, 24, 1),
        ("InterleavedZeroBubble", 13, 7, 2),  # the unused work of 15 takes longer
        ("GPipe", 13, 13, 1),
        ("1F1B", 13, 13, 1),
        ("ZBVZeroBubble", 13, 13, 1),
    ],
)
def test_a_run_is_filled_up_where_that_makes_the_step_shorter(
    schedule: str, rounds: int, microbatches: int, runs: int
) -> None:
    training = {"global_batch_size": rounds, "micro_batch_size": 1}
    spec, layout = job(4, training=training, pp_schedule=schedule), Layout(pp=4)
    assert microbatches_of(spec.facts(layout)) == microbatches
    assert runs_of(rounds, microbatches) == runs
