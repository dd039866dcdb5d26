"""Reads all tensors of a small job's checkpoint in this process."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.trainer.runs import JOB, SmallJob
from trainer.checkpoint.chunks.divided_tensor import DTYPES
from trainer.checkpoint.reader.storage_reader import CheckedReader, point_at
from trainyard.protocol.manifest import Manifest
from trainyard.run.checkpoints.checkpoint_names import checkpoint_path


def stored_tensors(job: SmallJob, manifest: Manifest) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint of a job by their names."""
    step = manifest.train_state.step
    folder = job.storage / checkpoint_path(JOB, manifest.attempt, step)
    reader = CheckedReader(folder)
    reader.open(point_at(manifest, folder))
    tensors = {}
    for name, kind in reader.kinds.items():
        assert kind is not None
        tensors[name] = torch.empty(kind.shape, dtype=DTYPES[kind.dtype])
    reader.read(tensors)
    return tensors
