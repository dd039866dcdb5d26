"""Starts the saves of one attempt between steps, and stages, commits and retries them.

All ranks must call every method of the manager at the same point of the same step. An error on one
rank is raised on every rank, with the same type.
"""

from __future__ import annotations

import logging
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from trainer.checkpoint.fence import raised_fence
from trainer.checkpoint.manifest import committed_manifests
from trainer.checkpoint.pending_save import PendingSave, staging_of
from trainer.checkpoint.save_folder import Point, collect_leftovers, reached
from trainer.checkpoint.save_retry import SaveRetry
from trainer.checkpoint.shared_root import remove_probes
from trainer.checkpoint.tensors import TrainTensors
from trainer.checkpoint.writer.checkpoint_writer import PREFLIGHT, CheckpointWriter
from trainer.distributed import Ranks, on_rank_0
from trainer.errors import CheckpointError, RunError
from trainer.run import TrainerRun
from trainyard.protocol.manifest import Manifest, SaveFailed, SaveSettled, TrainState
from trainyard.spec.auto import explicit

TIMEOUT = timedelta(hours=1)
"""Timeout of a background save's collectives; ranks wait in them for the slowest write."""
WAIT_SECONDS = 1.0
"""Maximum time between two heartbeats, in seconds, while all ranks wait for the retry of a save."""

logger = logging.getLogger("trainer")


