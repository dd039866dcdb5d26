"""Opens a run directory: reads spec and attempt, and applies overrides and defaults."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from trainer.errors import LaunchError
from trainer.storage.root import StoragePath, storage_root
from trainyard.base.problems import spec_error
from trainyard.protocol.attempt import AttemptSpec
from trainyard.run.directory import RunDirectory
from trainyard.spec.auto import DeviceKind, resolved
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.spec.rules import check_job_spec, check_new_job
from trainyard.spec.storage_uri import is_object_store
from trainyard.training.batch_partition import BatchPartition


@dataclass(frozen=True)
class TrainerRun:
    """One attempt of a job."""

    directory: RunDirectory
    """Run directory, for records and requests."""
    submitted: JobSpec
    """Spec as submitted."""
    spec: JobSpec
    """Effective spec, with the overrides of this attempt and a value for each `auto`."""
    attempt: AttemptSpec
    """Number, layout and resume point of the attempt; default values without `attempt.json`."""
    checkpoint_root: StoragePath
    """Storage root of the job's checkpoints."""
    cache_dir: Path
    """Folder of the token caches."""

    @property
    def partition(self) -> BatchPartition:
        """Partition of each global batch over the data-parallel ranks."""
        return self.spec.batch_partition(self.attempt.layout)


def open_run(folder: Path, *, world_size: int | None, roots: Mapping[str, str]) -> TrainerRun:
    """Read a run directory; reject a run that cannot start.

    Args:
        folder: run directory, which must contain `spec.json`. Without `attempt.json`, the run is a
            launch by hand: attempt 1 of a job with the `name` in the spec.
        world_size: number of launched ranks; if None, that of `attempt.json` or else of the spec.
        roots: path of each root, by name; these override and extend the roots in `attempt.json`.

    Raises:
        LaunchError: a file is missing or invalid, the spec cannot run, or the layout does not match
            the number of ranks.
    """
    directory = RunDirectory(folder.resolve())
    submitted = _read_spec(directory.spec)
    bare = not directory.attempt.exists()
    attempt = (
        _bare_attempt(submitted, world_size or submitted.resources.world_size)
        if bare
        else _read_attempt(directory.attempt)
    )
    attempt = attempt.model_copy(update={"roots": attempt.roots | dict(roots)})
    if world_size is not None and attempt.layout.world_size != world_size:
        raise LaunchError(
            f"layout {attempt.layout} has world_size={attempt.layout.world_size}, "
            f"but {world_size} ranks were launched"
        )
    spec = attempt.overrides.apply(submitted)
    device = device_kind(attempt.device or spec.resources.device)
    spec = resolved(spec, device, attempt.layout)
    try:
        check = check_new_job if bare else check_job_spec
        check(_as_launched(spec, attempt.layout))
    except ValueError as error:
        where = f"{directory.spec}" if bare else f"{directory.spec} under {directory.attempt.name}"
        raise LaunchError(f"{where}: {error}", path=str(directory.spec)) from error
    _refuse_without_tensorboard(spec)
    return TrainerRun(
        directory=directory,
        submitted=submitted,
        spec=spec,
        attempt=attempt,
        checkpoint_root=_checkpoint_root(directory, spec, attempt, bare=bare),
        cache_dir=Path(attempt.cache_dir or directory.root / "cache"),
    )


def add_root_argument(parser: ArgumentParser) -> None:
    """Add the repeatable option `--root NAME=PATH`; its values are pairs."""
    parser.add_argument(
        "--root",
        type=_named_root,
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="path of a named root on this machine; may be given again",
    )


def _named_root(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise ArgumentTypeError(f"{text!r} is not NAME=PATH")
    return name, path if is_object_store(path) else str(Path(path).resolve())


def forget_check(directory: RunDirectory) -> None:
    """Remove the records of an earlier check, unless a heartbeat shows that an attempt has run."""
    if not directory.heartbeat.exists():
        directory.error.unlink(missing_ok=True)
        directory.outcome.unlink(missing_ok=True)


def refuse_used(directory: RunDirectory) -> None:
    """Reject a directory in which an attempt has run; its records would mix with the new ones.

    Raises:
        LaunchError: the directory has a record; the message names it.
    """
    for record in (directory.outcome, directory.error, directory.metrics):
        if Path(record).exists():
            raise LaunchError(
                f"{record} is there: a run directory serves one attempt; "
                "copy spec.json into a fresh one, or remove what the former attempt wrote",
                path=str(record),
            )


def _refuse_without_tensorboard(spec: JobSpec) -> None:
    """Raise LaunchError if the spec enables TensorBoard but the package is not installed."""
    if spec.training.tensorboard and find_spec("tensorboard") is None:
        raise LaunchError(
            "training.tensorboard=true, but the package tensorboard is not installed here: "
            "install trainyard-programs[tensorboard] on the nodes (docs/install.md), "
            "or training.tensorboard=false"
        )


def _read_spec(path: Path) -> JobSpec:
    try:
        return parse_job_spec(_read(path))
    except ValueError as error:
        raise LaunchError(f"{path}: {error}", path=str(path)) from error


def _read_attempt(path: Path) -> AttemptSpec:
    text = _read(path)
    try:
        return AttemptSpec.model_validate_json(text)
    except ValidationError as error:
        raise LaunchError(f"{path}: {spec_error(error, text)}", path=str(path)) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LaunchError(f"{path}: cannot be read: {error.strerror}", path=str(path)) from error


def _bare_attempt(spec: JobSpec, world_size: int) -> AttemptSpec:
    try:
        return AttemptSpec.bare(spec, world_size=world_size, job_id=spec.name)
    except ValueError as error:
        raise LaunchError(str(error)) from error


def _as_launched(spec: JobSpec, layout: Layout) -> JobSpec:
    """Return the spec with the layout of the launched ranks and without its request for nodes."""
    moved = spec.on_layout(layout)
    return moved.model_copy(
        update={"resources": moved.resources.model_copy(update={"nodes": None, "spare_nodes": 0})}
    )


def _checkpoint_root(
    directory: RunDirectory, spec: JobSpec, attempt: AttemptSpec, *, bare: bool
) -> StoragePath:
    name = spec.checkpoint.root
    if name in attempt.roots:
        root = storage_root(attempt.roots[name])
        if spec.checkpoint.export == "safetensors" and not isinstance(root, Path):
            raise LaunchError(
                f"checkpoint.export='safetensors' writes folders, but root {name!r} is {root}, a "
                "bucket; legal: dcp, none (`trainyard export --root` writes single checkpoints to "
                "a folder)",
                path=str(directory.spec),
            )
        return root
    if bare:
        return directory.root / "checkpoints"
    known = ", ".join(sorted(attempt.roots)) or "none"
    raise LaunchError(
        f"checkpoint.root={name!r} is not defined on this node (defined: {known})",
        path=str(directory.attempt),
    )


def device_kind(wanted: Literal["auto", "cpu", "cuda"]) -> DeviceKind:
    """Return the device kind of this launch; `auto` prefers GPUs."""
    if wanted == "auto":
        return "cuda" if gpus_are_given() else "cpu"
    return wanted


def gpus_are_given(
    environment: Mapping[str, str] = os.environ, *, devices: Path = Path("/dev")
) -> bool:
    """Return whether the launcher's environment or the machine gives this process GPUs.

    `torch.cuda.is_available()` is also False if the driver is too old. That is an error of the
    node, and training must not fall back to the CPU.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return visible.strip() not in ("", "-1")
    return any(devices.glob("nvidia[0-9]*"))
