"""Train a Lightning module; it stops and resumes exactly, on any number of ranks."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

import torch
from pytorch_lightning import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from trainyard.adapters.lightning import ExactCallback, RunLogger
from trainyard.data import ExactSampler, fold_seed

SEED = 7
Batch = tuple[Tensor, Tensor, Tensor]


class Curves(Dataset[tuple[int, Tensor, Tensor]]):
    """Points of a curve, each made from its index."""

    def __getitem__(self, index: int) -> tuple[int, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(fold_seed(SEED, index))
        x = torch.randn(8, generator=generator)
        return index, x, torch.sin(x).sum(dim=0, keepdim=True)


class Regression(LightningModule):
    """A regression whose loss has the weight of its micro-batch."""

    def __init__(self, exact: ExactCallback) -> None:
        super().__init__()
        self.exact = exact
        self.net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of a micro-batch."""
        _, x, y = batch
        return self.exact.weight(batch_idx) * nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=0.003)


def arguments() -> argparse.Namespace:
    """Read the command line; a job gives `program.arguments` as such words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=14, help="samples in a step, over all ranks")
    parser.add_argument("--accumulation", type=int, default=3, help="micro-batches in a step")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--resume", type=Path, help="folder of a checkpoint, outside of a job")
    return parser.parse_args()


def main() -> None:
    """Train until the last step, or until the job is stopped."""
    args = arguments()
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    sampler = ExactSampler(
        args.samples,
        args.batch,
        SEED,
        # With so many micro-batches in a step, on any number of ranks.
        micro_batch_size=math.ceil(args.batch / (args.accumulation * world_size)),
    )
    # `ids` returns the indices of a batch: they prove which samples were trained on.
    exact = ExactCallback(sampler, ids=lambda batch: batch[0].tolist(), save_every=args.save_every)
    torch.manual_seed(SEED)
    trainer = Trainer(
        max_steps=args.steps,
        use_distributed_sampler=False,
        callbacks=[exact],
        logger=RunLogger(exact),
        log_every_n_steps=1,
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=here,
        num_nodes=world_size // here,
        strategy="ddp" if world_size > 1 else "auto",
        enable_checkpointing=False,  # the callback saves, in a job into the job's checkpoints
        enable_progress_bar=False,
    )
    loader = DataLoader(Curves(), batch_sampler=sampler, num_workers=args.workers)
    trainer.fit(Regression(exact), loader, ckpt_path=exact.checkpoint_to_load(args.resume))


if __name__ == "__main__":
    main()