class SaveObserver:
    """Base class for observers of saves; the manager calls the methods, which here do nothing."""

    @property
    def step(self) -> int:
        """Number of completed training steps so far."""
        return 0

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context manager that is active while training waits for a save."""
        return nullcontext()

    def begun(self) -> None:
        """Called when a save starts."""

    def committed(self, manifest: Manifest) -> None:
        """Called immediately after the commit of a checkpoint, in the thread that saves.

        Therefore the checkpoint is reported even if the run dies before the loop settles the save.
        """

    def settled(self, manifest: Manifest, settled: SaveSettled) -> None:
        """Called between two steps or before the first update, when all ranks know the commit."""

    def failed(self, failure: SaveFailed) -> None:
        """Called, only on rank 0, when a save has failed and will be retried."""


class CheckpointManager:
    """Saves the checkpoints of an attempt; `reader.load` loads a checkpoint.

    With `async_mode`, a save runs during the next steps; only one save runs at a time. Rank 0
    detects the end of the save; then all ranks settle it at the same step. In every mode the
    preflight runs during the first step, and is settled before that step's update. A temporary
    failure, except of the preflight, becomes an error only after
    `checkpoint.give_up_after_seconds`. Until then training continues, and rank 0 decides when the
    next try is due.
    """

    def __init__(self, run: TrainerRun, ranks: Ranks, *, code_digest: str | None = None) -> None:
        """Describe the saves; nothing is written yet.

        Args:
            run: attempt that owns the checkpoints.
            ranks: ranks that save; the timeout of their CPU group must exceed the time of the
                slowest write.
            code_digest: digest of the own model's code; None without a code folder.

        Raises:
            LaunchError: the spec's `checkpoint.async_mode` needs an accelerator.
        """
        self._run = run
        self._group = ranks.cpu_group
        self._device = ranks.device
        self._tensors = TrainTensors()
        self._retry = SaveRetry(run.spec.checkpoint.give_up_after_seconds)
        self._observer = SaveObserver()
        self._pending: PendingSave | None = None
        self._saved: Manifest | None = None
        self._saved_step = 0
        self._stall_seconds = 0.0
        self._durations: deque[float] = deque(maxlen=3)
        self.failed_kind: str | None = None
        """Kind of the failed save that will be retried; None while saves succeed."""
        self._staging = staging_of(explicit(run.spec.checkpoint.async_mode), ranks.device)
        # A separate group, because collectives in one group are matched in the order of their
        # calls: a background save would be matched with collectives of the training thread.
        group = ranks.cpu_group
        if self._staging is not None or run.spec.checkpoint.preflight:
            own = dist.new_group(backend="gloo", timeout=TIMEOUT)
            assert own is not None
            group = own
        self._writer = CheckpointWriter(run, code_digest, group=group)

    @property
    def plan_seconds(self) -> float:
        """Time, in seconds, that this rank took to plan the last save."""
        return self._writer.plan_seconds

    @property
    def expected_seconds(self) -> float | None:
        """Expected duration of a save, in seconds: the maximum of the last three; None before the
        first."""
        return max(self._durations, default=None)

    @property
    def under_way(self) -> bool:
        """Whether a save has started but is not settled yet; between two steps, all ranks agree."""
        return self._pending is not None

    @property
    def ended(self) -> bool:
        """Whether a save has ended on this rank but is not settled yet."""
        return self._pending is not None and self._pending.done()

    @property
    def retry_due(self) -> bool:
        """Whether the retry of a failed save is due, by rank 0's clock; false on other ranks."""
        return self._pending is None and self._retry.due

    def raise_fence(self) -> None:
        """Forbid commits by older attempts of the job, and remove their unfinished checkpoints.

        Call this before loading. Otherwise an older attempt that still runs could commit a newer
        checkpoint than the one from which this attempt resumes.

        Raises:
            OutrunError: a newer attempt has already raised the fence.
            CheckpointError: the storage reports an error, or another launch of this attempt has
                already saved checkpoints.
        """
        on_rank_0(self._group, self._raise_fence)

    def starts_at(self, state: TrainState, observer: SaveObserver) -> None:
        """Set the counters at the start of the attempt, before its first save."""
        self._writer.start = state
        self._saved_step = state.step  # step of the loaded checkpoint, or 0 without one
        self._observer = observer

    def has_saved(self, state: TrainState) -> bool:
        """Return whether the last settled save is a save of this step."""
        return self._saved is not None and self._saved.train_state.step == state.step

    def save(
        self, model: nn.Module, optimizer: Optimizer, state: TrainState, *, kind: str
    ) -> Manifest:
        """Save this step unless it is already saved; wait for the commit; return the manifest.

        The arguments are those of `begin`.

        Raises:
            RunError: the save has failed permanently.
        """
        self.settle()
        if self._saved is not None and self.has_saved(state):
            return self._saved
        self.begin(model, optimizer, state, kind=kind)
        self.settle()
        while self.failed_kind is not None:
            self._wait_for_retry()
            self.begin(model, optimizer, state, kind=kind)
            self.settle()
        assert self._saved is not None
        return self._saved

    def begin(
        self, model: nn.Module, optimizer: Optimizer, state: TrainState, *, kind: str
    ) -> PendingSave:
        """Start to save this step; a preflight or `async_mode` save continues after the call.

        The tensors must not change before `wait_until_writable` has returned. Only one save runs at
        a time, so this call waits for the previous save. If the previous save fails for a temporary
        reason, no save starts. The failed save is then returned and later retried. If this attempt
        has already committed this step, nothing is written. A failed save leaves no checkpoint and
        frees its space.

        Args:
            model: model whose weights are saved; a save changes neither model nor optimizer.
            optimizer: optimizer whose state already exists (`materialize_state`).
            state: counters of this step.
            kind: reason of the save: `preflight`, `interval`, `request`, `stop` or `final`.

        Raises:
            RunError: the previous save has failed permanently or, outside of a thread, this save.
        """
        before = self._pending
        self.settle()
        if before is not None and self.failed_kind is not None:
            return before
        with self._waiting():
            self._observer.begun()
            pending = self._pending = self._begin(model, optimizer, state=state, kind=kind)
        # Not `pending.done()`: a background save may have ended on only some ranks, but all ranks
        # must settle it at the same step.
        if not self._in_background(kind):
            self.settle()
        return pending

    def wait_until_writable(self) -> None:
        """Wait until training may change the tensors; called right before the optimizer's update.

        Training may change the tensors after a save has staged them. For a preflight, this call
        waits for the commit, so that no weight is updated before the storage has accepted a
        checkpoint.

        Raises:
            RunError: the preflight has failed.
        """
        if self._pending is None:
            return
        if self._pending.kind == PREFLIGHT:
            self.settle()
        elif not self._pending.staged.is_set():
            with self._waiting():
                self._pending.staged.wait()

    def settle(self) -> None:
        """Wait for the save in progress, if any; after a temporary failure, set `failed_kind`.

        Raises:
            RunError: the save has failed permanently.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            with self._waiting():
                manifest = pending.result()
        except CheckpointError as error:
            self._failed(pending, error)
            return
        self._retry.succeeded()
        self._durations.append(manifest.save_seconds)
        self.failed_kind, self._saved, self._saved_step = None, manifest, pending.state.step
        stall_seconds, self._stall_seconds = self._stall_seconds, 0.0
        self._observer.settled(
            manifest,
            SaveSettled(checkpoint_id=manifest.checkpoint_id, stall_seconds=stall_seconds),
        )
        logger.info("saved %s (%s)", manifest.checkpoint_id, manifest.kind)

    @contextmanager
    def drained(self) -> Iterator[None]:
        """Before an error of the block ends the run, wait for the end of the save in progress.

        Otherwise a non-finite loss, for example, would discard an almost finished checkpoint.
        """
        try:
            yield
        except RunError:
            if self._pending is not None:
                try:
                    with self._waiting():
                        self._pending.result()
                except RunError as error:
                    logger.warning("the pending save has failed too: %s", error)
            raise

    def _raise_fence(self) -> None:
        root, job = self._run.checkpoint_root, self._run.attempt.job_id
        attempt = self._run.attempt.attempt
        with raised_fence(root / job, attempt):
            pass
        remove_probes(root / job, attempt=attempt)
        for folder in collect_leftovers(root, job, attempt=attempt):
            logger.info("removed the half-written checkpoint %s", folder)
        if saved := committed_manifests(root, job, attempt=attempt):
            raise CheckpointError(
                f"{root / job / f'a{attempt}'} holds checkpoints of another launch of this "
                f"attempt, such as {saved[0].checkpoint_id}: give a higher attempt number, another "
                "job name, or another storage root",
                path=str(root / job / f"a{attempt}"),
            )

    def _begin(
        self, model: nn.Module, optimizer: Optimizer, *, state: TrainState, kind: str
    ) -> PendingSave:
        started = time.monotonic()
        if self._staging is None and self._device.type != "cpu":
            # Otherwise the duration of the save would include the part of the step that still runs
            # on the device.
            torch.accelerator.synchronize(self._device)
            started = time.monotonic()
        tensors = self._tensors(model, optimizer)
        dtype = next(model.parameters()).dtype
        in_background = self._in_background(kind)
        # The next forward pass does not change weights, but it may change buffers (batch norm).
        buffers = self._tensors.copied_buffers() if in_background else None
        save = PendingSave(state, kind=kind, staging=self._staging, buffers=buffers)

        def write() -> None:
            try:
                if self._device.type != "cpu":
                    torch.accelerator.set_device_index(self._device)  # each thread has its own
                manifest = self._writer.run(save, tensors, dtype=dtype, started=started)
                self._observer.committed(manifest)
                reached(Point.REPORTED, self._writer.folder)
            except BaseException as error:  # noqa: BLE001 -- the future must end
                save.staged.set()
                save.set_exception(error)
            else:
                save.staged.set()
                save.set_result(manifest)

        if self._staging is not None:
            self._staging.mark()
        if in_background:
            # `threading.Thread.start` would wait until the thread runs, and the thread would then
            # hold the interpreter for its switch interval, 5 ms. Like a daemon, this thread does
            # not delay the exit of a failed process. Its save may wait for ranks that have ended.
            start_new_thread(write, ())
        else:
            write()
        return save

    def _in_background(self, kind: str) -> bool:
        """Return whether a save runs in a thread; a preflight always does, and copies no
        tensors."""
        return self._staging is not None or kind == PREFLIGHT

    def _failed(self, save: PendingSave, error: CheckpointError) -> None:
        """Record on all ranks that a save has failed and will be retried.

        Raises:
            CheckpointError: the failure is permanent, or the time limit for retries has passed.
        """
        if not error.transient or save.kind == PREFLIGHT:
            raise error
        if on_rank_0(self._group, self._retry.failed) is None:
            raise CheckpointError(
                f"{error}; no save has succeeded since step {self._saved_step}, for longer than "
                "checkpoint.give_up_after_seconds",
                path=error.path,
                remedy=error.remedy,
                of_storage=error.of_storage,
            ) from error
        self.failed_kind = save.kind
        logger.warning("a save failed and is tried again: %s", error)
        if dist.get_rank(self._group) == 0:
            saved, now = self._saved_step, self._observer.step
            self._observer.failed(self._retry.describe(save, error, saved_step=saved, step=now))

    def _wait_for_retry(self) -> None:
        """Wait on all ranks until the retry is due; a cancel during the wait ends the processes."""
        due = False
        while not due:
            with self._observer.waiting():
                due = on_rank_0(self._group, partial(self._retry.wait, WAIT_SECONDS))

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Add the duration of the block to the time for which training waited for saves."""
        started = time.perf_counter()
        with self._observer.waiting():
            yield
        self._stall_seconds += time.perf_counter() - started
