"""Tensor parallelism equals one process: losses, gradients, norms, weights."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tests.trainer.parallel.test_parallelize import Course, make_spec, train
from tests.trainer.ranks import RankError, run_ranks
from tests.trainer.runs import Attempt, Meddling, SmallJob
from trainer.models import initial_weights
from trainer.models.attention import Attention
from trainer.models.base import Model
from trainer.models.families import build_model
from trainer.models.head import TokenLoss
from trainer.models.initial_weights import init_weights
from trainer.parallel.compile import compile_blocks
from trainer.parallel.mesh import MeshCoordinates, build_mesh
from trainer.parallel.own_model import SplitLogitsLoss
from trainer.parallel.parallelize import parallelize
from trainer.parallel.split_loss import GatheredTokenLoss, SplitTokenLoss
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.parallelism import CompileSection
from trainyard.training import logit_chunks as specs_loss
from trainyard.training.architectures import Architecture
from trainyard.training.batch_partition import BatchPartition

Sections = dict[str, dict[str, Any]]


def changed(spec: JobSpec, **sections: dict[str, Any]) -> JobSpec:
    """Return a spec with some fields of some sections changed."""
    update = {name: getattr(spec, name).model_copy(update=new) for name, new in sections.items()}
    return spec.model_copy(update=update)


class NormedHeads(Attention):
    """Attention with a norm per head: one weight, which each rank applies to its own heads."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__(arch)
        self.head_norm = nn.RMSNorm(arch.head_dim, eps=arch.norm_eps)

    def _heads(self, x: Tensor) -> Tensor:
        normed: Tensor = self.head_norm(super()._heads(x))
        return normed


def _model(spec: JobSpec, *, normed: bool) -> Model:
    model = build_model(spec)
    if normed:
        with torch.device("meta"):
            for layer in model.layers.values():
                layer.attention = NormedHeads(spec.architecture)
    return model


def _train_on_layout(spec: JobSpec, layout: Layout, normed: bool, compiled: bool) -> Course:
    model = _model(spec, normed=normed)
    parallelize(model, build_mesh(layout, "cpu"), spec=spec, layout=layout)
    compile_blocks(model.layers.values(), CompileSection(enabled=compiled, backend="aot_eager"))
    model.to_empty(device="cpu")
    init_weights(model, spec.training.seed)
    partition = BatchPartition(16, spec.training.micro_batch_size, layout.dp)
    course = train(
        model, spec, partition=partition, dp_rank=MeshCoordinates.of(dist.get_rank(), layout).dp
    )
    course.losses = [loss / layout.tp for loss in course.losses]  # each rank of a group has it
    return course


@cache
def reference(spec_json: str, *, normed: bool) -> Course:
    """Train in this process on the whole global batch in one pass."""
    spec = parse_job_spec(spec_json)
    model = _model(spec, normed=normed)
    model.to_empty(device="cpu")
    init_weights(model, spec.training.seed)
    return train(model, spec, partition=BatchPartition(16, 16, 1), dp_rank=0)


def expect_same(
    spec: JobSpec, layout: Layout, *, normed: bool = False, compiled: bool = False
) -> list[Course]:
    """Train on a layout, compare every rank with one process, and return the ranks' results."""
    expected = reference(make_plain(spec).model_dump_json(), normed=normed)
    courses = run_ranks(layout.world_size, _train_on_layout, spec, layout, normed, compiled)
    for course in courses:
        assert course.losses == pytest.approx(expected.losses, rel=1e-5)
        assert course.norms == pytest.approx(expected.norms, rel=1e-4)
        assert course.gradients.keys() == expected.gradients.keys()
        for name, gradient in expected.gradients.items():
            torch.testing.assert_close(course.gradients[name], gradient, atol=1e-7, rtol=1e-4)
        assert course.losses == courses[0].losses
        assert course.norms == courses[0].norms
        for name, weight in course.parameters.items():
            assert torch.equal(weight, courses[0].parameters[name]), name
    return courses


def make_plain(spec: JobSpec) -> JobSpec:
    """Return the spec without the fields of its layout."""
    return changed(
        spec,
        parallelism={"sequence_parallel": True, "loss_parallel": True},
        training={"micro_batch_size": 4},
    )


WHOLE_STREAM = {"sequence_parallel": False}
GATHERED_LOGITS = {"loss_parallel": False}
TWO_ROUNDS: Sections = {"training": {"micro_batch_size": 8}}  # of one rank
HEADS_OF_4: Sections = {"model": {"n_heads": 8, "n_kv_heads": 4}}


