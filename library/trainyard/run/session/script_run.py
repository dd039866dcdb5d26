"""The run of a script: what it logs, how far it is, and where it is among its processes."""

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
"""Variable that names the run directory; without it no call does anything."""
BLOCK_PHASES = ("validating", "saving", "loading", "compiling", "building_cache")


class Run(ArtifactLog):
    """This process of a training script, in a job or outside of one.

    Outside of a job calls check their arguments and do nothing else, so that a script runs
    anywhere. The same holds in processes that this one makes by a fork or by `multiprocessing`, as
    workers of a loader. Methods can be called from any thread.
    """

    def __init__(
        self, directory: Path | None, place: ProcessPlace, *, owner: int | None = None
    ) -> None:
        """Use `trainyard.init` instead: a process has one run.

        Args:
            directory: the run directory; None outside of a job.
            place: which process of the job this one is.
            owner: pid of the process that writes; None: this one.

        Raises:
            ValueError: `directory` is no folder.
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
        """`program.arguments` of the job; empty outside of one."""
        self._facts = FactBook(self.arguments, self._keep_facts)
        self.config = self._facts.config
        """Configuration: begins with `program.arguments` of the job, and takes further values.
        Those of rank 0 are facts of the job."""
        self.summary = self._facts.summary
        """Results that the script sets; those of rank 0 are facts of the job."""
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
        """Number of this process among all; 0 alone."""
        return self._place.rank

    @property
    def world_size(self) -> int:
        """Number of processes; 1 alone."""
        return self._place.world_size

    @property
    def local_rank(self) -> int:
        """Number of this process among those of its node."""
        return self._place.local_rank

    @property
    def directory(self) -> Path | None:
        """The run directory of the attempt on this node; None outside of a job."""
        return None if self._files is None else self._files.root

    def log(
        self, values: Mapping[str, SupportsFloat], *, step: SupportsIndex, per_rank: bool = False
    ) -> None:
        """Log values of a step.

        Those of rank 0 become the points of the name. Where several ranks log it, `<name>/min`,
        `<name>/mean` and `<name>/max` follow once all are beyond the step. A thread writes: the
        call waits for no disk. NaN and infinity are kept. A name has one value a step, the first
        one, and its steps rise. `float()` is taken at once: of a tensor on a GPU that waits for
        its computation.

        Args:
            values: by name, such as `train/loss`: up to 256 printable characters of any script but
                the comma. Another name is stored with a checksum, and warns once. Values after the
                first 2,000 are left out.
            step: completed optimizer steps.
            per_rank: store the values as `<name>/rank-<rank>` instead.

        Raises:
            ValueError: `step` is outside of 0 to 1,000,000,000.
            TypeError: a name is no text, or a value no number.
            BadLossError: on rank 0, a guard of the job finds `train/loss` or `train/grad_norm` bad.
        """
        number = legal_step(step)
        new = self._records.log(self._open_writer, values, step=number, per_rank=per_rank)
        if new and self._place.rank == 0:
            self._watch.check(number, new)

    def add_tags(self, *tags: str) -> None:
        """Add tags to those of the job, on rank 0: up to 32 together, of 64 characters each.

        In place of other characters than letters, digits, `.`, `_`, `:`, `/` and `-` it is `-`.
        """
        self._facts.add_tags(tags)

    def consumed(
        self,
        step: SupportsIndex,
        ids: Iterable[SupportsIndex | str | bytes],
        positions: Iterable[SupportsIndex] | None = None,
    ) -> None:
        """Record which samples this process used in a step, once a step, after the optimizer.

        The server merges the digests of all ranks: the sum does not depend on their number. A
        resumed attempt whose first step has the digest of another attempt continues in its order.
        Each rank calls it at each step, with no ids where it used none.

        Args:
            step: completed optimizer steps, this one included.
            ids: what names each sample in the data: an index, a name or a hash of its content;
                samples of weight 0 left out.
            positions: position of each sample in the stream. Without it the digest binds samples
                to the step, and not their order within it.

        Raises:
            ValueError: `step` is not above that of the call before, or there are more of ids or
                of positions.
            TypeError: a position is no whole number, or an id is neither one, nor text, nor bytes.
        """
        self._records.consume(self._open_writer, step, ids, positions)

    def progress(self, step: SupportsIndex, total: SupportsIndex | None = None) -> None:
        """Record that the script is alive and how far it is: the job shows it.

        From the first call on silence counts: after `guard.hang_seconds` without a further call
        the attempt ends as a hang. `should_stop` and `should_save` count as well. Each node's first
        process writes, at most a few times a second.

        Args:
            step: completed optimizer steps.
            total: steps in all, an estimate that limits nothing; `program.steps` comes first.

        Raises:
            ValueError: a number is outside of 0 to 1,000,000,000.
        """
        step = legal_step(step)
        if total is not None:
            self._steps = max(legal_step(total, name="total"), 1)
        self._step = step
        self._beat()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Show another phase than `training` while the block runs; its limit of silence applies.

        Args:
            name: `validating`, `saving`, `loading`, `compiling` or `building_cache`.

        Raises:
            ValueError: there is no such phase.
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
        """Return whether the script is to save and end; the same on all ranks.

        With several processes all call it, at the same places: rank 0 reads the order, and each
        call returns what rank 0 knew at the one before, so that none waits.

        Raises:
            RuntimeError: there are several processes, and torch.distributed is not initialised.
        """
        if self._open_writer is None or self._orders is None:
            return False
        stop = self._orders.should_stop()
        self._beat()
        return stop

    def should_save(self, step: SupportsIndex) -> bool:
        """Return whether a person requests a save; the same on all ranks, once a request.

        Args:
            step: completed optimizer steps.

        Raises:
            RuntimeError: there are several processes, and torch.distributed is not initialised.
            ValueError: `step` is outside of 0 to 1,000,000,000.
        """
        step = legal_step(step)
        if self._open_writer is None or self._orders is None:
            return False
        self._step = step
        save = self._orders.should_save(step)
        self._beat()
        return save

    def request(self) -> OpenRequest | None:
        """Return the oldest request that waits, on rank 0; None without one, and on other ranks.

        From the first call on people can request saves, profiles and memory snapshots, and the
        script answers each by `request.answer(...)`. A script that calls `should_save` too gets no
        save here.
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
        """The folder of the checkpoint from which this attempt resumes; None without one.

        Every rank reads it before it saves or loads: it fences off all earlier attempts of the job.
        The folder is read, never written.

        Raises:
            FenceError: a newer attempt of the job has begun, or the fence cannot be raised.
            UnusableCheckpointError: the checkpoint is missing, changed or incomplete.
            CheckpointSaveError: rank 0 has not raised the fence in time.
            OSError: the storage refuses.
        """
        error = None if self._files is None else self._files.error
        return resume_folder(self._checkpoints, self._documents[1], error=error)

    @contextmanager
    def checkpoint(self, step: SupportsIndex, *, kind: str = "interval") -> Iterator[Path]:
        """Yield a folder for this process' files; at the end of the block it is a checkpoint.

        All ranks enter it with the same step, and wait at its end until rank 0 has committed. It
        waits for a rank for half an hour at most.

        Args:
            step: completed optimizer steps.
            kind: why it is saved, such as `interval`, `stop` or `final`.

        Raises:
            ValueError: `step` or `kind` is not legal.
            CheckpointSaveError: it was not committed; every rank gets the error.
            FenceError: a newer attempt of the job has begun, or the fence cannot be raised.
            RuntimeError: this process was made by the one that is the rank.
        """
        step = legal_step(step)
        if os.getpid() != self._owner:
            raise RuntimeError("checkpoint() in a process of the rank; legal: in the rank itself")
        with self.phase("saving"), self._checkpoints.save(step, kind=kind) as folder:
            yield folder
            if (writer := self._open_writer) is not None:
                self._records.mark(writer, step)
            self._flush_metrics()  # a commit follows what all ranks have logged up to its step

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
        """Write what was logged so far; the end of the process does the same."""
        self._flush_metrics()
        if (artifacts := self._open_artifacts) is not None:
            artifacts.flush()

    def _flush_metrics(self) -> None:
        if (writer := self._open_writer) is not None:
            writer.flush()

    def close(self) -> None:
        """Write the rest; called when the interpreter exits."""
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
        """The writer of this process; None outside of a job, and where a rank has made it."""
        return self._writer if os.getpid() == self._owner else None

    @property
    def _open_artifacts(self) -> ArtifactWriter | None:
        return self._artifacts if os.getpid() == self._owner else None


def _content(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file of the worker; empty where there is none."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return found if isinstance(found, dict) else {}
