"""Writes manifest and marker of a checkpoint like a save, also with changed files."""

from __future__ import annotations

from trainer.checkpoint.manifest import read_manifest
from trainer.checkpoint.save_folder import write_durably
from trainer.storage.io_errors import digest
from trainer.storage.root import StoragePath
from trainyard.protocol.manifest import INDEX, Manifest, ManifestFile
from trainyard.run.checkpoints.checkpoint_names import COMMITTED, MANIFEST


def write_manifest(folder: StoragePath, manifest: Manifest) -> None:
    """Write the manifest of a checkpoint that is not committed yet."""
    write_durably(folder / MANIFEST, manifest.model_dump_json(indent=2).encode())


def write_marker(folder: StoragePath) -> None:
    """Commit the folder with its manifest."""
    write_durably(folder / COMMITTED, digest((folder / MANIFEST).read_bytes()).encode())


def commit_again(folder: StoragePath) -> Manifest:
    """Commit the folder's contents, like an attacker with write access."""
    manifest = read_manifest(folder)
    files = tuple(
        ManifestFile(path=file.path, size=len(content), xxh3_128=digest(content))
        for file in manifest.files
        if (folder / file.path).exists()
        for content in [(folder / file.path).read_bytes()]
    )
    changed = manifest.model_copy(update={"files": files})
    write_manifest(folder, changed)
    write_marker(folder)
    return changed


def make_older(folder: StoragePath) -> Manifest:
    """Leave `.metadata` as the only index, as in checkpoints of older versions."""
    (folder / INDEX).unlink(missing_ok=True)
    return commit_again(folder)
