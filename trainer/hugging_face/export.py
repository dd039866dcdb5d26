"""`python -m trainer export CHECKPOINT --to FOLDER`: writes a checkpoint in the hub's format."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from trainer.checkpoint.manifest import check_contents, metadata_digest, read_manifest
from trainer.checkpoint.reader.metadata import kinds_of
from trainer.checkpoint.reader.storage_reader import CheckedReader, point_at
from trainer.checkpoint.tensors import WEIGHTS
from trainer.errors import CheckpointError, RunError
from trainer.hugging_face.export_record import ExportRecord, existing_export, export_folder
from trainer.hugging_face.exported_model import FamilyExport, HubExport, exported_model
from trainer.hugging_face.folder import INDEX, SINGLE
from trainer.hugging_face.tokenizer import TokenizerSource, tokenizer_of, write_json
from trainer.run import add_root_argument
from trainer.sized_groups import sized_groups
from trainer.storage.root import StoragePath
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.operations import SHARD_GIB, WeightsType

logger = logging.getLogger("trainer")


class ExportProgress(Protocol):
    """Interface for the progress of an export."""

    def begin(self, doing: str) -> None:
        """Report the start of a part of the work."""
        ...

    def advance(self, done: int) -> None:
        """Count bytes that were read or written."""
        ...


class LoggedProgress:
    """Progress as log lines."""

    def __init__(self, total: int) -> None:
        self._left = total

    def begin(self, doing: str) -> None:
        """Log the start of a part of the work."""
        logger.info("%s (%.1f MiB left)", doing, self._left / 2**20)

    def advance(self, done: int) -> None:
        """Count bytes that were read or written."""
        self._left -= done


def main(words: list[str]) -> int:
    """Run the command line; on an error, log the error and return 1."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    given = _parser().parse_args(words)
    try:
        export(
            given.checkpoint,
            given.to,
            dtype=given.dtype,
            tokenizer=given.tokenizer and tokenizer_of(given.tokenizer),
            shard_bytes=int(given.shard_gib * 2**30),
            roots=dict(given.root),
        )
    except RunError as error:
        logger.error("%s", error)
        return 1
    return 0


def export(
    checkpoint: StoragePath,
    to: Path,
    *,
    dtype: WeightsType | None = None,
    tokenizer: TokenizerSource | None = None,
    shard_bytes: int = int(SHARD_GIB * 2**30),
    point: ResumePoint | None = None,
    roots: Mapping[str, str] | None = None,
    track: Callable[[int], ExportProgress] = LoggedProgress,
) -> ExportRecord:
    """Write the weights of a committed checkpoint in the hub's format.

    Every byte of the checkpoint is verified first. At most one output file is in memory at a time.
    A temporary folder is renamed to `to` once it is complete. An existing export that is equal
    stays unchanged.

    Args:
        checkpoint: folder of the checkpoint.
        to: folder to create.
        dtype: dtype of the exported weights; by default, the stored dtype.
        tokenizer: tokenizer to export with the weights; None for no tokenizer.
        shard_bytes: maximum number of tensor bytes in one file; a larger tensor gets its own file.
        point: resume point that `checkpoint` must have; by default, any resume point is accepted.
        roots: path of each root, by name; needed for the folder of a hub model.
        track: called with the number of bytes to read and to write; returns the progress receiver.

    Raises:
        CheckpointError: the checkpoint is missing, is damaged, differs from `point`, or has no
            known family; or the folder cannot be written.
        LaunchError: `to` holds other data, or the tokenizer is missing.
        DataError: the folder of a hub model is missing.
    """
    manifest = read_manifest(checkpoint)
    written = dtype or manifest.param_dtype
    requested = ExportRecord(
        checkpoint_id=manifest.checkpoint_id,
        metadata_digest=metadata_digest(manifest),
        dtype=written,
        shard_bytes=shard_bytes,
        tokenizer=None if tokenizer is None else tokenizer.name,
    )
    if found := existing_export(to, requested):
        logger.info("%s already holds this export", to)
        return found
    model = exported_model(manifest, roots or {}, checkpoint=checkpoint)
    source = _Source(model, CheckedReader(checkpoint))
    kind: torch.dtype = getattr(torch, written)
    sizes = {name: tensor.numel() * kind.itemsize for name, tensor in model.kinds.items()}
    progress = track(manifest.size + sum(sizes.values()))
    source.check(point or point_at(manifest, checkpoint), progress)
    # A checkpoint that another process has just deleted must not come back as its parent folder.
    with export_folder(to, requested, parents=to.parent != checkpoint) as partial:
        ids = None if tokenizer is None else tokenizer.write(partial, model.vocab_size)
        model.write_config(partial, dtype=written, ids=ids)
        shards = list(sized_groups(sizes, sizes.__getitem__, most=shard_bytes))
        _write_tensors(source, partial, dtype=kind, shards=shards, progress=progress)
    found = existing_export(to, requested)
    assert found is not None, "export_folder has just created it"
    logger.info("exported %s as %s to %s", manifest.checkpoint_id, written, to)
    return found


