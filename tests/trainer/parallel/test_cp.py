"""Context parallelism equals one process: values, gradients, whole courses."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.trainer.parallel.test_parallelize import Course, train
from tests.trainer.ranks import run_ranks
from tests.trainer.runs import Attempt, Meddling, SmallJob
from trainer.models.attention import CausalAttention
from trainer.models.documents import document_mask
from trainer.models.families import build_model
from trainer.models.initial_weights import init_weights
from trainer.parallel.cp import AllGatherAttention, UlyssesAttention
from trainer.parallel.inputs import attended_tokens, stream_tokens
from trainer.parallel.mesh import MeshCoordinates, build_mesh, fsdp_mesh
from trainer.parallel.parallelize import parallelize
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.training.batch_partition import BatchPartition

METHODS = "allgather_kv", "ulysses"
SEQ_LEN = 32


def make_spec(method: str = "allgather_kv", /, **sections: dict[str, Any]) -> JobSpec:
    document: dict[str, dict[str, Any]] = {
        "model": {"size": "debug", "n_layers": 2, "dropout": 0.1},
        "training": {
            "seq_len": SEQ_LEN,
            "global_batch_size": 16,
            "micro_batch_size": 8,
            "max_grad_norm": 0.5,
        },
        "optimizer": {"lr": 3e-3},
        "parallelism": {"cp_method": method},
    }
    return parse_job_spec({**document, **{n: document.get(n, {}) | s for n, s in sections.items()}})


# ---- which tokens -------------------------------------------------------------------------------


def _tokens(spec: JobSpec, layout: Layout) -> list[tuple[list[int], list[int]]]:
    places = [MeshCoordinates.of(rank, layout) for rank in range(layout.world_size)]
    attended = [attended_tokens(spec, layout, place) for place in places]
    streams = [
        stream_tokens(a, spec, layout=layout, coordinates=p)
        for a, p in zip(attended, places, strict=True)
    ]
    return [(a.tolist(), s.tolist()) for a, s in zip(attended, streams, strict=True)]


def test_a_rank_has_one_chunk_from_the_front_and_one_from_the_back() -> None:
    spec = make_spec(training={"seq_len": 8})
    assert _tokens(spec, Layout(cp=2)) == [([0, 1, 6, 7],) * 2, ([2, 3, 4, 5],) * 2]


def test_with_ulysses_a_rank_has_one_part() -> None:
    spec = make_spec("ulysses", training={"seq_len": 8})
    assert _tokens(spec, Layout(cp=2)) == [([0, 1, 2, 3],) * 2, ([4, 5, 6, 7],) * 2]


def test_sequence_parallel_ranks_share_out_the_stream_of_their_part() -> None:
    spec = make_spec(training={"seq_len": 8})
    attended = [0, 1, 6, 7], [2, 3, 4, 5]
    assert _tokens(spec, Layout(cp=2, tp=2)) == [
        (attended[0], [0, 1]),
        (attended[0], [6, 7]),
        (attended[1], [2, 3]),
        (attended[1], [4, 5]),
    ]
    whole = make_spec(training={"seq_len": 8}, parallelism={"sequence_parallel": False})
    assert [a == s for a, s in _tokens(whole, Layout(cp=2, tp=2))] == [True] * 4


# ---- attention alone ----------------------------------------------------------------------------


def _heads(kv_heads: int) -> list[Tensor]:
    """Return queries, keys, values, and the outputs' weights in the loss: whole sequences."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(3, heads, SEQ_LEN, 16, generator=generator)
        for heads in (8, kv_heads, kv_heads, 8)
    ]


