"""Runs the phases of a save in sequence, on all ranks together (docs/checkpoint-saves.md)."""

from __future__ import annotations

import math
import shutil
import time
from datetime import UTC, datetime
from functools import partial
from math import prod
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.checkpoint.chunks.dcp_metadata import WRITTEN_CHUNKS, chunk_count, dcp_metadata
from trainer.checkpoint.chunks.divided_tensor import itemsize
from trainer.checkpoint.chunks.index_file import ChunkIndex
from trainer.checkpoint.fence import raised_fence
from trainer.checkpoint.manifest import read_manifest
from trainer.checkpoint.pending_save import PendingSave
from trainer.checkpoint.save_folder import Point, create_folder, discard, reached, write_durably
from trainer.checkpoint.tensors import WEIGHTS
from trainer.checkpoint.writer.hashed_file import HashedFile
from trainer.checkpoint.writer.save_plan import SavePlanner, is_shared, writing_ranks
from trainer.checkpoint.writer.storage_writer import ChecksumWriter, WrittenShare
from trainer.distributed import on_every_rank, on_rank_0
from trainer.errors import CheckpointError, RunError
from trainer.run import TrainerRun
from trainer.storage.io_errors import digest, storage_errors
from trainer.storage.root import StoragePath
from trainyard.protocol.manifest import (
    DCP_METADATA,
    INDEX,
    Manifest,
    TrainState,
)
from trainyard.run.checkpoints.checkpoint_names import (
    COMMITTED,
    MANIFEST,
    checkpoint_id,
    checkpoint_path,
)
from trainyard.spec.auto import explicit
from trainyard.spec.checkpoint_rules import kept_besides, most_kept, saves_to_come
from trainyard.spec.job import JobSpec

PREFLIGHT = "preflight"


