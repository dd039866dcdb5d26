"""One save under way: its future, staged copies, observer, and the clock of its retries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import MetadataIndex

from trainer.errors import LaunchError
from trainyard.base.backoff import Backoff, Clock, Retries
from trainyard.protocol.manifest import Manifest, SaveFailed, SaveSettled, TrainState


class PendingSave:
    """The future of a save: first its tensors are staged, then it is committed or has failed."""

    def __init__(self, state: TrainState, *, kind: str, staging: Staging | None = None) -> None:
        """Begin nothing; `run` does.

        Args:
            state: counters of the step that is saved.
            kind: why it is saved.
            staging: where tensors are copied before they are written; they are written from their
                own memory without.
        """
        self.state = state
        self.kind = kind
        self._staging = staging
        self._staged = threading.Event()
        self._ended = threading.Event()
        self._manifest: Manifest | None = None
        self._error: BaseException | None = None

    @property
    def staged(self) -> bool:
        """Whether the tensors may change."""
        return self._staged.is_set()

    @property
    def ended(self) -> bool:
        """Whether it is committed or has failed, on this rank."""
        return self._ended.is_set()

    def stage(self, tensors: Mapping[MetadataIndex, Tensor]) -> Mapping[MetadataIndex, Tensor]:
        """Return what is written of these tensors; with copies, the tensors may change from now."""
        if self._staging is None:
            return tensors
        copies = self._staging.copy(tensors)
        self._staged.set()
        return copies

    def wait_staged(self) -> None:
        """Wait until the tensors may change; the end of the save, also a failure, allows it too."""
        self._staged.wait()

    def result(self) -> Manifest:
        """Wait for its end and return what was committed.

        Raises:
            OutrunError: a newer attempt has raised the fence; nothing is committed.
            CheckpointError: a rank could not write; the text names path and cause.
        """
        self._ended.wait()
        if self._error is not None:
            raise self._error
        assert self._manifest is not None
        return self._manifest

    def run(self, work: Callable[[], Manifest]) -> None:
        """Do the work in the calling thread; `result` raises what it raises."""
        try:
            self._manifest = work()
        except BaseException as error:  # noqa: BLE001 -- DCP's own exception is no `Exception`
            self._error = error
        finally:
            self._staged.set()
            self._ended.set()


class SaveObserver:
    """Notified of each save by its manager; a base class whose methods do nothing."""

    step: int = 0
    """Completed steps of training by now."""

    def waiting(self) -> AbstractContextManager[None]:
        """Enter while training waits for a save."""
        return nullcontext()

    def begun(self) -> None:
        """A save begins."""

    def committed(self, manifest: Manifest) -> None:
        """A checkpoint exists; called at once, in the thread that saves.

        Not when the loop settles it: a run that dies in between has reported its checkpoint.
        """

    def settled(self, manifest: Manifest, settled: SaveSettled) -> None:
        """All ranks have the commit of a save; called between two steps."""

    def failed(self, failure: SaveFailed) -> None:
        """A save has failed and is tried again; called on rank 0 alone."""


# No jitter: rank 0 alone decides, and users read the pauses in docs/checkpoints.md.
BACKOFF = Backoff(first=5.0, longest=300.0, jitter=0.0)


class SaveRetry:
    """When a failed save is tried again, by the clock of rank 0; on other ranks it is not read.

    Clocks of machines differ: ranks that each decided for themselves would not meet in a save.
    """

    def __init__(self, give_up_after_seconds: float, *, clock: Clock = time.monotonic) -> None:
        self._retries = Retries(BACKOFF, for_seconds=give_up_after_seconds, clock=clock)
        self._clock = clock

    def failed(self) -> bool:
        """Note a failure; return whether another try follows."""
        return self._retries.failed() is not None

    def succeeded(self) -> None:
        """Forget the failures."""
        self._retries.succeeded()

    @property
    def due(self) -> bool:
        """Whether the next try is due."""
        failing = self._retries.failing_since is not None
        return failing and self._clock() >= self._retries.next_at

    def wait(self, longest: float) -> bool:
        """Sleep until the next try is due, but not longer than so many seconds; return `due`."""
        time.sleep(max(0.0, min(longest, self._retries.next_at - self._clock())))
        return self.due

    def describe(
        self, save: PendingSave, error: Exception, *, saved_step: int, step: int
    ) -> SaveFailed:
        """Return the record of all failures since the last commit.

        Args:
            save: the last failed save.
            error: its error.
            saved_step: step of the last checkpoint.
            step: step of training by now.
        """
        assert self._retries.failing_since is not None
        return SaveFailed(
            kind=save.kind,
            message=str(error)[:2_000],
            tries=self._retries.failures,
            failing_since=self._moment(self._retries.failing_since),
            next_try_at=self._moment(self._retries.next_at),
            give_up_at=self._moment(self._retries.deadline),
            saved_step=saved_step,
            step=step,
        )

    def _moment(self, instant: float) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=instant - self._clock())


class Staging:
    """Buffers in the memory of the host; made at the first save and used again by all later ones.

    On a GPU the copies run on a separate stream during the next forward and backward pass. That
    needs pinned buffers: a copy into pageable memory blocks the thread for each tensor.
    """

    def __init__(self, device: torch.device, *, pinned: bool) -> None:
        """Take no memory yet."""
        self._device = device
        self._pinned = pinned
        self._buffers: dict[MetadataIndex, Tensor] = {}
        self._stream = torch.Stream(device) if device.type != "cpu" else None
        self._ready: torch.Event | None = None

    def mark(self) -> None:
        """Record an event after which the device holds the tensors of this step.

        The training thread calls it: the work of the step is on its stream, and the copies wait
        for the event on theirs.
        """
        if self._stream is not None:
            self._ready = torch.accelerator.current_stream(self._device).record_event()

    def copy(self, tensors: Mapping[MetadataIndex, Tensor]) -> dict[MetadataIndex, Tensor]:
        """Return copies in the host's memory, contiguous; they are good until the next call."""
        copies = {}
        with self._on_its_stream():
            for index, tensor in tensors.items():
                buffer = self._buffer(index, tensor)
                buffer.copy_(tensor, non_blocking=self._pinned)
                copies[index] = buffer
        if self._stream is not None:
            self._stream.synchronize()  # the caller lets the tensors change and reads the buffers
        return copies

    def _buffer(self, index: MetadataIndex, like: Tensor) -> Tensor:
        buffer = self._buffers.get(index)
        if buffer is None or buffer.shape != like.shape or buffer.dtype != like.dtype:
            buffer = torch.empty(like.shape, dtype=like.dtype, pin_memory=self._pinned)
            self._buffers[index] = buffer
        return buffer

    def _on_its_stream(self) -> AbstractContextManager[object]:
        if self._stream is None or self._ready is None:
            return nullcontext()
        self._stream.wait_event(self._ready)
        return self._stream


def staging_of(mode: str, device: torch.device) -> Staging | None:
    """Return the buffers of an `async_mode`; None where tensors are written without a copy.

    Raises:
        LaunchError: the mode needs an accelerator.
    """
    if mode == "disabled":
        return None
    pinned = mode == "async_with_pinned_mem"
    if pinned and device.type == "cpu":
        raise LaunchError(
            "checkpoint.async_mode='async_with_pinned_mem' needs an accelerator, whose copies "
            "pinned memory makes faster, but this rank computes on the CPU; legal: disabled, async"
        )
    return Staging(device, pinned=pinned)
