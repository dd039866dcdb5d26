"""Saves of one attempt: begun between steps, staged, committed, tried again.

All ranks call every method of the manager at the same place of the same step. What fails on one
rank is raised on every rank, as the same typed error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from trainer.checkpoint.fence import raised_fence
from trainer.checkpoint.pending_save import PendingSave, SaveObserver, SaveRetry, staging_of
from trainer.checkpoint.save_folder import Point, collect_leftovers, reached
from trainer.checkpoint.tensors import TrainTensors
from trainer.checkpoint.writer.checkpoint_writer import PREFLIGHT, CheckpointOwner, CheckpointWriter
from trainer.distributed import on_rank_0
from trainer.errors import CheckpointError, RunError
from trainyard.protocol.manifest import Manifest, SaveSettled, TrainState
from trainyard.spec.auto import explicit

TIMEOUT = timedelta(hours=1)
"""Timeout of a background save's collectives: a rank waits in them for the slowest rank's write."""
LOOK_SECONDS = 1.0
"""Longest wait between two heartbeats while all ranks wait for the next try."""

logger = logging.getLogger("trainer")


class CheckpointManager:
    """Saves the checkpoints of an attempt; `reader.load` loads the one from which it resumes.

    With `async_mode` a save runs during the next steps, one at a time. Rank 0 detects its end; all
    ranks then settle it at the same step. A temporary failure is no error where the manager has a
    `SaveRetry`: training continues, and rank 0 decides when the next try is due.
    """

    def __init__(
        self,
        owner: CheckpointOwner,
        *,
        cpu_group: dist.ProcessGroup,
        device: torch.device,
        retry: SaveRetry | None = None,
    ) -> None:
        """Write nothing yet.

        Args:
            owner: job and attempt of the checkpoints.
            cpu_group: gloo group of all ranks; its timeout covers the slowest rank's write.
            device: where this rank computes.
            retry: when a failed save is tried again; without it every failure is raised.

        Raises:
            LaunchError: the spec's `checkpoint.async_mode` needs an accelerator.
        """
        self._owner = owner
        self._group = cpu_group
        self._device = device
        self._tensors = TrainTensors()
        self._retry = retry
        self._observer = SaveObserver()
        self._pending: PendingSave | None = None
        self._saved: Manifest | None = None
        self._saved_step = 0
        self._stall_seconds = 0.0
        self.failed_kind: str | None = None
        """Why the save was due that failed and is to be tried again; None while saves succeed."""
        self._staging = staging_of(explicit(owner.settings.checkpoint.async_mode), device)
        # A separate group: collectives of one group pair up in the order of their calls, and a
        # background save would pair with those of the training thread.
        group = cpu_group
        if self._staging is not None:
            own = dist.new_group(backend="gloo", timeout=TIMEOUT)
            assert own is not None
            group = own
        self._writer = CheckpointWriter(owner, group=group)

    @property
    def plan_seconds(self) -> float:
        """Time that the last save took to plan, on this rank."""
        return self._writer.plan_seconds

    @property
    def under_way(self) -> bool:
        """Whether a save is not settled yet; alike on all ranks, between two steps."""
        return self._pending is not None

    @property
    def ended(self) -> bool:
        """Whether a save has ended on this rank and is not settled yet."""
        return self._pending is not None and self._pending.ended

    @property
    def retry_due(self) -> bool:
        """Whether a save that failed is to be tried again, by the clock of this rank."""
        return self._pending is None and self._retry is not None and self._retry.due

    def raise_fence(self) -> None:
        """Forbid all older attempts of the job to commit, and remove their half-written folders.

        It comes before loading: an older attempt that still runs commits nothing after the
        checkpoint that this one resumes from.

        Raises:
            OutrunError: a newer attempt has raised the fence already.
            CheckpointError: the storage refuses to be read or written.
        """
        on_rank_0(self._group, self._raise_fence)

    def starts_at(self, state: TrainState, observer: SaveObserver) -> None:
        """Set the counters with which the attempt begins, before its first save."""
        self._writer.start = state
        self._saved_step = state.step  # that of the loaded checkpoint, or 0
        self._observer = observer

    def save(
        self, model: nn.Module, optimizer: Optimizer, state: TrainState, *, kind: str
    ) -> Manifest:
        """Save this step, unless the last save did, wait until it is committed, and return it.

        Arguments are those of `begin`.

        Raises:
            RunError: it has failed for good.
        """
        self.settle()
        if self._saved is not None and self._saved.train_state.step == state.step:
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
        """Begin to save this step; with `async_mode` it continues after the return.

        The tensors must not change before `wait_staged` has returned. One save is under way at a
        time: this one waits for the previous one. If that one fails for a temporary reason, none
        begins and the failed one is returned; its next try comes later. If this attempt has
        committed this step before, nothing is written. A failed save leaves no checkpoint and
        frees its space.

        Args:
            model: its weights are read and not changed, like the optimizer's tensors.
            optimizer: must have its state (`materialize_state`).
            state: counters of this step.
            kind: why it is saved: `preflight`, `interval`, `request`, `stop` or `final`.

        Raises:
            RunError: the previous save has failed for good.
        """
        before = self._pending
        self.settle()
        if before is not None and self.failed_kind is not None:
            return before
        with self._waiting():
            self._observer.begun()
            pending = self._pending = self._begin(model, optimizer, state, kind)
        # Not `pending.ended`: a background save may have ended on some ranks only, and all ranks
        # must settle at the same step.
        if self._staging is None:
            self.settle()
        return pending

    def wait_staged(self) -> None:
        """Wait until the tensors may change; called right before the optimizer's update."""
        if self._pending is not None and not self._pending.staged:
            with self._waiting():
                self._pending.wait_staged()

    def settle(self) -> None:
        """Wait for the save that is under way, if one is.

        Raises:
            RunError: it has failed for good.
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
        if self._retry is not None:
            self._retry.succeeded()
        self.failed_kind, self._saved, self._saved_step = None, manifest, pending.state.step
        stall_seconds, self._stall_seconds = self._stall_seconds, 0.0
        self._observer.settled(
            manifest,
            SaveSettled(checkpoint_id=manifest.checkpoint_id, stall_seconds=stall_seconds),
        )
        logger.info("saved %s (%s)", manifest.checkpoint_id, manifest.kind)

    @contextmanager
    def drained(self) -> Iterator[None]:
        """Let the save under way end before an error of the block ends the run.

        A loss that is no number loses no checkpoint that was nearly written.
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
        owner = self._owner
        with raised_fence(owner.job_folder, owner.attempt):
            pass
        for folder in collect_leftovers(owner.root, owner.job_id, attempt=owner.attempt):
            logger.info("removed the half-written checkpoint %s", folder)

    def _begin(
        self, model: nn.Module, optimizer: Optimizer, state: TrainState, kind: str
    ) -> PendingSave:
        started = time.monotonic()
        if self._staging is None and self._device.type != "cpu":
            # Otherwise the save's time would contain the part of the step still on the device.
            torch.accelerator.synchronize(self._device)
            started = time.monotonic()
        tensors = self._tensors(model, optimizer)
        dtype = next(model.parameters()).dtype
        save = PendingSave(state, kind=kind, staging=self._staging)

        def work() -> Manifest:
            manifest = self._writer.run(save, tensors, dtype=dtype, started=started)
            self._observer.committed(manifest)
            reached(Point.REPORTED, self._writer.folder)
            return manifest

        if self._staging is None:
            save.run(work)
        else:
            self._staging.mark()
            # A daemon: a process that fails ends without waiting for ranks that may have ended.
            in_background = partial(self._on_device, partial(save.run, work))
            threading.Thread(target=in_background, name="checkpoint", daemon=True).start()
        return save

    def _on_device(self, run: Callable[[], None]) -> None:
        if self._device.type != "cpu":
            torch.accelerator.set_device_index(self._device)
        run()

    def _failed(self, save: PendingSave, error: CheckpointError) -> None:
        """Record on all ranks a failed save that is tried again.

        Raises:
            CheckpointError: the reason is permanent, or the time for tries is over.
        """
        retry = self._retry
        if retry is None or not error.transient or save.kind == PREFLIGHT:
            raise error
        if not on_rank_0(self._group, retry.failed):
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
            self._observer.failed(retry.describe(save, error, saved_step=saved, step=now))

    def _wait_for_retry(self) -> None:
        """Wait on all ranks until the next try is due; a cancel ends the processes meanwhile."""
        assert self._retry is not None
        due = False
        while not due:
            with self._observer.waiting():
                due = on_rank_0(self._group, partial(self._retry.wait, LOOK_SECONDS))

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Add the time of the block to the time for which training waited for saves."""
        started = time.perf_counter()
        with self._observer.waiting():
            yield
        self._stall_seconds += time.perf_counter() - started
