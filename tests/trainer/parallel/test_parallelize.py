"""Layouts equal one process: losses, gradients, policies, precision."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tests.trainer.ranks import run_ranks
from trainer.data.batches import NO_LABEL, MicroBatch
from trainer.loop.clipping import clip_grad_norm
from trainer.loop.optimizer import build_optimizer
from trainer.loop.step import MicroBatchLoop
from trainer.models.base import Model
from trainer.models.families import Llama, build_model
from trainer.models.initial_weights import init_weights
from trainer.parallel.mesh import MeshCoordinates, build_mesh
from trainer.parallel.parallelize import parallelize
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.training.batch_partition import BatchPartition

STEPS = 3
SEQ_LEN = 32


def make_spec(*, tied: bool = False, **training: Any) -> JobSpec:
    shape = {"size": "1B" if tied else "debug", "n_layers": 2}
    if tied:
        shape |= {"dim": 64, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 192, "vocab_size": 320}
    return parse_job_spec(
        {
            "model": {**shape, "dropout": 0.1},
            "training": {
                "seq_len": SEQ_LEN,
                "global_batch_size": 16,
                "micro_batch_size": 4,
                "max_grad_norm": 0.5,
                **training,
            },
            "optimizer": {"lr": 3e-3},
        }
    )


@dataclass
class Course:
    """The results of a run; gradients of the first step, unsharded and before clipping."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]


def micro_batch(offsets: range, step: int, *, documents: bool = False) -> MicroBatch:
    """Return some of a step's sequences, which follow a learnable pattern.

    With `documents` each consists of documents, whose length depends on the sequence.
    """
    positions = np.array(offsets or range(1)) + (step - 1) * 16
    places = np.arange(SEQ_LEN + 1) * (1 + positions[:, None] % 3)
    window_BS = (positions[:, None] * 37 % 256 + places) % 256
    labels_BS = window_BS[:, 1:] if offsets else np.full((1, SEQ_LEN), NO_LABEL)
    segments_BS = (np.arange(SEQ_LEN) // (3 + positions[:, None] % 11)).astype(np.int32)
    return MicroBatch(
        window_BS[:, :-1],
        labels_BS,
        positions,
        weight=int(bool(offsets)),
        segments=segments_BS if documents else None,
    )


def train(model: Model, spec: JobSpec, *, partition: BatchPartition, dp_rank: int) -> Course:
    """Train a few steps as the trainer's loop does, over any partition of the global batch."""
    optimizer = build_optimizer(model, spec)
    run = MicroBatchLoop(model, spec, torch.device("cpu"))
    course = Course([], [], {}, {})
    for step in range(1, STEPS + 1):
        documents = spec.data.document_masks
        loss = run(
            step, [micro_batch(o, step, documents=documents) for o in partition.for_rank(dp_rank)]
        )
        if dist.is_initialized():
            dist.all_reduce(loss)
        if step == 1:
            course.gradients = {n: whole(p.grad).clone() for n, p in model.named_parameters()}
        norm = clip_grad_norm(optimizer, spec.training.max_grad_norm or 0)
        optimizer.step()
        optimizer.zero_grad()
        course.losses.append(loss.item())
        course.norms.append(norm.item())
    course.parameters = {n: whole(p.detach()) for n, p in model.named_parameters()}
    return course


def whole(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@cache
def reference(*, tied: bool = False) -> Course:
    """Train in this process, without any sharding, on the whole global batch in one pass."""
    spec = make_spec(tied=tied)
    model = Llama(spec.architecture, seq_len=SEQ_LEN, dropout=spec.model.dropout)
    init_weights(model, spec.training.seed)
    return train(model, spec, partition=BatchPartition(16, 16, 1), dp_rank=0)


def _train_on_layout(spec: JobSpec, layout: Layout) -> Course:
    model = build_model(spec)
    parallelize(model, build_mesh(layout, "cpu"), spec=spec, layout=layout)
    model.to_empty(device="cpu")
    init_weights(model, spec.training.seed)
    partition = BatchPartition(16, spec.training.micro_batch_size, layout.dp)
    return train(
        model, spec, partition=partition, dp_rank=MeshCoordinates.of(dist.get_rank(), layout).dp
    )


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        (Layout(), {}),
        (Layout(dp_shard=2), {}),
        (Layout(dp_shard=2), {"micro_batch_size": 3}),  # the last micro-batch holds one sequence
        (Layout(dp_shard=2), {"tied": True}),
        (Layout(dp_shard=3), {}),  # uneven shards, and two idle ranks in the last round
        (Layout(dp_replicate=2, dp_shard=2), {}),
        (Layout(dp_replicate=2, dp_shard=1), {}),
    ],
    ids=str,
)
def test_a_layout_computes_what_one_process_computes(
    layout: Layout, options: dict[str, Any]
) -> None:
    spec = make_spec(**options)
    if layout.dp == 3:
        assert range(0) in BatchPartition(16, 4, 3).for_rank(2)
    expected = reference(tied=options.get("tied", False))
    assert expected.losses[-1] < expected.losses[0] - 0.1, "the reference must learn"
    assert max(expected.norms) > 0.5, "the reference must clip"
    for course in run_ranks(layout.world_size, _train_on_layout, spec, layout):
        assert course.losses == pytest.approx(expected.losses, rel=1e-5)
        assert course.norms == pytest.approx(expected.norms, rel=1e-4)
        assert course.gradients.keys() == expected.gradients.keys()
        for name, gradient in expected.gradients.items():
            torch.testing.assert_close(course.gradients[name], gradient, atol=1e-7, rtol=1e-4)


