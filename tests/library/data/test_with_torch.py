"""The samplers in torch's own loader, and the weights in torch's own gradients."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from tests.trainer.ranks import run_ranks
from trainyard.data import (
    EpochOrder,
    ExactSampler,
    ExactStream,
    Mixture,
    fold_seed,
    merge_digests,
)

PAGE = Path(__file__).parents[3] / "docs" / "exact-data.md"
GLOBAL_BATCH = 12


class Numbers(Dataset[int]):
    """Each index is its own sample."""

    def __getitem__(self, index: int) -> int:
        return index


class Noised(Dataset[tuple[int, float]]):
    """Samples by position, with an augmentation keyed by position."""

    def __init__(self, order: EpochOrder) -> None:
        self.order = order

    def __getitem__(self, position: int) -> tuple[int, float]:
        generator = torch.Generator().manual_seed(fold_seed(3, position))
        return self.order(position), torch.rand(1, generator=generator).item()


class Mixed(Dataset[tuple[int, int]]):
    """Samples of two data sets by position."""

    def __init__(self, mixture: Mixture) -> None:
        self.mixture = mixture

    def __getitem__(self, position: int) -> tuple[int, int]:
        return self.mixture(position)


class Lines(IterableDataset[list[int]]):
    """Items that can be read only in order."""

    def __init__(self, stream: ExactStream, count: int) -> None:
        self.stream, self.count = stream, count

    def __iter__(self) -> Iterator[list[int]]:
        return self.stream.deal(iter(range(self.stream.position, self.count)))


@pytest.mark.parametrize(("rank", "workers"), [(0, 0), (1, 0), (4, 0), (0, 2), (4, 2)])
def test_items_in_order_pass_a_loader_with_any_number_of_workers(rank: int, workers: int) -> None:
    stream = ExactStream(GLOBAL_BATCH, micro_batch_size=1, step=2, rank=rank, world_size=5)
    loader = DataLoader(
        Lines(stream, 80), batch_size=None, num_workers=workers, collate_fn=default_collate
    )
    # 80 - 24 items are four global batches, and an omitted rest.
    expected = [batch for batch, _ in zip(stream, range(4 * len(stream.weights)), strict=False)]
    assert [batch.tolist() for batch in loader] == expected


def test_persistent_workers_fetch_ahead_and_a_resume_does_not_notice() -> None:
    def loader(sampler: ExactSampler) -> DataLoader[int]:
        return DataLoader(
            Numbers(),
            batch_sampler=sampler,
            num_workers=2,
            persistent_workers=True,
            prefetch_factor=4,
        )

    whole = ExactSampler(50, GLOBAL_BATCH, 1, micro_batch_size=4, steps=8, rank=1, world_size=2)
    uninterrupted = [batch.tolist() for batch in loader(whole)]
    assert len(uninterrupted) == len(whole) == 16

    stopped = ExactSampler(50, GLOBAL_BATCH, 1, micro_batch_size=4, steps=8, rank=1, world_size=2)
    batches = iter(loader(stopped))
    consumed = []
    for _ in range(3):
        consumed += [next(batches).tolist() for _ in stopped.weights]
        stopped.step += 1
    resumed = ExactSampler(50, GLOBAL_BATCH, 1, micro_batch_size=4, steps=8, rank=1, world_size=2)
    resumed.load_state_dict(stopped.state_dict())
    ahead = loader(resumed)
    assert consumed + [batch.tolist() for batch in ahead] == uninterrupted
    # A second pass through the same workers starts at the present step.
    resumed.step = 7
    assert [batch.tolist() for batch in ahead] == uninterrupted[-2:]


def test_augmentations_keyed_by_position_do_not_depend_on_ranks() -> None:
    def draws(world_size: int) -> dict[int, tuple[int, float]]:
        drawn: dict[int, tuple[int, float]] = {}
        for rank in range(world_size):
            stream = ExactStream(GLOBAL_BATCH, steps=3, rank=rank, world_size=world_size)
            for batch, (index, noise) in zip(
                stream, DataLoader(Noised(EpochOrder(20, 1)), batch_sampler=stream), strict=True
            ):
                drawn |= dict(
                    zip(batch, zip(index.tolist(), noise.tolist(), strict=True), strict=True)
                )
        return drawn

    assert draws(1) == draws(5)
    assert len({noise for _, noise in draws(1).values()}) == 36  # also of samples that come twice


def test_a_mixture_is_a_data_set_by_position() -> None:
    mixture = Mixture([5, 100], [0.25, 0.75], seed=2)
    stream = ExactStream(8, step=1, steps=3, rank=0, world_size=1)
    loaded = [
        pair
        for sources, indices in DataLoader(Mixed(mixture), batch_sampler=stream)
        for pair in zip(sources.tolist(), indices.tolist(), strict=True)
    ]
    assert loaded == [mixture(position) for position in range(8, 24)]


@pytest.mark.parametrize("batch", [1, 7, GLOBAL_BATCH])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("size", [None, 1, 2])
def test_weighted_gradients_are_those_of_the_mean_over_the_global_batch(
    batch: int, world_size: int, size: int | None
) -> None:
    if world_size > batch:
        with pytest.raises(ValueError, match=f"legal is from 1 to {batch}"):
            ExactStream(batch, rank=0, world_size=world_size)
        return
    torch.manual_seed(0)
    inputs, targets = torch.randn(20, 6), torch.randn(20, 3)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    loss_function = nn.MSELoss()

    def gradients(indices: list[int], weight: float) -> list[Tensor]:
        loss = loss_function(model(inputs[indices]), targets[indices])
        return list(torch.autograd.grad(loss * weight, list(model.parameters())))

    order = EpochOrder(20, seed=1)
    expected = gradients([order(2 * batch + offset) for offset in range(batch)], 1.0)
    averaged = [torch.zeros_like(g) for g in expected]
    for rank in range(world_size):
        sampler = ExactSampler(
            20, batch, 1, micro_batch_size=size, step=2, rank=rank, world_size=world_size
        )
        for indices, weight in zip(sampler, sampler.weights, strict=False):
            for total, gradient in zip(averaged, gradients(indices, weight), strict=True):
                total += gradient / world_size  # DDP and FSDP average over ranks
    for found, reference in zip(averaged, expected, strict=True):
        torch.testing.assert_close(found, reference, rtol=0, atol=1e-6)


def test_ranks_come_from_an_initialised_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        stream = ExactStream(8)
    finally:
        distributed.destroy_process_group()
    assert (stream.rank, stream.world_size) == (0, 1)
    assert (ExactStream(8).rank, ExactStream(8).world_size) == (1, 2)


def run_script(script: str, folder: str) -> dict[int, str]:
    """Run a script in a folder; return its output for each step."""
    os.chdir(folder)
    # The default of a script; a rank of these tests would start a fork server for its loader.
    multiprocessing.set_start_method("fork", force=True)
    printed: dict[int, str] = {}
    names = {"__name__": "__main__", "print": printed.__setitem__}
    exec(compile(script, str(PAGE), "exec"), names)
    return printed


def test_the_script_of_the_page_resumes_exactly_on_another_world_size(tmp_path: Path) -> None:
    script = PAGE.read_text().split("```python\n")[1].split("```")[0]
    assert script.count("steps=20") == 1
    stopped = script.replace("steps=20", "steps=10")  # in the middle of the second epoch

    def run(world_size: int, script: str, folder: Path) -> tuple[dict[int, str], dict[str, Tensor]]:
        folder.mkdir(exist_ok=True)
        ranks = run_ranks(world_size, run_script, script, str(folder), initialize=False)
        digests = {s: merge_digests(printed[s] for printed in ranks) for s in ranks[0]}
        return digests, torch.load(folder / "saved.pt", weights_only=True)["model"]

    expected, weights = run(1, script, tmp_path / "uninterrupted")
    before, _ = run(2, stopped, tmp_path / "resumed")
    after, resumed_weights = run(3, script, tmp_path / "resumed")
    assert (list(before), list(after)) == (list(range(10)), list(range(10, 20)))
    assert before | after == expected
    torch.testing.assert_close(resumed_weights, weights, rtol=0, atol=1e-6)
