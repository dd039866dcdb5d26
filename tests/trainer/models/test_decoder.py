"""Llama, and what the families share, against independent formulas."""

import pytest
import torch

from trainer.models.attention import CausalAttention, Positions, rotate
from trainer.models.families import Llama
from trainer.models.initial_weights import init_weights
from trainer.models.stateless_rng import sequence_keys
from trainyard.training.architectures import Architecture

TINY = Architecture(32, 2, 4, 2, 48, 64, rope_theta=10_000.0)
TIED = Architecture(32, 2, 4, 2, 48, 64, rope_theta=10_000.0, tied_embeddings=True)


def test_names_are_global_and_stable() -> None:
    layer = [
        "attention.wk.weight",
        "attention.wo.weight",
        "attention.wq.weight",
        "attention.wv.weight",
        "attention_norm.weight",
        "feed_forward.w1.weight",
        "feed_forward.w2.weight",
        "feed_forward.w3.weight",
        "feed_forward_norm.weight",
    ]
    layers = [f"layers.{index}.{name}" for index in range(2) for name in layer]
    rest = ["norm.weight", "tok_embeddings.weight"]
    assert sorted(Llama(TIED, seq_len=8).state_dict()) == sorted(layers + rest)
    names = sorted(Llama(TINY, seq_len=8).state_dict())
    assert names == sorted([*layers, *rest, "output.weight"])


@pytest.mark.parametrize("arch", [TINY, TIED])
def test_no_token_sees_a_later_one(arch: Architecture) -> None:
    model = Llama(arch, seq_len=16)
    init_weights(model, 0)
    tokens_BS = torch.arange(32).view(2, 16)
    changed_BS = tokens_BS.clone()
    changed_BS[:, 9] += 1
    before, after = model(tokens_BS), model(changed_BS)
    assert before.shape == (2, 16, 64)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_rotation_is_that_of_complex_numbers() -> None:
    cos_SW, sin_SW, _ = Positions(head_dim=8, seq_len=32, theta=10_000.0)(32)
    x_BHSW = torch.randn(2, 3, 32, 8, dtype=torch.float64)
    pairs = torch.complex(x_BHSW[..., :4], x_BHSW[..., 4:])
    frequencies = 10_000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    turned = pairs * torch.exp(1j * torch.outer(torch.arange(32.0).double(), frequencies))
    expected = torch.cat((turned.real, turned.imag), dim=-1)
    torch.testing.assert_close(rotate(x_BHSW, cos_SW, sin_SW), expected, atol=1e-6, rtol=0)


def test_rotation_keeps_the_type_and_uses_float32_angles() -> None:
    cos_SW, sin_SW, _ = Positions(head_dim=8, seq_len=4096, theta=500_000.0)(4096)
    x = torch.ones(1, 1, 4096, 8)
    turned = rotate(x.bfloat16(), cos_SW, sin_SW)
    assert turned.dtype == torch.bfloat16
    # bfloat16 angles would be off by up to 8 at place 4000; one rounding is off by 2^-8.
    torch.testing.assert_close(turned.float(), rotate(x, cos_SW, sin_SW), atol=2**-7, rtol=2**-8)


def test_query_groups_share_a_key() -> None:
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)
    scores = q @ k.repeat_interleave(2, dim=1).mT / 8**0.5
    scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    expected = scores.softmax(-1) @ v.repeat_interleave(2, dim=1)
    torch.testing.assert_close(CausalAttention()(q, k, v), expected, atol=1e-6, rtol=1e-5)


def test_a_model_from_the_meta_device_equals_one_built_in_memory() -> None:
    with torch.device("meta"):
        model = Llama(TINY, seq_len=16, dropout=0.1)
    model.to_empty(device="cpu")
    init_weights(model, 3)
    other = Llama(TINY, seq_len=16, dropout=0.1)
    init_weights(other, 3)
    tokens_BS = torch.arange(32).view(2, 16)
    keys_B = sequence_keys(0, 1, torch.tensor([4, 5]))
    assert torch.equal(model(tokens_BS, keys_B=keys_B), other(tokens_BS, keys_B=keys_B))


def test_dropout_acts_only_with_noise() -> None:
    model = Llama(TINY, seq_len=16, dropout=0.1)
    init_weights(model, 3)
    tokens_BS = torch.arange(16)[None]
    keys = [sequence_keys(0, step, torch.tensor([4])) for step in (1, 1, 2)]
    first, again, later = (model(tokens_BS, keys_B=keys_B) for keys_B in keys)
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert not torch.equal(first, model(tokens_BS))
    assert torch.equal(model(tokens_BS), model(tokens_BS))


def test_a_sequence_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="17 tokens are more than the model's seq_len=16"):
        Llama(TINY, seq_len=16)(torch.zeros(1, 17, dtype=torch.int64))
