"""Dropout masks: functions of seed, step, position, site and element, and statistically sound."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from trainer.models import stateless_rng
from trainer.models.stateless_rng import Noise, dropout, keys_of_sites, random_bits, sequence_keys

S, D = 64, 96


def drop(
    x_BSD: torch.Tensor,
    p: float,
    positions: list[int],
    *,
    seed: int = 0,
    step: int = 1,
    site: str = "site",
    tokens_S: torch.Tensor | None = None,
) -> torch.Tensor:
    (keys_B,) = keys_of_sites(sequence_keys(seed, step, torch.tensor(positions)), [site])
    tokens_S = torch.arange(x_BSD.shape[1]) if tokens_S is None else tokens_S
    return dropout(x_BSD, p, keys_B=keys_B, tokens_S=tokens_S)


def mask(
    positions: list[int], *, seed: int = 7, step: int = 3, site: str = "layers.0.attention"
) -> torch.Tensor:
    """Return which elements of [B, S, D] are kept at p = 0.5."""
    ones = torch.ones(len(positions), S, D)
    return drop(ones, 0.5, positions, seed=seed, step=step, site=site) != 0


@given(
    positions=st.lists(st.integers(0, 2**62), min_size=1, max_size=6),
    cut=st.integers(0, 6),
    seed=st.integers(0, 2**63 - 1),
    step=st.integers(1, 10**9),
)
def test_masks_do_not_depend_on_the_micro_batch(
    positions: list[int], cut: int, seed: int, step: int
) -> None:
    whole = mask(positions, seed=seed, step=step)
    for part, at in ((positions[:cut], 0), (positions[cut:], min(cut, len(positions)))):
        for index, position in enumerate(part):
            alone = mask([position], seed=seed, step=step)[0]
            assert torch.equal(whole[at + index], alone)


def test_some_tokens_or_features_get_the_elements_that_they_have_in_the_whole() -> None:
    whole = drop(torch.ones(1, S, D), 0.3, [5])
    tokens_T = torch.tensor([0, 7, 3, S - 1])
    part = drop(torch.ones(1, 4, D // 2), 0.3, [5], tokens_S=tokens_T)
    assert torch.equal(part, whole[:, tokens_T, : D // 2])


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_the_share_of_dropped_elements_is_p(p: float) -> None:
    shape = (16, 256, 256)
    out = drop(torch.ones(shape), p, list(range(16)))
    dropped = out == 0
    sigma = (p * (1 - p) / out.numel()) ** 0.5
    assert abs(dropped.double().mean().item() - p) < 4 * sigma
    assert torch.equal(out[~dropped].unique(), torch.tensor([1 / (1 - p)]))
    # No sequence, token or feature is dropped more often than others.
    for dims in ((1, 2), (0, 2), (0, 1)):
        share = dropped.double().mean(dim=dims)
        spread = (p * (1 - p) / (out.numel() / len(share))) ** 0.5
        z = (share - p) / spread
        assert z.abs().max() < 5
        assert 0.75 < z.std() < 1.25


KEYS = [
    {"positions": [0]},
    {"positions": [1]},
    {"positions": [2**40]},
    {"positions": [0], "step": 4},
    {"positions": [0], "step": 2**20},
    {"positions": [0], "seed": 8},
    {"positions": [0], "site": "layers.1.attention"},
    {"positions": [0], "site": "layers.0.feed_forward"},
]


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(KEYS, 2)))
def test_masks_of_other_keys_are_independent(one: dict[str, Any], other: dict[str, Any]) -> None:
    a, b = mask(**one)[0], mask(**other)[0]
    sigma = 0.5 / (S * D) ** 0.5
    # Elements at the same place, and at shifted or mirrored places.
    for moved in (b, b.roll(1, 0), b.roll(1, 1), b.roll(8, 1), b.flip(0), b.flip(1)):
        assert abs((a == moved).double().mean().item() - 0.5) < 5 * sigma


def test_elements_of_one_mask_are_independent() -> None:
    bits = mask(list(range(32))).double() * 2 - 1
    sigma = 1 / (32 * S * D) ** 0.5
    for token, feature in ((0, 1), (0, 2), (0, 16), (0, 32), (1, 0), (2, 0), (32, 0), (1, 1)):
        moved = bits.roll((token, feature), dims=(1, 2))
        assert abs((bits * moved).mean().item()) < 5 * sigma


def test_the_hash_is_that_of_unsigned_arithmetic() -> None:
    """Golden rule in numpy: torch's signed integers must wrap and shift as unsigned ones do."""

    def splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    def mix(x: NDArray[np.uint32], shift: int, factor: int) -> NDArray[np.uint32]:
        return (x ^ (x >> np.uint32(shift))) * np.uint32(factor)

    positions, site = [3, 2**50], "layers.2.feed_forward"
    key, place = (np.int64(stateless_rng._key(text)).astype(np.uint64) for text in ("11:5", site))
    keys_B = splitmix64(np.array(positions, np.uint64) ^ key)
    tokens_S = np.arange(S, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    keys_BS = splitmix64((keys_B ^ place)[:, None] + tokens_S)
    first = (keys_BS & np.uint64(0xFFFFFFFF)).astype(np.uint32)[..., None]
    second = (keys_BS >> np.uint64(32)).astype(np.uint32)[..., None]
    bits = mix(np.arange(D, dtype=np.uint32) ^ first, 16, 0x7FEB352D)
    expected = mix(bits + second, 15, 0x846CA68B).view(np.int32)

    (drawn_from,) = keys_of_sites(sequence_keys(11, 5, torch.tensor(positions)), [site])
    drawn = random_bits(drawn_from, torch.arange(S), features=D)
    np.testing.assert_array_equal(drawn.numpy(), expected)


def test_no_dropout_costs_nothing() -> None:
    x = torch.randn(1, 4, 4)
    assert drop(x, 0.0, [0]) is x


def test_the_gradient_passes_where_the_value_did() -> None:
    # Far from 0: a value that is 0 would look as if it were dropped.
    x = (1 + torch.rand(2, S, D)).to(torch.bfloat16).requires_grad_()
    out = drop(x, 0.25, [0, 1])
    out.sum().backward()
    assert out.dtype == torch.bfloat16
    assert x.grad is not None
    assert torch.equal(x.grad.bool(), out.bool())


def test_parts_of_a_model_have_noise_of_their_own() -> None:
    whole, ones = Noise(sequence_keys(7, 3, torch.arange(4)), torch.arange(S)), torch.ones(4, S, D)
    first, second = whole.within("blocks.0"), whole.within("blocks.1")
    kept = {
        (part, site): noise_of.dropout(ones, 0.5, site) != 0
        for part, noise_of in (("", whole), ("0", first), ("1", second))
        for site in ("attention", "blocks.0", "blocks.1")
    }
    kept["0", "blocks.1 within"] = first.within("blocks.1").dropout(ones, 0.5, "x") != 0
    kept["1", "blocks.0 within"] = second.within("blocks.0").dropout(ones, 0.5, "x") != 0
    for one, other in itertools.combinations(kept.values(), 2):
        assert (one == other).float().mean().item() == pytest.approx(0.5, abs=0.02)
    again = whole.within("blocks.0").dropout(ones, 0.5, "attention") != 0
    assert torch.equal(again, kept["0", "attention"])
