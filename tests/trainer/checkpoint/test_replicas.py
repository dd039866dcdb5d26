"""Transfers from the first rank of a replica to the others."""

import torch
import torch.distributed as dist
from torch import Tensor

from tests.trainer.ranks import run_ranks
from trainer.checkpoint.reader.load import broadcast
from trainyard.spec.layout import Layout

DDP = Layout(dp_replicate=2)


def _serve(_: None) -> list[dict[str, Tensor]]:
    """Serve twice in one process: no rows, columns, and a scalar."""
    found = []
    everybody = dist.group.WORLD
    assert everybody is not None
    for _time in range(2):
        base = torch.arange(12.0).reshape(3, 4) * (1 - dist.get_rank())
        tensors = {"none": torch.empty(0, 4), "columns": base.t(), "step": base.sum()}
        broadcast(tensors, DDP, everybody)
        found.append({name: tensor.contiguous() for name, tensor in tensors.items()})
    return found


def test_each_gets_what_the_first_has_and_may_ask_again() -> None:
    for rank in run_ranks(2, _serve, None):
        for tensors in rank:
            assert tensors["none"].shape == (0, 4)
            assert torch.equal(tensors["columns"], torch.arange(12.0).reshape(3, 4).t())
            assert tensors["step"] == 66
