"""Parameter counts against the published sizes of each family, and a hand count."""

import pytest

from trainyard.planner.parameters import count_parameters
from trainyard.training.architectures import ARCHITECTURES, Architecture
from trainyard.training.flops import matmul_parameters

# Element counts of the published weights (Llama 3.1, 3.2 and Qwen3 on the Hugging Face hub). The
# files of Qwen3 0.6B and 1.7B hold the tied embedding a second time, as the head: not counted here.
PUBLISHED = {
    ("llama3", "1B"): 1_235_814_400,
    ("llama3", "3B"): 3_212_749_824,
    ("llama3", "8B"): 8_030_261_248,
    ("llama3", "70B"): 70_553_706_496,
    ("llama3", "405B"): 405_853_388_800,
    ("qwen3", "0.6B"): 751_632_384 - 151_936 * 1024,
    ("qwen3", "1.7B"): 2_031_739_904 - 151_936 * 2048,
    ("qwen3", "4B"): 4_022_468_096,
    ("qwen3", "8B"): 8_190_735_360,
    ("qwen3", "14B"): 14_768_307_200,
    ("qwen3", "32B"): 32_762_123_264,
}

TINY = Architecture(dim=8, n_layers=3, n_heads=4, n_kv_heads=2, ffn_dim=10, vocab_size=7)


@pytest.mark.parametrize(("family", "size"), PUBLISHED)
def test_totals_equal_the_published_ones(family: str, size: str) -> None:
    shape = ARCHITECTURES[family][size]
    assert count_parameters(shape).total == PUBLISHED[family, size]


def test_parts_of_a_tiny_shape_equal_a_hand_count() -> None:
    counted = count_parameters(TINY)
    assert counted.embedding == counted.head == 7 * 8
    assert counted.attention == 8 * 8 + 4 * 8 + 4 * 8 + 8 * 8  # query, key, value, output
    assert counted.feed_forward == 3 * 8 * 10
    assert counted.norms == 2 * 8
    assert counted.final_norm == 8
    assert counted.total == 2 * 56 + 3 * (192 + 240 + 16) + 8


def test_heads_of_a_width_of_their_own_and_normed_queries_equal_a_hand_count() -> None:
    counted = count_parameters(
        Architecture(8, 3, 4, 2, 10, 7, own_head_dim=6, tied_embeddings=True, qk_norm=True)
    )
    assert counted.attention == 8 * 24 + 8 * 12 + 8 * 12 + 24 * 8  # query, key, value, output
    assert counted.norms == 2 * 8 + 2 * 6
    assert counted.total == 56 + 3 * (576 + 240 + 28) + 8


def test_tied_embeddings_are_counted_once_and_multiplied_once() -> None:
    tied = Architecture(8, 3, 4, 2, 10, 7, tied_embeddings=True)
    assert count_parameters(tied).head == 0
    assert count_parameters(TINY).total - count_parameters(tied).total == 7 * 8
    assert matmul_parameters(tied) == matmul_parameters(TINY) == 3 * (192 + 240) + 56
