"""Checks of layouts: two to four ranks that share the device train like one rank on the CPU."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.launch import torchrun
from tools.gpu_check.check import DeviceKind, Here
from tools.gpu_check.launch import environment
from tools.gpu_check.staged_group import BACKEND, register
from tools.gpu_check.training import STEPS, Curve, Training, alone, curve, device_of, job
from trainer.process import die_with_parent
from trainyard.prove.figures import Figure, at_most, equal, largest_difference
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout

LAYOUTS: dict[str, tuple[Layout, dict[str, Any]]] = {
    "fsdp_2": (Layout(dp_shard=2), {}),
    "fsdp_4": (Layout(dp_shard=4), {"reshard_after_forward": "never"}),
    "hsdp_2x2": (Layout(dp_replicate=2, dp_shard=2), {}),
    "fsdp_2_tp_2": (Layout(dp_shard=2, tp=2), {}),
    "fsdp_2_cp_2_allgather_kv": (Layout(dp_shard=2, cp=2), {"cp_method": "allgather_kv"}),
    "fsdp_2_cp_2_ulysses": (Layout(dp_shard=2, cp=2), {"cp_method": "ulysses"}),
    "fsdp_2_pp_2": (Layout(dp_shard=2, pp=2), {}),
}
LOSS = {"cpu": 1e-5, "cuda": 1e-4}
"""Maximum relative difference between the losses of the layout and of one rank on the CPU, over six
steps in float32."""
GRAD_NORM = {"cpu": 1e-4, "cuda": 1e-3}
DROPOUT = {"dropout": 0.1}


def trains_as_one_rank(here: Here, name: str) -> list[Figure]:
    """Train on all ranks of a layout, and compare with one rank on the CPU, in float32."""
    layout, _ = LAYOUTS[name]
    with alone("cpu"):
        expected = curve(_spec(here.device, Layout()), torch.device("cpu"))
    words = [name, here.device, str(here.scratch)]
    command = torchrun(layout.world_size, "-m", __name__, *words)
    subprocess.run(command, env=environment(), check=True)
    found = [_read(here.scratch, rank) for rank in range(layout.world_size)]
    losses, norms = found[0].losses, found[0].grad_norms
    return [
        equal("ranks", len(found), layout.world_size),
        equal("ranks_agree", all(other == found[0] for other in found), expected=True),
        at_most("loss", largest_difference(losses, expected.losses), LOSS[here.device]),
        at_most(
            "grad_norm", largest_difference(norms, expected.grad_norms), GRAD_NORM[here.device]
        ),
        at_most("last_loss_of_first", losses[-1] / losses[0], 0.95),
        at_most("first_loss_off_uniform", abs(losses[0] - math.log(512)), 0.3),
    ]


def _spec(device: DeviceKind, layout: Layout, **axes: Any) -> JobSpec:
    # One sequence per micro-batch, so that each of four ranks has work and one rank has several.
    spec = job(device, model=DROPOUT, parallelism=axes, training={"micro_batch_size": 1})
    return spec.on_layout(layout)


def _read(folder: Path, rank: int) -> Curve:
    return Curve(**json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")))


def _train(name: str, kind: DeviceKind, folder: Path) -> None:
    """Run one rank of a layout, and write its losses and gradient norms to a file."""
    die_with_parent()
    layout, axes = LAYOUTS[name]
    device = device_of(kind)  # all ranks share it
    register()
    dist.init_process_group(BACKEND, timeout=timedelta(seconds=60))
    found = Training(_spec(kind, layout, **axes), layout, device).curve(STEPS)
    text = json.dumps({"losses": found.losses, "grad_norms": found.grad_norms})
    (folder / f"rank-{dist.get_rank()}.json").write_text(text, encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    _train(sys.argv[1], sys.argv[2], Path(sys.argv[3]))  # type: ignore[arg-type]
