"""The model of a checkpoint in the hub's format: names, shapes and `config.json`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.errors import CheckpointError
from trainer.hugging_face.config import SpecialIds, config_of
from trainer.hugging_face.folder import CONFIG
from trainer.hugging_face.hub_weights import PREFIX
from trainer.hugging_face.tokenizer import write_json
from trainer.hugging_face.weight_names import published_name, shapes_of
from trainer.models.hub.causal_model import load_model
from trainer.models.hub.folder import HubFolder
from trainer.models.hub.published_weights import PublishedNames
from trainyard.protocol.manifest import Manifest
from trainyard.training.architectures import ARCHITECTURES, Architecture


@dataclass(frozen=True)
class FamilyExport:
    """A model of a family."""

    family: str
    arch: Architecture
    seq_len: int
    stored: torch.dtype

    @property
    def kinds(self) -> dict[str, Tensor]:
        """Shape and dtype of each weight in the checkpoint, as tensors without memory."""
        shapes = shapes_of(self.arch).items()
        return {n: torch.empty(shape, dtype=self.stored, device="meta") for n, shape in shapes}

    @property
    def vocab_size(self) -> int:
        """Number of rows of the embedding."""
        return self.arch.vocab_size

    def is_converted(self, _name: str) -> bool:
        """Return whether a tensor gets the exported dtype."""
        return True

    def published(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Return a weight under its published name."""
        return {published_name(name): tensor}

    def write_config(self, folder: Path, *, dtype: str, ids: SpecialIds | None) -> None:
        """Write `config.json`."""
        config = config_of(self.family, self.arch, seq_len=self.seq_len, dtype=dtype, ids=ids)
        write_json(folder / CONFIG, config)


class HubExport:
    """A hub model, whose folder has the config and defines the published names."""

    def __init__(self, folder: HubFolder, *, stored: torch.dtype) -> None:
        self._folder = folder
        self._content = folder.content()
        causal = load_model(folder).causal
        self.vocab_size: int = causal.config.vocab_size
        names = PublishedNames(causal, field=folder.field)
        self._places = names.find(names.written())
        self._parameters = {name for name, _ in causal.named_parameters()}
        self.kinds = {
            f"{PREFIX}{name}": tensor.to(stored) if name in self._parameters else tensor
            for name, tensor in names.tensors.items()
            if name not in names.ties
        }
        """Shape and dtype of each weight in the checkpoint, as tensors without memory."""

    def is_converted(self, name: str) -> bool:
        """Return whether a tensor is converted to the exported dtype; buffers keep their dtype."""
        return name.removeprefix(PREFIX) in self._parameters

    def published(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Return the published tensors of a weight."""
        places = self._places[name.removeprefix(PREFIX)]
        return {part.name: tensor[part.place].clone() for part in places}

    def write_config(self, folder: Path, *, dtype: str, ids: SpecialIds | None) -> None:
        """Write `config.json` with the exported dtype and tokens; copy the files of remote code."""
        content: dict[str, Any] = {**self._content, "dtype": dtype}
        content.pop("torch_dtype", None)
        if ids is not None:
            found = {"bos_token_id": ids.bos, "eos_token_id": ids.eos, "pad_token_id": ids.pad}
            content |= {key: token for key, token in found.items() if token is not None}
        write_json(folder / CONFIG, content)
        if self._folder.remote_code:
            for path in self._folder.path.glob("*.py"):
                shutil.copyfile(path, folder / path.name)


def exported_model(
    manifest: Manifest, roots: Mapping[str, str], *, checkpoint: object
) -> FamilyExport | HubExport:
    """Return the model of a checkpoint.

    Args:
        manifest: manifest of the checkpoint.
        roots: path of each root, by name, for the folder of a hub model.
        checkpoint: place of the checkpoint, for messages.

    Raises:
        CheckpointError: the model is neither of a family nor a hub model.
        RunError: the folder of a hub model is missing or cannot be used.
    """
    model = manifest.model
    stored: torch.dtype = getattr(torch, manifest.param_dtype)
    if model is not None and model.hugging_face is not None:
        return HubExport(HubFolder.of(model, roots), stored=stored)
    if model is None or manifest.seq_len is None or model.factory is not None:
        raise CheckpointError(
            f"{checkpoint} holds no model of a known family: only {', '.join(ARCHITECTURES)} and "
            "hub models have names on the hub",
            path=str(checkpoint),
        )
    arch = model.shape_of(ARCHITECTURES[model.family][model.size])
    return FamilyExport(model.family, arch, manifest.seq_len, stored)
