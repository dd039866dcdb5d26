"""Saves and loads checkpoints: all ranks together, verified, and fenced against older attempts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from trainer.checkpoint import store
from trainer.checkpoint.fence import raised_fence
from trainer.checkpoint.loader import load
from trainer.checkpoint.points import Point, reached
from trainer.checkpoint.save import Save
from trainer.checkpoint.saver import Origin, Saver
from trainer.checkpoint.staging import Staging
from trainer.checkpoint.state import TrainTensors, tied_weights
from trainer.checkpoint.together import on_rank_0
from trainer.errors import LaunchError
from trainer.garbage import resting
from trainer.quantize import refresh_scales
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.manifest import Manifest, TrainState
from trainyard.spec.auto import explicit

TIMEOUT = timedelta(hours=1)
"""How long a rank of a save in the background waits for the slowest one's write."""

logger = logging.getLogger("trainer")


class Checkpointer:
    """The checkpoints of one attempt; every method is called by all ranks at the same step.

    What fails on one rank is raised on every rank, as the same typed error.
    """

    def __init__(
        self, origin: Origin, *, cpu_group: dist.ProcessGroup, device: torch.device
    ) -> None:
        """Write nothing yet.

        Args:
            origin: whose checkpoints.
            cpu_group: gloo group of all ranks; its timeout covers the slowest rank's write.
            device: where this rank computes.

        Raises:
            LaunchError: the way to save that the spec asks for needs an accelerator.
        """
        self._origin = origin
        self._group = cpu_group
        self._device = device
        self._tensors = TrainTensors()
        self._under_way: Save | None = None
        self.bytes_read = 0
        """Bytes of tensors that this rank read from storage in the last load."""
        self._staging = _staging(explicit(origin.settings.checkpoint.async_mode), device)
        # Collectives of a save in the background must not meet those of training.
        group = cpu_group
        if self._staging is not None:
            own = dist.new_group(backend="gloo", timeout=TIMEOUT)
            assert own is not None
            group = own
        self._saver = Saver(origin, group=group, staging=self._staging)

    @property
    def plan_seconds(self) -> float:
        """Time that the last save took to plan, on this rank."""
        return self._saver.plan_seconds

    def starts_at(self, state: TrainState) -> None:
        """Take note of the counters with which the attempt begins, before its first save."""
        self._saver.start = state

    def raise_fence(self) -> None:
        """Forbid all older attempts of the job to commit, and remove what they left half-written.

        Comes before loading.

        Raises:
            OutrunError: a newer attempt has raised the fence already.
            CheckpointError: the storage refuses to be read or written.
        """
        on_rank_0(self._group, self._raise_fence)

    def save(
        self, model: nn.Module, optimizer: Optimizer, state: TrainState, *, kind: str
    ) -> Manifest:
        """Write a complete checkpoint of this step, commit it and return its manifest.

        Arguments and errors are those of `begin` and of `Save.result`.
        """
        return self.begin(model, optimizer, state, kind=kind).result()

    def begin(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        state: TrainState,
        *,
        kind: str,
        on_commit: Callable[[Manifest], None] = lambda _manifest: None,
    ) -> Save:
        """Begin to save this step; with `async_mode` it goes on while this returns.

        The tensors must not change before `Save.wait_staged` has returned. One save is under way
        at a time: this one waits for the last. If this attempt has committed this step before,
        nothing is written. A failed save leaves nothing that counts as a checkpoint and frees the
        space that it took.

        Args:
            model: its weights are read, never changed; so are the optimizer's tensors.
            optimizer: must have its state (`materialize_state`).
            state: counters of this step.
            kind: why it is saved: `preflight`, `interval`, `request`, `stop` or `final`.
            on_commit: called on each rank, in whichever thread, as soon as it is committed.

        Raises:
            RunError: the save before failed.
        """
        self.finish()
        started = time.monotonic()
        if self._staging is None and self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)  # the save's time holds no part of the step
            started = time.monotonic()
        tensors = self._tensors(model, optimizer)
        dtype = next(model.parameters()).dtype
        save = self._under_way = Save(state, kind=kind)

        def work() -> Manifest:
            manifest = self._saver.run(save, tensors, dtype=dtype, started=started)
            on_commit(manifest)
            reached(Point.TOLD, self._saver.folder)
            return manifest

        if self._staging is None:
            save.run(work)
        else:
            self._staging.mark()
            self._in_background(save, work)
        return save

    def finish(self) -> None:
        """Wait for the save that is under way, if one is.

        Raises:
            RunError: it failed.
        """
        save, self._under_way = self._under_way, None
        if save is not None:
            save.result()

    def load(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        resume: ResumePoint,
        *,
        admit: Callable[[Manifest], object] = lambda _manifest: None,
    ) -> Manifest:
        """Fill model and optimizer in place from a checkpoint of any layout and world size.

        `admit` is called on each rank with the manifest before a tensor is read; what it raises,
        a `RunError`, is raised on every rank.

        Raises:
            CheckpointError: it is missing, not committed, damaged, of another model, or not the
                one that `resume` names.
        """
        origin = self._origin
        with resting(), torch.no_grad():
            tensors = self._tensors(model, optimizer)
            loaded = load(
                tensors,
                resume,
                tied=tied_weights(model),
                root=origin.root,
                group=self._group,
                layout=origin.layout,
                admit=admit,
            )
        refresh_scales(model)
        self.bytes_read = loaded.bytes_read
        return loaded.manifest

    def _raise_fence(self) -> None:
        origin = self._origin
        with raised_fence(origin.job_folder, origin.attempt):
            pass
        for folder in store.collect(origin.root, origin.job_id, attempt=origin.attempt):
            logger.info("removed the half-written checkpoint %s", folder)

    def _in_background(self, save: Save, work: Callable[[], Manifest]) -> None:
        def run() -> None:
            if self._device.type != "cpu":
                torch.accelerator.set_device_index(self._device)
            save.run(work)

        # A daemon: a run that fails ends without waiting for ranks that may be gone.
        threading.Thread(target=run, name="checkpoint", daemon=True).start()


def _staging(mode: str, device: torch.device) -> Staging | None:
    if mode == "disabled":
        return None
    pinned = mode == "async_with_pinned_mem"
    if pinned and device.type == "cpu":
        raise LaunchError(
            "checkpoint.async_mode='async_with_pinned_mem' needs an accelerator, whose copies "
            "pinned memory makes faster, but this rank computes on the CPU; legal: disabled, async"
        )
    return Staging(device, pinned=pinned)
