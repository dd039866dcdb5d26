"""Writes manifest and marker of a checkpoint, as a save does."""

from __future__ import annotations

from trainer.checkpoint.save_folder import write_durably
from trainer.storage.io_errors import digest
from trainer.storage.root import StoragePath
from trainyard.protocol.manifest import Manifest
from trainyard.run.checkpoints.checkpoint_names import COMMITTED, MANIFEST


def write_manifest(folder: StoragePath, manifest: Manifest) -> None:
    """Write the manifest of a checkpoint that is not committed yet."""
    write_durably(folder / MANIFEST, manifest.model_dump_json(indent=2).encode())


def write_marker(folder: StoragePath) -> None:
    """Commit the folder with the manifest that it holds."""
    write_durably(folder / COMMITTED, digest((folder / MANIFEST).read_bytes()).encode())
