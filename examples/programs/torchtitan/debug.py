"""torchtitan's debug model on the text of `prepare.py`, with exact steps."""

from __future__ import annotations

from typing import Any

from torchtitan.models.llama3.config_registry import llama3_debugmodel

from trainyard.adapters.torchtitan import exact


def debug() -> Any:
    """Return the recipe of 12 steps, which saves each fifth step and the last one."""
    config = llama3_debugmodel()
    config.dump_folder = "out"
    config.hf_assets_path = "tokenizer"
    config.training.steps = 12
    config.training.global_batch_size = 12
    config.training.local_batch_size = 4
    config.training.seq_len = 128
    config.training.mixed_precision_param = "float32"
    config.activation_checkpoint = None
    # The FSDP of torch 2.13 cannot read the annotations of the default, `spmd_types`.
    config.parallelism.spmd_backend = "partial_dtensor"
    config.checkpoint.enable = True
    config.checkpoint.interval = 5
    config.debug.seed = 7
    return exact(config)
