"""Views of the goodput ledger (docs/goodput.md), and advice on slow jobs (docs/advice.md)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from enum import StrEnum

from trainyard.base.model_base import RecordModel
from trainyard.planner.speed.rates import Calibration
from trainyard.run.failures import FailureReason
from trainyard.spec.auto import DeviceKind


class TimeCategory(StrEnum):
    """Use of the time of a job or of a slot; docs/goodput.md has the source of each category."""

    PRODUCTIVE = "productive"
    DATA_WAIT = "data_wait"
    COMPILATION = "compilation"
    SAVE_STALL = "save_stall"
    VALIDATION = "validation"
    STARTUP = "startup"
    ENDING = "ending"
    OTHER = "other"
    LOST = "lost"
    UNREACHABLE = "unreachable"
    IDLE_AFTER_FAILURE = "idle_after_failure"
    QUEUED = "queued"
    REQUEUED = "requeued"
    BACKOFF = "backoff"
    PAUSED = "paused"
    SPARE = "spare"
    IDLE = "idle"
    DRAINED = "drained"
    WITHHELD = "withheld"
    OFFLINE = "offline"


_WITHOUT_SLOTS = (
    TimeCategory.IDLE_AFTER_FAILURE,
    TimeCategory.QUEUED,
    TimeCategory.REQUEUED,
    TimeCategory.BACKOFF,
    TimeCategory.PAUSED,
)
_OF_SLOTS_ALONE = (
    TimeCategory.SPARE,
    TimeCategory.IDLE,
    TimeCategory.DRAINED,
    TimeCategory.WITHHELD,
    TimeCategory.OFFLINE,
)
JOB_CATEGORIES = tuple(each for each in TimeCategory if each not in _OF_SLOTS_ALONE)
"""Categories of the time of a job."""
SLOT_CATEGORIES = tuple(each for each in TimeCategory if each not in _WITHOUT_SLOTS)
"""Categories of a slot's time: those of its attempt, or the reason why it has no attempt."""

WORDS: Mapping[TimeCategory, str] = {
    TimeCategory.PRODUCTIVE: "productive steps",
    TimeCategory.DATA_WAIT: "waiting for data",
    TimeCategory.COMPILATION: "compilation",
    TimeCategory.SAVE_STALL: "stalls of saves",
    TimeCategory.VALIDATION: "validation",
    TimeCategory.STARTUP: "start-up",
    TimeCategory.ENDING: "saving and leaving",
    TimeCategory.OTHER: "other",
    TimeCategory.LOST: "steps lost",
    TimeCategory.UNREACHABLE: "unreachable",
    TimeCategory.IDLE_AFTER_FAILURE: "idle after a failure",
    TimeCategory.QUEUED: "first wait for slots",
    TimeCategory.REQUEUED: "later waits for slots",
    TimeCategory.BACKOFF: "pause before a retry",
    TimeCategory.PAUSED: "stopped by a person",
    TimeCategory.SPARE: "on spare nodes",
    TimeCategory.IDLE: "idle",
    TimeCategory.DRAINED: "on nodes that take no jobs",
    TimeCategory.WITHHELD: "withheld from placement",
    TimeCategory.OFFLINE: "on nodes that are offline",
}
"""Each category in words, for people."""


class CategoryTime(RecordModel):
    """The time of one category."""

    category: TimeCategory
    """The category."""
    words: str
    """The category in words."""
    milliseconds: int
    """Its time."""


class MeanTimeToFailure(RecordModel):
    """The failures of attempts, and their mean time to failure with its bounds."""

    failures: int
    """Attempts that failed; preempted attempts do not count."""
    mttf_seconds: float | None
    """Mean time to failure: time of all attempts divided by failures; null without a failure."""
    mttf_lower_seconds: float | None
    """Lower bound of it, with a confidence of 95 %; null without attempts."""
    mttf_upper_seconds: float | None
    """Upper bound of it, with a confidence of 95 %; null without a failure."""


class GoodputView(MeanTimeToFailure):
    """The time of a job from its submission to its end, or to now."""

    job_id: str
    """Job."""
    since: datetime
    """Submission."""
    until: datetime
    """End of the job; the time of the answer while it has not ended."""
    wall_milliseconds: int
    """Time from `since` to `until`: the exact sum of the categories."""
    categories: tuple[CategoryTime, ...]
    """Every category once, also those without time."""
    goodput: float | None
    """Productive share of the wall time. Null without wall time, and if steps were reported without
    their times, as by a program that does not log `perf/step_seconds`."""
    ettr: float | None
    """Effective training time ratio; null before the job could run for a millisecond, and if
    `goodput` is null."""


class IntervalOutcome(RecordModel):
    """Outcome of a job with one save interval."""

    wall_milliseconds: int
    """From the submission to the end, or to now."""
    goodput: float | None
    """Productive share of the wall time; null without wall time."""
    expected_ettr: float | None
    """Expected ETTR of a long run with these saves, by the published formula; null for the recorded
    outcome, without a failure and without saves."""
    kept_steps: int
    """Steps that the job keeps."""
    lost_steps: int
    """Steps that are repeated."""
    lost_milliseconds: int
    """Time of the lost steps."""
    save_stall_milliseconds: int
    """Time for which saves hold up training."""


