"""Saves and loads checkpoints: all ranks together, verified, and fenced against older attempts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.optim import Optimizer

from specs.attempt import ResumePoint
from specs.checkpoint import (
    COMMITTED,
    Manifest,
    ManifestFile,
    TrainState,
    checkpoint_id,
    checkpoint_path,
)
from specs.job import JobSpec
from specs.layout import Layout
from trainer.checkpoint import store
from trainer.checkpoint.fence import raised_fence
from trainer.checkpoint.reader import CheckedReader
from trainer.checkpoint.state import train_tensors
from trainer.checkpoint.together import on_every_rank, on_rank_0, shared_error
from trainer.checkpoint.writer import ChecksumWriter, without_zip_checksums
from trainer.errors import CheckpointError, RunError
from trainer.parallel.mesh import Place
from trainer.quantize import refresh_scales


class Checkpointer:
    """The checkpoints of one attempt; every method is called by all ranks at the same step.

    What fails on one rank is raised on every rank, as the same typed error.
    """

    def __init__(
        self,
        *,
        root: Path,
        job_id: str,
        attempt: int,
        cpu_group: dist.ProcessGroup,
        spec: JobSpec,
        layout: Layout,
        parent: str | None,
        device: torch.device,
    ) -> None:
        """Touch nothing yet.

        Args:
            root: storage root; every rank sees the same one.
            job_id: id of the job, and name of its folder below the root.
            attempt: number of the attempt, which is also its fencing number.
            cpu_group: gloo group of all ranks; its timeout covers the slowest rank's write.
            spec: the job's spec as submitted.
            layout: layout of this attempt, recorded in manifests.
            parent: id of the checkpoint from which the attempt goes on.
            device: where this rank computes.
        """
        self._root = root
        self._job_id = job_id
        self._attempt = attempt
        self._group = cpu_group
        self._spec = spec
        self._layout = layout
        self._parent = parent
        self._device = device

    def raise_fence(self) -> None:
        """Forbid all older attempts of the job to commit; comes before loading.

        Raises:
            OutrunError: a newer attempt has raised the fence already.
            CheckpointError: the storage refuses to be read or written.
        """
        on_rank_0(self._group, self._raise_fence)

    def save(
        self, model: nn.Module, optimizer: Optimizer, state: TrainState, *, kind: str
    ) -> Manifest:
        """Write a complete checkpoint of this step and commit it.

        If this attempt has committed this step before, nothing is written. A failed save leaves
        nothing that counts as a checkpoint and frees the space that it took.

        Args:
            model: its weights are read, never changed; so are the optimizer's tensors.
            optimizer: must have its state (`materialize_state`).
            state: counters of this step.
            kind: why it is saved: `preflight`, `interval`, `request`, `stop` or `final`.

        Raises:
            OutrunError: a newer attempt has raised the fence; nothing is committed.
            CheckpointError: a rank could not write; the text names path and cause.
        """
        self._finish_computing()
        started = time.monotonic()
        folder = self._root / checkpoint_path(self._job_id, self._attempt, state.step)
        tensors = train_tensors(model, optimizer)
        if existing := on_rank_0(self._group, partial(self._prepare, folder, state)):
            return existing
        try:
            files = self._write(folder, tensors)
            manifest = self._describe(
                state,
                kind=kind,
                files=files,
                save_seconds=time.monotonic() - started,
                dtype=next(model.parameters()).dtype,
            )
            return on_rank_0(self._group, partial(self._commit, folder, manifest))
        except RunError:
            if dist.get_rank(self._group) == 0:
                store.discard(folder)
            raise

    def load(self, model: nn.Module, optimizer: Optimizer, resume: ResumePoint) -> Manifest:
        """Fill model and optimizer in place from a checkpoint of any layout and world size.

        Raises:
            CheckpointError: it is missing, not committed, damaged, of another model, or not the
                one that `resume` names.
        """
        tensors = train_tensors(model, optimizer)
        rank, world_size = dist.get_rank(self._group), dist.get_world_size(self._group)
        reader = CheckedReader(self._root / resume.path)
        names = self._names_on_every_rank(tensors)

        def check() -> None:
            _check_beneath(self._root, resume.path)
            reader.open(resume, tensors, names=names)
            reader.check_share(rank, world_size)

        on_every_rank(self._group, check)
        try:
            dcp.load(dict(tensors), storage_reader=reader, process_group=self._group)
        except CheckpointException as error:
            raise shared_error(error, str(reader.folder)) from error
        refresh_scales(model)
        return reader.manifest

    def _names_on_every_rank(self, tensors: Mapping[str, Tensor]) -> set[str]:
        """Return the names on all ranks; each stage of a pipeline has its own, told by one rank."""
        place = Place.of(dist.get_rank(self._group), self._layout)
        tells = (place.dp, place.cp, place.tp) == (0, 0, 0)
        told = on_every_rank(self._group, lambda: list(tensors) if tells else [])
        return set(chain.from_iterable(told))

    def _raise_fence(self) -> None:
        with raised_fence(self._root / self._job_id, self._attempt):
            pass

    def _prepare(self, folder: Path, state: TrainState) -> Manifest | None:
        """Return what this attempt has committed at this step before, or make the folder."""
        self._raise_fence()  # before the data too: an outrun attempt need not write it
        if not (folder / COMMITTED).exists():
            store.create(folder)
            return None
        existing = store.read_manifest(folder)
        mine = (state, self._spec.digest, self._parent)
        if (existing.train_state, existing.spec_digest, existing.parent) != mine:
            raise CheckpointError(
                f"{folder} is a checkpoint of another run with the same job id and attempt",
                path=str(folder),
            )
        return existing

    def _write(self, folder: Path, tensors: dict[str, Tensor]) -> tuple[ManifestFile, ...]:
        """Write the data files and return what all ranks wrote."""
        writer = ChecksumWriter(folder)
        try:
            with without_zip_checksums():
                dcp.save(dict(tensors), storage_writer=writer, process_group=self._group)
        except CheckpointException as error:
            raise shared_error(error, str(folder)) from error
        written = on_every_rank(self._group, lambda: writer.files)
        return tuple(sorted(chain.from_iterable(written), key=lambda file: file.path))

    def _describe(
        self,
        state: TrainState,
        *,
        kind: str,
        files: tuple[ManifestFile, ...],
        save_seconds: float,
        dtype: torch.dtype,
    ) -> Manifest:
        return Manifest(
            checkpoint_id=checkpoint_id(self._job_id, self._attempt, state.step),
            job_id=self._job_id,
            attempt=self._attempt,
            created_at=datetime.now(UTC),
            train_state=state,
            layout=self._layout,
            seed=self._spec.training.seed,
            spec_digest=self._spec.digest,
            parent=self._parent,
            kind=kind,
            param_dtype=str(dtype).removeprefix("torch."),
            model=self._spec.model,
            seq_len=self._spec.training.seq_len,
            torch_version=torch.__version__,
            save_seconds=save_seconds,
            files=files,
        )

    def _commit(self, folder: Path, manifest: Manifest) -> Manifest:
        store.write_manifest(folder, manifest)
        with raised_fence(self._root / self._job_id, self._attempt):
            store.commit(folder)
        return manifest

    def _finish_computing(self) -> None:
        """Wait for the device, so that the time of a save holds no part of the step."""
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)


def _check_beneath(root: Path, relative: str) -> None:
    inside = (root / relative).resolve().is_relative_to(root.resolve())
    if PurePosixPath(relative).is_absolute() or not inside:
        raise CheckpointError(f"{relative!r} lies outside the storage root {root}", path=relative)