class CheckpointWriter:
    """Writes and commits checkpoints, one after the other, in the thread that calls `run`."""

    def __init__(
        self, run: TrainerRun, code_digest: str | None, *, group: dist.ProcessGroup
    ) -> None:
        """Describe the writer; nothing is written yet.

        Args:
            run: attempt that owns the checkpoints.
            code_digest: digest of the own model's code; None without a code folder.
            group: gloo group of all ranks, used only by the save in progress.
        """
        self._run = run
        self._parent = run.attempt.resume.checkpoint_id if run.attempt.resume else None
        self._job_folder = run.checkpoint_root / run.attempt.job_id
        self._code_digest = code_digest
        self._group = group
        self._planner: SavePlanner | None = None
        self._indexed: tuple[ChunkIndex, dict[str, bytes]] | None = None
        self.start: TrainState | None = None
        """Counters at the start of the attempt; None before they are known."""
        self.folder: StoragePath = Path()
        """Folder of the save in progress or of the last save."""

    @property
    def plan_seconds(self) -> float:
        """Time, in seconds, that this rank took to plan the last save."""
        return self._planner.seconds if self._planner else 0.0

    def run(
        self, save: PendingSave, tensors: dict[str, Tensor], *, dtype: torch.dtype, started: float
    ) -> Manifest:
        """Prepare, stage, write, describe and commit; return the manifest on every rank.

        Args:
            save: save to run. The call marks the save as staged when training may change the
                tensors.
            tensors: tensors to write, by name; if the dictionary is the same as before, the plan is
                reused.
            dtype: dtype of the weights.
            started: time at which the saved step ended, in seconds of `time.monotonic`.

        Raises:
            OutrunError: a newer attempt has raised the fence, so nothing is committed.
            CheckpointError: a rank could not write, the storage would become full, or the folder
                has a checkpoint of another run; the message names path and cause.
        """
        attempt = self._run.attempt
        path = checkpoint_path(attempt.job_id, attempt.attempt, save.state.step)
        self.folder = self._run.checkpoint_root / path
        reached(Point.BEGUN, self.folder)
        # `on_rank_0` and `on_every_rank` are barriers: no rank writes before the folder exists, and
        # the marker is written only when the files of all ranks are durable.
        if existing := on_rank_0(self._group, partial(self._prepare, save.state)):
            return existing
        try:
            written, index = self._write(save, tensors)
            describe = partial(self._describe, save, written, index, dtype=dtype, started=started)
            return on_rank_0(self._group, lambda: self._commit(describe()))
        except RunError:
            # Every rank has arrived here and closed its file, so nothing more is written to the
            # folder.
            if dist.get_rank(self._group) == 0:
                discard(self.folder)
            raise

    def _prepare(self, state: TrainState) -> Manifest | None:
        """Return the manifest if this attempt has committed this step; else create the folder."""
        folder = self.folder
        # The fence is also checked before writing, so that an outrun attempt ends without writing
        # data.
        with raised_fence(self._job_folder, self._run.attempt.attempt):
            pass
        with storage_errors("read", folder):
            committed = (folder / COMMITTED).exists()
        if not committed:
            create_folder(folder)
            return None
        existing = read_manifest(folder)
        mine = (state, self._run.submitted.digest, self._parent)
        if (existing.train_state, existing.spec_digest, existing.parent) != mine:
            raise CheckpointError(
                f"{folder} is a checkpoint of another run with the same job id and attempt",
                path=str(folder),
            )
        return existing

    def _write(
        self, save: PendingSave, tensors: dict[str, Tensor]
    ) -> tuple[list[WrittenShare], ChunkIndex]:
        """Write the data files; return the written share of each rank, and the index of chunks."""
        if self._planner is None:
            self._planner = SavePlanner(
                self._writers(), self._run.attempt.layout, group=self._group
            )
        plan = self._planner.plan(tensors)
        writer = ChecksumWriter(
            self.folder,
            group=self._group,
            ceiling=int(self._run.spec.checkpoint.staging_gib * 2**30),
            stage=save.stage,
        )
        written = on_every_rank(self._group, lambda: writer.write(plan))
        reached(Point.PARTS_KNOWN, self.folder)
        return written, plan.index

    def _describe(
        self,
        save: PendingSave,
        written: list[WrittenShare],
        index: ChunkIndex,
        *,
        dtype: torch.dtype,
        started: float,
    ) -> Manifest:
        """Write the index files; return the manifest of the files of all ranks."""
        numbers = sum(share.numbers_bytes for share in written)
        expected = index.ownership.numbers_bytes
        assert numbers == expected, f"{numbers} of {expected} bytes of tensors are written"
        files = [share.file for share in written if share.file is not None]
        for name, content in self._index_files(index).items():
            with HashedFile(self.folder / name) as file:
                file.write(content)
                files.append(file.close())
        attempt, submitted = self._run.attempt, self._run.submitted
        return Manifest(
            checkpoint_id=checkpoint_id(attempt.job_id, attempt.attempt, save.state.step),
            job_id=attempt.job_id,
            attempt=attempt.attempt,
            created_at=datetime.now(UTC),
            train_state=save.state,
            start=self.start,
            layout=attempt.layout,
            seed=submitted.training.seed,
            spec_digest=submitted.digest,
            spec=self._run.spec.model_copy(update={"env": {}}),
            code_digest=self._code_digest,
            parent=self._parent,
            kind=save.kind,
            param_dtype=str(dtype).removeprefix("torch."),
            model=submitted.model,
            seq_len=submitted.training.seq_len,
            torch_version=torch.__version__,
            save_seconds=time.monotonic() - started,
            files=tuple(sorted(files, key=lambda file: file.path)),
            writers=tuple(share.record for share in written if share.record is not None),
        )

    def _index_files(self, index: ChunkIndex) -> dict[str, bytes]:
        """Return the index files by name: the index and, if the chunks are few, `.metadata`.

        The contents are the same for all saves with the same plan.
        """
        if self._indexed is None or self._indexed[0] is not index:
            contents = {INDEX: index.to_bytes()}
            if chunk_count(index) <= WRITTEN_CHUNKS:
                contents[DCP_METADATA] = dcp_metadata(index)
            self._indexed = index, contents
        return self._indexed[1]

    def _exported_bytes(self) -> int:
        """Return the size of an automatic export of the last save: the weights in their dtype."""
        if self._run.spec.checkpoint.export != "safetensors" or self._indexed is None:
            return 0
        kinds = {
            name: tensor.kind
            for name, tensor in self._indexed[0].ownership.tensors.items()
            if name.startswith(WEIGHTS)
        }
        return sum(prod(kind.shape) * itemsize(kind.dtype) for kind in kinds.values())

    def _writers(self) -> tuple[int, ...]:
        """Return the ranks that write; treat the storage as shared if at least one rank does."""
        writers, shared = self._run.spec.checkpoint.writers, False
        if writers == "auto":
            shared = any(on_every_rank(self._group, lambda: is_shared(self._run.checkpoint_root)))
        return writing_ranks(writers, self._run.attempt.layout, shared=shared)

    def _commit(self, manifest: Manifest) -> Manifest:
        if manifest.kind == PREFLIGHT:
            check_room(
                self.folder,
                size=manifest.size,
                exported=self._exported_bytes(),
                state=manifest.train_state,
                spec=self._run.spec,
            )
        # Write the manifest before taking the fence's lock, so that its write and sync do not
        # extend the time under the lock. Write the marker last, when all files and names are
        # durable. The lock ensures that an older commit is complete or refused once a newer attempt
        # has raised the fence.
        text = manifest.model_dump_json(indent=2).encode()
        write_durably(self.folder / MANIFEST, text)
        with raised_fence(self._job_folder, self._run.attempt.attempt):
            write_durably(self.folder / COMMITTED, digest(text).encode())
        reached(Point.COMMITTED, self.folder)
        return manifest


