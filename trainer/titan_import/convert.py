"""`python -m trainer convert-torchtitan STEP --spec SPEC --to ROOT`: a checkpoint to start from."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.checkpoint.chunks.divided_tensor import DTYPES, TensorKind
from trainer.checkpoint.manifest import stored_manifests
from trainer.checkpoint.pending_save import PendingSave
from trainer.checkpoint.reader.metadata import compare
from trainer.checkpoint.tensors import OPTIMIZER, WEIGHTS
from trainer.checkpoint.writer.checkpoint_writer import CheckpointWriter
from trainer.errors import LaunchError, MismatchError, RunError
from trainer.hugging_face.weight_names import shapes_of
from trainer.run import TrainerRun
from trainer.storage.io_errors import storage_errors
from trainer.titan_import.titan_checkpoint import TitanCheckpoint
from trainer.titan_import.titan_settings import differences
from trainer.titan_import.titan_weights import (
    fused_rows,
    in_our_order,
    is_fused,
    our_names,
    part_of,
)
from trainyard.base.ids import is_id
from trainyard.base.names import NAME
from trainyard.base.whole_numbers import LAST_STEP
from trainyard.protocol.attempt import AttemptSpec
from trainyard.protocol.manifest import DataState, Manifest, TrainState
from trainyard.run.directory import RunDirectory
from trainyard.spec.auto import resolved
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.spec.rules import check_without_layout

logger = logging.getLogger("trainer")

KIND = "converted"
"""Kind of the written checkpoint."""
TITAN_OPTIMIZER, TITAN_STATE = "optimizer.state.", "train_state."
NOT_TAKEN = ("optimizer.param_groups.", "lr_scheduler", "dataloader", TITAN_STATE)
"""Prefixes of torchtitan's entries that are not taken over: settings, which belong to the spec, and
the position in torchtitan's data."""
MOMENTS = ("exp_avg", "exp_avg_sq")
COUNTER = "step"
HEAD = "output.weight"
EMBEDDING = "tok_embeddings.weight"
NO_DATA = "none"
"""Digest of the data of a converted checkpoint, which equals that of no data."""


