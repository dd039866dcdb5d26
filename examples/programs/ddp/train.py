"""Train a small regression with DDP; it stops and resumes exactly, on any number of ranks."""

from __future__ import annotations

import argparse
import contextlib
import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import trainyard
from trainyard.data import ExactSampler, fold_seed

SEED = 7


class Curves(Dataset[tuple[int, Tensor, Tensor]]):
    """Points of a curve, each made from its index."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __getitem__(self, index: int) -> tuple[int, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(fold_seed(SEED, index))
        x = torch.randn(8, generator=generator)
        return index, x, torch.sin(x).sum(dim=0, keepdim=True)


def mean_over_ranks(value: Tensor) -> float:
    """Return the mean of a number over all ranks."""
    dist.all_reduce(value)
    return (value / dist.get_world_size()).item()


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
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    run = trainyard.init()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", run.local_rank)
        torch.cuda.set_device(device)

    torch.manual_seed(SEED)
    net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.003)
    sampler = ExactSampler(
        args.samples,
        args.batch,
        SEED,
        # With so many micro-batches in a step, on any number of ranks.
        micro_batch_size=math.ceil(args.batch / (args.accumulation * run.world_size)),
        steps=args.steps,
    )

    # In a job, its checkpoint; rank 0 fences off earlier attempts before it is given.
    resume = run.resume_from or args.resume
    if resume is not None:
        saved: dict[str, Any] = torch.load(
            resume / "state.pt", weights_only=True, map_location=device
        )
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        sampler.load_state_dict(saved["sampler"])

    model = DistributedDataParallel(net)
    # Iteration begins at the sampler's step, without a walk over what came before.
    loader = DataLoader(Curves(args.samples), batch_sampler=sampler, num_workers=args.workers)
    batches = iter(loader)
    stop = False
    while sampler.step < args.steps and not stop:
        loss = torch.zeros((), device=device)
        consumed: list[int] = []
        last = len(sampler.weights) - 1
        for number, weight in enumerate(sampler.weights):
            index, x, y = next(batches)
            # Gradients are averaged over the ranks once a step.
            with contextlib.nullcontext() if number == last else model.no_sync():
                part = weight * nn.functional.mse_loss(model(x.to(device)), y.to(device))
                part.backward()
            loss += part.detach()
            consumed += index.tolist() if weight else []
        optimizer.step()
        optimizer.zero_grad()
        sampler.step += 1

        step = sampler.step
        mean = mean_over_ranks(loss)
        if run.rank == 0:
            run.log({"train/loss": mean}, step=step)
        run.progress(step, total=args.steps)
        # What was trained on, not what the loader has fetched ahead: the server compares attempts.
        run.consumed(step, consumed, sampler.positions(step - 1))
        # All ranks get the same answers.
        stop, save = run.should_stop(), run.should_save(step)
        if stop or save or step % args.save_every == 0 or step == args.steps:
            with run.checkpoint(step) as folder:
                if run.rank == 0:
                    state = {
                        "model": net.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "sampler": sampler.state_dict(),
                    }
                    torch.save(state, folder / "state.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
