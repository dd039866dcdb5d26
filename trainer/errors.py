"""Errors that end a training run.

RunError
├── LaunchError        the run directory, the spec or the launch does not fit
├── DataError          the input is missing, empty or changed
├── CheckpointError    a checkpoint could not be written, or must not be loaded
│   └── MismatchError      an undamaged checkpoint of another model or optimizer
├── GuardError         training went wrong without crashing
│   ├── NonFiniteError     loss or gradient norm became NaN or infinite
│   └── LossSpikeError     the loss is far above its recent values
├── SilentRankError    ranks did not answer at the start
├── OutOfMemoryError   memory of the device or of the host ran out
└── OutrunError        a newer attempt of the job has raised the fence
"""

from __future__ import annotations

from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.failures import BadWindow, FailureReason, LoadFailure, MemoryUse

MEMORY_RAN_OUT = (
    "DefaultCPUAllocator: can't allocate memory",
    # torch's caching allocator raises its own error type. The following errors have no own type:
    "CUDA error: out of memory",  # a kernel, a stream, pinned memory
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",  # NCCL
)
"""Parts of messages that identify out-of-memory errors."""


class RunError(Exception):
    """A training run has failed for a known reason.

    `path` is the file or folder at fault. `remedy` replaces the default remedy for the reason; a
    traceback shows `remedy` after the message.
    """

    reason = FailureReason.TRAINER_ERROR

    def __init__(self, message: str, *, path: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.remedy = remedy
        if remedy is not None:
            self.add_note(remedy)

    @property
    def explained(self) -> str:
        """Message of the error, followed by the remedy if there is one."""
        return str(self) if self.remedy is None else f"{self}\n{self.remedy}"


class LaunchError(RunError):
    """The run directory, the spec, the code or the launch does not fit."""

    reason = FailureReason.LAUNCH_ERROR


class DataError(RunError):
    """The input is missing, empty or unreadable, or differs from the input of the checkpoint."""

    reason = FailureReason.DATA_ERROR


class CheckpointError(RunError):
    """A checkpoint could not be written, is damaged, or does not belong to this job.

    `of_storage`: the storage failed, so the error proves nothing about the checkpoint. `transient`:
    a retry may succeed, because the storage is full, read-only or unreachable. `fault`: proof that
    the checkpoint is unusable. `load`: record of the failed load of the parent, if any.
    """

    reason = FailureReason.CHECKPOINT_ERROR

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        remedy: str | None = None,
        of_storage: bool = False,
        transient: bool = False,
        fault: CheckpointFault | None = None,
    ) -> None:
        super().__init__(message, path=path, remedy=remedy)
        self.of_storage = of_storage
        self.transient = transient
        self.fault = fault
        self.load: LoadFailure | None = None


class MismatchError(CheckpointError):
    """An undamaged checkpoint does not fit the model, the optimizer or the settings."""


class GuardError(RunError):
    """A guard detected a bad step.

    `metric` names the bad value; it is None on a rank whose own values are good. `bad_window` is
    the part of the stream that a rollback omits.
    """

    def __init__(
        self, message: str, *, metric: str | None = None, bad_window: BadWindow | None = None
    ) -> None:
        super().__init__(message)
        self.metric = metric
        self.bad_window = bad_window


class NonFiniteError(GuardError):
    """The loss or the gradient norm became NaN or infinite."""

    reason = FailureReason.NON_FINITE_LOSS


class LossSpikeError(GuardError):
    """The loss is far above its recent values."""

    reason = FailureReason.LOSS_SPIKE


class SilentRankError(RunError):
    """Before the first step, a rank did not respond, or a collective between nodes did not end."""

    reason = FailureReason.HANG


class OutrunError(RunError):
    """A newer attempt of the same job has raised the fence, so this attempt must not commit."""


class OutOfMemoryError(RunError):
    """The memory of the device or of the host ran out; `memory` lists the memory use by part."""

    reason = FailureReason.OUT_OF_MEMORY

    def __init__(
        self, message: str, *, memory: MemoryUse, path: str | None, remedy: str | None = None
    ) -> None:
        super().__init__(message, path=path, remedy=remedy)
        self.memory = memory


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of torch or Python means that memory ran out."""
    # Errors are identified by name and text, because this module must not import torch. torch's
    # CUDA error is no MemoryError, and its CPU error has no class of its own.
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(text in str(error) for text in MEMORY_RAN_OUT)
    )
