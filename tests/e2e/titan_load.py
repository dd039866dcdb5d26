"""Loads an automatic export by torchtitan's own checkpoint manager, and compares logits.

Run by torchtitan's interpreter: `titan_load.py EXPORT LOGITS`, where LOGITS holds tokens and the
expected logits of the debug model of Llama 3.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "library")]

import torch  # noqa: E402

importlib.import_module("examples.programs.torchtitan.on_cpu")
llama3: Any = importlib.import_module("torchtitan.models.llama3")
rope: Any = importlib.import_module("torchtitan.models.common.rope")
dcp: Any = importlib.import_module("torchtitan.components.checkpointer.dcp")


def debug_model(layers: int) -> tuple[Any, Any]:
    """Return torchtitan's Llama 3 in the width of Trainyard's debug model, and its config."""
    dim, heads, rows = 64, 4, 320
    config = llama3.Llama3Model.Config(
        dim=dim,
        vocab_size=rows,
        tok_embeddings=llama3.Embedding.Config(
            num_embeddings=rows, embedding_dim=dim, param_init=llama3._EMBEDDING_INIT
        ),
        norm=llama3.RMSNorm.Config(normalized_shape=dim, param_init=llama3._NORM_INIT),
        lm_head=llama3.Linear.Config(
            in_features=dim, out_features=rows, param_init=llama3._output_linear_init(dim)
        ),
        layers=llama3._build_llama3_layers(
            fuse_qkv=True,
            n_layers=layers,
            dim=dim,
            n_heads=heads,
            n_kv_heads=2,
            hidden_dim=192,
            rope=rope.ComplexRoPE.Config(dim=dim // heads, max_seq_len=128, theta=10_000.0),
            attn_backend="sdpa",
        ),
    )
    return config.build(), config


def main(export: str, logits: str) -> None:
    """Load, compare, and fail with the largest difference."""
    shape = json.loads((Path(export) / "config.json").read_text())
    model, config = debug_model(shape["num_hidden_layers"])
    manager = object.__new__(dcp.CheckpointManager)
    manager.sd_adapter = llama3.Llama3StateDictAdapter(config, None)
    manager.states = {dcp.MODEL: model}
    manager.dcp_load(model.state_dict(), export, from_hf=True, from_quantized=False)
    tokens_BS, expected_BSV = torch.load(logits, weights_only=True)
    with torch.no_grad():
        positions_BS = torch.arange(tokens_BS.shape[1]).expand_as(tokens_BS)
        torch.testing.assert_close(model(tokens_BS, positions_BS), expected_BSV, atol=1e-5, rtol=0)


if __name__ == "__main__":
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    main(*sys.argv[1:])
