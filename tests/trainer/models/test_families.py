"""Each family's sizes equal the planner's counts; peculiarities of Qwen3 and Llama 3.1."""

import math

import pytest
import torch

from trainer.models.attention import frequencies
from trainer.models.families import FAMILIES, NormedAttention, Qwen3, build_model
from trainer.models.initial_weights import init_weights
from trainyard.planner.parameters import count_parameters
from trainyard.spec.job import parse_job_spec
from trainyard.training.architectures import ARCHITECTURES, Architecture, RopeScaling

QWEN = Architecture(32, 2, 4, 2, 48, 64, own_head_dim=16, rope_theta=10_000.0, qk_norm=True)


@pytest.mark.parametrize(
    ("family", "size"), [(f, size) for f, sizes in ARCHITECTURES.items() for size in sizes]
)
def test_a_model_has_the_parameters_that_the_planner_counts(family: str, size: str) -> None:
    spec = parse_job_spec({"model": {"family": family, "size": size}})
    model = build_model(spec)
    assert type(model) is FAMILIES[family]
    counted = count_parameters(spec.architecture)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    assert sum(sizes.values()) == counted.total
    block = {name: n for name, n in sizes.items() if name.startswith("layers.0.")}
    assert sum(n for name, n in block.items() if "norm" in name) == counted.norms
    matrices = sum(n for name, n in block.items() if "attention.w" in name)
    assert matrices == counted.attention


def test_queries_and_keys_of_each_head_are_normed() -> None:
    attention = NormedAttention(QWEN)
    torch.nn.init.constant_(attention.q_norm.weight, 2.0)
    x_BSD = 100 * torch.randn(2, 5, 32)
    q_BHSW, k_BKSW, v_BKSW = attention.project(x_BSD)
    assert q_BHSW.shape == (2, 4, 5, 16)
    assert k_BKSW.shape == v_BKSW.shape == (2, 2, 5, 16)
    plain_BSHW = (x_BSD @ attention.wq.weight.T).unflatten(-1, (4, 16))
    expected = 2 * plain_BSHW / plain_BSHW.square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(q_BHSW.transpose(1, 2), expected, atol=1e-5, rtol=1e-5)
    ones = torch.ones(2, 2, 5)
    torch.testing.assert_close(k_BKSW.square().mean(-1), ones, atol=1e-4, rtol=0)
    assert torch.equal(v_BKSW.transpose(1, 2).flatten(2), x_BSD @ attention.wv.weight.T)


def test_names_of_qwen3_are_those_of_llama_and_two_norms() -> None:
    with torch.device("meta"):
        model = Qwen3(QWEN, seq_len=8)
    names = {name for name in model.state_dict() if name.startswith("layers.1.attention.")}
    matrices = {"wq", "wk", "wv", "wo", "q_norm", "k_norm"}
    assert names == {f"layers.1.attention.{name}.weight" for name in matrices}


def test_qwen3_starts_with_norms_of_one_and_sees_no_later_token() -> None:
    model = Qwen3(QWEN, seq_len=16)
    init_weights(model, 0)
    assert torch.equal(model.state_dict()["layers.1.attention.k_norm.weight"], torch.ones(16))
    tokens_BS = torch.arange(32).view(2, 16)
    changed_BS = tokens_BS.clone()
    changed_BS[:, 9] += 1
    before, after = model(tokens_BS), model(changed_BS)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_scaling_divides_slow_frequencies_and_leaves_fast_ones() -> None:
    scaling = RopeScaling(8.0)
    plain, scaled = frequencies(128, 500_000.0), frequencies(128, 500_000.0, scaling)
    wavelengths = 2 * math.pi / plain
    for length, before, after in zip(wavelengths, plain, scaled, strict=True):
        if length < 8192 / 4:
            assert after == before
        elif length > 8192:
            assert after == pytest.approx(before / 8)
        else:
            # "The Llama 3 Herd of Models" scales the share that lies between in proportion.
            smooth = (8192 / length - 1) / 3
            assert after == pytest.approx((1 - smooth) * before / 8 + smooth * before)
    assert len({float(a / b) for a, b in zip(scaled, plain, strict=True)}) > 4, "some lie between"


def test_a_spec_changes_single_shapes_of_a_size() -> None:
    model = {"family": "qwen3", "size": "0.6B", "dim": 512, "rope_theta": 5e4, "norm_eps": 1e-5}
    shape = parse_job_spec({"model": model}).architecture
    assert (shape.dim, shape.head_dim, shape.rope_theta) == (512, 128, 5e4)
    assert shape.norm_eps == 1e-5
    narrow = parse_job_spec({"model": {**model, "head_dim": 64, "tied_embeddings": False}})
    assert (narrow.architecture.head_dim, narrow.architecture.tied_embeddings) == (64, False)


@pytest.mark.parametrize(
    ("size", "given", "scaling"),
    [
        ("8B", None, RopeScaling(8.0)),
        ("1B", None, RopeScaling(32.0)),
        ("8B", 1.0, None),  # Llama 3.0
        ("debug", 4.0, RopeScaling(4.0)),
        ("debug", None, None),
    ],
)
def test_the_scaling_is_the_published_one_or_the_given(
    size: str, given: float | None, scaling: RopeScaling | None
) -> None:
    model = {"size": size} | ({} if given is None else {"rope_factor": given})
    assert parse_job_spec({"model": model}).architecture.rope_scaling == scaling
