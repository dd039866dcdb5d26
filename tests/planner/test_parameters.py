"""Parameter counts against the published sizes of the Llama 3 family, and a hand count."""

import pytest

from planner.parameters import count_parameters, matmul_parameters
from specs.architectures import ARCHITECTURES, Architecture

# Element counts of the published weights (Llama 3.1 and 3.2 on the Hugging Face hub).
PUBLISHED = {
    "1B": 1_235_814_400,
    "3B": 3_212_749_824,
    "8B": 8_030_261_248,
    "70B": 70_553_706_496,
    "405B": 405_853_388_800,
}

TINY = Architecture(dim=8, n_layers=3, n_heads=4, n_kv_heads=2, ffn_dim=10, vocab_size=7)


@pytest.mark.parametrize(("size", "published"), PUBLISHED.items())
def test_totals_equal_the_published_ones(size: str, published: int) -> None:
    assert count_parameters(ARCHITECTURES["llama3"][size]).total == published


def test_parts_of_a_tiny_shape_equal_a_hand_count() -> None:
    counted = count_parameters(TINY)
    assert counted.embedding == counted.head == 7 * 8
    assert counted.attention == 8 * 8 + 4 * 8 + 4 * 8 + 8 * 8  # query, key, value, output
    assert counted.feed_forward == 3 * 8 * 10
    assert counted.norms == 2 * 8
    assert counted.final_norm == 8
    assert counted.total == 2 * 56 + 3 * (192 + 240 + 16) + 8


def test_tied_embeddings_are_counted_once_and_multiplied_once() -> None:
    tied = Architecture(8, 3, 4, 2, 10, 7, tied_embeddings=True)
    assert count_parameters(tied).head == 0
    assert count_parameters(TINY).total - count_parameters(tied).total == 7 * 8
    assert matmul_parameters(tied) == matmul_parameters(TINY) == 3 * (192 + 240) + 56
