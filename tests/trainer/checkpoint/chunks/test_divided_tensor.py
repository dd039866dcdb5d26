"""Divisions name the box of each rank, as torch divides tensors over a mesh."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.trainer.ranks import run_ranks
from trainer.checkpoint.chunks.divided_tensor import DividedKind, Division, divided
from trainer.errors import CheckpointError
from trainer.parallel.mesh import build_mesh, fsdp_mesh
from trainyard.spec.layout import Layout

SHAPES = st.lists(st.integers(0, 13), min_size=1, max_size=3).map(tuple)


@st.composite
def divided_kinds(draw: st.DrawFn) -> DividedKind:
    shape = draw(SHAPES)
    divisions, stride = [], 1
    for parts in draw(st.lists(st.integers(1, 4), max_size=3)):
        divisions.append(Division(draw(st.integers(0, len(shape) - 1)), parts, stride))
        stride *= parts
    return DividedKind("float32", shape, tuple(divisions))


def _ranks(kind: DividedKind) -> range:
    return range(prod(division.parts for division in kind.divisions))


@given(divided_kinds())
def test_the_boxes_are_those_of_torch(kind: DividedKind) -> None:
    mesh_shape = [division.parts for division in kind.divisions]
    placements = [Shard(division.dim) for division in kind.divisions]
    for rank in _ranks(kind):
        coordinate = [rank // d.stride % d.parts for d in kind.divisions]
        sizes, offsets = _compute_local_shape_and_global_offset(
            kind.shape, mesh_shape, coordinate, placements
        )
        found_offsets, found_sizes = kind.box_of(rank)
        assert found_sizes == sizes
        if prod(sizes):  # the place of an empty box has no meaning
            assert found_offsets == offsets


@given(divided_kinds())
def test_the_boxes_cover_each_number_once(kind: DividedKind) -> None:
    counts = np.zeros(kind.shape, dtype=int)
    sizes = set()
    for rank in _ranks(kind):
        low, size = kind.box_of(rank)
        counts[tuple(slice(a, a + b) for a, b in zip(low, size, strict=True))] += 1
        sizes |= {size} if prod(size) else set()
    assert (counts == 1).all()
    assert kind.box_sizes() == sizes


@given(divided_kinds(), st.data())
def test_the_boxes_that_overlap_another_one_are_found(
    kind: DividedKind, data: st.DataObject
) -> None:
    low = tuple(data.draw(st.integers(0, size)) for size in kind.shape)
    sizes = tuple(
        data.draw(st.integers(0, size - a)) for a, size in zip(low, kind.shape, strict=True)
    )
    found = [kind.box_at(parts) for parts in kind.overlapping(low, sizes)]

    def common(box: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
        pairs = zip(low, sizes, *box, strict=True)
        return all(min(a + n, b + m) > max(a, b) for a, n, b, m in pairs)

    expected = [box for rank in _ranks(kind) if common(box := kind.box_of(rank))]
    assert sorted(found) == sorted(expected)


def _divided_on_a_mesh() -> dict[str, tuple[Division, ...]]:
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("replicate", "shard", "tp"))
    placements: dict[str, list[Placement]] = {
        "columns": [Replicate(), Shard(0), Shard(1)],
        "rows": [Replicate(), Shard(0), Shard(0)],
        "whole": [Replicate(), Replicate(), Replicate()],
        # Equal local and global shapes, but other ranks hold the parts.
        "over shard": [Replicate(), Shard(0), Replicate()],
        "over tp": [Replicate(), Replicate(), Shard(0)],
    }
    rows = {"rows": 2, "whole": 8}
    tensors: dict[str, Tensor] = {
        name: DTensor.from_local(
            torch.empty(rows.get(name, 4), 4), mesh, placement, run_check=False
        )
        for name, placement in placements.items()
    }
    tensors["double"] = tensors["whole"].double()
    rank = dist.get_rank()
    # A mesh of two ranks that are not neighbours on any axis of all ranks.
    odd = DeviceMesh("cpu", [0, 3, 5]) if rank in (0, 3, 5) else None
    if odd is not None:
        uneven = DTensor.from_local(torch.empty(1, 4), odd, [Shard(0)], run_check=False)
        with pytest.raises(CheckpointError, match="not evenly spaced"):
            divided({"odd": uneven}, rank=rank)
    # Neighbours, but the first one is not at a multiple of two.
    if rank in (1, 2):
        pair = DeviceMesh("cpu", [1, 2], _init_backend=False)
        shifted = DTensor.from_local(torch.empty(1, 4), pair, [Shard(0)], run_check=False)
        with pytest.raises(CheckpointError, match="not evenly spaced"):
            divided({"shifted": shifted}, rank=rank)
    short = DTensor.from_local(
        torch.empty(3, 4),
        mesh["tp"],
        [Shard(0)],
        run_check=False,
        shape=torch.Size((8, 4)),
        stride=(4, 1),
    )
    with pytest.raises(CheckpointError, match=rf"rank {rank} holds \(3, 4\) of \(8, 4\), but a"):
        divided({"short": short}, rank=rank)
    partial = DTensor.from_local(torch.empty(1), mesh["tp"], [Partial()], run_check=False)
    with pytest.raises(CheckpointError, match="it has no values to save"):
        divided({"partial": partial}, rank=rank)
    found = divided(tensors, rank=rank)
    assert {t.name for t in found if t.kind.dtype == "float64"} == {"double"}
    return {tensor.name: tensor.kind.divisions for tensor in found}


def test_a_mesh_gives_the_same_divisions_on_each_of_its_ranks() -> None:
    first, *others = run_ranks(8, _divided_on_a_mesh)
    assert first == {
        "columns": (Division(0, 2, 2), Division(1, 2, 1)),
        "rows": (Division(0, 2, 2), Division(0, 2, 1)),
        "whole": (),
        "double": (),
        "over shard": (Division(0, 2, 2),),
        "over tp": (Division(0, 2, 1),),
    }
    assert all(other == first for other in others)


def _compare_boxes_with_shards(layout: Layout) -> int:
    """Compare this rank's shards of FSDP over tensor parallelism with the numbers of its boxes."""
    model = nn.Sequential(nn.Linear(6, 11), nn.Linear(11, 7))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0).data += torch.arange(parameter.numel()).view_as(parameter)
    whole = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    mesh = build_mesh(layout, "cpu")
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=fsdp_mesh(mesh))
    shards = dict(model.named_parameters())
    rank, strided = dist.get_rank(), 0
    for name, kind in ((t.name, t.kind) for t in divided(shards, rank=rank)):
        low, sizes = kind.box_of(rank)
        box = tuple(slice(a, a + size) for a, size in zip(low, sizes, strict=True))
        shard = shards[name]
        assert isinstance(shard, DTensor)
        assert torch.equal(shard.to_local(), whole[name][box]), name
        strided += len(kind.divisions) > len({division.dim for division in kind.divisions})
    return strided


@pytest.mark.parametrize(
    "layout", [Layout(dp_shard=3, tp=2), Layout(dp_replicate=2, cp=2, tp=2)], ids=str
)
def test_each_rank_holds_the_numbers_of_its_box(layout: Layout) -> None:
    """Uneven rows, cut first by tensor parallelism, and then by FSDP."""
    counts = run_ranks(layout.world_size, _compare_boxes_with_shards, layout)
    assert set(counts) == {2}
