"""torchtitan's debug models, smaller by fields of their recipes, with exact steps.

Run by torchtitan's interpreter, which has none of our other packages.
"""

from __future__ import annotations

from typing import Any

from torchtitan.hf_datasets.text_datasets import (
    HFDataSource,
    InterleavedHuggingFaceTextDataLoader,
)
from torchtitan.models.deepseek_v3.config_registry import deepseek_v3_debugmodel
from torchtitan.models.gpt_oss.config_registry import gpt_oss_debugmodel
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.models.qwen3.config_registry import qwen3_debugmodel

from trainyard.adapters.torchtitan import exact

STEPS = 6
SAVE_EVERY = 3


def small(config: Any) -> Any:
    """Return a recipe of few short sequences."""
    config.dump_folder = "out"
    config.hf_assets_path = "tokenizer"
    training = config.training
    training.steps, training.seq_len = STEPS, 32
    training.global_batch_size, training.local_batch_size = 12, 2
    training.mixed_precision_param = "float32"
    config.activation_checkpoint = None
    config.parallelism.spmd_backend = "partial_dtensor"
    config.checkpoint.enable, config.checkpoint.interval = True, SAVE_EVERY
    config.debug.seed = 7
    return config


def llama3() -> Any:
    """A dense model."""
    return exact(small(llama3_debugmodel()))


def plain() -> Any:
    """The dense model without exact steps."""
    config = small(llama3_debugmodel())
    config.training.global_batch_size = -1
    return config


def qwen3() -> Any:
    """A dense model whose output shares the weights of its embedding."""
    return exact(small(qwen3_debugmodel()))


def deepseek_v3() -> Any:
    """A mixture of experts with a bias of its routers."""
    return exact(small(deepseek_v3_debugmodel()))


def gpt_oss() -> Any:
    """A mixture of experts with attention sinks."""
    config = small(gpt_oss_debugmodel())
    # It has 70 million parameters, which ranks exchange in each micro-batch.
    config.training.seq_len, config.training.local_batch_size = 16, 3
    config.parallelism.fsdp_reshard_after_forward = "never"
    return exact(config)


def mixture() -> Any:
    """The dense model on two sources."""
    config = small(llama3_debugmodel())
    sources = [HFDataSource(dataset="c4_test", weight=weight) for weight in (3, 1)]
    sources[1].dataset_path = "other"
    config.dataloader = InterleavedHuggingFaceTextDataLoader.Config(sources=sources)
    return exact(config)


def unsized() -> Any:
    """The dense model without a global batch size."""
    config = small(llama3_debugmodel())
    config.training.global_batch_size = -1
    return exact(config)
