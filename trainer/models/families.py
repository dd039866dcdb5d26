"""From a spec to its model."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from trainer.models.base import Model
from trainer.models.decoder import Transformer
from trainer.models.llama import Llama
from trainer.models.own import OwnModel
from trainer.models.qwen3 import Qwen3
from trainyard.spec.job import JobSpec

FAMILIES: dict[str, type[Transformer]] = {"llama3": Llama, "qwen3": Qwen3}


def build_model(spec: JobSpec, roots: Mapping[str, str] | None = None) -> Model:
    """Return the spec's model on the meta device: shapes and types of weights without memory.

    After `parallelize`, `to_empty(device=...)` gives it memory and `init_weights` its values.
    `roots` gives the path of each named root, for the code of an own model.

    Raises:
        LaunchError: an own model cannot be built.
        DataError: its code is not on this node.
    """
    with torch.device("meta"):
        model = _shaped(spec, roots or {})
    for parameter in model.parameters():  # buffers, such as rotary angles, keep their type
        parameter.data = parameter.data.to(getattr(torch, spec.training.weight_dtype))
    return model


def _shaped(spec: JobSpec, roots: Mapping[str, str]) -> Model:
    if spec.model.factory is not None:
        return OwnModel(spec, roots)
    family = FAMILIES[spec.model.family]
    return family(spec.architecture, seq_len=spec.training.seq_len, dropout=spec.model.dropout)
