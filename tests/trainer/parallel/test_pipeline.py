"""Pipelines equal one process: every schedule, any stages, any micro-batches."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tests.trainer.ranks import run_ranks
from tests.trainer.runs import Attempt, Meddling, SmallJob
from trainer.data.batches import NO_LABEL, MicroBatch
from trainer.loop.build import Assembly, assemble
from trainer.loop.clipping import clip_grad_norm
from trainer.parallel.mesh import MeshCoordinates
from trainyard.axes.pp import microbatches_of
from trainyard.protocol.attempt import Overrides
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.parallelism import ParallelismSection
from trainyard.training.batch_partition import BatchPartition

STEPS = 3
SEQ_LEN = 32
GLOBAL_BATCH = 16
TWO, FOUR = Layout(pp=2), Layout(pp=4)
WITH_FSDP, WITH_TP = Layout(pp=2, dp_shard=2), Layout(pp=2, tp=2)
# The embedding and the head alone, and a norm apart from its head.
UNEVEN = (
    ("tok_embeddings",),
    ("layers.0", "layers.1", "layers.2"),
    ("layers.3", "norm"),
    ("output",),
)


def make_spec(training: dict[str, Any], **parallelism: Any) -> JobSpec:
    shape = {"dim": 64, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 192, "vocab_size": 320}
    return parse_job_spec(
        {
            "model": {"size": "debug", "n_layers": 4, "dropout": 0.1, **shape},
            "training": {
                "seq_len": SEQ_LEN,
                "global_batch_size": GLOBAL_BATCH,
                "micro_batch_size": 2,
                "max_grad_norm": 0.5,
                **training,
            },
            "optimizer": {"lr": 1e-2},
            "parallelism": parallelism,
        }
    )


@dataclass
class Course:
    """The results of a rank; parameters and gradients of step 1, unsharded, not clipped."""

    parameters: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]
    losses: list[float]
    norms: list[float]
    evaluated: list[float]


def micro_batch(offsets: range, step: int) -> MicroBatch:
    """Return some of a step's sequences, which follow a learnable pattern."""
    positions = np.array(offsets or range(1)) + (step - 1) * GLOBAL_BATCH
    places = np.arange(SEQ_LEN + 1) * (1 + positions[:, None] % 3)
    window_BS = (positions[:, None] * 37 % 256 + places) % 256
    labels_BS = window_BS[:, 1:] if offsets else np.full((1, SEQ_LEN), NO_LABEL)
    # Two documents in each sequence.
    segments_BS = (np.arange(SEQ_LEN) > 8 + positions[:, None] % 16).astype(np.int32)
    return MicroBatch(window_BS[:, :-1], labels_BS, positions, int(bool(offsets)), segments_BS)


def train(
    assembly: Assembly, spec: JobSpec, *, partition: BatchPartition, layout: Layout
) -> Course:
    """Train a few steps, and evaluate some of their batches before they are trained on."""
    dp_rank = MeshCoordinates.of(dist.get_rank(), layout).dp
    model, optimizer, engine = assembly.model, assembly.optimizer, assembly.forward_backward
    course = Course({n: whole(p.detach()) for n, p in model.named_parameters()}, {}, [], [], [])
    for step in range(1, STEPS + 1):
        batches = [micro_batch(offsets, step) for offsets in partition.for_rank(dp_rank)]
        if step in {1, 3}:
            course.evaluated.append(_summed(engine.evaluate(batches), layout))
        course.losses.append(_summed(engine(step, batches), layout))
        if step == 1:
            course.gradients = {n: whole(p.grad).clone() for n, p in model.named_parameters()}
        limit = spec.training.max_grad_norm or 0
        norm = clip_grad_norm(optimizer, limit, stages=assembly.stages)
        course.norms.append(norm.item())
        optimizer.step()
        optimizer.zero_grad()
    return course


