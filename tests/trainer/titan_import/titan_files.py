"""Checkpoints in torchtitan's names and format, without torchtitan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from trainer.checkpoint.manifest import committed_manifests
from trainer.checkpoint.reader.storage_reader import CheckedReader, point_at
from trainer.checkpoint.tensors import train_tensors
from trainer.hugging_face.weight_names import shapes_of
from trainer.loop.optimizer import materialize_state
from trainer.models.families import FAMILIES
from trainyard.spec.job import JobSpec, parse_job_spec

STEP = 7
SMALL = {"family": "llama3", "size": "debug", "n_layers": 2, "dropout": 0.0}
LAYER = {
    "feed_forward_norm": "ffn_norm",
    "attention.wq": "attention.qkv_linear.wq",
    "attention.wk": "attention.qkv_linear.wk",
    "attention.wv": "attention.qkv_linear.wv",
}
State = dict[str, Any]


def spec_of(**model: Any) -> JobSpec:
    return parse_job_spec({"model": SMALL | model, "resources": {"device": "cpu"}})


def titan_name(ours: str) -> str:
    """Return torchtitan's name of a weight in 0.3.0."""
    if ours == "output.weight":
        return "lm_head.weight"
    for part, name in LAYER.items():
        ours = ours.replace(f".{part}.", f".{name}.")
    return ours


def titan_state(spec: JobSpec) -> State:
    """Return random state in torchtitan's names, with separate projections."""
    torch.manual_seed(3)
    state: State = {"train_state": {"step": STEP, "ntokens_seen": 99}}
    state["lr_scheduler"] = {"last_epoch": STEP}
    for ours, shape in shapes_of(spec.architecture).items():
        name = titan_name(ours)
        state[name] = torch.randn(shape) * 0.05
        state[f"optimizer.state.{name}.exp_avg"] = torch.randn(shape) * 1e-3
        state[f"optimizer.state.{name}.exp_avg_sq"] = torch.rand(shape) * 1e-6
        state[f"optimizer.state.{name}.step"] = torch.tensor(float(STEP))
        state[f"optimizer.param_groups.{name}.betas"] = (0.9, 0.95)
    return state


def saved(folder: Path, state: State) -> Path:
    """Save a state as torchtitan does, and return the folder of the step."""
    step = folder / f"step-{STEP}"
    dcp.save(state, checkpoint_id=step, no_dist=True)
    return step


def read(root: Path, spec: JobSpec) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return our model and its optimizer with the state of the only checkpoint below a root."""
    (manifest,) = committed_manifests(root, "torchtitan")
    model = FAMILIES[spec.model.family](spec.architecture, seq_len=32)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0
    )
    materialize_state(optimizer)
    folder = root / "torchtitan" / "a1" / f"step-{manifest.step}"
    reader = CheckedReader(folder)
    reader.open(point_at(manifest, folder))
    with torch.no_grad():
        reader.read(train_tensors(model, optimizer))
    return model, optimizer


def root_of(tmp_path: Path) -> Path:
    root = tmp_path / "checkpoints"
    root.mkdir(exist_ok=True)
    return root
