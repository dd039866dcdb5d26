"""The run of a script: its metrics, progress, checkpoints and rank."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, SupportsFloat, SupportsIndex

from trainyard.run.artifacts.artifact_log import ArtifactLog
from trainyard.run.artifacts.artifact_writer import ArtifactWriter
from trainyard.run.checkpoints.program_save import ProgramCheckpoints
from trainyard.run.directory import Phase, RunDirectory
from trainyard.run.limits import legal_step
from trainyard.run.records import Heartbeat
from trainyard.run.session.job_orders import JobOrders
from trainyard.run.session.loss_watch import LossWatch
from trainyard.run.session.open_request import OpenRequest
from trainyard.run.session.process_place import ProcessPlace
from trainyard.run.session.program_checkpoints import (
    job_checkpoints,
    local_checkpoints,
    resume_folder,
)
from trainyard.run.session.run_facts import FactBook
from trainyard.run.session.session_writer import SessionWriter
from trainyard.run.session.step_records import StepRecords

RUN_VARIABLE = "TRAINYARD_RUN"
"""Environment variable with the run directory; without it, the script runs outside a job."""
BLOCK_PHASES = ("validating", "saving", "loading", "compiling", "building_cache")


class Run(ArtifactLog):
    """Run of this process of a training script, in a job or outside a job.

    Outside a job, calls only check their arguments, so that the script runs anywhere; only
    `checkpoint` saves, into the folder `checkpoints`. In processes that this process creates by a
    fork or by `multiprocessing`, such as workers of a data loader, calls also only check their
    arguments, but `checkpoint` raises an error. Methods can be called from any thread.
    """

    def __init__(
        self, directory: Path | None, place: ProcessPlace, *, owner: int | None = None
    ) -> None:
        """Create the run; scripts call `trainyard.init` instead, because a process has one run.

        Args:
            directory: the run directory; None outside a job.
            place: rank of this process in the job.
            owner: id of the process that may write; when None, this process.

        Raises:
            ValueError: `directory` is not a folder.
        """
        if directory is not None and not directory.is_dir():
            raise ValueError(f"{RUN_VARIABLE}={str(directory)!r} is no folder")
        self._place = place
        self._owner = os.getpid() if owner is None else owner
        self._files = None if directory is None else RunDirectory(directory)
        self._writer: SessionWriter | None = None
        self._artifacts: ArtifactWriter | None = None
        self._phase = Phase.TRAINING
        self._step = 0
        self._steps: int | None = None
        self._records = StepRecords(place)
        self._orders: JobOrders | None = None
        spec: dict[str, Any] = {}
        attempt: dict[str, Any] = {}
        if self._files is not None:
            leads_node = place.local_rank == 0
            self._orders = JobOrders(self._files, place)
            if place.rank > 0:
                self._files.rank_metrics.mkdir(exist_ok=True)
            self._files.artifacts.mkdir(exist_ok=True)
            self._artifacts = ArtifactWriter(self._files.artifacts, place.rank)
            self._writer = SessionWriter(
                self._files.metrics_of(place.rank),
                self._files.heartbeat if leads_node else None,
                self._files.facts if place.rank == 0 else None,
            )
            spec, attempt = _content(self._files.spec), _content(self._files.attempt)
        program = spec.get("program") or {}
        self.arguments: Mapping[str, Any] = MappingProxyType(program.get("arguments") or {})
        """`program.arguments` of the job; empty outside a job."""
        self._facts = FactBook(self.arguments, self._keep_facts)
        self.config = self._facts.config
        """Configuration, which starts with `program.arguments` of the job. The script can set more
        values; the values of rank 0 are facts of the job."""
        self.summary = self._facts.summary
        """Results that the script sets; the values of rank 0 are facts of the job."""
        self.name: str | None = spec.get("name")
        """Name of the job."""
        self.job_id: str | None = attempt.get("job_id")
        """Id of the job."""
        self.attempt: int | None = attempt.get("attempt")
        """Number of the attempt, from 1."""
        self._documents = spec, attempt
        parent = attempt.get("resume") or {}
        error = None if self._files is None else self._files.error
        self._watch = LossWatch(spec.get("guard") or {}, start=parent.get("step", 0), error=error)

    @property
    def in_job(self) -> bool:
        """Whether this process belongs to a job."""
        return self._files is not None

    @property
    def rank(self) -> int:
        """Global rank of this process; 0 if it is the only process."""
        return self._place.rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self._place.world_size

    @property
    def local_rank(self) -> int:
        """Rank of this process on its node."""
        return self._place.local_rank

    @property
    def directory(self) -> Path | None:
        """Run directory of the attempt on this node; None outside a job."""
        return None if self._files is None else self._files.root

    def log(
        self, values: Mapping[str, SupportsFloat], *, step: SupportsIndex, per_rank: bool = False
    ) -> None:
        """Log values of a step.

        The values of rank 0 become the points of a series. If several ranks log the same name, the
        server adds `<name>/min`, `<name>/mean` and `<name>/max` once all ranks are past the step. A
        thread writes, so the call never waits for the disk. NaN and infinity are stored. A value
        is dropped if its name has a value for this step or a later one. The call converts values by
        `float()`, which waits until a GPU has computed a tensor.

        Args:
            values: values by name, such as `train/loss`. A name has up to 256 printable characters
                of any script except the comma. An illegal name is stored in a legal form with a
                checksum, with one warning. Values after the first 2,000 of a call are dropped, and
                values with names after the first 4,000 of the process.
            step: completed optimizer steps.
            per_rank: whether to store the values as `<name>/rank-<rank>` instead.

        Raises:
            ValueError: `step` is outside 0 to 1,000,000,000.
            TypeError: a name is not text, or a value is not a number.
            BadLossError: a guard of the job found `train/loss` or `train/grad_norm` of rank 0 bad.
        """
        number = legal_step(step)
        new = self._records.log(self._open_writer, values, step=number, per_rank=per_rank)
        if new and self._place.rank == 0:
            self._watch.check(number, new)

    def add_tags(self, *tags: str) -> None:
        """Add tags to the tags of the job, on rank 0; the job has at most 32 tags.

        A tag has at most 64 characters. Characters other than letters, digits, `.`, `_`, `:`, `/`
        and `-` become `-`.
        """
        self._facts.add_tags(tags)

    def consumed(
        self,
        step: SupportsIndex,
        ids: Iterable[SupportsIndex | str | bytes],
        positions: Iterable[SupportsIndex] | None = None,
    ) -> None:
        """Record the samples of this process in a step; call once per step, after the optimizer.

        The server adds the digests of all ranks, so the sum does not depend on the number of ranks.
        If the first step of a resumed attempt has the same sum as that step in another attempt, the
        data continues in exactly the same order. Every rank must call this method in each step; a
        rank without samples passes no ids.

        Args:
            step: completed optimizer steps, including this step.
            ids: id of each sample: its index, its name or a hash of its content. Omit samples of
                weight 0.
            positions: position of each sample in the stream. Without positions, the digest covers
                the samples of the step but not their order.

        Raises:
            ValueError: `step` is outside 0 to 1,000,000,000 or not above the step of the previous
                call, or the numbers of ids and positions differ.
            TypeError: a position is not an integer, or an id is not an integer, text or bytes.
        """
        self._records.consume(self._open_writer, step, ids=ids, positions=positions)

    def progress(self, step: SupportsIndex, total: SupportsIndex | None = None) -> None:
        """Record that the script is alive and how far it is; the page of the job shows the
        progress.

        After the first call, a pause of `guard.hang_seconds` without another call ends the attempt
        as a hang. Calls of `should_stop`, `should_save` and `phase` count like calls of this
        method. Only the first process of each node writes, at most a few times per second.

        Args:
            step: completed optimizer steps.
            total: estimated total steps, which limit nothing; `program.steps` takes precedence.

        Raises:
            ValueError: a number is outside 0 to 1,000,000,000.
        """
        step = legal_step(step)
        if total is not None:
            self._steps = max(legal_step(total, name="total"), 1)
        self._step = step
        self._beat()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Replace the phase `training` by another phase during the block, with its own hang limit.

        Args:
            name: `validating`, `saving`, `loading`, `compiling` or `building_cache`.

        Raises:
            ValueError: the phase is unknown.
        """
        if name not in BLOCK_PHASES:
            raise ValueError(f"phase {name!r}: {', '.join(BLOCK_PHASES)} are legal")
        before, self._phase = self._phase, Phase(name)
        self._beat()
        try:
            yield
        finally:
            self._phase = before
            self._beat()

    def should_stop(self) -> bool:
        """Return whether the script must save and end; the result is the same on all ranks.

        If there are several processes, all must call this at the same places. Rank 0 reads the
        order, and each call returns rank 0's value from the previous call, so no rank waits.

        Raises:
            RuntimeError: there are several processes, but torch.distributed is not initialised.
        """
        if self._open_writer is None or self._orders is None:
            return False
        stop = self._orders.should_stop()
        self._beat()
        return stop

    def should_save(self, step: SupportsIndex) -> bool:
        """Return whether a person requests a save; the result is the same on all ranks.

        The call returns True once for all requests that are open at that time.

        Args:
            step: completed optimizer steps.

        Raises:
            RuntimeError: there are several processes, but torch.distributed is not initialised.
            ValueError: `step` is outside 0 to 1,000,000,000.
        """
        step = legal_step(step)
        if self._open_writer is None or self._orders is None:
            return False
        self._step = step
        save = self._orders.should_save(step)
        self._beat()
        return save

    def request(self) -> OpenRequest | None:
        """On rank 0, return the oldest open request, or None; on other ranks, return None.

        After the first call, people can request saves, profiles and memory snapshots. The script
        must respond to each request by `request.answer(...)`. If the script also calls
        `should_save`, that method returns the requests for a save instead.
        """
        if self._open_writer is None or self._orders is None:
            return None
        before = len(self._orders.answers)
        request = self._orders.request()
        if len(self._orders.answers) > before:
            self._beat()
        return request

    @property
    def resume_from(self) -> Path | None:
        """Folder of the parent checkpoint, which must not be changed; None without one.

        Every rank must read this property before its first save or load. The first read fences off
        all earlier attempts of the job.

        Raises:
            FenceError: a newer attempt of the job has started, or the fence cannot be raised.
            UnusableCheckpointError: the checkpoint is missing, changed or incomplete.
            CheckpointSaveError: rank 0 did not raise the fence in time.
            ValueError: this node lacks the job's storage root, or the root is a bucket.
            OSError: the storage reports an error.
        """
        error = None if self._files is None else self._files.error
        return resume_folder(self._checkpoints, self._documents[1], error=error)

    @contextmanager
    def checkpoint(self, step: SupportsIndex, *, kind: str = "interval") -> Iterator[Path]:
        """Yield a folder for the files of this process; after the block, commit a checkpoint.

        All ranks must enter the block with the same step. At the end of the block, all ranks wait
        until rank 0 has committed the checkpoint. Rank 0 waits at most half an hour until all other
        ranks have left their blocks, and again until they have computed checksums.

        Args:
            step: completed optimizer steps.
            kind: reason for the save, such as `interval`, `stop` or `final`.

        Raises:
            ValueError: `step` or `kind` is illegal, or the job's storage root cannot be used.
            CheckpointSaveError: the checkpoint was not committed; all ranks raise an error.
            FenceError: a newer attempt of the job has started, or the fence cannot be raised.
            RuntimeError: this process was created by a rank but is not a rank, or the processes of
                a script without a job are not all of one torchrun on one machine.
        """
        step = legal_step(step)
        if os.getpid() != self._owner:
            raise RuntimeError("checkpoint() in a process of the rank; legal: in the rank itself")
        with self.phase("saving"), self._checkpoints.save(step, kind=kind) as folder:
            yield folder
            if (writer := self._open_writer) is not None:
                self._records.mark(writer, step)
            self._flush_metrics()  # before the commit, write the metrics up to its step

    @cached_property
    def _checkpoints(self) -> ProgramCheckpoints:
        if self._files is None:
            return local_checkpoints(self._place, os.environ)
        spec, attempt = self._documents
        return job_checkpoints(
            spec,
            attempt,
            self._place,
            files=self._files,
            before_report=self._flush_metrics,
        )

    def flush(self) -> None:
        """Write everything that was logged so far; this also happens at the end of the process."""
        self._flush_metrics()
        if (artifacts := self._open_artifacts) is not None:
            artifacts.flush()

    def _flush_metrics(self) -> None:
        if (writer := self._open_writer) is not None:
            writer.flush()

    def close(self) -> None:
        """Write everything that was logged, and end the threads; called at exit of the
        interpreter."""
        if (writer := self._open_writer) is not None:
            writer.close()
        if (artifacts := self._open_artifacts) is not None:
            artifacts.close()

    def _keep_facts(self) -> None:
        if (writer := self._open_writer) is not None:
            writer.replace_facts(self._facts.record)

    def _beat(self) -> None:
        if (writer := self._open_writer) is not None:
            writer.beat(
                Heartbeat(
                    phase=self._phase,
                    step=self._step,
                    time=time.time(),
                    steps=self._steps,
                    answers=tuple(sorted(self._orders.answers)) if self._orders else (),
                )
            )

    @property
    def _open_writer(self) -> SessionWriter | None:
        """Writer of this process's records; None outside a job, and in a process created by a
        rank."""
        return self._writer if os.getpid() == self._owner else None

    @property
    def _open_artifacts(self) -> ArtifactWriter | None:
        return self._artifacts if os.getpid() == self._owner else None


def _content(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file that the worker wrote; empty if the file is missing."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return found if isinstance(found, dict) else {}
