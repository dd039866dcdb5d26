"""Views of the goodput ledger (docs/goodput.md), and of what slows a job (docs/advice.md)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from enum import StrEnum

from trainyard.base.model_base import RecordModel
from trainyard.planner.speed.rates import Calibration
from trainyard.run.failures import FailureReason
from trainyard.spec.auto import DeviceKind


class TimeCategory(StrEnum):
    """What the time of a job or of a slot was spent on; docs/goodput.md has the source of each."""

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
"""Categories of the time of a slot: those of the attempt that holds it, or why none does."""

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
    """Attempts that failed; preempted ones are none."""
    mttf_seconds: float | None
    """Mean time to failure: time of all attempts divided by their failures; null without one."""
    mttf_lower_seconds: float | None
    """Time below which it does not lie, with a confidence of 95 %; null without attempts."""
    mttf_upper_seconds: float | None
    """Time above which it does not lie, with a confidence of 95 %; null without a failure."""


class GoodputView(MeanTimeToFailure):
    """The time of a job from its submission to its end, or to now."""

    job_id: str
    """Job."""
    since: datetime
    """Submission."""
    until: datetime
    """End of the job; the moment of the answer while it has none."""
    wall_milliseconds: int
    """Time between the two: the exact sum of the categories."""
    categories: tuple[CategoryTime, ...]
    """Every category once, also those without time."""
    goodput: float | None
    """Productive share of the wall time; null where there is no wall time, and where steps were
    reported without the time of any, as by a program that does not log `perf/step_seconds`."""
    ettr: float | None
    """Effective training time ratio; null before the job could run for a millisecond, and where
    `goodput` is."""


class IntervalOutcome(RecordModel):
    """What becomes of a job with one save interval."""

    wall_milliseconds: int
    """From the submission to the end, or to now."""
    goodput: float | None
    """Productive share of the wall time; null where there is no wall time."""
    expected_ettr: float | None
    """ETTR that a long run with these saves is expected to have, by the published formula; null as
    recorded, without a failure and without saves."""
    kept_steps: int
    """Steps that the job keeps."""
    lost_steps: int
    """Steps that are taken again."""
    lost_milliseconds: int
    """Their time."""
    save_stall_milliseconds: int
    """Time for which saves hold up training."""


class SaveIntervalWhatIf(RecordModel):
    """The records of a job replayed with another save interval, at the same pace and failures."""

    job_id: str
    """Job."""
    recorded: IntervalOutcome
    """As it was."""
    interval_steps: int
    """The requested steps between two saves; never when 0."""
    replayed: IntervalOutcome | None
    """With this interval; null before the first recorded step."""
    best_interval_steps: int | None
    """The interval of the highest goodput among those that were tried."""
    best: IntervalOutcome | None
    """With the best interval."""
    stall_seconds: float
    """Mean time for which one save held up training; 0 where none is recorded."""
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
    """The categories that have time."""


class LosingJob(RecordModel):
    """A job with lost steps."""

    job_id: str
    """Id; the job may have been deleted."""
    name: str
    """Its name."""
    lost_slot_milliseconds: int
    """Slot-time of its steps that were taken again."""
    reason: FailureReason | None
    """The most frequent reason of its failures; null where none is recorded."""
    failures: int
    """Its attempts that failed and were not preempted, in any time."""


class ProjectSlotTime(RecordModel):
    """The slot-time that the jobs of a project held."""

    project: str
    """Name of the project."""
    slot_milliseconds: int
    """Slot-time that they held."""
    categories: tuple[SlotTime, ...]
    """The categories that have time: they sum to it."""


class ClusterGoodputView(MeanTimeToFailure):
    """The slot-time of the cluster, or of the jobs of one project, by category.

    Its failures and the time of attempts are those of jobs that are not deleted.
    """

    since: datetime
    """Beginning of the first day."""
    until: datetime
    """End of the last day, or the moment of the computation, which serves a minute."""
    slot_milliseconds: int
    """Slots that the nodes had, times the time for which they had them: the exact sum of the
    categories. Of a project the slots that its jobs held."""
    categories: tuple[SlotTime, ...]
    """Every category once, also those without time."""
    goodput: float | None
    """Productive share of the slot-time; null where there is none."""
    failures_per_1000_node_days: float | None
    """Failures by the days for which shares held their nodes, times 1,000; null without shares."""
    days: tuple[DayOfSlots, ...]
    """Each day, the first one first."""
    projects: tuple[ProjectSlotTime, ...]
    """The projects whose jobs held slots, by name."""
    losing_jobs: tuple[LosingJob, ...]
    """At most ten jobs, those with the most lost slot-time first."""


class Hindrance(StrEnum):
    """What takes time from training; docs/advice.md has the rule of each."""

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
    """A figure of the records on which a finding rests."""

    name: str
    """Metric, or category of the goodput ledger."""
    value: float
    """Its value."""
    unit: str
    """Its unit."""


class AdviceFinding(RecordModel):
    """One thing that slows a job."""

    hindrance: Hindrance
    """What it is."""
    words: str
    """What the records show, as a sentence."""
    share: float
    """Part of the time on slots, or of a recent step, that it takes, from 0 to 1."""
    evidence: tuple[Evidence, ...]
    """The figures."""
    field: str | None
    """Field of the spec that changes it, as a path with dots; null where none does."""
    remedy: str
    """What to change, as a sentence."""
    gain: float | None
    """Expected gain in kept steps per time on slots, 0.1 for a tenth; an upper bound of what the
    remedy can bring. Null where the records cannot tell."""


class AdviceView(RecordModel):
    """What slows a job, the costliest finding first."""

    job_id: str
    """Job."""
    attempt: int | None
    """The attempt whose recent steps were read; null before the first recorded step."""
    recent_steps: int
    """Steps that the recent means cover."""
    findings: tuple[AdviceFinding, ...]
    """Findings; empty where nothing takes a noticeable part of the time."""


class HardwareCalibration(RecordModel):
    """What finished runs taught of a kind of hardware."""

    device: DeviceKind
    """Kind of slot."""
    fitted_at: datetime
    """When the newest run was learned from."""
    calibration: Calibration
    """Coefficients, and how far they are off the runs."""


class CalibrationsView(RecordModel):
    """The calibration of each kind of hardware that has finished runs."""

    calibrations: tuple[HardwareCalibration, ...]
    """The one with the most runs first."""
