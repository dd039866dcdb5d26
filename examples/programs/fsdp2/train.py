"""Train a small transformer with FSDP2 and save it with DCP; it resumes on any number of ranks."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.data import DataLoader, Dataset

import trainyard
from trainyard.data import ExactSampler, fold_seed

SEED = 7
WORDS, LENGTH = 32, 16


class Sequences(Dataset[tuple[int, Tensor]]):
    """Sequences that count up from a random number, by a random difference."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        generator = torch.Generator().manual_seed(fold_seed(SEED, index))
        first, difference = torch.randint(1, WORDS, (2,), generator=generator)
        return index, (first + difference * torch.arange(LENGTH)) % WORDS


class Transformer(nn.Module):
    """Blocks of causal attention, without dropout."""

    def __init__(self) -> None:
        super().__init__()
        # Smooth: at the kink of a ReLU a difference of the last bit switches a unit on or off, and
        # AdamW makes whole steps of the smallest gradients.
        block: dict[str, Any] = {"dropout": 0.0, "activation": "gelu", "norm_first": True}
        self.embedding = nn.Embedding(WORDS, 32)
        self.positions = nn.Embedding(LENGTH, 32)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, **block) for _ in range(2)
        )
        self.head = nn.Linear(32, WORDS)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Return the loss of the next tokens, a mean over the batch."""
        given = tokens_BS[:, :-1]
        size = given.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(size, device=given.device)
        x = self.embedding(given) + self.positions.weight[:size]
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        logits = self.head(x)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens_BS[:, 1:].flatten())


def sharded(model: Transformer, device: torch.device) -> FSDPModule:
    """Divide the parameters of each block, and the rest, over all ranks."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh)
        assert isinstance(module, FSDPModule)
        # The mean over the ranks is taken of the loss below: gloo cannot average, only sum.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    assert isinstance(model, FSDPModule)
    return model


def arguments() -> argparse.Namespace:
    """Read the command line; a job gives `program.arguments` as such words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=14, help="sequences in a step, all ranks")
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
    transformer = Transformer().to(device)
    model = sharded(transformer, device)
    optimizer = torch.optim.AdamW(transformer.parameters(), lr=0.003)
    sampler = ExactSampler(
        args.samples,
        args.batch,
        SEED,
        micro_batch_size=math.ceil(args.batch / (args.accumulation * run.world_size)),
        steps=args.steps,
    )

    resume = run.resume_from or args.resume
    if resume is not None:
        # DCP reads from the shards of any number of ranks what this rank holds.
        parts, moments = get_state_dict(transformer, optimizer)
        saved: dict[str, Any] = {"model": parts, "optimizer": moments}
        saved["sampler"] = sampler.state_dict()
        dcp.load(saved, checkpoint_id=resume)
        set_state_dict(
            transformer,
            optimizer,
            model_state_dict=saved["model"],
            optim_state_dict=saved["optimizer"],
        )
        sampler.load_state_dict(saved["sampler"])

    loader = DataLoader(Sequences(args.samples), batch_sampler=sampler, num_workers=args.workers)
    batches = iter(loader)
    stop = False
    while sampler.step < args.steps and not stop:
        loss = torch.zeros((), device=device)
        consumed: list[int] = []
        for number, weight in enumerate(sampler.weights):
            index, tokens = next(batches)
            model.set_requires_gradient_sync(number == len(sampler.weights) - 1)
            part = weight / run.world_size * transformer(tokens.to(device))
            part.backward()
            loss += part.detach()
            consumed += index.tolist() if weight else []
        optimizer.step()
        optimizer.zero_grad()
        sampler.step += 1

        step = sampler.step
        dist.all_reduce(loss)
        if run.rank == 0:
            run.log({"train/loss": loss.item()}, step=step)
        run.progress(step, total=args.steps)
        run.consumed(step, consumed, sampler.positions(step - 1))
        stop, save = run.should_stop(), run.should_save(step)
        if stop or save or step % args.save_every == 0 or step == args.steps:
            with run.checkpoint(step) as folder:
                parts, moments = get_state_dict(transformer, optimizer)
                state = {"model": parts, "optimizer": moments, "sampler": sampler.state_dict()}
                dcp.save(state, checkpoint_id=folder)  # each rank writes its own file
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
