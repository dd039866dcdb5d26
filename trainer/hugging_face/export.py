"""`python -m trainer export CHECKPOINT --to FOLDER`: a checkpoint as published weights."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from specs.architectures import ARCHITECTURES, Architecture
from specs.checkpoint import Manifest
from trainer.checkpoint.comparison import kinds_of
from trainer.checkpoint.reader import CheckedReader, point_at
from trainer.checkpoint.state import WEIGHTS
from trainer.checkpoint.store import read_manifest, storage_errors
from trainer.errors import CheckpointError, LaunchError, RunError
from trainer.hugging_face.config import config_of
from trainer.hugging_face.folder import CONFIG, INDEX, SINGLE
from trainer.hugging_face.names import published_name, shapes_of

DTYPES = ("float32", "bfloat16", "float16")
SHARD_GIB = 4.0
# What a tokenizer may consist of on the hub, and the settings of text generation.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)

logger = logging.getLogger("trainer")


def main(words: list[str]) -> int:
    """Export as the command line says; 1 when it cannot be done, and why."""
    given = _parser().parse_args(words)
    try:
        export(
            given.checkpoint,
            given.to,
            dtype=given.dtype,
            tokenizer=given.tokenizer,
            shard_bytes=int(given.shard_gib * 2**30),
        )
    except RunError as error:
        logger.error("%s", error)
        return 1
    return 0


def export(
    checkpoint: Path,
    to: Path,
    *,
    dtype: str | None = None,
    tokenizer: Path | None = None,
    shard_bytes: int = int(SHARD_GIB * 2**30),
) -> None:
    """Write the weights of a committed checkpoint as the hub's readers expect them.

    Every byte of the checkpoint is verified first. No more than one output file is in memory at a
    time. The folder appears when it is complete.

    Args:
        checkpoint: folder of the checkpoint.
        to: folder to write; must not be there yet.
        dtype: type of the written weights; that of the stored ones when None.
        tokenizer: folder from which a tokenizer's files are copied, where there are some.
        shard_bytes: most bytes of tensors in one file; a larger tensor has a file of its own.

    Raises:
        CheckpointError: the checkpoint is missing, damaged, or says not which model it holds.
        LaunchError: the folder cannot be written, or there is no tokenizer.
    """
    manifest = read_manifest(checkpoint)
    source = _Source.open(checkpoint, manifest)
    if to.exists():
        raise LaunchError(f"{to} is there already: name a folder that is not", path=str(to))
    partial = to.with_name(f"{to.name}.partial")
    written = dtype or manifest.param_dtype
    with storage_errors("write", partial):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write_tensors(source, partial, getattr(torch, written), shard_bytes)
        config = config_of(source.family, source.arch, seq_len=source.seq_len, dtype=written)
        _write_json(partial / CONFIG, config)
        if tokenizer is not None:
            _copy_tokenizer(tokenizer, partial)
        partial.rename(to)
    logger.info("exported %s as %s to %s", manifest.checkpoint_id, written, to)


@dataclass(frozen=True)
class _Source:
    """The weights of a checkpoint that was checked, read as they are asked for."""

    family: str
    arch: Architecture
    seq_len: int
    reader: CheckedReader
    stored: torch.dtype

    @classmethod
    def open(cls, folder: Path, manifest: Manifest) -> _Source:
        model = manifest.model
        if model is None or manifest.seq_len is None or model.factory is not None:
            raise CheckpointError(
                f"{folder} holds no model of a known family: only {', '.join(ARCHITECTURES)} have "
                "names on the hub",
                path=str(folder),
            )
        arch = model.shape_of(ARCHITECTURES[model.family][model.size])
        stored: torch.dtype = getattr(torch, manifest.param_dtype)
        wanted = {
            f"{WEIGHTS}{name}": torch.empty(shape, dtype=stored, device="meta")
            for name, shape in shapes_of(arch).items()
        }
        reader = CheckedReader(folder)
        reader.open(point_at(manifest, folder), kinds_of(wanted), parts=(WEIGHTS,))
        reader.check_share(rank=0, world_size=1)
        return cls(model.family, arch, manifest.seq_len, reader, stored)

    def read(self, names: list[str]) -> dict[str, Tensor]:
        """Return some weights, by our names of them."""
        shapes = shapes_of(self.arch)
        tensors = {f"{WEIGHTS}{n}": torch.empty(shapes[n], dtype=self.stored) for n in names}
        self.reader.read_alone(tensors)
        return {name.removeprefix(WEIGHTS): tensor for name, tensor in tensors.items()}


def _write_tensors(source: _Source, folder: Path, dtype: torch.dtype, shard_bytes: int) -> None:
    shapes = shapes_of(source.arch)
    sizes = {name: prod(shape) * dtype.itemsize for name, shape in shapes.items()}
    shards = list(_shards(sizes, shard_bytes))
    places: dict[str, str] = {}
    for index, names in enumerate(shards, start=1):
        file = SINGLE if len(shards) == 1 else f"model-{index:05}-of-{len(shards):05}.safetensors"
        tensors = {
            published_name(name): tensor.to(dtype) for name, tensor in source.read(names).items()
        }
        (folder / file).touch()
        mode = (folder / file).stat().st_mode
        save_file(tensors, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(mode)  # the library leaves it to the owner alone
        _sync(folder / file)
        places |= dict.fromkeys(tensors, file)
        logger.info("wrote %s (%d of %d)", file, index, len(shards))
    if len(shards) > 1:
        total = {"total_size": sum(sizes.values())}
        _write_json(folder / INDEX, {"metadata": total, "weight_map": dict(sorted(places.items()))})


def _shards(sizes: dict[str, int], most: int) -> Iterator[list[str]]:
    """Cut names, in order, into runs of at most `most` bytes, or of one name."""
    names: list[str] = []
    filled = 0
    for name, size in sizes.items():
        if names and filled + size > most:
            yield names
            names, filled = [], 0
        names.append(name)
        filled += size
    yield names


def _copy_tokenizer(source: Path, folder: Path) -> None:
    found = [source / name for name in TOKENIZER_FILES if (source / name).is_file()]
    if not found:
        raise LaunchError(
            f"{source} holds no tokenizer; legal: a folder with some of "
            f"{', '.join(TOKENIZER_FILES)}",
            path=str(source),
        )
    for path in found:
        shutil.copyfile(path, folder / path.name)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer export", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="folder of a committed checkpoint")
    parser.add_argument("--to", type=Path, required=True, help="folder to write; must be new")
    parser.add_argument("--dtype", choices=DTYPES, help="type of the weights; as stored if absent")
    parser.add_argument("--tokenizer", type=Path, help="folder of tokenizer files to copy")
    parser.add_argument(
        "--shard-gib", type=float, default=SHARD_GIB, help="most GiB in a file; %(default)s"
    )
    return parser
