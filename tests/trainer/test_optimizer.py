"""Optimizer state that is there before the first step changes nothing."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from specs.job import JobSpec
from specs.layout import Layout
from tests.trainer.ranks import run_ranks
from trainer.model.build import build_model
from trainer.model.init import init_weights
from trainer.model.llama import Llama
from trainer.optimizer import build_optimizer, materialize_state
from trainer.parallel.mesh import build_mesh
from trainer.parallelize import parallelize


def _states(optimizer: AdamW) -> list[dict[str, torch.Tensor]]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [dict(optimizer.state[p]) for p in parameters]


def _train(*, materialize: bool) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    spec = JobSpec()
    if dist.is_initialized():
        layout = Layout(dp_shard=dist.get_world_size())
        model = build_model(spec)
        parallelize(model, build_mesh(layout, "cpu"), spec, layout)
        model.to_empty(device="cpu")
    else:
        model = Llama(spec.architecture, seq_len=spec.training.seq_len)
    init_weights(model, 0)
    optimizer = build_optimizer(model, spec)
    if materialize:
        materialize_state(optimizer)
        for state in _states(optimizer):
            assert not any(value.any() for value in map(_local, state.values()))
    for _ in range(3):
        model(torch.arange(64).view(2, 32)).square().sum().backward()
        optimizer.step()
        materialize_state(optimizer)  # leaves a state that is there alone
        optimizer.zero_grad()
    return [_local(p.detach()) for p in model.parameters()], _states(optimizer)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _compare() -> None:
    weights, states = _train(materialize=True)
    expected_weights, expected_states = _train(materialize=False)
    for weight, expected in zip(weights, expected_weights, strict=True):
        assert torch.equal(weight, expected)
    for state, expected_state in zip(states, expected_states, strict=True):
        assert state.keys() == expected_state.keys()
        for name, value in state.items():
            expected = expected_state[name]
            assert type(value) is type(expected)
            assert (value.shape, value.dtype) == (expected.shape, expected.dtype)
            assert torch.equal(_local(value), _local(expected))


def test_materialized_state_changes_nothing() -> None:
    _compare()


@pytest.mark.parametrize("world_size", [2, 3])
def test_materialized_state_changes_nothing_when_sharded(world_size: int) -> None:
    run_ranks(world_size, _compare)


def test_matrices_decay_and_norms_do_not() -> None:
    spec = JobSpec()
    model = Llama(spec.architecture, seq_len=8)
    decay = {
        parameter: group["weight_decay"]
        for group in build_optimizer(model, spec).param_groups
        for parameter in group["params"]
    }
    assert len(decay) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        assert decay[parameter] == (0.0 if "norm" in name else spec.optimizer.weight_decay), name
