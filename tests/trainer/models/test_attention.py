"""Attention against its definition, and with separated documents."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trainer.models.attention import CausalAttention, Positions
from trainer.models.documents import BLOCK, attend_within_documents, block_mask, dense_mask
from trainer.models.families import Llama
from trainer.models.initial_weights import init_weights
from trainyard.training.architectures import ARCHITECTURES


def by_definition(q_BHQW: Tensor, k_BKSW: Tensor, *, v_BKSW: Tensor, seen_BQS: Tensor) -> Tensor:
    """Return softmax(q k / sqrt(W)) v over what each query sees."""
    group = q_BHQW.shape[1] // k_BKSW.shape[1]
    k_BHSW, v_BHSW = (x.repeat_interleave(group, dim=1) for x in (k_BKSW, v_BKSW))
    scores_BHQS = q_BHQW @ k_BHSW.transpose(2, 3) / q_BHQW.shape[3] ** 0.5
    mixed: Tensor = scores_BHQS.masked_fill(~seen_BQS[:, None], -torch.inf).softmax(-1) @ v_BHSW
    return mixed


def heads(seed: int, *, kv_heads: int, tokens: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(2, count, tokens, 16, generator=generator, requires_grad=True)
        for count in (4, kv_heads, kv_heads)
    ]


def packed(tokens: int) -> Tensor:
    """Return the documents of two sequences, cut at other places: int32 [2, S]."""
    cuts = [tokens // 5, tokens // 2, tokens // 2 + 1], [0, tokens // 3]
    places = torch.arange(tokens)
    rows = [sum((places >= cut).int() for cut in row) for row in cuts]
    return torch.stack([torch.as_tensor(row, dtype=torch.int32) for row in rows])


def sees(segments_BS: Tensor, queries_Q: Tensor) -> Tensor:
    """Return which tokens each query sees, one pair at a time: [B, Q, S]."""
    return torch.tensor(
        [[[k <= q and row[q] == row[k] for k in range(len(row))] for q in queries_Q.tolist()]
         for row in segments_BS.tolist()]
    )  # fmt: skip


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_attention_is_what_its_definition_says(kv_heads: int, documents: bool) -> None:
    S = 24
    inputs = q, k, v = heads(0, kv_heads=kv_heads, tokens=S)
    segments_BS = packed(S) if documents else torch.zeros(2, S, dtype=torch.int32)
    everything_S = torch.arange(S)
    mask = dense_mask(segments_BS, everything_S) if documents else None
    weights = torch.randn(2, 4, S, 16)

    expected = by_definition(q, k, v_BKSW=v, seen_BQS=sees(segments_BS, everything_S))
    expected_gradients = torch.autograd.grad((expected * weights).sum(), inputs)
    mixed = CausalAttention()(*inputs, mask)
    gradients = torch.autograd.grad((mixed * weights).sum(), inputs)
    torch.testing.assert_close(mixed, expected)
    torch.testing.assert_close(gradients, expected_gradients)


QUERIES = {
    "all": torch.arange(500),
    "two chunks": torch.cat((torch.arange(100, 220), torch.arange(260, 380))),
    "both ends": torch.cat((torch.arange(128), torch.arange(372, 500))),
}


@pytest.mark.parametrize("queries_Q", QUERIES.values(), ids=QUERIES)
def test_blocks_hold_what_single_scores_say(queries_Q: Tensor) -> None:
    segments_BS = packed(500)
    seen_BQS = dense_mask(segments_BS, queries_Q)[:, 0]
    torch.testing.assert_close(seen_BQS, sees(segments_BS, queries_Q))
    blocks = block_mask(segments_BS, queries_Q)
    Q, S = blocks.seq_lengths
    assert blocks.seq_lengths == (len(queries_Q), 500)

    checked = _set_blocks(blocks.kv_num_blocks, blocks.kv_indices)
    assert blocks.full_kv_num_blocks is not None
    assert blocks.full_kv_indices is not None
    full = _set_blocks(blocks.full_kv_num_blocks, blocks.full_kv_indices)
    assert not (checked & full).any()
    assert not (checked | full).all(), "some blocks are left out"
    inside = [x.repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2) for x in (checked, full)]
    padded_BQS = torch.zeros_like(inside[0])
    padded_BQS[:, :Q, :S] = seen_BQS
    assert not (padded_BQS & ~inside[0] & ~inside[1]).any(), "a score was lost"
    assert padded_BQS[inside[1]].all(), "a score of a full block is not checked"
    b, q, k = torch.meshgrid(*map(torch.arange, seen_BQS.shape), indexing="ij")
    assert torch.equal(blocks.mask_mod(b, torch.zeros_like(b), q, k), seen_BQS)


def test_whole_blocks_of_one_document_are_full() -> None:
    blocks = block_mask(torch.zeros(1, 4 * BLOCK, dtype=torch.int32), torch.arange(4 * BLOCK))
    assert blocks.full_kv_num_blocks is not None
    assert blocks.full_kv_num_blocks.tolist() == [[[0, 1, 2, 3]]]
    assert blocks.kv_num_blocks.tolist() == [[[1, 1, 1, 1]]]


def _set_blocks(counts: Tensor, indices: Tensor) -> Tensor:
    """Return which blocks are listed, as booleans [B, blocks of Q, blocks of S]."""
    listed = torch.arange(indices.shape[-1]) < counts[..., None]
    return torch.zeros_like(listed).scatter(-1, indices.long(), listed)[:, 0]


# torch's compiler imports modules that torch deprecates.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@torch.no_grad()
def test_flex_attention_computes_the_same() -> None:
    """Its kernel for CPUs is forward only, but uses the same description of blocks."""
    queries_Q = QUERIES["two chunks"]
    segments_BS = packed(500)
    q, k, v = (x.detach() for x in heads(1, kv_heads=2, tokens=500))
    asked = q[:, :, queries_Q], k, v
    mixed = attend_within_documents(*asked, block_mask(segments_BS, queries_Q))
    expected = attend_within_documents(*asked, dense_mask(segments_BS, queries_Q))
    torch.testing.assert_close(mixed, expected)


@torch.no_grad()
def test_a_document_knows_nothing_of_another() -> None:
    S = 48
    model = Llama(ARCHITECTURES["llama3"]["debug"], seq_len=S)
    init_weights(model, 0)
    tokens_BS = torch.randint(0, 256, (2, S), generator=torch.Generator().manual_seed(2))
    segments_BS = packed(S)
    before_BSV = model(tokens_BS, segments_BS=segments_BS)
    assert not torch.allclose(before_BSV, model(tokens_BS), atol=1e-3)
    for document in range(4):
        here_BS = segments_BS == document
        after_BSV = model(tokens_BS.where(~here_BS, 255 - tokens_BS), segments_BS=segments_BS)
        assert torch.equal(after_BSV[~here_BS], before_BSV[~here_BS])
        assert not (after_BSV == before_BSV)[here_BS].all(-1).any()


@torch.no_grad()
def test_a_shorter_input_is_masked_as_the_start_of_a_sequence() -> None:
    positions = Positions(16, 48, theta=10_000.0)
    mask = positions.document_mask(packed(20))
    assert isinstance(mask, Tensor)
    assert torch.equal(mask, dense_mask(packed(20), torch.arange(20)))
