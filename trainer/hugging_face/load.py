"""Loads published weights into a parallelized model; each rank reads the slices for its shards."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import nn

from trainer.distributed import on_every_rank
from trainer.errors import DataError
from trainer.hugging_face.folder import WeightsFolder
from trainer.hugging_face.hub_weights import HubWeights
from trainer.models.initial_weights import local_part
from trainyard.protocol.manifest import ManifestFile
from trainyard.spec.job import JobSpec


def load_initial_weights(
    model: nn.Module, spec: JobSpec, *, roots: Mapping[str, str], group: dist.ProcessGroup
) -> tuple[ManifestFile, ...]:
    """Load `model.initial_weights` into a model; return size and checksum of each file.

    This is a collective. The ranks of a node share the work of reading all files for the checksums.
    The checksums must be equal on all nodes; the run records them.

    Raises:
        RunError: the weights are missing, belong to another model, or differ between nodes; the
            error is raised on every rank.
    """
    opened: list[WeightsFolder | HubWeights] = []

    def check() -> list[ManifestFile]:
        opened.append(open_weights(spec, roots))
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if local_rank == 0:
            opened[0].check_ties(spec)
        return opened[0].described(
            slice(local_rank, None, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        )

    files = _same_everywhere(chain.from_iterable(on_every_rank(group, check)))
    on_every_rank(group, lambda: read_weights(model, opened[0]))
    return files


def open_weights(spec: JobSpec, roots: Mapping[str, str]) -> WeightsFolder | HubWeights:
    """Open and check the weights at the spec's `model.initial_weights` on this node.

    Raises:
        RunError: the weights are missing, or belong to another model.
    """
    if spec.model.hugging_face is None:
        return WeightsFolder.of(spec, roots)
    return HubWeights.of(spec, roots)


@torch.no_grad()
def read_weights(model: nn.Module, folder: WeightsFolder | HubWeights) -> None:
    """Copy published values into this rank's parameters and buffers, converted to their dtypes."""
    with ExitStack() as stack:
        files: dict[Path, Any] = {}
        tensors = ((model.named_parameters(), False), (model.named_buffers(), True))
        for name, tensor, is_buffer in ((n, t, b) for named, b in tensors for n, t in named):
            local, region = local_part(tensor)
            if not local.numel():
                continue
            for part in folder.published(name, tensor.shape, is_buffer=is_buffer):
                path = folder.file_of[part.name]
                if path not in files:
                    files[path] = stack.enter_context(safe_open(path, framework="pt"))
                part.copy_into(local, region, files[path].get_slice(part.name))


def _same_everywhere(described: chain[ManifestFile]) -> tuple[ManifestFile, ...]:
    """Merge the descriptions of files from all ranks, so that each file occurs once.

    Raises:
        DataError: a file differs between nodes.
    """
    files: dict[str, ManifestFile] = {}
    for file in described:
        if files.setdefault(file.path, file) != file:
            raise DataError(
                f"model.initial_weights: {file.path} differs between nodes: checksum "
                f"{files[file.path].xxh3_128} and {file.xxh3_128}; every node needs the same files"
            )
    return tuple(files[name] for name in sorted(files))