def whole(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def _summed(value: torch.Tensor, layout: Layout) -> float:
    dist.all_reduce(value)
    return value.item() / layout.tp  # of which all ranks compute the same


def train_on_layout(spec: JobSpec, layout: Layout, micro_batch_size: int) -> Course:
    assembly = assemble(spec, layout, torch.device("cpu"))
    partition = BatchPartition(GLOBAL_BATCH, micro_batch_size, layout.dp)
    return train(assembly, spec, partition=partition, layout=layout)


@cache
def reference() -> Course:
    """Train in one process, without any sharding, on the whole global batch in one pass."""
    course: Course = run_ranks(1, train_on_layout, make_spec({}), Layout(), GLOBAL_BATCH)[0]
    assert course.losses[-1] < course.losses[0] - 0.1, "the reference must learn"
    assert max(course.norms) > 0.5, "the reference must clip"
    return course


def run(spec: JobSpec, layout: Layout) -> list[Course]:
    return run_ranks(
        layout.world_size, train_on_layout, spec, layout, spec.training.micro_batch_size
    )


def check(courses: Sequence[Course]) -> None:
    """Compare the ranks' results with the reference."""
    expected = reference()
    held: dict[str, torch.Tensor] = {}
    for course in courses:
        assert course.losses == pytest.approx(expected.losses, rel=1e-5)
        assert course.evaluated == pytest.approx(expected.evaluated, rel=1e-5)
        assert course.norms == pytest.approx(expected.norms, rel=1e-4)
        assert course.norms == courses[0].norms, "ranks would clip differently"
        assert course.gradients.keys() == course.parameters.keys()
        held |= course.parameters
        for name, gradient in course.gradients.items():
            torch.testing.assert_close(gradient, expected.gradients[name], atol=1e-7, rtol=1e-4)
    assert held.keys() == expected.parameters.keys()
    assert all(torch.equal(held[name], w) for name, w in expected.parameters.items())


@pytest.mark.parametrize(
    ("layout", "schedule", "options"),
    [
        (TWO, "GPipe", {}),
        (TWO, "1F1B", {}),
        (TWO, "Interleaved1F1B", {}),
        (TWO, "InterleavedZeroBubble", {}),
        (TWO, "ZBVZeroBubble", {}),
        (TWO, "1F1B", {"pp_layers_per_stage": 3}),
        (TWO, "Interleaved1F1B", {"pp_stage_modules": UNEVEN}),
        (TWO, "ZBVZeroBubble", {"pp_microbatches": 4}),  # the schedule is run twice a step
        # Three runs of 3 for 8 micro-batches: the last one is filled up.
        (TWO, "ZBVZeroBubble", {"pp_microbatches": 3}),
        (FOUR, "1F1B", {}),
        (WITH_TP, "1F1B", {}),
        pytest.param(
            *(WITH_TP, "InterleavedZeroBubble", {"sequence_parallel": False}),
            marks=pytest.mark.slow,
        ),
        pytest.param(WITH_TP, "ZBVZeroBubble", {"loss_parallel": False}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_pipeline_computes_what_one_process_computes(
    layout: Layout, schedule: str, options: dict[str, Any]
) -> None:
    training = {"micro_batch_size": 4} if layout.tp > 1 else {}
    check(run(make_spec(training, pp_schedule=schedule, **options), layout))


@pytest.mark.parametrize(
    ("layout", "schedule", "size"),
    [
        (TWO, "InterleavedZeroBubble", 3),  # the last of 6 micro-batches holds one sequence
        (WITH_FSDP, "ZBVZeroBubble", 6),  # of the last two, one holds 4 sequences and one is idle
        pytest.param(WITH_FSDP, "1F1B", 6, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_micro_batches_with_fewer_sequences_are_filled_up(
    layout: Layout, schedule: str, size: int
) -> None:
    partition = BatchPartition(GLOBAL_BATCH, size, layout.dp)
    rounds = [offsets for rank in range(layout.dp) for offsets in partition.for_rank(rank)]
    assert {len(offsets) for offsets in rounds} - {size}, "all micro-batches are full"
    check(run(make_spec({"micro_batch_size": size}, pp_schedule=schedule), layout))


def test_a_run_that_is_filled_up_leaves_no_trace(tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(
        tmp_path,
        model={"n_layers": 4},
        data={"path": "data:documents", "document_masks": True, "validation_fraction": 0.1},
        training={"steps": 4, "global_batch_size": 10, "micro_batch_size": 2},
        lr_schedule={"warmup_steps": 1},
        validation={"interval_steps": 2, "batches": 2},
        parallelism={"pp_schedule": "Interleaved1F1B"},
    )
    job.write_documents()
    assert microbatches_of(parse_job_spec(job.spec).facts(TWO)) == 6, "of which a step has 5"
    alone, filled = job.launch(1, Layout()), job.launch(2, TWO)
    assert filled.digests == alone.digests
    for name in ("train/lr", "train/tokens", "train/sequences"):
        assert filled.values(name) == alone.values(name)
    for name in ("train/loss", "train/grad_norm", "validation/loss"):
        assert filled.values(name) == pytest.approx(alone.values(name), rel=1e-5)


SHARDED_SCHEDULES = "GPipe", "Interleaved1F1B", "InterleavedZeroBubble"
# Each schedule and each mode once.
DAILY = {("GPipe", "default"), ("Interleaved1F1B", "never"), ("InterleavedZeroBubble", "always")}


@pytest.mark.parametrize(
    ("schedule", "reshard"),
    [
        pytest.param(*pair, marks=[] if pair in DAILY else [pytest.mark.slow])
        for pair in product(SHARDED_SCHEDULES, ("default", "always", "never"))
    ],
)
def test_stages_can_be_sharded(schedule: str, reshard: str) -> None:
    check(run(make_spec({}, pp_schedule=schedule, reshard_after_forward=reshard), WITH_FSDP))


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        # Two runs of 3 for 4 micro-batches: gradients are reduced at the end of each run.
        (Layout(pp=2, dp_replicate=2), {"pp_schedule": "1F1B", "pp_microbatches": 3}),
        (
            WITH_FSDP,
            {
                "pp_schedule": "ZBVZeroBubble",
                "pp_stage_modules": UNEVEN,
                "reshard_after_forward": "always",
            },
        ),
    ],
    ids=str,
)
def test_stages_are_sharded_however_they_are_cut(layout: Layout, options: dict[str, Any]) -> None:
    check(run(make_spec({}, **options), layout))


@pytest.mark.parametrize(
    ("layout", "schedule", "mode"),
    [(WITH_FSDP, "ZBVZeroBubble", "full"), (TWO, "Interleaved1F1B", "selective")],
    ids=str,
)
def test_activations_can_be_computed_again(layout: Layout, schedule: str, mode: str) -> None:
    section = make_spec({}).activation_checkpoint.model_copy(update={"mode": mode})
    spec = make_spec({}, pp_schedule=schedule)
    check(run(spec.model_copy(update={"activation_checkpoint": section}), layout))


@pytest.mark.parametrize(
    ("layout", "schedule"),
    [
        (TWO, "ZBVZeroBubble"),
        pytest.param(WITH_FSDP, "1F1B", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_bfloat16_trains_close_to_float32(layout: Layout, schedule: str) -> None:
    expected = reference()
    for course in run(make_spec({"param_dtype": "bfloat16"}, pp_schedule=schedule), layout):
        assert course.losses == pytest.approx(expected.losses, rel=1e-2)
        assert course.losses != pytest.approx(expected.losses, rel=1e-6), "it computed in float32"
        assert {w.dtype for w in course.parameters.values()} == {torch.float32}


def _streams_held(spec: JobSpec) -> int:
    """Return the number of residual streams that a rank holds between two steps."""
    assembly = assemble(spec, TWO, torch.device("cpu"))
    batches = [
        micro_batch(offsets, 1) for offsets in BatchPartition(GLOBAL_BATCH, 2, 1).for_rank(0)
    ]
    for step in (1, 2):
        assembly.forward_backward(step, batches)
    gc.collect()
    shape = (2, SEQ_LEN, spec.architecture.dim)
    tensors = [held for held in gc.get_objects() if isinstance(held, torch.Tensor)]
    return sum(t.shape == shape and not t.is_meta for t in tensors)


@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble"])
def test_memory_for_what_is_received_is_given_back(schedule: str) -> None:
    assert run_ranks(2, _streams_held, make_spec({}, pp_schedule=schedule)) == [0, 0]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Attempt:
    """An uninterrupted job on two ranks that shard its weights."""
    return _job(tmp_path_factory.mktemp("whole")).launch(1, Layout(dp_shard=2))


def _job(folder: Path) -> SmallJob:
    return SmallJob(folder).changed(folder, training={"steps": 20}, model={"n_layers": 4})


@pytest.mark.slow  # test_layout_chain.py goes through a pipeline daily
def test_a_job_that_moves_to_a_pipeline_and_back_is_the_same_job(
    uninterrupted: Attempt, tmp_path: Path
) -> None:
    job = _job(tmp_path)
    zero_bubble = ParallelismSection(pp=2, pp_schedule="ZBVZeroBubble", pp_microbatches=2)
    legs: list[tuple[Layout, int | None, Overrides]] = [
        (Layout(dp_shard=2), 5, Overrides()),
        (WITH_FSDP, 10, Overrides(parallelism=zero_bubble)),
        (TWO, 15, Overrides()),
        (Layout(), None, Overrides()),
    ]
    attempts, resume = [], None
    for number, (layout, stop_at, overrides) in enumerate(legs, start=1):
        meddling = Meddling(stop_after=stop_at - 1 if stop_at else None)
        attempt = job.launch(number, layout, meddling, resume=resume, overrides=overrides)
        assert attempt.outcome.checkpoint_id is not None
        resume = job.committed()[attempt.outcome.checkpoint_id]
        attempts.append(attempt)
    digests = {step: digest for a in attempts for step, digest in a.digests.items()}
    assert digests == uninterrupted.digests
    assert len(digests) == 20
    for name in ("train/loss", "train/grad_norm"):
        values = {step: value for a in attempts for step, value in a.values(name).items()}
        expected = uninterrupted.values(name)
        assert values == pytest.approx({step: expected[step] for step in values}, rel=1e-4)
