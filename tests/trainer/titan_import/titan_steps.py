"""Takes two steps of AdamW from a checkpoint of torchtitan, with torchtitan's model and loaders.

Run by torchtitan's interpreter: `titan_steps.py FAMILY STEP`. It prints the losses before, between
and after the two steps, as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "library")]

import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import torch.nn.functional as F  # noqa: E402

importlib.import_module("examples.programs.torchtitan.on_cpu")
utils: Any = importlib.import_module("torchtitan.components.optimizer.utils")


def main(family: str, step: str) -> list[float]:
    """Load, train, and return the losses."""
    family_module: Any = importlib.import_module(f"torchtitan.models.{family}")
    model = family_module.model_registry("debugmodel", attn_backend="sdpa").model.build()
    if getattr(model, "enable_weight_tying", False):
        model.lm_head.weight = model.tok_embeddings.weight
    weights = model.state_dict()
    dcp.load(weights, checkpoint_id=step, no_dist=True)
    model.load_state_dict(weights)
    optimizer = torch.optim.AdamW(
        list(model.named_parameters()), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0
    )
    utils.init_optim_state(optimizer)
    flat = utils.get_flat_optim_state_dict(optimizer)
    state = {f"optimizer.{name}": value for name, value in flat.items() if "state." in name}
    dcp.load(state, checkpoint_id=step, no_dist=True)
    loaded = {name.removeprefix("optimizer."): value for name, value in state.items()}
    utils.load_flat_optim_state_dict(optimizer, flat | loaded)
    tokens_BS = (torch.arange(66) * 31 % 2048).view(2, 33)
    inputs_BS, labels_BS = tokens_BS[:, :-1], tokens_BS[:, 1:]
    positions_BS = torch.arange(32).expand_as(inputs_BS)
    losses = []
    for _ in range(3):
        loss = F.cross_entropy(model(inputs_BS, positions_BS).flatten(0, 1), labels_BS.flatten())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))
