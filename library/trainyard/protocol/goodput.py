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
    """Category of a job's or a slot's time; docs/goodput.md defines each category."""

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
"""Categories of a job's time."""
SLOT_CATEGORIES = tuple(each for each in TimeCategory if each not in _WITHOUT_SLOTS)
"""Categories of a slot's time: what the slot's attempt does, or why the slot has no attempt."""

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
"""Name of each category for people."""


class CategoryTime(RecordModel):
    """Time in one category."""

    category: TimeCategory
    """Category of the time."""
    words: str
    """Name of the category for people."""
    milliseconds: int
    """Time in the category."""


class MeanTimeToFailure(RecordModel):
    """Number of failed attempts, and the mean time to failure with its confidence bounds."""

    failures: int
    """Number of failed attempts; preempted attempts do not count."""
    mttf_seconds: float | None
    """Mean time to failure: total time of all attempts divided by failures; null without
    failures."""
    mttf_lower_seconds: float | None
    """Lower bound of the mean time to failure, at 95 % confidence; null without attempts."""
    mttf_upper_seconds: float | None
    """Upper bound of the mean time to failure, at 95 % confidence; null without failures."""


class GoodputView(MeanTimeToFailure):
    """Use of a job's time from submission to its end, or to now."""

    job_id: str
    """Id of the job."""
    since: datetime
    """Time of submission."""
    until: datetime
    """Time at which the job ended; if it has not ended, the time of the response."""
    wall_milliseconds: int
    """Time from `since` to `until`; equals the sum of the categories."""
    categories: tuple[CategoryTime, ...]
    """All categories, including those without time."""
    goodput: float | None
    """Productive share of the wall time. Null without wall time, or if steps were reported without
    their durations. A program that does not log `perf/step_seconds` reports such steps."""
    ettr: float | None
    """Effective training time ratio. Null if `goodput` is null, or if the job could run for less
    than 1 ms so far."""


class IntervalOutcome(RecordModel):
    """Outcome of a job for one choice of the interval between saves."""

    wall_milliseconds: int
    """Time from submission to the end, or to now."""
    goodput: float | None
    """Productive share of the wall time; null without wall time."""
    expected_ettr: float | None
    """Expected ETTR of a long run with this save interval, by the formula in docs/goodput.md. Null
    in three cases: in the recorded outcome, for a job without failures, and with saves disabled."""
    kept_steps: int
    """Number of completed steps that the job did not have to repeat."""
    lost_steps: int
    """Number of lost steps, which the job must repeat."""
    lost_milliseconds: int
    """Time of the lost steps."""
    save_stall_milliseconds: int
    """Time for which saves stall training."""


class SaveIntervalWhatIf(RecordModel):
    """Records of a job, replayed with another interval between saves but the same pace and
    failures."""

    job_id: str
    """Id of the job."""
    recorded: IntervalOutcome
    """Recorded outcome."""
    interval_steps: int
    """Requested steps between two saves; 0 disables saves."""
    replayed: IntervalOutcome | None
    """Outcome with this interval; null before the first recorded step, and if the job's total
    number of steps is unknown."""
    best_interval_steps: int | None
    """Interval between saves, in steps, with the highest goodput among the tried intervals; null if
    `replayed` is null."""
    best: IntervalOutcome | None
    """Outcome with the best interval."""
    stall_seconds: float
    """Mean time for which a save stalls training; 0 if no stall is recorded."""
    daly_interval_steps: int | None
    """Best interval by Daly's estimate, from `stall_seconds` and the mean time to failure. Null if
    no failure or no stall is recorded."""


class SlotTime(RecordModel):
    """Slot-time in one category: number of slots times milliseconds."""

    category: TimeCategory
    """Category of the slot-time."""
    words: str
    """Name of the category for people."""
    slot_milliseconds: int
    """Slot-time in the category."""


class DayOfSlots(RecordModel):
    """Slot-time of one day."""

    day: date
    """Day, in UTC."""
    slot_milliseconds: int
    """Slot-time of the day; equals the sum of the categories."""
    categories: tuple[SlotTime, ...]
    """Categories with slot-time on this day."""


