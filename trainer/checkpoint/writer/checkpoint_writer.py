"""The phases of a save in their order, by all ranks together (docs/checkpoints.md)."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from trainer.checkpoint.fence import raised_fence
from trainer.checkpoint.manifest import read_manifest
from trainer.checkpoint.pending_save import PendingSave
from trainer.checkpoint.save_folder import (
    Point,
    create_folder,
    discard,
    reached,
    write_manifest,
    write_marker,
)
from trainer.checkpoint.writer.save_plan import SavePlanner, is_shared, writing_ranks
from trainer.checkpoint.writer.storage_writer import ChecksumWriter
from trainer.distributed import on_every_rank, on_rank_0, shared_error
from trainer.errors import CheckpointError, RunError
from trainer.storage.io_errors import storage_errors
from trainer.storage.root import StoragePath
from trainyard.protocol.manifest import (
    COMMITTED,
    Manifest,
    ManifestFile,
    ManifestWriter,
    TrainState,
    checkpoint_id,
    checkpoint_path,
)
from trainyard.spec.auto import explicit
from trainyard.spec.checkpoint_rules import kept_for_good, most_kept, saves_to_come
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout

PREFLIGHT = "preflight"


@dataclass(frozen=True)
class CheckpointOwner:
    """The job and attempt that own the checkpoints; all of it goes into the manifest."""

    root: StoragePath
    """Storage root; every rank sees the same one."""
    job_id: str
    """Id of the job, and name of its folder below the root."""
    attempt: int
    """Number of the attempt, which is also its fencing number."""
    spec: JobSpec
    """The job's spec as submitted."""
    settings: JobSpec
    """The spec with the attempt's overrides: how it trains and saves now."""
    layout: Layout
    """Layout of this attempt."""
    parent: str | None
    """Id of the checkpoint that the attempt resumed from."""
    code_digest: str | None = None
    """Digest of the own model's code, where the job names a folder of it."""

    @property
    def job_folder(self) -> StoragePath:
        """Folder of the job below the root."""
        return self.root / self.job_id


class CheckpointWriter:
    """Writes and commits checkpoints, one after the other, in the thread that calls `run`."""

    def __init__(self, owner: CheckpointOwner, *, group: dist.ProcessGroup) -> None:
        """Write nothing yet.

        Args:
            owner: job and attempt of the checkpoints.
            group: gloo group of all ranks; a save has it to itself while it runs.
        """
        self._owner = owner
        self._group = group
        self._planner: SavePlanner | None = None
        self.start: TrainState | None = None
        """Counters with which the attempt begins, once they are known."""
        self.folder: StoragePath = Path()
        """Folder of the save that runs, or of the last one."""

    @property
    def plan_seconds(self) -> float:
        """Time that the last save took to plan, on this rank."""
        return self._planner.seconds if self._planner else 0.0

    def run(
        self, save: PendingSave, tensors: dict[str, Tensor], *, dtype: torch.dtype, started: float
    ) -> Manifest:
        """Prepare, stage, write, describe and commit; return the manifest on every rank.

        Args:
            save: the save; it is staged once the tensors may change.
            tensors: what is written, by name; the plan is kept while it is the same dictionary.
            dtype: type of the weights.
            started: end of the saved step in seconds, by `time.monotonic`.

        Raises:
            OutrunError: a newer attempt has raised the fence; nothing is committed.
            CheckpointError: a rank could not write; the text names path and cause.
        """
        owner = self._owner
        path = checkpoint_path(owner.job_id, owner.attempt, save.state.step)
        self.folder = owner.root / path
        reached(Point.BEGUN, self.folder)
        # `on_rank_0` and `on_every_rank` are barriers: no rank writes before the folder exists, and
        # the marker comes when the file of every rank is durable.
        if existing := on_rank_0(self._group, partial(self._prepare, save.state)):
            return existing
        try:
            manifest = self._write(save, tensors, dtype=dtype, started=started)
            return on_rank_0(self._group, partial(self._commit, manifest))
        except RunError:
            # Every rank is here and has closed its file: nothing is written into the folder again.
            if dist.get_rank(self._group) == 0:
                discard(self.folder)
            raise

    def _prepare(self, state: TrainState) -> Manifest | None:
        """Return the manifest if this attempt has committed this step, else create the folder."""
        folder = self.folder
        # The fence is checked before the data too: an outrun attempt ends without writing it.
        with raised_fence(self._owner.job_folder, self._owner.attempt):
            pass
        with storage_errors("read", folder):
            committed = (folder / COMMITTED).exists()
        if not committed:
            create_folder(folder)
            return None
        existing = read_manifest(folder)
        mine = (state, self._owner.spec.digest, self._owner.parent)
        if (existing.train_state, existing.spec_digest, existing.parent) != mine:
            raise CheckpointError(
                f"{folder} is a checkpoint of another run with the same job id and attempt",
                path=str(folder),
            )
        return existing

    def _write(
        self, save: PendingSave, tensors: dict[str, Tensor], *, dtype: torch.dtype, started: float
    ) -> Manifest:
        """Write the data files and `.metadata`; return the manifest of what all ranks wrote."""
        self._planner = self._planner or SavePlanner(self._writers())
        writer = ChecksumWriter(
            self.folder,
            group=self._group,
            ceiling=int(self._owner.settings.checkpoint.staging_gib * 2**30),
            stage=save.stage,
        )
        try:
            dcp.save(
                tensors,
                storage_writer=writer,
                planner=self._planner,
                process_group=self._group,
            )
        except CheckpointException as error:
            raise shared_error(error, str(self.folder)) from error
        written = on_every_rank(self._group, lambda: (writer.files, writer.record))
        reached(Point.PARTS_KNOWN, self.folder)
        files = chain.from_iterable(files for files, _ in written)
        return self._describe(
            save,
            dtype=dtype,
            save_seconds=time.monotonic() - started,
            files=tuple(sorted(files, key=lambda file: file.path)),
            writers=tuple(chain.from_iterable(record for _, record in written)),
        )

    def _writers(self) -> tuple[int, ...]:
        """Return the ranks that write; storage is shared where it is on any rank."""
        writers, shared = self._owner.settings.checkpoint.writers, False
        if writers == "auto":
            shared = any(on_every_rank(self._group, lambda: is_shared(self._owner.root)))
        return writing_ranks(writers, self._owner.layout, shared=shared)

    def _describe(
        self,
        save: PendingSave,
        *,
        dtype: torch.dtype,
        save_seconds: float,
        files: tuple[ManifestFile, ...],
        writers: tuple[ManifestWriter, ...],
    ) -> Manifest:
        owner = self._owner
        return Manifest(
            checkpoint_id=checkpoint_id(owner.job_id, owner.attempt, save.state.step),
            job_id=owner.job_id,
            attempt=owner.attempt,
            created_at=datetime.now(UTC),
            train_state=save.state,
            start=self.start,
            layout=owner.layout,
            seed=owner.spec.training.seed,
            spec_digest=owner.spec.digest,
            spec=owner.settings.model_copy(update={"env": {}}),
            code_digest=owner.code_digest,
            parent=owner.parent,
            kind=save.kind,
            param_dtype=str(dtype).removeprefix("torch."),
            model=owner.spec.model,
            seq_len=owner.spec.training.seq_len,
            torch_version=torch.__version__,
            save_seconds=save_seconds,
            files=files,
            writers=writers,
        )

    def _commit(self, manifest: Manifest) -> Manifest:
        if manifest.kind == PREFLIGHT:
            check_room(
                self.folder,
                size=manifest.size,
                state=manifest.train_state,
                spec=self._owner.settings,
            )
        # The manifest before the fence: its write and sync take no time of the lock. The marker
        # under the lock: once a newer attempt has raised the fence, each older commit is complete
        # or is refused here.
        write_manifest(self.folder, manifest)
        with raised_fence(self._owner.job_folder, self._owner.attempt):
            write_marker(self.folder)
        reached(Point.COMMITTED, self.folder)
        return manifest