def main(words: Sequence[str]) -> int:
    """Run the command line; on an error, log the error and return 1."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    given = _parser().parse_args(words)
    try:
        spec = read_spec(given.spec)
        manifest = convert(given.step, spec, to=given.to, name=given.name, tokens=given.tokens)
    except RunError as error:
        logger.error("%s", error.explained)
        return 1
    state = manifest.train_state
    path = f"{manifest.job_id}/a{manifest.attempt}/step-{manifest.step}"
    logger.info("wrote %s: step %d, %s tokens", given.to / path, state.step, f"{state.tokens:,}")
    logger.info("The data start at position 0. Start with checkpoint.start_from = %r", path)
    return 0


def read_spec(path: Path) -> JobSpec:
    """Return the spec in a TOML or JSON file.

    Raises:
        LaunchError: the file cannot be read, or its spec is illegal.
    """
    try:
        text = path.read_text(encoding="utf-8")
        spec = parse_job_spec(tomllib.loads(text) if path.suffix == ".toml" else text)
        check_without_layout(spec)
    except (OSError, ValueError) as error:
        raise LaunchError(f"{path}: {error}", path=str(path)) from None
    return resolved(spec, "cpu")


def convert(
    folder: Path, spec: JobSpec, *, to: Path, name: str, tokens: int | None = None
) -> Manifest:
    """Write the checkpoint `<to>/<name>/a1/step-<n>` with the state of a checkpoint of torchtitan.

    The weights, both moments and the step counters of AdamW are taken over. A setting of AdamW that
    differs from the spec, and a loss of precision, are logged as warnings. The command needs
    memory for four times the largest tensor, apart from the system's cache of temporary files in
    `to`.

    Args:
        folder: folder `step-<n>` of torchtitan.
        spec: job that will start from the checkpoint; it defines the model and the optimizer.
        to: storage root of checkpoints.
        name: name of the folder in `to`, in place of a job's id.
        tokens: trained tokens; by default, those of the steps at the spec's batch size, because
            torchtitan counts the tokens of one rank only.

    Raises:
        MismatchError: tensors are missing, unexpected, or of another shape or dtype.
        CheckpointError: the folder is no readable checkpoint, or the storage reports an error.
        LaunchError: the spec has no model of a family; the name is illegal, a job's id, or that of
            other checkpoints; or the tokens are negative.
    """
    _check_spec(spec)
    _check_target(to, name, tokens)
    source = TitanCheckpoint(folder)
    step = source.number(f"{TITAN_STATE}step")
    if step is None:
        raise MismatchError(f"{folder} has no train_state.step: torchtitan saved only a model")
    if step > LAST_STEP:
        raise MismatchError(f"{folder}: train_state.step is {step}; legal: at most {LAST_STEP:,}")
    plan = _plan(source, spec)
    kinds = {name: kind for name, theirs in plan.items() if (kind := source.kinds[theirs])}
    for difference in differences(source, spec, kinds=kinds):
        logger.warning("%s", difference)
    state = TrainState(
        step=step,
        tokens=step * spec.tokens_per_step if tokens is None else tokens,
        data=DataState(dataset_digest=NO_DATA),
    )
    tensors: dict[str, Tensor] = {}
    with (
        storage_errors("write", to),
        tempfile.TemporaryDirectory(
            prefix=".convert-", dir=to, ignore_cleanup_errors=True
        ) as scratch,
    ):
        try:
            _fill(tensors, source, plan, spec=spec, scratch=Path(scratch), step=step)
            return _write(tensors, spec, state, to=to, name=name, scratch=Path(scratch))
        finally:
            tensors.clear()  # NFS keeps an unlinked file in its folder while the file is mapped


def _check_target(to: Path, name: str, tokens: int | None) -> None:
    if not re.fullmatch(NAME, name):
        raise LaunchError(f"--name {name!r}: letters, digits, '.', '_' and '-' are legal")
    held = {manifest.kind for manifest in stored_manifests(to, name)} - {KIND}
    if is_id(name) or held:
        why = "the id of a job" if is_id(name) else f"a folder with other checkpoints in {to}"
        raise LaunchError(f"--name {name!r} is {why}; legal: any other name")
    if tokens is not None and tokens < 0:
        raise LaunchError(f"--tokens {tokens}: legal: 0 or more")


def _check_spec(spec: JobSpec) -> None:
    if spec.program is not None or spec.model.is_own:
        held = spec.model.factory or spec.model.hugging_face or "a program"
        raise LaunchError(
            f"the spec has {held}: only models of the families llama3 and qwen3 have names that "
            "torchtitan's map to"
        )


def _plan(source: TitanCheckpoint, spec: JobSpec) -> dict[str, str]:
    """Return torchtitan's name of each wanted tensor, by the trainer's name.

    Raises:
        MismatchError: the tensors differ from those of the spec.
    """
    theirs: dict[str, str] = {}
    found: dict[str, TensorKind | None] = {}
    arch, shapes = spec.architecture, _wanted(spec)
    for name, kind in source.kinds.items():
        if name.startswith(NOT_TAKEN):
            continue
        for renamed in _renamed(name) or (name,):
            if renamed in theirs:
                raise MismatchError(
                    f"{source.folder}: {theirs[renamed]} and {name} are both {renamed}",
                    path=str(source.folder),
                )
            theirs[renamed], found[renamed] = name, kind
            if kind is not None and is_fused(name) and kind.shape == (fused_rows(arch), arch.dim):
                found[renamed] = TensorKind(kind.dtype, shapes.get(renamed, kind.shape))
    head = None
    if spec.architecture.tied_embeddings:
        head = theirs.pop(f"{WEIGHTS}{HEAD}", None)
        found.pop(f"{WEIGHTS}{HEAD}", None)
    wanted = {name: _kind_there(found.get(name), shape) for name, shape in shapes.items()}
    comparison = compare(found, wanted)
    if not comparison.fits:
        raise MismatchError(
            f"{source.folder} does not fit the spec: {comparison}",
            path=str(source.folder),
            remedy="Set model and optimizer as in torchtitan's config; only dense Llama 3 and "
            "Qwen3 models with AdamW map (no experts, adapters, fused or quantized weights).",
        )
    if head is not None:
        _check_tied(source, head, theirs[f"{WEIGHTS}{EMBEDDING}"])
    return {name: theirs[name] for name in wanted}


def _renamed(name: str) -> tuple[str, ...]:
    """Return the trainer's names of an entry of torchtitan; empty if it has none."""
    if not name.startswith(TITAN_OPTIMIZER):
        return tuple(f"{WEIGHTS}{ours}" for ours in our_names(name))
    parameter, _, key = name.removeprefix(TITAN_OPTIMIZER).rpartition(".")
    if key not in (*MOMENTS, COUNTER):
        return ()
    return tuple(f"{OPTIMIZER}{ours}.{key}" for ours in our_names(parameter))


def _check_tied(source: TitanCheckpoint, head: str, embedding: str) -> None:
    """Refuse a head that has been trained on its own."""
    same = source.kinds[head] == source.kinds[embedding]
    if not same or not torch.equal(source.tensor(head), source.tensor(embedding)):
        raise MismatchError(
            f"{source.folder}: {head} differs from the embedding, but the spec has "
            "tied_embeddings=true; legal: false",
            path=str(source.folder),
        )


