"""Failures of attempts: typed reasons, their remedies, and the stored error."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.limits import Bounds, Cut, Number, ShortText, WrittenPath
from trainyard.run.record_base import JsonRecord


class FailureReason(StrEnum):
    """Why an attempt ended without success."""

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
"""Reasons that do not use up the retry budget."""

NEVER_RETRIED = frozenset(
    {
        FailureReason.OUT_OF_MEMORY,
        FailureReason.DATA_ERROR,
        FailureReason.NOT_ALLOWED,
        FailureReason.PROGRAM_START_ERROR,
        FailureReason.DISK_LIMIT,
    }
)
"""Reasons that would recur in a retry: the job ends with a remedy instead."""


@dataclass(frozen=True, kw_only=True)
class Remedy(JsonRecord):
    """Remedy for a failure."""

    text: ShortText
    """One or two sentences."""
    resume: Literal["memory", "earlier", "free"] | None = None
    """Suggested change in a resume: less memory on each slot, or free slots. `earlier` occurs only
    in failures of older versions, because an earlier checkpoint leads to the same failure."""
    field: ShortText | None = None
    """Field of the spec that a new job can change and a resume cannot; a section ends in a dot."""


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
"""The usual remedies; a failure with a more specific cause has its own remedy."""


@dataclass(frozen=True, kw_only=True)
class MemoryUse(JsonRecord):
    """Memory of a rank on its device when it ran out, in bytes."""

    device: ShortText
    """`cuda` or `cpu`."""
    total_bytes: Number
    """Memory of the device, or of the host."""
    reserved_bytes: Number
    """Reserved by the allocator; on a CPU the resident set."""
    allocated_bytes: Number
    """Used by tensors; on a CPU the resident set."""
    weights_bytes: Number
    """Weights, without temporarily gathered ones."""
    gradients_bytes: Number
    """Gradients, without unreduced ones."""
    optimizer_bytes: Number
    """States of the optimizer."""
    rest_bytes: Number
    """The rest: activations, gathered tensors, buffers; on a CPU also the program."""


@dataclass(frozen=True, kw_only=True)
class LoadFailure(JsonRecord):
    """The checkpoint that an attempt could not load."""

    checkpoint_id: ShortText
    """Its id."""
    fault: CheckpointFault | None
    """Why it is unusable; absent after an error of the storage, which may be temporary."""


@dataclass(frozen=True, kw_only=True)
class BadWindow(JsonRecord):
    """The sequences of all steps since the last good value; some of them may have done damage."""

    start: Annotated[int, Bounds(ge=0, lt=2**63)]
    """Position of the first sequence."""
    end: Annotated[int, Bounds(ge=0, lt=2**63)]
    """Position after the last sequence."""
    first_step: Annotated[int, Bounds(ge=1)]
    """Step that started with the first sequence; only checkpoints before this step are
    undamaged."""

    @property
    def window(self) -> tuple[int, int]:
        """First position, and position after the last."""
        return self.start, self.end


_USUAL = Remedy(text="the usual remedy for the reason")


def _usual_remedy() -> Remedy:
    # A dataclass's factory cannot see other fields, so __post_init__ looks up the reason.
    return _USUAL


@dataclass(frozen=True, kw_only=True)
class Failure(JsonRecord):
    """The first failure of an attempt, as stored in `error.json` and on the server."""

    reason: FailureReason
    """Kind of the failure."""
    message: ShortText
    """One or two sentences: the given value, the needed one, the path or field."""
    remedy: Remedy = field(default_factory=_usual_remedy)
    """The remedy; the usual one for the reason if the writer named none."""
    rank: Number | None = None
    """Global rank that failed first; absent when no rank did."""
    node: ShortText | None = None
    """Node of that rank."""
    signal: ShortText | None = None
    """Signal that ended the rank, such as `SIGKILL`."""
    exit_code: Number | None = None
    """Exit code of the rank."""
    step: Number | None = None
    """Step of the failure."""
    path: WrittenPath | None = None
    """File or folder at fault."""
    metric: ShortText | None = None
    """Metric that a guard judged bad, such as `train/grad_norm`."""
    traceback: Annotated[str, Cut(20_000, keep_end=True)] | None = None
    """Python traceback of the rank."""
    bad_window: BadWindow | None = None
    """Sequences that the next attempt leaves out, if the guard requires a rollback."""
    free_retry: bool = False
    """Whether another attempt may follow without using up the retry budget, for any reason: the job
    was not at fault."""
    node_at_fault: bool = False
    """Whether the failure counts against its node: a worker, a supervisor or torchrun failed there.
    Ranks and their check leave it unset; `node_lost` counts without it."""
    memory: MemoryUse | None = None
    """Use of the memory, if it ran out."""
    load: LoadFailure | None = None
    """The checkpoint that could not be loaded, if one was at fault."""
    environment: ShortText | None = None
    """Digest of the program's environment if its storage root lacks it: it is built before the next
    attempt."""

    def __post_init__(self) -> None:
        """Cut the texts, and set the usual remedy if none is given."""
        super().__post_init__()
        if self.remedy is _USUAL:
            object.__setattr__(self, "remedy", REMEDIES[self.reason])

    @property
    def is_free(self) -> bool:
        """Whether a retry after it does not use up the budget."""
        return self.free_retry or self.reason in FREE_RETRIES
