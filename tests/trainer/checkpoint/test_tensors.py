"""Names and tensors of a checkpoint are those that PyTorch's own functions give."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)

from tests.trainer.ranks import run_ranks
from trainer.checkpoint.tensors import train_tensors
from trainer.loop.build import assemble
from trainer.loop.optimizer import materialize_state
from trainer.parallel.quantize import high_precision
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def by_pytorch(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return weights and optimizer state as `torch.distributed.checkpoint` names them."""
    weights = cast(dict[str, Tensor], get_model_state_dict(model))
    state = cast(dict[str, Tensor], get_optimizer_state_dict(model, optimizer, options=FLAT))
    return {f"model.{name}": high_precision(tensor) for name, tensor in weights.items()} | {
        f"optimizer.{name.removeprefix('state.')}": tensor
        for name, tensor in state.items()
        if name.startswith("state.")
    }


def memory(tensors: dict[str, Tensor]) -> list[tuple[str, type, int, torch.dtype, torch.Size]]:
    """Return name, kind of tensor and place in memory of each."""
    return [
        (name, type(tensor), _local(tensor).data_ptr(), tensor.dtype, tensor.shape)
        for name, tensor in tensors.items()
    ]


def _local(tensor: Any) -> Tensor:
    return cast(Tensor, getattr(tensor, "_local_tensor", tensor))


def compare_on_a_rank(spec: JobSpec, layout: Layout) -> int:
    """Compare on this rank; return how many tensors it has."""
    assembly = assemble(spec, layout, torch.device("cpu"))
    ours = memory(train_tensors(assembly.model, assembly.optimizer))
    assert ours == memory(by_pytorch(assembly.model, assembly.optimizer))
    return len(ours)


@pytest.mark.parametrize("family", ["llama3", "qwen3"])  # the second ties its head to its embedding
@pytest.mark.parametrize("axes", [{}, {"dp_shard": 2}, {"tp": 2}, {"pp": 2}])
def test_names_and_memory_are_those_of_pytorch(family: str, axes: dict[str, int]) -> None:
    """On each rank, in the same order; the tensors are the very memory."""
    layout = Layout(**axes)
    spec = parse_job_spec(
        {
            "model": {"family": family, "size": "debug", "n_layers": 2},
            "training": {"seq_len": 16, "global_batch_size": 2, "micro_batch_size": 1},
            "parallelism": axes,
            "resources": {"world_size": layout.world_size, "device": "cpu"},
        }
    )
    assert min(run_ranks(layout.world_size, compare_on_a_rank, spec, layout)) > 0


def test_frozen_and_tied_parameters_and_buffers() -> None:
    """A tied weight is there once, a frozen one has what there is, a buffer is a weight."""
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2), "c": nn.BatchNorm1d(2)})
    cast(nn.Linear, model["b"]).weight = cast(nn.Linear, model["a"]).weight
    cast(nn.Linear, model["b"]).bias.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    materialize_state(optimizer)
    ours = train_tensors(model, optimizer)
    theirs = by_pytorch(model, optimizer)
    del theirs["model.b.weight"]  # that of `a`, which PyTorch stores twice
    assert memory(ours) == memory(theirs)
    assert "optimizer.b.weight.exp_avg" not in ours
    assert "model.c.running_mean" in ours


def test_without_optimizer_state_nothing_is_named() -> None:
    """A save would hold less than the job, and say nothing of it."""
    model = nn.Linear(2, 2)
    with pytest.raises(AssertionError, match="materialize"):
        train_tensors(model, torch.optim.AdamW(model.parameters()))