def _segments(documents: bool) -> Tensor | None:
    if not documents:
        return None
    lengths = torch.tensor([3, 7, 20])[:, None]
    return (torch.arange(SEQ_LEN) // lengths).int()


def _attend(
    attend: CausalAttention, inputs: list[Tensor], *, tokens_T: Tensor, mask: Any
) -> list[Tensor]:
    """Return the mixed values of some tokens, and the gradients of a loss over them."""
    q, k, v, weights = (x[:, :, tokens_T].contiguous() for x in inputs)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    mixed = attend(q, k, v, mask)
    return [mixed.detach(), *torch.autograd.grad((mixed * weights).sum(), (q, k, v))]


def _attend_on_a_rank(method: str, kv_heads: int, documents: bool) -> tuple[Tensor, list[Tensor]]:
    spec, layout = make_spec(method), Layout(cp=dist.get_world_size())
    tokens_T = attended_tokens(spec, layout, MeshCoordinates.of(dist.get_rank(), layout))
    group = build_mesh(layout, "cpu")["cp"].get_group()
    attend: CausalAttention
    if method == "ulysses":
        attend, queries = UlyssesAttention(group), torch.arange(SEQ_LEN)
    else:
        attend, queries = AllGatherAttention(group, SEQ_LEN), tokens_T
    segments_BS = _segments(documents)
    mask = None if segments_BS is None else document_mask(segments_BS, queries)
    return tokens_T, _attend(attend, _heads(kv_heads), tokens_T=tokens_T, mask=mask)


@pytest.mark.parametrize("documents", [False, True], ids=["", "documents"])
@pytest.mark.parametrize(
    ("method", "cp", "kv_heads"),
    [
        ("allgather_kv", 2, 8),
        ("allgather_kv", 4, 2),
        ("allgather_kv", 2, 1),
        ("ulysses", 2, 2),
        ("ulysses", 4, 4),
        ("ulysses", 4, 8),
    ],
)
def test_ranks_attend_as_one_does(method: str, cp: int, kv_heads: int, documents: bool) -> None:
    everything_S = torch.arange(SEQ_LEN)
    segments_BS = _segments(documents)
    mask = None if segments_BS is None else document_mask(segments_BS, everything_S)
    expected = _attend(CausalAttention(), _heads(kv_heads), tokens_T=everything_S, mask=mask)
    held: list[int] = []
    for tokens_T, results in run_ranks(cp, _attend_on_a_rank, method, kv_heads, documents):
        held += tokens_T.tolist()
        for result, whole in zip(results, expected, strict=True):
            torch.testing.assert_close(result, whole[:, :, tokens_T], atol=2e-6, rtol=1e-5)
    assert sorted(held) == list(range(SEQ_LEN))


def _compiled_and_eager(method: str) -> tuple[list[Tensor], list[Tensor]]:
    spec, layout = make_spec(method), Layout(cp=2)
    tokens_T = attended_tokens(spec, layout, MeshCoordinates.of(dist.get_rank(), layout))
    group = build_mesh(layout, "cpu")["cp"].get_group()
    attend = UlyssesAttention(group) if method == "ulysses" else AllGatherAttention(group, SEQ_LEN)
    compiled: Any = torch.compile(attend, backend="aot_eager", fullgraph=True)
    inputs = _heads(4)
    return _attend(compiled, inputs, tokens_T=tokens_T, mask=None), _attend(
        attend, inputs, tokens_T=tokens_T, mask=None
    )


@pytest.mark.parametrize("method", METHODS)
def test_attention_compiles_into_one_graph(method: str) -> None:
    for compiled, eager in run_ranks(2, _compiled_and_eager, method):
        torch.testing.assert_close(compiled, eager)


# ---- the whole model ----------------------------------------------------------------------------


@cache
def reference(documents: bool, tied: bool, kv_heads: int) -> Course:
    """Train in this process, without any layout, on the whole global batch in one pass."""
    spec = make_spec(**_sections(documents, tied, kv_heads))
    model = build_model(spec).to_empty(device="cpu")
    init_weights(model, spec.training.seed)
    return train(model, spec, partition=BatchPartition(16, 16, 1), dp_rank=0)


def _sections(documents: bool, tied: bool, kv_heads: int) -> dict[str, dict[str, Any]]:
    shape = {"dim": 64, "n_heads": 4, "ffn_dim": 192, "vocab_size": 320, "n_kv_heads": kv_heads}
    return {
        "data": {"document_masks": documents},
        "model": {**shape, "size": "1B" if tied else "debug"},
    }


def train_on_layout(spec: JobSpec, layout: Layout) -> Course:
    model = build_model(spec)
    parallelize(model, build_mesh(layout, "cpu"), spec=spec, layout=layout)
    model.to_empty(device="cpu")
    init_weights(model, spec.training.seed)
    partition = BatchPartition(16, spec.training.micro_batch_size, layout.dp)
    return train(
        model, spec, partition=partition, dp_rank=MeshCoordinates.of(dist.get_rank(), layout).dp
    )


@pytest.mark.parametrize(
    ("layout", "method", "options"),
    [
        (Layout(cp=2), "allgather_kv", {}),
        (Layout(cp=2), "allgather_kv", {"documents": True}),
        (Layout(cp=2), "ulysses", {"documents": True}),
        (Layout(cp=2), "ulysses", {"tied": True}),
        (Layout(cp=4), "allgather_kv", {}),
        (Layout(dp_shard=2, cp=2), "allgather_kv", {"documents": True}),
        (Layout(dp_shard=2, cp=2), "ulysses", {}),
        (Layout(dp_replicate=2, dp_shard=1, cp=2), "allgather_kv", {}),
        (Layout(cp=2, tp=2), "allgather_kv", {"documents": True}),
        (Layout(cp=2, tp=2), "ulysses", {"kv_heads": 4}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (Layout(cp=4), "ulysses", {"kv_heads": 4}),
                (Layout(dp_replicate=2, dp_shard=1, cp=2), "ulysses", {"documents": True}),
                (Layout(dp_replicate=2, dp_shard=1, cp=2, tp=2), "allgather_kv", {}),
            )
        ),
    ],
    ids=str,
)
def test_a_layout_computes_what_one_process_computes(
    layout: Layout, method: str, options: dict[str, Any]
) -> None:
    given = {"documents": False, "tied": False, "kv_heads": 2} | options
    expected = reference(**given)
    assert expected.losses[-1] < expected.losses[0] - 0.1, "the reference must learn"
    assert max(expected.norms) > 0.5, "the reference must clip"
    spec = make_spec(method, **_sections(**given))
    for course in run_ranks(layout.world_size, train_on_layout, spec, layout):
        losses = [loss / layout.tp for loss in course.losses]  # each rank of a group has it
        assert losses == pytest.approx(expected.losses, rel=1e-5)
        assert course.norms == pytest.approx(expected.norms, rel=1e-4)
        assert course.gradients.keys() == expected.gradients.keys()
        for name, gradient in expected.gradients.items():
            torch.testing.assert_close(course.gradients[name], gradient, atol=1e-7, rtol=1e-4)