def check_room(
    folder: StoragePath, *, size: int, state: TrainState, spec: JobSpec, exported: int = 0
) -> None:
    """Reject a storage that would become full before the job ends.

    An object store reports no free space, so it is never rejected.

    Args:
        folder: folder of the first checkpoint, which is already written.
        size: size of the checkpoint in bytes; each later one has the same size.
        state: counters at the start of the attempt.
        spec: spec of the job, with the attempt's overrides.
        exported: size of the automatic export of a checkpoint in bytes, which lies in its folder.

    Raises:
        CheckpointError: the space is not sufficient; the message names the needed and the free
            space, and settings that would fit.
    """
    if not isinstance(folder, Path):
        return
    more = most_kept(spec, step=state.step)
    size += exported
    needed = more * size + exported  # also of the checkpoint that is already written
    free = shutil.disk_usage(folder).free
    if needed <= free:
        return
    with_exports = " with their exports" if exported else ""
    raise CheckpointError(
        f"{folder.parent} has {_gib(free)} free, but {more:,} more checkpoints of {_gib(size)}"
        f"{with_exports} are to be kept there ({_reason(spec)}), {_gib(needed)} in all",
        path=str(folder.parent),
        remedy=_remedy((free - exported) // size, state, spec),
    )


def _reason(spec: JobSpec) -> str:
    section = spec.checkpoint
    keep = section.keep_latest_k
    kept = f"checkpoint.keep_latest_k = {keep}{'' if keep else ', which keeps all'}"
    if keep and section.keep_every_steps:
        kept += f", checkpoint.keep_every_steps = {section.keep_every_steps}"
    if keep and section.keep_best_k:
        kept += f", checkpoint.keep_best_k = {section.keep_best_k}"
    kept += f", checkpoint.interval_steps = {section.interval_steps}"
    if seconds := explicit(section.interval_seconds):
        kept += f", checkpoint.interval_seconds = {seconds:g}"
    return kept


def _remedy(fitting: int, state: TrainState, spec: JobSpec) -> str:
    """Return settings to change, each with a value that is sufficient on its own."""
    section = spec.checkpoint
    ways = ["Free space", "take another checkpoint.root"]
    if fitting >= 1:
        interval = _interval(fitting, state, spec)
        by_steps_alone = not explicit(section.interval_seconds)
        if by_steps_alone and interval > explicit(section.interval_steps) > 0:
            ways.append(f"set checkpoint.interval_steps to {interval:,} or more")
    if (most := fitting - kept_besides(spec, step=state.step)) >= 1:
        ways.append(f"set checkpoint.keep_latest_k to {most:,} or less")
    return f"{', '.join(ways[:-1])}, or {ways[-1]}."


def _interval(fitting: int, state: TrainState, spec: JobSpec) -> int:
    """Return an interval, in steps, with at most `fitting` more saves, including the last one."""
    left = spec.training.steps - state.step
    interval = math.ceil(left / fitting)
    if saves_to_come(interval, spec, step=state.step) <= fitting:
        return interval
    # A start in the middle of an interval adds one save to the number of whole intervals that fit.
    return math.ceil(left / (fitting - 1)) if fitting > 1 else spec.training.steps


def _gib(size: int) -> str:
    return f"{size / 2**30:,.3g} GiB" if size >= 2**30 else f"{size / 2**20:,.3g} MiB"
