"""Failures of attempts: typed reasons, their remedies, and the stored error."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.limits import Bounds, Cut, Number, ShortText, WrittenPath
from trainyard.run.record_base import JsonRecord


class FailureReason(StrEnum):
    """Reason for which an attempt ended without success."""

    OUT_OF_MEMORY = "out_of_memory"
    NON_FINITE_LOSS = "non_finite_loss"
    LOSS_SPIKE = "loss_spike"
    DATA_ERROR = "data_error"
    CHECKPOINT_ERROR = "checkpoint_error"
    HANG = "hang"
    NODE_LOST = "node_lost"
    PREEMPTED = "preempted"
    LAUNCH_ERROR = "launch_error"
    NOT_ALLOWED = "not_allowed"
    TRAINER_ERROR = "trainer_error"
    PROGRAM_ERROR = "program_error"
    PROGRAM_START_ERROR = "program_start_error"
    DISK_LIMIT = "disk_limit"


FREE_RETRIES = frozenset({FailureReason.NODE_LOST, FailureReason.PREEMPTED})
"""Reasons of failures after which a retry does not use up the retry budget."""

NEVER_RETRIED = frozenset(
    {
        FailureReason.OUT_OF_MEMORY,
        FailureReason.DATA_ERROR,
        FailureReason.NOT_ALLOWED,
        FailureReason.PROGRAM_START_ERROR,
        FailureReason.DISK_LIMIT,
    }
)
"""Reasons of failures that a retry would repeat. Such a failure ends the job, with a remedy, unless
`Failure.free_retry` is set."""


@dataclass(frozen=True, kw_only=True)
class Remedy(JsonRecord):
    """Suggested remedy for a failure."""

    text: ShortText
    """Remedy, in one or two sentences."""
    resume: Literal["memory", "earlier", "free"] | None = None
    """Suggested kind of resume: `memory` to need less memory per slot, `free` to fit into the free
    slots. `earlier` only occurs in failures of older versions; an earlier checkpoint would lead to
    the same failure."""
    field: ShortText | None = None
    """Spec field that a new job can change but a resume cannot; the name of a section ends in a
    dot."""


REMEDIES: dict[FailureReason, Remedy] = {
    FailureReason.OUT_OF_MEMORY: Remedy(
        text="Resume on more slots, with a smaller micro_batch_size where it is above 1, or with "
        "activation_checkpoint.mode = full: none of them changes the result.",
        resume="memory",
    ),
    FailureReason.NON_FINITE_LOSS: Remedy(
        text="The same settings and data lead to the same value: fork a checkpoint from before it, "
        "or submit again, with a lower lr or a longer warmup.",
        field="optimizer.lr",
    ),
    FailureReason.LOSS_SPIKE: Remedy(
        text="The same settings and data lead to the same spike: fork a checkpoint from before it, "
        "or submit again, with guard.loss_spike = rollback, which leaves the sequences out.",
        field="guard.loss_spike",
    ),
    FailureReason.DATA_ERROR: Remedy(
        text="Mend the files that the message names, then resume; other data need a new job.",
        field="data.",
    ),
    FailureReason.CHECKPOINT_ERROR: Remedy(
        text="Make the path that the message names writable and free space there, then resume."
    ),
    FailureReason.HANG: Remedy(text="Look at the last lines of each rank's log, then resume."),
    FailureReason.NODE_LOST: Remedy(
        text="Bring the node back or resume on other nodes.", resume="free"
    ),
    FailureReason.PREEMPTED: Remedy(text="Resume when the slots are free again.", resume="free"),
    FailureReason.LAUNCH_ERROR: Remedy(
        text="Look at the node's supervisor log; no rank is at fault."
    ),
    FailureReason.NOT_ALLOWED: Remedy(
        text="Submit a new job without the fields in the message, or set TRAINYARD_ALLOW_CODE=true "
        "for the server and its workers, then resume."
    ),
    FailureReason.TRAINER_ERROR: Remedy(text="Look at the traceback of the first failing rank."),
    FailureReason.PROGRAM_ERROR: Remedy(
        text="Look at the last lines of the first failing rank, mend the program, then resume; "
        "code that was packed needs a new job."
    ),
    FailureReason.PROGRAM_START_ERROR: Remedy(
        text="Mend the program or its environment, then resume; code that was packed needs a new "
        "job.",
        field="program.",
    ),
    FailureReason.DISK_LIMIT: Remedy(
        text="Write less into the folder that the message names, and results to a storage root, "
        "then resume; or raise TRAINYARD_RUN_BYTES of the node's worker."
    ),
}
"""Usual remedy for each reason; a failure with a more specific cause has another remedy."""


@dataclass(frozen=True, kw_only=True)
class MemoryUse(JsonRecord):
    """Memory of a rank on its device at the time of an out-of-memory error, in bytes."""

    device: ShortText
    """Kind of device: `cuda` or `cpu`."""
    total_bytes: Number
    """Total memory of the device, or of the host."""
    reserved_bytes: Number
    """Memory that the allocator has reserved; on a CPU, the resident set."""
    allocated_bytes: Number
    """Memory that tensors use; on a CPU, the resident set."""
    weights_bytes: Number
    """Memory of the weights, without temporarily gathered weights."""
    gradients_bytes: Number
    """Memory of the gradients, without gradients that are not reduced yet."""
    optimizer_bytes: Number
    """Memory of the optimizer states."""
    rest_bytes: Number
    """Other memory: activations, gathered tensors and buffers; on a CPU also the program."""


@dataclass(frozen=True, kw_only=True)
class LoadFailure(JsonRecord):
    """Checkpoint that an attempt could not load."""

    checkpoint_id: ShortText
    """Id of the checkpoint."""
    fault: CheckpointFault | None
    """Fault that makes the checkpoint unusable; absent after a storage error, which may be
    temporary."""


@dataclass(frozen=True, kw_only=True)
class BadWindow(JsonRecord):
    """Sequences of all steps since the last good value of the metric; some of these sequences may
    have damaged the weights. A program does not report sequences, so steps replace the positions.
    """

    start: Annotated[int, Bounds(ge=0, lt=2**63)]
    """Position of the first sequence."""
    end: Annotated[int, Bounds(ge=0, lt=2**63)]
    """Position after the last sequence."""
    first_step: Annotated[int, Bounds(ge=1)]
    """Step that trained on the first of the sequences; only checkpoints before this step are
    undamaged."""

    @property
    def window(self) -> tuple[int, int]:
        """Position of the first sequence, and position after the last sequence."""
        return self.start, self.end


_USUAL = Remedy(text="the usual remedy for the reason")


def _usual_remedy() -> Remedy:
    # The factory of a dataclass field cannot read other fields, so __post_init__ looks up the
    # reason.
    return _USUAL


@dataclass(frozen=True, kw_only=True)
class Failure(JsonRecord):
    """First failure of an attempt, as stored in `error.json` and on the server."""

    reason: FailureReason
    """Reason of the failure."""
    message: ShortText
    """Failure in one or two sentences, with the given value, the required value, and path or
    field."""
    remedy: Remedy = field(default_factory=_usual_remedy)
    """Remedy; by default the usual remedy for the reason."""
    rank: Number | None = None
    """Global rank that failed first; absent if no rank failed."""
    node: ShortText | None = None
    """Node of the rank that failed first."""
    signal: ShortText | None = None
    """Signal that ended the rank, such as `SIGKILL`; absent without one."""
    exit_code: Number | None = None
    """Exit code of the rank; absent without one."""
    step: Number | None = None
    """Step at which the failure occurred."""
    path: WrittenPath | None = None
    """File or folder that caused the failure."""
    metric: ShortText | None = None
    """Metric that a guard found bad, such as `train/grad_norm`."""
    traceback: Annotated[str, Cut(20_000, keep_end=True)] | None = None
    """Python traceback of the rank."""
    bad_window: BadWindow | None = None
    """Sequences that the next attempt skips, if a guard requires a rollback."""
    free_retry: bool = False
    """Whether a retry leaves the retry budget unchanged, whatever the `reason` is, because the job
    did not cause the failure."""
    node_at_fault: bool = False
    """Whether the failure counts against its node, because a worker, supervisor or torchrun failed.
    Ranks and the node's check never set this field. The reason `node_lost` counts against the node
    even without this field."""
    memory: MemoryUse | None = None
    """Use of the memory after an out-of-memory error."""
    load: LoadFailure | None = None
    """Checkpoint that could not be loaded; absent if the failure has another cause."""
    environment: ShortText | None = None
    """Digest of the program's environment, if this environment is missing on the storage root. The
    environment is then built before the next attempt."""

    def __post_init__(self) -> None:
        """Cut long texts, and set the usual remedy if none is given."""
        super().__post_init__()
        if self.remedy is _USUAL:
            object.__setattr__(self, "remedy", REMEDIES[self.reason])

    @property
    def is_free(self) -> bool:
        """Whether a retry after this failure does not use up the retry budget."""
        return self.free_retry or self.reason in FREE_RETRIES