def check_room(folder: StoragePath, *, size: int, state: TrainState, spec: JobSpec) -> None:
    """Reject a storage that will be full before the job ends.

    An object store reports no free space: it is never rejected.

    Args:
        folder: the first checkpoint, already written.
        size: its bytes; each later one takes as many.
        state: counters with which the attempt begins.
        spec: the job, with the attempt's overrides.

    Raises:
        CheckpointError: names the needed and the free space, and settings that fit.
    """
    if not isinstance(folder, Path):
        return
    more = most_kept(spec, step=state.step)
    free = shutil.disk_usage(folder).free
    if more * size <= free:
        return
    raise CheckpointError(
        f"{folder.parent} has {_gib(free)} free, but {more:,} more checkpoints of {_gib(size)} "
        f"are to be kept there ({_reason(spec)}), {_gib(more * size)} in all",
        path=str(folder.parent),
        remedy=_remedy(free // size, state, spec),
    )


def _reason(spec: JobSpec) -> str:
    section = spec.checkpoint
    keep = section.keep_latest_k
    kept = f"checkpoint.keep_latest_k = {keep}{'' if keep else ', which keeps all'}"
    if keep and section.keep_every_steps:
        kept += f", checkpoint.keep_every_steps = {section.keep_every_steps}"
    if keep and section.keep_best_k:
        kept += f", checkpoint.keep_best_k = {section.keep_best_k}"
    return f"{kept}, {_interval_given(spec)}"


def _interval_given(spec: JobSpec) -> str:
    section = spec.checkpoint
    by_steps = f"checkpoint.interval_steps = {section.interval_steps}"
    seconds = explicit(section.interval_seconds)
    return f"{by_steps}, checkpoint.interval_seconds = {seconds:g}" if seconds else by_steps


def _remedy(fitting: int, state: TrainState, spec: JobSpec) -> str:
    """Return the settings that can change, each with a value that fits without the others."""
    section = spec.checkpoint
    ways = ["Free space", "take another checkpoint.root"]
    if fitting >= 1:
        interval = _interval(fitting, state, spec)
        by_steps_alone = not explicit(section.interval_seconds)
        if by_steps_alone and interval > explicit(section.interval_steps) > 0:
            ways.append(f"set checkpoint.interval_steps to {interval:,} or more")
    # `most_kept` counts one more than are kept, and those kept for good or as the best.
    others = kept_for_good(spec, step=state.step) + section.keep_best_k
    if (most := fitting - 1 - others) >= 1:
        ways.append(f"set checkpoint.keep_latest_k to {most:,} or less")
    return f"{', '.join(ways[:-1])}, or {ways[-1]}."


def _interval(fitting: int, state: TrainState, spec: JobSpec) -> int:
    """Return steps between saves such that at most `fitting` come, the last one included."""
    left = spec.training.steps - state.step
    interval = math.ceil(left / fitting)
    if saves_to_come(interval, spec, step=state.step) <= fitting:
        return interval
    # In the middle of an interval one more multiple lies ahead than there are whole intervals.
    return math.ceil(left / (fitting - 1)) if fitting > 1 else spec.training.steps


def _gib(size: int) -> str:
    return f"{size / 2**30:,.3g} GiB" if size >= 2**30 else f"{size / 2**20:,.3g} MiB"
