"""From a spec to its model."""

from __future__ import annotations

import torch

from specs.job import JobSpec
from trainer.model.decoder import Transformer
from trainer.model.llama import Llama
from trainer.model.qwen3 import Qwen3

FAMILIES: dict[str, type[Transformer]] = {"llama3": Llama, "qwen3": Qwen3}


def build_model(spec: JobSpec) -> Transformer:
    """Return the spec's model on the meta device: shapes without memory.

    After `parallelize`, `to_empty(device=...)` gives it memory and `init_weights` its values.
    """
    family = FAMILIES[spec.model.family]
    with torch.device("meta"):
        return family(spec.architecture, seq_len=spec.training.seq_len, dropout=spec.model.dropout)
