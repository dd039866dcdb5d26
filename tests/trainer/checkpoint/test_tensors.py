"""Names and tensors of a checkpoint equal those of PyTorch's own functions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)

from tests.trainer.ranks import run_ranks
from trainer.checkpoint.tensors import TrainTensors, train_tensors
from trainer.loop.build import assemble
from trainer.loop.optimizer import materialize_state
from trainer.parallel.quantize import high_precision
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def by_pytorch(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return weights and optimizer state with the names of `torch.distributed.checkpoint`."""
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
    """On each rank, in the same order; the tensors share the model's memory."""
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
    """A tied weight appears once, a frozen one without state, a buffer like a weight."""
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
    """A save would silently hold less than the job."""
    model = nn.Linear(2, 2)
    with pytest.raises(AssertionError, match="materialize"):
        train_tensors(model, torch.optim.AdamW(model.parameters()))


def materialized(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer of the model, with its state."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    materialize_state(optimizer)
    return optimizer


def test_tensors_are_listed_once_until_one_moves() -> None:
    """Weights, moments and buffers alike; in-place changes move nothing."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = materialized(model)
    listed = TrainTensors()
    first = listed(model, optimizer)
    assert memory(first) == memory(train_tensors(model, optimizer))
    with patch("trainer.checkpoint.tensors.train_tensors", side_effect=AssertionError):
        assert listed(model, optimizer) is first
        model(torch.ones(2, 2))
        assert listed(model, optimizer) is first
    layer, norm = cast(nn.Linear, model[0]), cast(nn.BatchNorm1d, model[1])
    state = optimizer.state[layer.weight]

    def move_weight() -> None:
        layer.weight.data = layer.weight.data.clone()

    def move_moment() -> None:
        state["exp_avg"] = state["exp_avg"].clone()

    def move_buffer() -> None:
        norm.running_mean = torch.ones(2)

    before = first
    for move in (move_weight, move_moment, move_buffer):
        move()
        after = listed(model, optimizer)
        assert after is not before
        assert memory(after) == memory(train_tensors(model, optimizer))
        before = after


def _add_buffer(model: nn.Sequential, _: torch.optim.Optimizer) -> None:
    model[0].register_buffer("seen", torch.ones(2))


def _add_layer(model: nn.Sequential, _: torch.optim.Optimizer) -> None:
    model.append(nn.BatchNorm1d(2, affine=False))


def _remove_layer(model: nn.Sequential, _: torch.optim.Optimizer) -> None:
    del model[2]


def _replace_layer_after_an_empty_deletion(model: nn.Sequential, _: torch.optim.Optimizer) -> None:
    del model[3:]  # torch gives the model another dictionary of its modules
    model[2] = nn.BatchNorm1d(2, affine=False)


def _replace_dictionary(model: nn.Sequential, _: torch.optim.Optimizer) -> None:
    model[1]._buffers = dict(model[1]._buffers)
    model[1].running_var = torch.ones(2)


def _replace_state(_: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


@pytest.mark.parametrize(
    "change",
    [
        _add_buffer,
        _add_layer,
        _remove_layer,
        _replace_layer_after_an_empty_deletion,
        _replace_dictionary,
        _replace_state,
    ],
)
def test_what_is_added_removed_or_replaced_is_listed_anew(
    change: Callable[[nn.Sequential, torch.optim.Optimizer], None],
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.BatchNorm1d(2, affine=False))
    optimizer = materialized(model)
    listed = TrainTensors()
    before = listed(model, optimizer)
    change(model, optimizer)
    after = listed(model, optimizer)
    assert after is not before
    assert memory(after) == memory(train_tensors(model, optimizer))


def test_another_object_in_the_same_memory_is_listed_and_then_watched() -> None:
    model = nn.Linear(2, 2)
    optimizer = materialized(model)
    listed = TrainTensors()
    first = listed(model, optimizer)
    state = optimizer.state[model.weight]
    state["exp_avg"] = state["exp_avg"].detach()
    assert listed(model, optimizer) is first
    state["exp_avg"].data = torch.ones(2, 2)
    assert listed(model, optimizer)["optimizer.weight.exp_avg"].sum() == 4


def test_a_buffer_that_becomes_another_view_of_its_memory_is_listed_anew() -> None:
    """A model may fill a reserved tensor and save the used part of it as a buffer."""
    model = nn.Linear(2, 2)
    reserved = torch.arange(8.0)
    model.register_buffer("seen", reserved[:2])
    optimizer = materialized(model)
    listed = TrainTensors()
    listed(model, optimizer)
    for view in (
        reserved[:6],
        reserved.view(2, 4),
        reserved.view(4, 2).T,
        reserved.view(torch.int32),
    ):
        model.seen = view
        saved = listed(model, optimizer)
        assert torch.equal(saved["model.seen"], view)
        assert saved["model.seen"].dtype == view.dtype
        assert torch.equal(listed.copied_buffers()["model.seen"], view)
        assert listed(model, optimizer) is saved


def test_memory_of_a_replaced_buffer_is_not_used_again() -> None:
    """Otherwise the new buffer could have the address of the listed tensor."""
    model = nn.BatchNorm1d(4096)
    optimizer = materialized(model)
    listed = TrainTensors()
    listed(model, optimizer)
    for number in range(1, 4):
        model.running_mean = None
        model.running_mean = torch.full((4096,), float(number))
        assert torch.equal(listed(model, optimizer)["model.running_mean"], model.running_mean)


def test_tensors_that_a_hook_makes_are_made_at_each_save() -> None:
    """They are outside the model's memory, so nothing else reveals changed values."""
    model = nn.Linear(2, 2)
    model.register_state_dict_post_hook(
        lambda module, state, prefix, local: state.update(doubled=2 * module.weight.detach())
    )
    optimizer = materialized(model)
    listed = TrainTensors()
    kept = listed(model, optimizer)  # otherwise its memory could be reused
    with torch.no_grad():
        model.weight.fill_(3.0)
    assert listed(model, optimizer)["model.doubled"].tolist() == [[6.0, 6.0], [6.0, 6.0]]
    assert kept["model.doubled"].tolist() != [[6.0, 6.0], [6.0, 6.0]]


def test_buffers_are_copied_and_weights_are_not() -> None:
    model = nn.BatchNorm1d(2)
    listed = TrainTensors()
    listed(model, materialized(model))
    copies = listed.copied_buffers()
    assert copies.keys() == {
        f"model.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }
    model(torch.ones(2, 2))
    assert copies["model.num_batches_tracked"] == 0