class SaveIntervalWhatIf(RecordModel):
    """The records of a job replayed with another save interval, at the same pace and failures."""

    job_id: str
    """Job."""
    recorded: IntervalOutcome
    """The recorded outcome."""
    interval_steps: int
    """Requested steps between two saves; 0 disables saves."""
    replayed: IntervalOutcome | None
    """Outcome with this interval; null before the first recorded step."""
    best_interval_steps: int | None
    """The tried interval with the highest goodput."""
    best: IntervalOutcome | None
    """Outcome with the best interval."""
    stall_seconds: float
    """Mean stall of training per save; 0 if none is recorded."""
    daly_interval_steps: int | None
    """Best interval by Daly's estimate from `stall_seconds` and the mean time to failure; null
    without a failure or a recorded stall."""


class SlotTime(RecordModel):
    """The slot-time of one category: slots times milliseconds."""

    category: TimeCategory
    """The category."""
    words: str
    """The category in words."""
    slot_milliseconds: int
    """Its slot-time."""


class DayOfSlots(RecordModel):
    """The slot-time of one day."""

    day: date
    """Day, in UTC."""
    slot_milliseconds: int
    """Slot-time of the day: the exact sum of its categories."""
    categories: tuple[SlotTime, ...]
    """The categories that have time; they sum to `slot_milliseconds`."""


class LosingJob(RecordModel):
    """A job with lost steps."""

    job_id: str
    """Id; the job may have been deleted."""
    name: str
    """Its name."""
    lost_slot_milliseconds: int
    """Slot-time of its repeated steps."""
    reason: FailureReason | None
    """The most frequent reason of its failures; null if none is recorded."""
    failures: int
    """Its attempts that failed and were not preempted, over its whole life."""


class ProjectSlotTime(RecordModel):
    """Slot-time held by the jobs of a project."""

    project: str
    """Name of the project."""
    slot_milliseconds: int
    """Held slot-time."""
    categories: tuple[SlotTime, ...]
    """The categories that have time; they sum to `slot_milliseconds`."""


class ClusterGoodputView(MeanTimeToFailure):
    """The slot-time of the cluster, or of the jobs of one project, by category.

    Failures and the time of attempts exclude deleted jobs.
    """

    since: datetime
    """Start of the first day."""
    until: datetime
    """End of the last day, or the time of the computation, which is reused for a minute."""
    slot_milliseconds: int
    """Slots of the nodes, times the time for which they had them: the exact sum of the categories.
    For a project: the slots that its jobs held."""
    categories: tuple[SlotTime, ...]
    """Every category once, also those without time."""
    goodput: float | None
    """Productive share of the slot-time; null without slot-time."""
    failures_per_1000_node_days: float | None
    """Failures per 1,000 days for which shares held their nodes; null without shares."""
    days: tuple[DayOfSlots, ...]
    """The days, oldest first."""
    projects: tuple[ProjectSlotTime, ...]
    """Projects with held slots, by name."""
    losing_jobs: tuple[LosingJob, ...]
    """At most ten jobs, the most lost slot-time first."""


class Hindrance(StrEnum):
    """Cause of lost training time; docs/advice.md has the rule of each."""

    DATA_WAIT = "data_wait"
    COLLECTIVES = "collectives"
    STRAGGLER = "straggler"
    SAVES = "saves"
    LOST_STEPS = "lost_steps"
    COMPILATION = "compilation"
    RECOMPILATION = "recompilation"
    GARBAGE_COLLECTION = "garbage_collection"
    VALIDATION = "validation"
    STARTUP = "startup"
    SMALL_MICRO_BATCHES = "small_micro_batches"
    FULL_MEMORY = "full_memory"


class Evidence(RecordModel):
    """A recorded figure that supports a finding."""

    name: str
    """Metric, or category of the goodput ledger."""
    value: float
    """Its value."""
    unit: str
    """Its unit."""


class AdviceFinding(RecordModel):
    """One cause that slows a job."""

    hindrance: Hindrance
    """The cause."""
    words: str
    """What the records show, in a sentence."""
    share: float
    """Its share of the time on slots, or of a recent step, from 0 to 1."""
    evidence: tuple[Evidence, ...]
    """The figures."""
    field: str | None
    """Dotted path of the spec field that changes it; null if no field does."""
    remedy: str
    """What to change, in a sentence."""
    gain: float | None
    """Upper bound of the gain in kept steps per time on slots, 0.1 for a tenth. Null if the records
    do not show it."""


class AdviceView(RecordModel):
    """Causes that slow a job, the costliest first."""

    job_id: str
    """Job."""
    attempt: int | None
    """The attempt of the recent steps; null before the first recorded step."""
    recent_steps: int
    """Steps that the recent means cover."""
    findings: tuple[AdviceFinding, ...]
    """Findings; empty if nothing takes a noticeable share of the time."""


class HardwareCalibration(RecordModel):
    """Calibration of a kind of hardware from finished runs."""

    device: DeviceKind
    """Kind of slot."""
    fitted_at: datetime
    """When the newest run was included."""
    calibration: Calibration
    """Coefficients, and their error on the runs."""


class CalibrationsView(RecordModel):
    """Calibrations by kind of hardware; kinds without finished runs are omitted."""

    calibrations: tuple[HardwareCalibration, ...]
    """The calibrations, the one with the most runs first."""