@dataclass(frozen=True)
class _Source:
    """The weights of a verified checkpoint, which are read on demand."""

    model: FamilyExport | HubExport
    reader: CheckedReader

    def check(self, point: ResumePoint, progress: ExportProgress) -> None:
        """Verify all files, and the metadata of all weights."""
        wanted = {f"{WEIGHTS}{name}": tensor for name, tensor in self.model.kinds.items()}
        self.reader.open(point)
        self.reader.fit(kinds_of(wanted), parts=(WEIGHTS,))
        for file in self.reader.manifest.files:
            progress.begin(f"compares {file.path}")
            check_contents(self.reader.folder, [file])
            progress.advance(file.size)

    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Return the weights with the given names, which are the trainer's names."""
        kinds = self.model.kinds
        tensors = {f"{WEIGHTS}{n}": torch.empty_like(kinds[n], device="cpu") for n in names}
        self.reader.read(tensors)
        return {name.removeprefix(WEIGHTS): tensor for name, tensor in tensors.items()}


def _write_tensors(
    source: _Source,
    folder: Path,
    *,
    dtype: torch.dtype,
    shards: Sequence[Sequence[str]],
    progress: ExportProgress,
) -> None:
    places: dict[str, str] = {}
    total = 0
    for index, names in enumerate(shards, start=1):
        file = SINGLE if len(shards) == 1 else f"model-{index:05}-of-{len(shards):05}.safetensors"
        progress.begin(f"writes {file}")
        tensors: dict[str, Tensor] = {}
        for name, tensor in source.read(names).items():
            converted = tensor.to(dtype) if source.model.is_converted(name) else tensor
            tensors |= source.model.published(name, converted)
        _save(tensors, folder / file)
        places |= dict.fromkeys(tensors, file)
        size = sum(tensor.nbytes for tensor in tensors.values())
        total += size
        progress.advance(size)
    if len(shards) > 1:
        weight_map = dict(sorted(places.items()))
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:  # also raised for a full disk
        raise CheckpointError(f"cannot write {path}: {error}", path=str(path)) from error
    path.chmod(mode)  # safetensors ignores the umask and creates files with mode 0600


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer export", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="folder of a committed checkpoint")
    parser.add_argument("--to", type=Path, required=True, help="folder to write; must be new")
    parser.add_argument(
        "--dtype", choices=get_args(WeightsType), help="type of the weights; as stored if absent"
    )
    parser.add_argument(
        "--tokenizer", help="folder of tokenizer files to copy, or `byte` for the byte tokenizer"
    )
    parser.add_argument(
        "--shard-gib", type=float, default=SHARD_GIB, help="most GiB in a file; %(default)s"
    )
    add_root_argument(parser)
    return parser