@pytest.mark.parametrize(
    ("layout", "sections"),
    [
        (Layout(tp=2), {}),
        (Layout(tp=2), {"training": {"micro_batch_size": 3}}),  # the last one holds one sequence
        (Layout(tp=2), TWO_ROUNDS | {"parallelism": WHOLE_STREAM}),
        (Layout(tp=2), TWO_ROUNDS | {"parallelism": GATHERED_LOGITS}),
        (Layout(tp=4), TWO_ROUNDS | HEADS_OF_4),
        (Layout(dp_shard=2, tp=2), {}),
        (Layout(dp_replicate=2, dp_shard=1, tp=2), {}),
        (Layout(dp_shard=3, tp=2), {}),  # uneven shards of shards, and idle ranks
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (Layout(tp=2), {"parallelism": WHOLE_STREAM | GATHERED_LOGITS}),
                (Layout(dp_shard=2, tp=2), {"parallelism": WHOLE_STREAM}),
                (Layout(dp_replicate=2, dp_shard=2, tp=2), {}),
            )
        ),
    ],
    ids=str,
)
def test_it_computes_what_one_process_computes(layout: Layout, sections: Sections) -> None:
    expect_same(changed(make_spec(), **sections), layout)


WHOLE_STREAM_TOO = pytest.param(WHOLE_STREAM, marks=pytest.mark.slow)


@pytest.mark.parametrize("parallelism", [{}, WHOLE_STREAM_TOO, GATHERED_LOGITS], ids=str)
def test_tied_embeddings_are_one_weight(parallelism: dict[str, Any]) -> None:
    spec = changed(make_spec(tied=True, micro_batch_size=8), parallelism=parallelism)
    expect_same(spec, Layout(dp_shard=2, tp=2))


