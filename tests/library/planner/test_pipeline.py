"""Pipelines: memory and idle time of ranks, against a simulation of torch's schedules."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from torch.distributed.pipelining import schedules

from tests.library.planner.specs_for_tests import job, slots_of
from trainyard.planner.memory import estimate_memory
from trainyard.planner.parameters import count_parameters
from trainyard.planner.pipeline_cost import plan_pipeline
from trainyard.planner.plan import plan
from trainyard.planner.rank_contents import parts_of
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.training.batch_partition import BatchPartition
from trainyard.training.pipeline_schedule import (
    PipelineSchedule,
    bubble_share,
    can_run,
    default_stages_per_rank,
    in_flight,
    rank_of_stage,
)

Action = tuple[int, str, int]  # stage, F, B, I or W, micro-batch

SCHEDULES: tuple[PipelineSchedule, ...] = (
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
)
CASES = [
    (schedule, pp, stages, m)
    for schedule in SCHEDULES
    for pp in (2, 3, 4)
    for stages in ((1,) if schedule in {"GPipe", "1F1B"} else (2,) if "V" in schedule else (2, 3))
    for m in (1, 2, 4, 6, 8, 9, 12)
    if can_run(schedule, m, pp=pp)
]


def actions_of(
    schedule: PipelineSchedule, *, pp: int, stages_per_rank: int, microbatches: int
) -> dict[int, list[Action]]:
    """Return each rank's actions of torch's schedule, in order."""
    if schedule == "1F1B":  # written as a loop there, without a list
        return {rank: list(_one_forward_one_backward(pp, microbatches, rank)) for rank in range(pp)}
    cls: Any = schedules.get_schedule_class(schedule)
    made = cls.__new__(cls)
    made._n_microbatches, made._num_stages = microbatches, pp * stages_per_rank
    if schedule == "GPipe":
        order = made._get_pipeline_order()
    else:
        made.pp_group_size, made.n_local_stages = pp, stages_per_rank
        made.num_stages = pp * stages_per_rank
        made.number_of_rounds = max(1, microbatches // pp)
        made.microbatches_per_round = microbatches // made.number_of_rounds
        order = {rank: made._calculate_single_rank_operations(rank) for rank in range(pp)}
    return {
        rank: [
            (action.stage_index, action.computation_type.value, action.microbatch_index)
            for action in actions
            if action is not None and action.computation_type.value in "FBIW"
        ]
        for rank, actions in order.items()
    }


def _one_forward_one_backward(pp: int, microbatches: int, rank: int) -> Iterator[Action]:
    ahead = min(microbatches, pp - rank)
    yield from ((rank, "F", m) for m in range(ahead))
    for m in range(microbatches):
        yield rank, "B", m
        if ahead + m < microbatches:
            yield rank, "F", ahead + m


@pytest.mark.parametrize(("schedule", "pp", "stages_per_rank", "microbatches"), CASES)
def test_no_rank_holds_more_than_is_said(
    schedule: PipelineSchedule, pp: int, stages_per_rank: int, microbatches: int
) -> None:
    shape = {"pp": pp, "stages_per_rank": stages_per_rank, "microbatches": microbatches}
    for rank, actions in actions_of(schedule, **shape).items():
        held = most = 0
        for _, kind, _ in actions:
            held += {"F": 1, "B": -1, "W": -1, "I": 0}[kind]
            most = max(most, held)
        assert held == 0
        said = in_flight(schedule, **shape, rank=rank)
        # ZB-V is designed for at least 2 p - 1 micro-batches, and omits some of fewer ones.
        few = schedule == "ZBVZeroBubble" and microbatches < 2 * pp - 1
        assert said >= most if few else said == most


@pytest.mark.parametrize(("schedule", "pp", "stages_per_rank", "microbatches"), CASES)
def test_the_bubble_is_that_of_the_schedule_played_out(
    schedule: PipelineSchedule, pp: int, stages_per_rank: int, microbatches: int
) -> None:
    shape = {"pp": pp, "stages_per_rank": stages_per_rank, "microbatches": microbatches}
    time = play(actions_of(schedule, **shape), schedule, pp=pp, stages=pp * stages_per_rank)
    waits = 1 - 3 * microbatches * stages_per_rank / time
    assert bubble_share(schedule, **shape) == pytest.approx(waits)


def length_of_a_step(spec: JobSpec) -> int:
    """Return the simulated duration of the runs of a plan, one after another."""
    made, pp = plan(spec).pipeline, spec.parallelism.pp
    assert made is not None
    per_rank, m = len(made.layers) // pp, made.microbatches
    shape = {"pp": pp, "stages_per_rank": per_rank, "microbatches": m}
    time = play(actions_of(made.schedule, **shape), made.schedule, pp=pp, stages=len(made.layers))
    assert made.bubble_share == pytest.approx(1 - 3 * per_rank * m / time)
    rounds = plan(spec).batch.rounds
    assert made.runs * m == rounds + made.empty
    assert made.empty < m, "a run would hold nothing"
    return made.runs * time


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("rounds", [4, 7, 13, 22])
def test_a_step_is_the_shortest_that_the_schedule_can_run(
    schedule: PipelineSchedule, rounds: int
) -> None:
    def length(**given: int) -> int:
        training = {"global_batch_size": rounds, "micro_batch_size": 1}
        axes = {"pp": 4, "pp_schedule": schedule, **given}
        spec = job(4, model={"n_layers": 8}, training=training, parallelism=axes)
        return length_of_a_step(spec)

    given = [m for m in range(1, rounds + 1) if can_run(schedule, m, pp=4)]
    assert length() <= min(length(pp_microbatches=m) for m in given)


def play(
    actions: dict[int, list[Action]], schedule: PipelineSchedule, *, pp: int, stages: int
) -> int:
    """Return when the last action ends: forward takes 1, backward 2, either half of it 1."""
    ended: dict[Action, int] = {}
    clock = dict.fromkeys(actions, 0)
    place = Counter[int]()
    while any(place[rank] < len(todo) for rank, todo in actions.items()):
        moved = False
        for rank, todo in actions.items():
            if place[rank] == len(todo):
                continue
            stage, kind, m = action = todo[place[rank]]
            assert rank == rank_of_stage(schedule, stage, pp=pp)
            needed = list(_needed(stage, kind, m=m, stages=stages))
            if all(any(n in ended for n in ways) for ways in needed):
                ready = [ended[n] for ways in needed for n in ways if n in ended]
                clock[rank] = max([clock[rank], *ready]) + (2 if kind == "B" else 1)
                ended[action] = clock[rank]
                place[rank] += 1
                moved = True
        assert moved, "the schedule cannot go on"
    return max(clock.values())


def _needed(stage: int, kind: str, *, m: int, stages: int) -> Iterator[list[Action]]:
    if kind == "F" and stage > 0:
        yield [(stage - 1, "F", m)]
    if kind in "BI":
        yield [(stage, "F", m)]
        if stage < stages - 1:
            yield [(stage + 1, "B", m), (stage + 1, "I", m)]
    if kind == "W":
        yield [(stage, "I", m)]


def test_the_plan_names_stages_and_waiting() -> None:
    spec = job(
        4,
        model={"n_layers": 8},
        training={"global_batch_size": 16, "micro_batch_size": 1},
        parallelism={
            "pp": 2,
            "dp_shard": 2,
            "pp_schedule": "Interleaved1F1B",
            "pp_microbatches": 4,
        },
    )
    made = plan(spec).pipeline
    assert made is not None
    assert made.layers == (2, 2, 2, 2)
    assert (made.microbatches, made.runs, made.empty) == (4, 2, 0)
    assert made.bubble_share == pytest.approx(1 / (2 * 4 + 1))
    assert plan_pipeline(spec, Layout(dp_shard=4), BatchPartition(16, 1, 4)) is None


def test_long_waits_are_said() -> None:
    training = {"global_batch_size": 16, "micro_batch_size": 8}
    (warning,) = plan(job(2, training=training, parallelism={"pp": 2})).warnings
    assert (warning.pointer, warning.detail) == (
        "/parallelism/pp",
        "pipeline ranks wait 33 % of the time: 1F1B runs 2 micro-batches through 2 stages; more of "
        "them (a smaller micro_batch_size) or fewer stages wait less",
    )


def test_many_empty_micro_batches_are_said() -> None:
    training = {"global_batch_size": 10, "micro_batch_size": 1}
    axes = {"pp": 2, "pp_microbatches": 8}
    (warning,) = plan(job(2, training=training, parallelism=axes)).warnings
    assert (warning.pointer, warning.detail) == (
        "/parallelism/pp_microbatches",
        "6 of the 16 micro-batches of a rank hold no sequence: 1F1B cannot skip them, because each "
        "run has 8 micro-batches",
    )


def test_parts_hold_the_whole_model_together() -> None:
    for schedule in SCHEDULES:
        spec = job(4, model={"n_layers": 12}, parallelism={"pp": 4, "pp_schedule": schedule})
        counted = count_parameters(spec.architecture)
        parts = parts_of(spec, Layout(pp=4))
        assert sum(part.parameters(counted) for part in parts) == counted.total
        assert sum(part.layers for part in parts) == 12
        assert [part.embedding for part in parts] == [True, False, False, False]
        last = 0 if schedule == "ZBVZeroBubble" else 3
        assert [rank for rank, part in enumerate(parts) if part.head] == [last]
        assert default_stages_per_rank(schedule) == (1 if schedule in {"GPipe", "1F1B"} else 2)


def totals(**axes: Any) -> dict[str, int]:
    training = {"global_batch_size": 32, "micro_batch_size": 1, "seq_len": 4096}
    found: dict[str, int] = defaultdict(int)
    for schedule in SCHEDULES:
        spec = job(
            4,
            model={"size": "8B"},
            training=training | {"param_dtype": "bfloat16"},
            parallelism={"pp": 4, "pp_schedule": schedule, **axes},
        )
        layout = Layout(pp=4)
        found[schedule] = estimate_memory(spec, layout, BatchPartition(32, 1, 1)).total
    return found


def test_gpipe_holds_all_micro_batches_and_the_others_a_bounded_number() -> None:
    every = totals()
    assert every["GPipe"] > 2 * max(every[name] for name in SCHEDULES if name != "GPipe")
    few = totals(pp_microbatches=8)
    assert few["GPipe"] < every["GPipe"]
    assert few["1F1B"] == every["1F1B"]


def test_the_plan_names_the_micro_batches_with_which_gpipe_fits() -> None:
    def warned(**axes: Any) -> dict[str, str]:
        spec = job(
            4,
            model={"size": "8B"},
            training={
                "seq_len": 4096,
                "micro_batch_size": 1,
                "global_batch_size": 30,
                "param_dtype": "bfloat16",
            },
            parallelism={"pp": 4, "pp_schedule": "GPipe", **axes},
            compile={"enabled": False},
        )
        made = plan(spec, slots=slots_of(140 * 2**30))
        return {warning.pointer: warning.detail for warning in made.warnings}

    said = warned()["/parallelism/pp_microbatches"]
    assert said == (
        "GPipe keeps the activations of all micro-batches of a run; pp_microbatches=15 fits, with "
        "2 runs per step"
    )
    assert "/training/micro_batch_size" not in warned(pp_microbatches=15)
    assert "/training/micro_batch_size" in warned(pp_microbatches=16)


@pytest.mark.parametrize("mode", ["always", "never"])
def test_a_pipeline_keeps_weights_and_gradients_whole_in_every_mode(mode: str) -> None:
    default, chosen = (
        job(
            8,
            model={"size": "8B"},
            training={"global_batch_size": 32, "micro_batch_size": 1, "param_dtype": "bfloat16"},
            parallelism={"pp": 4, "dp_shard": 2, "reshard_after_forward": setting},
        )
        for setting in ("default", mode)
    )
    layout, partition = Layout(dp_shard=2, pp=4), BatchPartition(32, 1, 2)
    assert estimate_memory(chosen, layout, partition) == estimate_memory(default, layout, partition)


def test_a_pipeline_of_llama_8b_is_estimated_within_a_twentieth_of_what_was_counted() -> None:
    spec = job(
        8,
        model={"size": "8B", "n_layers": 8},
        training={
            "seq_len": 2048,
            "global_batch_size": 16,
            "micro_batch_size": 1,
            "param_dtype": "bfloat16",
        },
        activation_checkpoint={"mode": "full"},
        parallelism={"pp": 2, "dp_shard": 4},
    )
    found = estimate_memory(spec, Layout(dp_shard=4, pp=2), BatchPartition(16, 1, 4))
    counted = 15.05 * 2**30  # of rank 0, by benchmarks.reshard: tensors, hence without the slack
    assert found.total - found.slack == pytest.approx(counted, rel=0.05)
