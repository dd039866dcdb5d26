"""Training FLOPs against a count of every product of a tiny model, and a measured one."""

import pytest

from tests.library.planner.specs_for_tests import job
from trainyard.planner.parameters import count_parameters
from trainyard.training.architectures import ARCHITECTURES, Architecture
from trainyard.training.flops import training_flops_per_token


def product(rows: int, inner: int, columns: int) -> int:
    """FLOPs of one matrix product: a multiplication and an addition per term."""
    return 2 * rows * inner * columns


@pytest.mark.parametrize("head_dim", [2, 5])
def test_a_tiny_shape_equals_a_count_of_every_product(head_dim: int) -> None:
    d, layers, heads, kv_heads, ffn, vocabulary, seq = 8, 3, 4, 2, 10, 7, 6
    width, kv = heads * head_dim, kv_heads * head_dim
    projections = product(seq, d, width) + product(seq, width, d) + 2 * product(seq, d, kv)
    # Scores and their product with the values, over half of the pairs of positions.
    attention = heads * (product(seq, head_dim, seq) + product(seq, seq, head_dim)) // 2
    feed_forward = 2 * product(seq, d, ffn) + product(seq, ffn, d)
    forward = layers * (projections + attention + feed_forward) + product(seq, d, vocabulary)
    shape = Architecture(d, layers, heads, kv_heads, ffn, vocabulary, own_head_dim=head_dim)
    assert training_flops_per_token(shape, seq) * seq == 3 * forward


def test_the_products_of_8b_equal_a_measured_count() -> None:
    """PyTorch's FlopCounterMode counted 3.689e14 for 8192 tokens, without attention."""
    shape, tokens = ARCHITECTURES["llama3"]["8B"], 8192
    attention = 6 * shape.n_layers * shape.dim * tokens
    flops = (training_flops_per_token(shape, tokens) - attention) * tokens
    assert flops == pytest.approx(3.689e14, rel=2e-4)
    parameters = count_parameters(shape)
    norms = parameters.blocks * parameters.norms + parameters.final_norm
    assert flops == 6 * (parameters.total - parameters.embedding - norms) * tokens


def test_a_step_counts_every_token_of_the_global_batch() -> None:
    spec = job(training={"seq_len": 32, "global_batch_size": 6, "micro_batch_size": 2})
    per_token = training_flops_per_token(spec.architecture, 32)
    assert spec.flops_per_step == 6 * 32 * per_token
