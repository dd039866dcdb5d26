"""`ExactCallback` against the real library: losses, weights and samples at several world sizes."""

from __future__ import annotations

import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.library.adapters.job_run import job_run, losses_of, records_of, stop
from tests.trainer.ranks import run_ranks
from trainyard.data import EpochOrder, ExactSampler, merge_digests, order_digest
from trainyard.run.session import Run

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what the library imports
    from pytorch_lightning import LightningModule, Trainer

    from trainyard.adapters.lightning import ExactCallback, RunLogger

LENGTH, GLOBAL_BATCH, SEED = 25, 14, 5

pytestmark = pytest.mark.filterwarnings("ignore")

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Points(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """Samples with their indices, and a list of read indices."""

    def __init__(self) -> None:
        draws = torch.Generator().manual_seed(2)
        self.x = torch.randn(LENGTH, 4, generator=draws)
        self.read: list[int] = []

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        self.read.append(index)
        return index, self.x[index], self.x[index].sum(dim=0, keepdim=True)


class Linear(LightningModule):
    """A regression."""

    def __init__(self, exact: ExactCallback) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(4, 1)
        self.exact = exact

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        _, x, y = batch
        return self.exact.weight(batch_idx) * nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Recorded(ExactCallback):
    """Keeps losses and digests."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.losses: dict[int, float] = {}
        self.digests: list[str] = []

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        before = self.sampler.step
        super().on_train_batch_end(trainer, *args)
        if self.sampler.step > before:
            self.losses[self.sampler.step] = trainer.callback_metrics["train/loss"].item()
            self.digests.append(order_digest(self.sampler.positions(before), self.consumed))


def trained(
    folder: Path, steps: int, resume: Path | None = None, workers: int = 0, **changed: Any
) -> tuple[dict[int, float], list[str], list[float], list[int]]:
    """Train on this rank; return losses by step, digests, weights, and read indices."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    sampler = ExactSampler(LENGTH, GLOBAL_BATCH, SEED, micro_batch_size=3)
    exact = Recorded(sampler, ids=lambda batch: batch[0].tolist())
    if "callbacks" in changed:
        (exact,) = changed["callbacks"]
        sampler = exact.sampler
    module = Linear(exact)
    fields: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": int(os.environ.get("WORLD_SIZE", "1")),
        "strategy": "ddp" if "WORLD_SIZE" in os.environ else "auto",
        "max_steps": steps,
        "use_distributed_sampler": False,
        "callbacks": [exact],
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
        "default_root_dir": folder,
    }
    trainer = Trainer(**fields | changed)
    dataset = Points()
    loader = DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    trainer.fit(module, loader, ckpt_path=resume)
    trainer.save_checkpoint(folder / f"step-{trainer.global_step}.ckpt")
    weights = torch.cat([p.detach().flatten() for p in module.parameters()])
    return exact.losses, exact.digests, weights.tolist(), dataset.read


def _trained_there(args: tuple[Any, ...]) -> Any:
    torch.set_num_threads(1)
    return trained(*args)


def on_ranks(size: int, *args: Any) -> tuple[dict[int, float], list[str], list[float]]:
    # torchrun's variable: the trainer starts no processes of its own.
    env = {"TORCHELASTIC_RUN_ID": "test", "LOCAL_WORLD_SIZE": str(size), "GROUP_RANK": "0"}
    found = run_ranks(size, _trained_there, args, env=env)
    losses, _, weights, _ = found[0]
    by_step = zip(*(digests for _, digests, _, _ in found), strict=True)
    return losses, [merge_digests(each) for each in by_step], weights


def test_a_resume_on_another_world_size_is_exact(tmp_path: Path) -> None:
    losses, digests, weights = on_ranks(1, tmp_path / "whole", 9)
    assert losses.keys() == set(range(1, 10))
    first = on_ranks(2, tmp_path, 5, None, 2)
    second = on_ranks(3, tmp_path, 9, tmp_path / "step-5.ckpt", 2)
    assert first[1] + second[1] == digests
    assert {**first[0], **second[0]} == pytest.approx(losses, abs=1e-5)
    assert second[2] == pytest.approx(weights, abs=1e-5)


