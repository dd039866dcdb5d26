"""What a checkpoint of a small job holds, read whole in this process."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from tests.trainer.runs import JOB, SmallJob
from trainer.checkpoint.reader.storage_reader import CheckedReader, point_at
from trainyard.protocol.manifest import Manifest
from trainyard.run.checkpoints.checkpoint_names import checkpoint_path


def stored_tensors(job: SmallJob, manifest: Manifest) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint of a job by their names."""
    step = manifest.train_state.step
    folder = job.storage / checkpoint_path(JOB, manifest.attempt, step)
    reader = CheckedReader(folder)
    reader.look(point_at(manifest, folder))
    tensors = {}
    for name, entry in reader.metadata.state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata)
        tensors[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    reader.read_alone(tensors)
    return tensors