def test_documents_change_what_is_learnt() -> None:
    with_masks, without = (reference(masks, tied=False, kv_heads=2) for masks in (True, False))
    assert with_masks.losses != pytest.approx(without.losses, rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_bfloat16_trains_close_to_float32(method: str) -> None:
    sections = _sections(documents=True, tied=False, kv_heads=2)
    spec = make_spec(method, **sections, training={"param_dtype": "bfloat16"})
    expected = reference(documents=True, tied=False, kv_heads=2)
    for course in run_ranks(2, train_on_layout, spec, Layout(cp=2)):
        assert course.losses == pytest.approx(expected.losses, rel=1e-2)
        assert course.losses != pytest.approx(expected.losses, rel=1e-6), "it computed in float32"


def _logits(spec: JobSpec, changed_document: int) -> tuple[Tensor, Tensor, Tensor]:
    layout = Layout(cp=2)
    model = build_model(spec)
    parallelize(model, build_mesh(layout, "cpu"), spec=spec, layout=layout)
    model.to_empty(device="cpu")
    init_weights(model, 0)
    segments_BS = _segments(documents=True)
    assert segments_BS is not None
    tokens_BS = torch.randint(0, 256, (3, SEQ_LEN), generator=torch.Generator().manual_seed(3))
    tokens_BS = tokens_BS.where(segments_BS != changed_document, 255 - tokens_BS)
    mine_S = model.positions.attended
    with torch.no_grad():
        logits_BSV = model(tokens_BS[:, mine_S], segments_BS=segments_BS)
    return mine_S, segments_BS[:, mine_S], logits_BSV


@pytest.mark.parametrize("method", METHODS)
def test_a_document_knows_nothing_of_another(method: str) -> None:
    before = run_ranks(2, _logits, make_spec(method), -1)
    after = run_ranks(2, _logits, make_spec(method), 1)
    for (_, segments_BS, before_BSV), (_, _, after_BSV) in zip(before, after, strict=True):
        assert (segments_BS == 1).any()
        assert torch.equal(before_BSV[segments_BS != 1], after_BSV[segments_BS != 1])
        assert not (before_BSV == after_BSV)[segments_BS == 1].all(-1).any()


# ---- the mesh -----------------------------------------------------------------------------------


def _groups(layout: Layout) -> list[list[int]]:
    mesh = fsdp_mesh(build_mesh(layout, "cpu"))
    return [dist.get_process_group_ranks(mesh.get_group(dim)) for dim in range(mesh.ndim)]


def test_replicas_parts_of_sequences_and_of_matrices_keep_to_their_ranks() -> None:
    layout = Layout(dp_replicate=2, dp_shard=1, cp=2, tp=2)
    for rank, (replicas, shards) in enumerate(run_ranks(8, _groups, layout)):
        replica, tp = rank // 4, rank % 2
        assert replicas == [rank % 4, rank % 4 + 4]
        assert shards == [4 * replica + tp, 4 * replica + 2 + tp]


# ---- a job --------------------------------------------------------------------------------------


@pytest.mark.slow  # test_layout_chain.py goes through context parallelism daily
def test_a_job_moves_to_context_parallelism_and_back(tmp_path: Path) -> None:
    steps = 24
    whole_job = SmallJob(tmp_path / "whole")
    training = {"steps": steps}
    data = {"document_masks": True}
    whole_job = whole_job.changed(tmp_path / "whole", training=training, data=data)
    whole = whole_job.launch(1, Layout(dp_shard=2))
    job = whole_job.changed(tmp_path / "moved")
    attempts: list[Attempt] = []
    resume = None
    legs = [(Layout(dp_shard=2), 8), (Layout(cp=2), 16), (Layout(), steps)]
    for number, (layout, stop_at) in enumerate(legs, start=1):
        stop_after = stop_at - 1 if stop_at < steps else None
        attempt = job.launch(number, layout, Meddling(stop_after=stop_after), resume=resume)
        assert attempt.outcome.step == stop_at
        assert attempt.outcome.checkpoint_id is not None
        resume = job.committed()[attempt.outcome.checkpoint_id]
        attempts.append(attempt)
    digests = {step: digest for a in attempts for step, digest in a.digests.items()}
    assert digests == whole.digests
    losses = {s: loss for a in attempts for s, loss in a.values("train/loss").items()}
    assert losses == pytest.approx(whole.values("train/loss"), rel=1e-4)
    assert losses[steps] < 0.9 * losses[1], "it learns, so that equal losses mean something"