def test_the_first_step_is_that_of_one_large_batch(tmp_path: Path) -> None:
    losses, _, weights, _ = trained(tmp_path, 1)
    module, dataset = Linear(ExactCallback(ExactSampler(LENGTH, GLOBAL_BATCH, SEED))), Points()
    order = EpochOrder(LENGTH, SEED)
    x = dataset.x[[order(position) for position in range(GLOBAL_BATCH)]]
    loss = nn.functional.mse_loss(module.layer(x), x.sum(dim=1, keepdim=True))
    loss.backward()
    torch.optim.SGD(module.parameters(), lr=0.05).step()
    assert losses == pytest.approx({1: loss.item()}, abs=1e-6)
    expected = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert weights == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_resume_reads_no_sample_of_before(tmp_path: Path) -> None:
    trained(tmp_path, 7)
    _, _, _, read = trained(tmp_path, 9, tmp_path / "step-7.ckpt")
    order = EpochOrder(LENGTH, SEED)
    positions = range(7 * GLOBAL_BATCH, 9 * GLOBAL_BATCH)
    # A loader fetches a micro-batch or two ahead.
    assert read[: 2 * GLOBAL_BATCH] == [order(position) for position in positions]
    assert len(read) <= 2 * GLOBAL_BATCH + 6


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    exact = Recorded(ExactSampler(LENGTH, GLOBAL_BATCH, SEED + 1))
    with pytest.raises(ValueError, match="seed=6 differs from seed=5"):
        trained(tmp_path, 2, tmp_path / "step-1.ckpt", callbacks=[exact])
    exact = Recorded(ExactSampler(LENGTH, 7, SEED))
    with pytest.raises(ValueError, match="global_batch_size=7 differs from global_batch_size=14"):
        trained(tmp_path, 2, tmp_path / "step-1.ckpt", callbacks=[exact])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"use_distributed_sampler": True}, r"legal is Trainer\(use_distributed_sampler=False\)"),
        ({"max_steps": -1, "max_epochs": 1}, "a trainer with max_steps"),
        ({"accumulate_grad_batches": 2}, "a step has 5 micro-batches at this world size"),
    ],
)
def test_settings_that_change_the_samples_of_a_step_are_refused(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        trained(tmp_path, 1, **changed)


def test_a_sampler_of_another_place_is_refused(tmp_path: Path) -> None:
    sampler = ExactSampler(LENGTH, GLOBAL_BATCH, SEED, rank=1, world_size=2)
    with pytest.raises(ValueError, match=r"rank=1, world_size=2 of the sampler: .* are 0 and 1"):
        trained(tmp_path, 1, callbacks=[Recorded(sampler)])


def in_job(run: Run, folder: Path, steps: int, **fields: Any) -> Recorded:
    """Train in a job."""
    sampler = ExactSampler(LENGTH, GLOBAL_BATCH, SEED, micro_batch_size=3)
    exact = Recorded(sampler, ids=lambda batch: batch[0].tolist(), run=run, **fields)
    resume = exact.checkpoint_to_load()
    trained(folder, steps, resume, callbacks=[exact], logger=RunLogger(exact))
    return exact


def test_a_job_stops_saves_and_resumes_where_it_stopped(tmp_path: Path) -> None:
    losses, digests, _, _ = trained(tmp_path, 6)
    first = job_run(tmp_path)
    stop(first)
    in_job(first, tmp_path, 6)
    before = losses_of(first)
    stopped = max(before)
    assert stopped < 6
    saved = tmp_path / "checkpoints" / "job" / "a1" / f"step-{stopped}"
    assert (saved / "COMMITTED").exists()
    second = job_run(tmp_path, 2, stopped)
    in_job(second, tmp_path, 6, save_every=4)
    after = losses_of(second)
    assert after.keys() == set(range(stopped + 1, 7))
    assert before | after == pytest.approx(losses, abs=1e-6)
    records = [*records_of(first), *records_of(second)]
    found = {r["step"]: r["data_digest"] for r in records if r.get("data_digest")}
    assert found == dict(enumerate(digests, start=1))
    kept = (tmp_path / "checkpoints" / "job" / "a2").iterdir()
    assert {path.name for path in kept if path.name.startswith("step-")} == {"step-4", "step-6"}


def test_metrics_and_progress_of_the_run(tmp_path: Path) -> None:
    run = job_run(tmp_path)
    exact = in_job(run, tmp_path, 3)
    assert losses_of(run) == exact.losses
    assert exact.losses.keys() == {1, 2, 3}
    assert run.directory is not None
    heartbeat = json.loads((run.directory / "heartbeat.json").read_text())
    assert (heartbeat["step"], heartbeat["steps"]) == (3, 3)