class LosingJob(RecordModel):
    """A job with lost steps."""

    job_id: str
    """Id of the job, which may have been deleted."""
    name: str
    """Name of the job."""
    lost_slot_milliseconds: int
    """Slot-time of the job's lost steps."""
    reason: FailureReason | None
    """Most frequent failure reason of the job; null if none is recorded."""
    failures: int
    """Number of failed attempts in the job's whole life; preempted attempts do not count."""
    project: str | None = None
    """Project of the job; null from an older server."""


class ProjectSlotTime(RecordModel):
    """Slot-time that the jobs of a project held."""

    project: str
    """Name of the project."""
    slot_milliseconds: int
    """Slot-time that the jobs of the project held."""
    categories: tuple[SlotTime, ...]
    """Categories with slot-time of the project."""


class ClusterGoodputView(MeanTimeToFailure):
    """Slot-time of the cluster, or of the jobs of one project, by category.

    Failures and the total time of attempts exclude deleted jobs.
    """

    since: datetime
    """Start of the first day."""
    until: datetime
    """End of the last day. During that day: time for which this result was computed; a result may
    be ten minutes old while the next one is computed."""
    slot_milliseconds: int
    """Slot-time that the nodes offered: number of slots times milliseconds. For a project:
    slot-time that its jobs held. Equals the sum of the categories."""
    categories: tuple[SlotTime, ...]
    """All categories, including those without slot-time."""
    goodput: float | None
    """Productive share of the slot-time; null without slot-time."""
    failures_per_1000_node_days: float | None
    """Failures per 1,000 node-days. A node's time counts only while an attempt holds the node. Null
    without such time."""
    days: tuple[DayOfSlots, ...]
    """The days, oldest first."""
    projects: tuple[ProjectSlotTime, ...]
    """Projects with held slots, sorted by name."""
    losing_jobs: tuple[LosingJob, ...]
    """At most ten jobs with lost steps, sorted by lost slot-time, highest first."""


class Hindrance(StrEnum):
    """Cause of lost training time; docs/advice.md has the rule for each cause."""

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
    """A recorded value that supports a finding."""

    name: str
    """Name of the metric, or of the category of the goodput ledger."""
    value: float
    """Recorded value."""
    unit: str
    """Unit of the value."""


class AdviceFinding(RecordModel):
    """One cause that slows a job."""

    hindrance: Hindrance
    """Cause of the lost time."""
    words: str
    """Finding as a sentence."""
    share: float
    """Time that the cause takes, as a share (0 to 1) of the time on slots or of a recent step; 0 if
    the records do not show it."""
    evidence: tuple[Evidence, ...]
    """Recorded values behind the finding."""
    field: str | None
    """Dotted path of a spec field whose change reduces the lost time; null if there is no such
    field."""
    remedy: str
    """Suggested change, as a sentence."""
    gain: float | None
    """Upper bound of the relative increase in kept steps per unit of time on slots; 0.1 means 10 %.
    Null if the records do not show the increase."""


class AdviceView(RecordModel):
    """Causes that slow a job, sorted by cost, highest first."""

    job_id: str
    """Id of the job."""
    attempt: int | None
    """Number of the newest attempt with recorded steps; null if it has none after its first
    step."""
    recent_steps: int
    """Number of recent steps over which the findings take means."""
    findings: tuple[AdviceFinding, ...]
    """Findings; empty if no cause takes a noticeable share of the time."""


class HardwareCalibration(RecordModel):
    """Calibration for one kind of hardware, from finished runs."""

    device: DeviceKind
    """Kind of slot."""
    fitted_at: datetime
    """Time at which the newest run was included in the calibration."""
    calibration: Calibration
    """Coefficients, and the errors of their predictions for the runs."""


class CalibrationsView(RecordModel):
    """Calibrations by kind of hardware; hardware without finished runs is omitted."""

    calibrations: tuple[HardwareCalibration, ...]
    """Calibrations, sorted by number of runs, highest first."""