@pytest.mark.parametrize(
    ("layout", "parallelism"),
    [
        (Layout(dp_shard=2, tp=2), {}),
        (Layout(tp=2), WHOLE_STREAM),
        pytest.param(Layout(dp_shard=2, tp=2), WHOLE_STREAM, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_weights_shared_by_all_heads_sum_up_their_gradients(
    layout: Layout, parallelism: dict[str, Any]
) -> None:
    spec = changed(make_spec(micro_batch_size=8), parallelism=parallelism)
    courses = expect_same(spec, layout, normed=True)
    assert courses[0].gradients["layers.0.attention.head_norm.weight"].any()


@pytest.mark.parametrize("parallelism", [{}, WHOLE_STREAM_TOO], ids=str)
def test_blocks_can_be_compiled(parallelism: dict[str, Any]) -> None:
    spec = changed(make_spec(micro_batch_size=8), parallelism=parallelism)
    expect_same(spec, Layout(tp=2), compiled=True)


@pytest.mark.parametrize("parallelism", [{}, WHOLE_STREAM_TOO], ids=str)
def test_bfloat16_trains_close_to_float32(parallelism: dict[str, Any]) -> None:
    spec = changed(
        make_spec(param_dtype="bfloat16", reduce_dtype="float32", micro_batch_size=8),
        parallelism=parallelism,
    )
    expected = reference(make_spec().model_dump_json(), normed=False)
    layout = Layout(dp_shard=2, tp=2)
    for course in run_ranks(4, _train_on_layout, spec, layout, False, False):
        assert course.losses == pytest.approx(expected.losses, rel=1e-2)
        assert course.losses != pytest.approx(expected.losses, rel=1e-6), "it computed in float32"
        assert {w.dtype for w in course.parameters.values()} == {torch.float32}


def _differing_weights(spec: JobSpec, layout: Layout) -> dict[str, int]:
    """Count, by name, the elements that differ from those of a model in one process."""
    initial_weights.BLOCK_ELEMENTS = 3000  # so that shards start inside blocks, and hold several
    model, plain = build_model(spec), build_model(spec)
    parallelize(model, build_mesh(layout, "cpu"), spec=spec, layout=layout)
    for one in (model, plain):
        one.to_empty(device="cpu")
        init_weights(one, 5)
    expected = dict(plain.named_parameters())
    differing = {}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        assert "tp" in (parameter.device_mesh.mesh_dim_names or ())
        differing[name] = int((parameter.full_tensor() != expected[name]).sum())
    assert differing.keys() == expected.keys()
    return differing


@pytest.mark.parametrize("layout", [Layout(tp=2), Layout(dp_shard=3, tp=2)], ids=str)
def test_initial_weights_are_bit_equal(layout: Layout) -> None:
    for differing in run_ranks(layout.world_size, _differing_weights, make_spec(), layout):
        assert set(differing.values()) == {0}, differing


B, S, D, V = 2, 6, 8, 12
CHUNKS = 5  # of the 12 tokens: the last one is short


def _draw() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x_BSD = torch.randn(B, S, D, generator=generator)
    labels_BS = torch.randint(0, V, (B, S), generator=generator)
    labels_BS[0, 1:4] = -100
    return x_BSD, torch.randn(V, D, generator=generator), labels_BS


def _split_loss(kind: type[SplitTokenLoss]) -> tuple[Tensor, ...]:
    specs_loss.LOGITS_PER_CHUNK = CHUNKS * V
    mesh = init_device_mesh("cpu", (2,))
    x_BSD, weight_VD, labels_BS = _draw()
    loss_of = kind(Shard(1), mesh)
    mine_BSD = x_BSD.chunk(2, dim=1)[dist.get_rank()].clone().requires_grad_()
    split_VD = distribute_tensor(weight_VD, mesh, [Shard(0)]).requires_grad_()
    loss = loss_of(mine_BSD, split_VD, labels_BS)
    (loss / 7).backward()
    assert mine_BSD.grad is not None
    assert isinstance(split_VD.grad, DTensor)
    x_grad = DTensor.from_local(mine_BSD.grad, mesh, [Shard(1)])
    with torch.no_grad():
        evaluated = loss_of(mine_BSD, split_VD, labels_BS)
        logits_BSV = loss_of.logits(mine_BSD, split_VD)
    idle = loss_of(mine_BSD, split_VD, torch.full_like(labels_BS, -100))
    gradients = x_grad.full_tensor(), split_VD.grad.full_tensor()
    return loss.detach(), evaluated, *gradients, logits_BSV, idle.detach()


@pytest.mark.parametrize("kind", [SplitTokenLoss, GatheredTokenLoss])
def test_the_split_loss_is_that_of_whole_logits(kind: type[SplitTokenLoss]) -> None:
    x_BSD, weight_VD, labels_BS = _draw()
    x_BSD.requires_grad_()
    weight_VD.requires_grad_()
    expected = TokenLoss()(x_BSD, weight_VD, labels_BS)
    (expected / 7).backward()
    logits_BSV = F.linear(x_BSD, weight_VD).detach()
    zero = torch.zeros(())
    for results in run_ranks(2, _split_loss, kind):
        wanted = expected.detach(), expected.detach(), x_BSD.grad, weight_VD.grad, logits_BSV, zero
        torch.testing.assert_close(results, wanted)


def _strange_label() -> Tensor:
    mesh = init_device_mesh("cpu", (2,))
    x_BSD, weight_VD, labels_BS = _draw()
    labels_BS[0, 0] = V
    mine_BSD = x_BSD.chunk(2, dim=1)[dist.get_rank()].clone()
    split_VD = distribute_tensor(weight_VD, mesh, [Shard(0)])
    loss: Tensor = SplitTokenLoss(Shard(1), mesh)(mine_BSD, split_VD, labels_BS)
    return loss.detach()


def test_a_label_that_is_no_token_of_any_rank_shows_in_the_loss() -> None:
    assert all(loss.isinf() for loss in run_ranks(2, _strange_label))


def _logits_in_another_order() -> list[bool]:
    seen = []

    class Seeing(SplitTokenLoss):
        def loss_of_logits(
            self, logits_CV: Tensor, labels_C: Tensor, *, gradients: bool
        ) -> tuple[Tensor, Tensor | None]:
            seen.append(logits_CV.is_contiguous())
            return super().loss_of_logits(logits_CV, labels_C, gradients=gradients)

    mesh = init_device_mesh("cpu", (2,))
    loss_of = SplitLogitsLoss(mesh)
    loss_of._of_rows = Seeing(Replicate(), mesh)
    rows_1SR = torch.randn(1, V // 2, S).transpose(1, 2).requires_grad_()
    logits_1SV = DTensor.from_local(rows_1SR, mesh, [Shard(2)])
    loss_of(logits_1SV, torch.zeros(1, S, dtype=torch.int64)).backward()
    return seen


def test_the_loss_of_an_own_model_takes_logits_in_any_order_of_memory() -> None:
    """The kernels of a GPU read the logits of a token one after another."""
    assert run_ranks(2, _logits_in_another_order) == [[True], [True]]


def _overlap(spec: JobSpec) -> None:
    parallelize(build_model(spec), build_mesh(Layout(tp=2), "cpu"), spec=spec, layout=Layout(tp=2))


def test_overlapping_communication_needs_cuda() -> None:
    spec = changed(make_spec(), parallelism={"async_tp": True})
    with pytest.raises(RankError, match=r"LaunchError: .*async_tp=true needs symmetric memory"):
        run_ranks(2, _overlap, spec)


@pytest.mark.slow  # test_layout_chain.py goes through tensor parallel ranks daily
def test_a_job_moves_to_tensor_parallel_ranks_and_back(tmp_path: Path) -> None:
    steps = {"training": {"steps": 15}}
    whole = SmallJob(tmp_path).changed(tmp_path / "whole", **steps).launch(1, Layout(dp_shard=2))
    job = SmallJob(tmp_path).changed(tmp_path / "moved", **steps)
    attempts: list[Attempt] = []
    resume = None
    for layout, last in (Layout(dp_shard=4), 5), (Layout(dp_shard=2, tp=2), 10), (Layout(), 15):
        meddling = Meddling(stop_after=last - 1 if last < 15 else None)
        attempt = job.launch(len(attempts) + 1, layout, meddling, resume=resume)
        assert attempt.outcome.step == last
        assert attempt.outcome.checkpoint_id is not None
        resume = job.committed()[attempt.outcome.checkpoint_id]
        attempts.append(attempt)
    assert {s: d for a in attempts for s, d in a.digests.items()} == whole.digests
    losses = {s: loss for a in attempts for s, loss in a.values("train/loss").items()}
    assert losses == pytest.approx(whole.values("train/loss"), rel=1e-4)
    assert losses[15] < 0.97 * losses[1], "it learns, so that equal losses mean something"
