"""Requests and views for imports of runs that other tools recorded."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from trainyard.base.model_base import RecordModel, Seconds, SpecModel, Steps, Text
from trainyard.base.names import MAX_TAGS
from trainyard.run.metric_names import LEGAL_FORM, LONGEST, is_storable
from trainyard.spec.code_pack import PACK_DIGEST
from trainyard.spec.job import DEFAULT_PROJECT, JobName, ProjectName, Tag
from trainyard.spec.sections.program import ArgumentName, ArgumentValue, Word


def _checked(name: str) -> str:
    if not is_storable(name):
        raise ValueError(f"{name[:120]!r} is no name of a metric; legal: {LEGAL_FORM}")
    return name


MetricName = Annotated[
    str,
    # The pattern only informs readers of the schema; `is_storable` is stricter.
    Field(min_length=1, max_length=LONGEST, pattern=r"^[^,\x00-\x20][^,\x00-\x1f]*$"),
    AfterValidator(_checked),
]
ImportTool = Literal["wandb", "mlflow", "tensorboard"]
"""Tool with recorded runs that can be imported."""
MAX_IMPORT_POINTS = 20_000_000
"""Maximum number of points in an imported run."""
MAX_BATCH_POINTS = 2_000
"""Maximum number of points in one request. A JSON document may have 10,000 items, and each point
takes four items."""
WrittenNumber = (
    Annotated[float, Field(allow_inf_nan=False)]
    | Annotated[str, Field(pattern="^(NaN|-?Infinity)$")]
)
"""A number; NaN and infinity are strings, because JSON has no such numbers."""
UnixTime = Annotated[float, Field(ge=0, le=10**11, json_schema_extra={"unit": "s"})]
"""Unix time in seconds."""
MAX_RENAMED = 2000


class ImportedRun(SpecModel):
    """A run that another tool recorded."""

    tool: ImportTool
    """Tool that recorded the run."""
    run_id: Annotated[Text, Field(min_length=1, max_length=200)]
    """Name of the run in the tool."""
    digest: Annotated[str, Field(pattern=PACK_DIGEST)]
    """SHA-256 of the imported content; the same content is only stored once."""
    summary: Annotated[dict[MetricName, WrittenNumber], Field(max_length=2000)] = Field(
        default_factory=dict
    )
    """Last or best values that the tool stores apart from the series."""
    renamed: Annotated[
        dict[MetricName, Annotated[Text, Field(max_length=500)]], Field(max_length=MAX_RENAMED)
    ] = Field(default_factory=dict)
    """Original name of each renamed series, by new name. An import renames a series with an illegal
    name."""
    points: Annotated[int, Field(ge=0, le=MAX_IMPORT_POINTS)]
    """Total number of points in all series."""


class ImportView(RecordModel):
    """An imported run, and the progress of the import."""

    job_id: str
    """Id of the job that the run became."""
    run: ImportedRun
    """Imported run."""
    received: int
    """Number of points that the server has received; the import is complete at `run.points`."""


class ImportRequest(SpecModel):
    """Body of a request to import a run that has ended; the points follow in later requests."""

    run: ImportedRun
    """Run to import."""
    name: JobName
    """Name of the job."""
    description: Annotated[Text, Field(max_length=4000)] = ""
    """Purpose of the run."""
    tags: Annotated[tuple[Tag, ...], Field(strict=False, max_length=MAX_TAGS)] = ()
    """Tags by which lists of jobs can be filtered."""
    project: ProjectName = DEFAULT_PROJECT
    """Existing project for the job."""
    command: Annotated[tuple[Word, ...], Field(strict=False, max_length=256)] = ()
    """Command of the run, word by word, if the tool recorded it."""
    arguments: Annotated[dict[ArgumentName, ArgumentValue], Field(max_length=256)] = Field(
        default_factory=dict
    )
    """Configuration of the run, in the form of `program.arguments`."""
    state: Literal["succeeded", "failed", "stopped", "cancelled"]
    """Final state of the run; `stopped` if the tool recorded no end."""
    reason: Annotated[Text, Field(max_length=500)] = ""
    """Reason for the end, as text from the tool."""
    start_time: UnixTime
    """Time at which the run started."""
    seconds: Seconds
    """Duration from the start of the run to its end, or to its last record."""
    last_step: Steps
    """Highest step of all points."""
    loss: WrittenNumber | None = None
    """Last loss of the run, shown in lists of jobs."""


class ImportedSeries(SpecModel):
    """Points of one series, sorted by step, ascending."""

    name: MetricName
    """Name of the series."""
    points: Annotated[
        list[tuple[Steps, UnixTime, WrittenNumber]],
        Field(min_length=1, max_length=MAX_BATCH_POINTS),
    ]
    """Step, time and value of each point."""


class ImportedPoints(SpecModel):
    """Body of a request with the next points of an import."""

    start: Annotated[int, Field(ge=0, le=MAX_IMPORT_POINTS)]
    """Number of points that precede these points in the import."""
    series: Annotated[
        tuple[ImportedSeries, ...],
        Field(strict=False, min_length=1, max_length=MAX_BATCH_POINTS),
    ]
    """Next points, by series; a series may continue in the next request."""
