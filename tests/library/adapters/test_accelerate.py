"""`ExactLoader` against the real library: the effect of `prepare`, and steps at several sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.trainer.ranks import run_ranks
from trainyard.adapters.accelerate import ExactLoader
from trainyard.data import EpochOrder, ExactSampler, merge_digests, order_digest

LENGTH, GLOBAL_BATCH, SEED, STEPS = 25, 14, 5, 8

Saved = dict[str, Any]


def points() -> TensorDataset:
    draws = torch.Generator().manual_seed(2)
    x = torch.randn(LENGTH, 4, generator=draws)
    return TensorDataset(torch.arange(LENGTH), x, x.sum(dim=1, keepdim=True))


def trained(steps: int, saved: Saved | None, workers: int) -> tuple[list[str], Saved]:
    """Train on this rank up to `steps`; return the digests of its samples and the state."""
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(3)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sampler = ExactSampler(LENGTH, GLOBAL_BATCH, SEED, micro_batch_size=3, steps=steps)
    if saved:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        sampler.load_state_dict(saved["sampler"])
    loader = ExactLoader(
        accelerator,
        DataLoader(
            points(),
            batch_sampler=sampler,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        ),
        sampler,
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    assert isinstance(loader, ExactLoader)
    digests: list[str] = []
    consumed: list[int] = []
    for weight, (index, x, y) in loader:
        assert x.device.type == accelerator.device.type == "cpu"
        with accelerator.accumulate(model):
            accelerator.backward(weight * nn.functional.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        consumed += index.tolist() if weight else []
        if accelerator.sync_gradients:
            digests.append(order_digest(sampler.positions(sampler.step), consumed))
            consumed = []
            sampler.step += 1
    return digests, {
        "model": accelerator.unwrap_model(model).state_dict(),
        "optimizer": optimizer.optimizer.state_dict(),
        "sampler": sampler.state_dict(),
    }


def on_ranks(size: int, *args: Any) -> tuple[list[str], Saved]:
    found = run_ranks(size, trained, *args)
    by_step = zip(*(digests for digests, _ in found), strict=True)
    return [merge_digests(each) for each in by_step], found[0][1]


def weights_of(saved: Saved) -> list[float]:
    return torch.cat([t.flatten() for t in saved["model"].values()]).tolist()


def test_a_resume_on_another_world_size_is_exact() -> None:
    digests, whole = on_ranks(1, STEPS, None, 0)
    assert len(digests) == STEPS
    first, saved = on_ranks(2, 5, None, 2)
    second, resumed = on_ranks(3, STEPS, saved, 2)
    assert first + second == digests
    assert resumed["sampler"] == whole["sampler"]
    assert weights_of(resumed) == pytest.approx(weights_of(whole), abs=1e-6)


def test_the_first_step_is_that_of_one_large_batch() -> None:
    _, saved = on_ranks(2, 1, None, 0)
    torch.manual_seed(3)
    model = nn.Linear(4, 1)
    order = EpochOrder(LENGTH, SEED)
    _, x, y = points()[[order(position) for position in range(GLOBAL_BATCH)]]
    nn.functional.mse_loss(model(x), y).backward()
    torch.optim.SGD(model.parameters(), lr=0.05).step()
    assert weights_of(saved) == pytest.approx(weights_of({"model": model.state_dict()}), abs=1e-6)


def what_prepare_deals() -> list[list[int]]:
    """Return the micro-batches of a bare exact loader after `prepare`."""
    accelerator = Accelerator(cpu=True)
    sampler = ExactSampler(LENGTH, GLOBAL_BATCH, SEED, steps=2)
    loader = accelerator.prepare(DataLoader(points(), batch_sampler=sampler))
    return [index.tolist() for index, _, _ in loader]


def test_a_bare_loader_is_sharded_again() -> None:
    """The reason for the class: when this fails, Accelerate no longer shards such loaders."""
    order = EpochOrder(LENGTH, SEED)
    dealt = run_ranks(2, what_prepare_deals)
    indices = sorted(index for rank in dealt for batch in rank for index in batch)
    assert indices != sorted(order(position) for position in range(2 * GLOBAL_BATCH))


def test_a_sampler_of_another_place_is_refused() -> None:
    accelerator = Accelerator(cpu=True)
    sampler = ExactSampler(LENGTH, GLOBAL_BATCH, SEED, rank=1, world_size=2)
    with pytest.raises(ValueError, match=r"rank=1, world_size=2 of the sampler: .* are 0 and 1"):
        ExactLoader(accelerator, DataLoader(points(), batch_sampler=sampler), sampler)


def test_a_loader_with_batches_of_its_own_is_refused() -> None:
    sampler = ExactSampler(LENGTH, GLOBAL_BATCH, SEED, rank=0, world_size=1)
    with pytest.raises(ValueError, match="batch_sampler of type BatchSampler: legal is"):
        ExactLoader(Accelerator(cpu=True), DataLoader(points(), batch_size=2), sampler)