def test_every_rank_ends_with_the_same_weights() -> None:
    layout = Layout(dp_replicate=2, dp_shard=2)
    first, *others = run_ranks(4, _train_on_layout, make_spec(), layout)
    for other in others:
        assert other.losses == first.losses
        assert other.norms == first.norms
        assert all(torch.equal(other.parameters[n], w) for n, w in first.parameters.items())


@pytest.mark.parametrize(
    ("layout", "reduce_dtype"),
    [
        (Layout(), "float32"),
        (Layout(dp_shard=2), "float32"),
        (Layout(dp_replicate=2, dp_shard=1), "bfloat16"),
    ],
    ids=str,
)
def test_bfloat16_trains_close_to_float32(layout: Layout, reduce_dtype: str) -> None:
    spec = make_spec(param_dtype="bfloat16", reduce_dtype=reduce_dtype)
    expected = reference()
    for course in run_ranks(layout.world_size, _train_on_layout, spec, layout):
        assert course.losses == pytest.approx(expected.losses, rel=1e-2)
        assert course.losses != pytest.approx(expected.losses, rel=1e-6), "it computed in float32"
        assert {w.dtype for w in course.parameters.values()} == {torch.float32}


def _gathered_after_forward(spec: JobSpec, layout: Layout) -> tuple[set[str], set[str]]:
    """Return the parameters that stayed gathered after a forward pass, and the freed ones."""
    model = build_model(spec)
    stages = parallelize(model, build_mesh(layout, "cpu"), spec=spec, layout=layout)
    model.to_empty(device="cpu")
    init_weights(model, 0)
    for stage in stages.values():
        # Without an embedding a stage continues from the residual stream of the previous one.
        first = stage.tok_embeddings is not None
        width = () if first else (spec.architecture.dim,)
        stage(torch.zeros(1, SEQ_LEN, *width, dtype=torch.int64 if first else torch.float32))
    freed = {name for name, p in model.named_parameters() if isinstance(p, DTensor)}
    return {name for name, _ in model.named_parameters()} - freed, freed


def _with_policy(policy: str, *, tied: bool = False) -> JobSpec:
    spec = make_spec(tied=tied)
    section = spec.parallelism.model_copy(update={"reshard_after_forward": policy})
    return spec.model_copy(update={"parallelism": section})


@pytest.mark.parametrize(
    ("layout", "tied"),
    [
        (Layout(dp_shard=2), False),
        (Layout(dp_shard=2), True),
        (Layout(dp_replicate=2, dp_shard=2), False),
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", ["default", "always", "never"])
def test_weights_are_freed_after_forward_as_the_policy_says(
    policy: str, layout: Layout, tied: bool
) -> None:
    last = {"norm.weight", "tok_embeddings.weight" if tied else "output.weight"}
    spec = _with_policy(policy, tied=tied)
    for gathered, freed in run_ranks(layout.world_size, _gathered_after_forward, spec, layout):
        names = gathered | freed
        assert last < names
        assert gathered == {"default": last, "always": set(), "never": names}[policy]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("policy", ["default", "always", "never"])
def test_stages_of_a_pipeline_keep_their_weights_unless_told_otherwise(
    policy: str, replicas: int
) -> None:
    layout = Layout(dp_replicate=replicas, dp_shard=2, pp=2)
    held = run_ranks(layout.world_size, _gathered_after_forward, _with_policy(policy), layout)
    per_stage = layout.world_size // 2
    for rank, (gathered, freed) in enumerate(held):
        own = {"tok_embeddings.weight"} if rank < per_stage else {"norm.weight", "output.weight"}
        names = gathered | freed
        assert own < names, "blocks too"
        assert gathered == (set() if policy == "always" else names)


def _mesh_of(layout: Layout) -> tuple[tuple[str, ...], dict[str, int]]:
    mesh = build_mesh(layout, "cpu")
    names = mesh.mesh_dim_names
    assert names is not None
    return names, {name: mesh.get_local_rank(name) for name in names}


def test_ranks_are_ordered_as_the_layout_says() -> None:
    layout = Layout(pp=2, dp_replicate=1, dp_shard=2, tp=2)
    for rank, (names, place) in enumerate(run_ranks(8, _mesh_of, layout)):
        assert names == ("pp", "dp_shard", "tp")
        assert place == {"pp": rank // 4, "dp_shard": rank // 2 % 2, "tp": rank % 2}
