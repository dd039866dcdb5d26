"""`python -m trainer dcp-metadata CHECKPOINT`: writes the index that `dcp.load` needs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.checkpoint.chunks.dcp_metadata import chunk_count, dcp_metadata
from trainer.checkpoint.manifest import read_manifest
from trainer.checkpoint.reader.storage_reader import CheckedReader, point_at
from trainer.checkpoint.reader.stored_tensors import TensorsOfIndex
from trainer.checkpoint.save_folder import write_durably
from trainer.errors import CheckpointError
from trainer.storage.root import StoragePath
from trainyard.protocol.manifest import DCP_METADATA


def main(words: Sequence[str]) -> int:
    """Run the command; return 0 if the file exists, 2 if the checkpoint is rejected."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer dcp-metadata",
        description="Write the .metadata of a checkpoint that is committed without one, so that "
        "torch.distributed.checkpoint.load reads its folder.",
    )
    parser.add_argument("checkpoint", type=Path, help="folder of a committed checkpoint")
    folder = parser.parse_args(words).checkpoint
    try:
        print(write_metadata(folder))  # noqa: T201 -- the answer of a command
    except CheckpointError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    return 0


def write_metadata(folder: StoragePath) -> str:
    """Write `.metadata` to a checkpoint's folder; return a message about the result.

    The manifest does not list the file, so all other programs ignore it. A deletion of the
    checkpoint removes the file.

    Raises:
        CheckpointError: the checkpoint is not committed or is damaged, or the file cannot be
            written.
    """
    manifest = read_manifest(folder)
    path = folder / DCP_METADATA
    if any(file.path == DCP_METADATA for file in manifest.files):
        return f"{path} is a part of the checkpoint already"
    reader = CheckedReader(folder)
    reader.open(point_at(manifest, folder))
    assert isinstance(reader.stored, TensorsOfIndex)
    index = reader.stored.index
    write_durably(path, dcp_metadata(index))
    return f"{path}: {chunk_count(index):,} chunks, {path.stat().st_size:,} bytes"
