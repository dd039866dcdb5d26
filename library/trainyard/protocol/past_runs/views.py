"""Runs that other tools recorded: what the client sends of them, and what the server shows."""

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
    # The pattern is for readers of the schema; `is_storable` has more.
    Field(min_length=1, max_length=LONGEST, pattern=r"^[^,\x00-\x20][^,\x00-\x1f]*$"),
    AfterValidator(_checked),
]
ImportTool = Literal["wandb", "mlflow", "tensorboard"]
"""A tool whose recorded runs can be imported."""
MAX_IMPORT_POINTS = 20_000_000
"""Points of an imported run."""
MAX_BATCH_POINTS = 2_000
"""Points of one request: a JSON document has 10,000 items at most, and a point is four."""
WrittenNumber = (
    Annotated[float, Field(allow_inf_nan=False)]
    | Annotated[str, Field(pattern="^(NaN|-?Infinity)$")]
)
"""A number; JSON has no others."""
UnixTime = Annotated[float, Field(ge=0, le=10**11, json_schema_extra={"unit": "s"})]
"""Seconds since 1970."""
MAX_RENAMED = 2000


class ImportedRun(SpecModel):
    """A run as another tool recorded it."""

    tool: ImportTool
    """The tool."""
    run_id: Annotated[Text, Field(min_length=1, max_length=200)]
    """Name of the run there."""
    digest: Annotated[str, Field(pattern=PACK_DIGEST)]
    """SHA-256 of what is imported: the same content is stored once."""
    summary: Annotated[dict[MetricName, WrittenNumber], Field(max_length=2000)] = Field(
        default_factory=dict
    )
    """Last or best values that the tool keeps apart from the series."""
    renamed: Annotated[
        dict[MetricName, Annotated[Text, Field(max_length=500)]], Field(max_length=MAX_RENAMED)
    ] = Field(default_factory=dict)
    """Original name of each series whose name is not legal here, by its new name."""
    points: Annotated[int, Field(ge=0, le=MAX_IMPORT_POINTS)]
    """Points of all series."""


class ImportView(RecordModel):
    """An imported run, and how much of it the server has."""

    job_id: str
    """Its job."""
    run: ImportedRun
    """The run."""
    received: int
    """Points that the server has; the import is complete once it has all of `run.points`."""


class ImportRequest(SpecModel):
    """Body of an import: a run that has ended elsewhere, without its points."""

    run: ImportedRun
    """The run."""
    name: JobName
    """Name of the job."""
    description: Annotated[Text, Field(max_length=4000)] = ""
    """What it was for."""
    tags: Annotated[tuple[Tag, ...], Field(strict=False, max_length=MAX_TAGS)] = ()
    """Words to filter by."""
    project: ProjectName = DEFAULT_PROJECT
    """Project of the job; it must exist."""
    command: Annotated[tuple[Word, ...], Field(strict=False, max_length=256)] = ()
    """Words of the command, where the tool recorded it."""
    arguments: Annotated[dict[ArgumentName, ArgumentValue], Field(max_length=256)] = Field(
        default_factory=dict
    )
    """Its configuration, as `program.arguments` of a job."""
    state: Literal["succeeded", "failed", "stopped", "cancelled"]
    """How it ended; `stopped` where the tool recorded no end."""
    reason: Annotated[Text, Field(max_length=500)] = ""
    """How it ended, in the words of the tool."""
    start_time: UnixTime
    """When it began."""
    seconds: Seconds
    """Time until it ended, or until its last sign of life."""
    last_step: Steps
    """Greatest step of its points."""
    loss: WrittenNumber | None = None
    """Last loss, for lists."""


class ImportedSeries(SpecModel):
    """Points of one series, by rising steps."""

    name: MetricName
    """Name of the series."""
    points: Annotated[
        list[tuple[Steps, UnixTime, WrittenNumber]],
        Field(min_length=1, max_length=MAX_BATCH_POINTS),
    ]
    """Step, time and value of each."""


class ImportedPoints(SpecModel):
    """Body that brings the next points of an import."""

    start: Annotated[int, Field(ge=0, le=MAX_IMPORT_POINTS)]
    """Points before these."""
    series: Annotated[
        tuple[ImportedSeries, ...],
        Field(strict=False, min_length=1, max_length=MAX_BATCH_POINTS),
    ]
    """The points; the same series may continue in the next request."""