def _wanted(spec: JobSpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a checkpoint of this job."""
    shapes: dict[str, tuple[int, ...]] = {}
    weights = shapes_of(spec.architecture)
    shapes |= {f"{WEIGHTS}{name}": shape for name, shape in weights.items()}
    for name, shape in weights.items():
        shapes |= {f"{OPTIMIZER}{name}.{moment}": shape for moment in MOMENTS}
        shapes[f"{OPTIMIZER}{name}.{COUNTER}"] = ()
    return shapes


def _kind_there(found: TensorKind | None, shape: tuple[int, ...]) -> TensorKind:
    """Return the wanted kind in the dtype of the source, which is converted if it is floating."""
    is_float = found is not None and DTYPES[found.dtype].is_floating_point
    return TensorKind(found.dtype if found is not None and is_float else "float32", shape)


def _fill(
    tensors: dict[str, Tensor],
    source: TitanCheckpoint,
    plan: Mapping[str, str],
    *,
    spec: JobSpec,
    scratch: Path,
    step: int,
) -> None:
    """Add all tensors in the trainer's names, order and dtypes, in memory mapped from files."""
    model = spec.model
    for number, (name, theirs) in enumerate(plan.items()):
        whole = source.tensor(theirs)
        if name.endswith(f".{COUNTER}") and not 0 <= whole.item() <= step:  # also NaN
            raise MismatchError(
                f"{theirs} is {whole.item():g}, but the checkpoint is of step {step}"
            )
        parameter = _parameter_of(name)
        if parameter and is_fused(theirs):
            whole = part_of(whole, parameter, spec.architecture)
        ordered = in_our_order(whole, parameter, family=model.family, arch=spec.architecture)
        mapped = _mapped(scratch / str(number), ordered.shape, dtype=_dtype_of(name, spec))
        tensors[name] = mapped.copy_(ordered)


def _mapped(path: Path, shape: torch.Size, *, dtype: torch.dtype) -> Tensor:
    """Return a tensor in memory mapped from a new file, which has no name from then on."""
    size = max(shape.numel(), 1)
    with path.open("xb") as file:
        # A write to a mapped hole of a full disk would kill the process with SIGBUS.
        os.posix_fallocate(file.fileno(), 0, size * dtype.itemsize)
    mapped = torch.from_file(str(path), shared=True, size=size, dtype=dtype)
    path.unlink()  # the mapping keeps the file
    return mapped.view(shape)


def _parameter_of(name: str) -> str:
    if name.startswith(WEIGHTS):
        return name.removeprefix(WEIGHTS)
    parameter, _, key = name.removeprefix(OPTIMIZER).rpartition(".")
    return parameter if key in MOMENTS else ""


def _dtype_of(name: str, spec: JobSpec) -> torch.dtype:
    if name.startswith(WEIGHTS):
        return DTYPES[spec.training.weight_dtype]
    return torch.float32 if name.endswith(f".{COUNTER}") else DTYPES[spec.optimizer.state_dtype]


def _write(
    tensors: dict[str, Tensor],
    spec: JobSpec,
    state: TrainState,
    *,
    to: Path,
    name: str,
    scratch: Path,
) -> Manifest:
    """Write and commit the checkpoint as the only rank of an attempt."""
    run = TrainerRun(
        directory=RunDirectory(scratch),
        submitted=spec,
        spec=spec,
        attempt=AttemptSpec(job_id=name, attempt=1, layout=Layout()),
        checkpoint_root=to,
        cache_dir=scratch,
    )
    with _alone() as group:
        writer = CheckpointWriter(run, None, group=group)
        writer.start = state
        dtype = DTYPES[spec.training.weight_dtype]
        save = PendingSave(state, kind=KIND)
        return writer.run(save, tensors, dtype=dtype, started=time.monotonic())


@contextmanager
def _alone() -> Iterator[dist.ProcessGroup]:
    """Yield the group of this process alone, which the writer needs."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = dist.group.WORLD
        assert group is not None
        yield group
    finally:
        dist.destroy_process_group()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer convert-torchtitan",
        description="Convert a checkpoint of torchtitan into one from which a job starts.",
    )
    parser.add_argument("step", type=Path, help="folder step-<n> of torchtitan")
    parser.add_argument(
        "--spec", type=Path, required=True, help="spec of the job that continues; .toml or .json"
    )
    parser.add_argument("--to", type=Path, required=True, help="storage root of the checkpoints")
    parser.add_argument("--name", default="torchtitan", help="folder in the root; %(default)s")
    parser.add_argument(
        "--tokens", type=int, help="trained tokens; the steps times the batch if absent"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
