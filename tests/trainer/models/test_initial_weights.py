"""Initial weights: the same bits on every layout, with the right distribution."""

import math
import threading
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from tests.trainer.ranks import run_ranks
from trainer.models import initial_weights
from trainer.models.base import Model
from trainer.models.families import Llama, build_model
from trainer.models.initial_weights import init_weights
from trainer.parallel.mesh import build_mesh
from trainer.parallel.parallelize import parallelize
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.training.architectures import Architecture

# The embedding spans two blocks; neither 2 nor 3 ranks are cut at their borders.
ARCH = Architecture(64, 2, 4, 2, 96, 80_003)
SPEC = parse_job_spec(
    {"model": {"n_layers": ARCH.n_layers, "ffn_dim": ARCH.ffn_dim, "vocab_size": ARCH.vocab_size}}
)


def plain_weights(seed: int) -> dict[str, torch.Tensor]:
    model = Llama(ARCH, seq_len=8)
    init_weights(model, seed)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _differing_weights(spec: JobSpec, layout: Layout, seed: int) -> dict[str, int]:
    """Count, by name, the elements that differ from those of a model in one process."""
    model = build_model(spec)
    parallelize(model, build_mesh(layout, "cpu"), spec=spec, layout=layout)
    model.to_empty(device="cpu")
    with CommDebugMode() as communication:
        init_weights(model, seed)
    assert communication.get_total_counts() == 0, "a whole parameter came together"
    plain = plain_weights(seed)
    differing = {}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        assert parameter.to_local().numel() < plain[name].numel(), "it is not sharded"
        differing[name] = int((parameter.full_tensor() != plain[name]).sum())
    assert differing.keys() == plain.keys()
    return differing


@pytest.mark.parametrize(
    "layout",
    [Layout(dp_shard=2), Layout(dp_shard=3), Layout(dp_replicate=2, dp_shard=2)],
    ids=str,
)
def test_weights_are_bit_equal_on_every_layout(layout: Layout) -> None:
    assert ARCH.vocab_size * ARCH.dim > initial_weights.BLOCK_ELEMENTS
    for differing in run_ranks(layout.world_size, _differing_weights, SPEC, layout, 5):
        assert set(differing.values()) == {0}, differing


def test_threads_draw_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initial_weights, "BLOCK_ELEMENTS", 3000)
    drawing: set[int] = set()
    together = threading.Barrier(3, timeout=60)
    normal = initial_weights._normal

    def noted(*arguments: Any, **options: Any) -> torch.Tensor:
        if threading.get_ident() not in drawing:
            drawing.add(threading.get_ident())
            together.wait()  # three blocks are drawn at once, or this times out
        return normal(*arguments, **options)

    before = torch.get_num_threads()
    one = plain_weights(5)
    try:
        torch.set_num_threads(3)
        monkeypatch.setattr(initial_weights, "_normal", noted)
        three = plain_weights(5)
    finally:
        torch.set_num_threads(before)
    assert len(drawing) == 3
    assert {name: int((three[name] != one[name]).sum()) for name in one} == dict.fromkeys(one, 0)


def test_a_draw_that_fails_ends_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[None] = []

    def fail(*_arguments: Any, **_options: Any) -> torch.Tensor:
        tried.append(None)
        if len(tried) > 1:
            time.sleep(0.05)  # like a draw, so that the others are still waiting
        raise MemoryError("no room for a block")

    monkeypatch.setattr(initial_weights, "BLOCK_ELEMENTS", 3000)
    monkeypatch.setattr(initial_weights, "_normal", fail)
    with pytest.raises(MemoryError, match="no room"):
        plain_weights(5)
    assert len(tried) < ARCH.vocab_size * ARCH.dim // 3000, "all others are drawn first"


class _Experts(Model):
    """A matrix of three dimensions, as experts or convolutions have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 6, 8))

    def initial_std(self, _name: str) -> float:
        return 0.02

    def reset_buffers(self) -> None:
        pass


def _differing_experts(dim: int) -> int:
    plain, split = _Experts(), _Experts()
    mesh = init_device_mesh("cpu", (2,))
    split.weight = nn.Parameter(distribute_tensor(split.weight, mesh, [Shard(dim)]))
    init_weights(plain, 3)
    init_weights(split, 3)
    assert isinstance(split.weight, DTensor)
    return int((split.weight.full_tensor() != plain.weight).sum())


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_any_dimension_of_a_weight_can_be_shared_out(dim: int) -> None:
    assert run_ranks(2, _differing_experts, dim) == [0, 0]


def test_the_distribution_is_as_documented() -> None:
    weights = plain_weights(0)
    for name, weight in weights.items():
        if "norm" in name:
            assert torch.equal(weight, torch.ones_like(weight))
            continue
        residual = name.endswith(("wo.weight", "w2.weight"))
        std = 0.02 / math.sqrt(4) if residual else 0.02
        n = weight.numel()
        assert abs(weight.mean().item()) < 5 * std / n**0.5
        assert abs(weight.std().item() / std - 1) < 5 / (2 * n) ** 0.5
        # A normal variable is beyond two deviations in 4.55 % of draws.
        beyond = (weight.abs() > 2 * std).double().mean().item()
        assert abs(beyond - 0.0455) < 5 * (0.0455 / n) ** 0.5


def test_blocks_names_and_seeds_draw_independently() -> None:
    weights, others = plain_weights(0), plain_weights(1)
    embedding = weights["tok_embeddings.weight"].flatten()
    size = initial_weights.BLOCK_ELEMENTS
    pairs = [
        (embedding[: len(embedding) - size], embedding[size:]),
        (embedding, others["tok_embeddings.weight"].flatten()),
        (embedding, weights["output.weight"].flatten()),
        (
            weights["layers.0.attention.wq.weight"].flatten(),
            weights["layers.1.attention.wq.weight"].flatten(),
        ),
    ]
    for a, b in pairs:
        correlation = torch.corrcoef(torch.stack((a, b)))[0, 1].item()
        assert abs(correlation) < 5 / a.numel() ** 0.5
