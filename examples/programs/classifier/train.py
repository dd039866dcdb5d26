"""Classify scikit-learn's digits with DDP, with augmented images and exact resumes."""

from __future__ import annotations

import argparse
import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import trainyard
from trainyard.data import EpochOrder, ExactStream, fold_seed

SEED = 7
HELD_OUT = 297
"""Images that are not trained on."""


class Digits(Dataset[tuple[int, Tensor, int]]):
    """Images of 8 x 8 pixels by their position in the stream, each moved by up to one pixel.

    The draw is keyed by the position: it does not depend on ranks, workers and resumes, and a digit
    is moved differently in every epoch.
    """

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels
        self.order = EpochOrder(len(images), SEED)

    def __getitem__(self, position: int) -> tuple[int, Tensor, int]:
        index = self.order(position)
        generator = torch.Generator().manual_seed(fold_seed(SEED, position))
        down, right = torch.randint(-1, 2, (2,), generator=generator).tolist()
        image = torch.roll(self.images[index], (down, right), dims=(-2, -1))
        return index, image, int(self.labels[index])


def digits() -> tuple[tuple[Tensor, Tensor], Digits]:
    """Return held-out images `[N, 1, 8, 8]` with labels, and the others; scikit-learn has them."""
    found = load_digits()
    images = torch.from_numpy(np.asarray(found.images, dtype=np.float32)) / 16
    images = images.unsqueeze(1)
    labels = torch.from_numpy(np.asarray(found.target, dtype=np.int64))
    held_out = images[:HELD_OUT], labels[:HELD_OUT]
    return held_out, Digits(images[HELD_OUT:], labels[HELD_OUT:])


def network() -> nn.Sequential:
    """Return a convolutional network: group norm, because batch norm mixes a micro-batch."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2),
        nn.GroupNorm(4, 32),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def accuracy(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images that the network labels correctly."""
    with torch.no_grad():
        found = net(images).argmax(dim=1).cpu()
    return int((found == labels).sum()) / len(labels)


def arguments() -> argparse.Namespace:
    """Read the command line; a job gives `program.arguments` as such words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=100, help="images in a step, over all ranks")
    parser.add_argument("--accumulation", type=int, default=3, help="micro-batches in a step")
    parser.add_argument("--save-every", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--resume", type=Path, help="folder of a checkpoint, outside of a job")
    return parser.parse_args()


def main() -> None:
    """Train until the last step, or until the job is stopped."""
    args = arguments()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    run = trainyard.init()
    device = torch.device("cuda", run.local_rank) if torch.cuda.is_available() else "cpu"

    (images, labels), dataset = digits()
    torch.manual_seed(SEED)
    net = network().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    # A stream of positions: the data set turns each into an image and its augmentation.
    stream = ExactStream(
        args.batch,
        micro_batch_size=math.ceil(args.batch / (args.accumulation * run.world_size)),
        steps=args.steps,
    )

    resume = run.resume_from or args.resume
    if resume is not None:
        saved: dict[str, Any] = torch.load(
            resume / "state.pt", weights_only=True, map_location=device
        )
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        stream.load_state_dict(saved["stream"])

    model = DistributedDataParallel(net)
    batches = iter(DataLoader(dataset, batch_sampler=stream, num_workers=args.workers))
    stop = False
    while stream.step < args.steps and not stop:
        loss = torch.zeros((), device=device)
        consumed: list[int] = []
        last = len(stream.weights) - 1
        for number, weight in enumerate(stream.weights):
            index, x, y = next(batches)
            with contextlib.nullcontext() if number == last else model.no_sync():
                part = weight * nn.functional.cross_entropy(model(x.to(device)), y.to(device))
                part.backward()
            loss += part.detach()
            consumed += index.tolist() if weight else []
        optimizer.step()
        optimizer.zero_grad()
        stream.step += 1

        step = stream.step
        dist.all_reduce(loss)
        values = {"train/loss": loss.item() / run.world_size}
        if step % args.save_every == 0:
            with run.phase("validating"):
                values["val/accuracy"] = accuracy(net, images.to(device), labels)
        if run.rank == 0:
            run.log(values, step=step)
        run.progress(step, total=args.steps)
        run.consumed(step, consumed, stream.positions(step - 1))
        stop, save = run.should_stop(), run.should_save(step)
        if stop or save or step % args.save_every == 0 or step == args.steps:
            with run.checkpoint(step) as folder:
                if run.rank == 0:
                    state = {
                        "model": net.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "stream": stream.state_dict(),
                    }
                    torch.save(state, folder / "state.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
