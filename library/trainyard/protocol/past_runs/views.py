"""Requests and views of imports: runs that other tools recorded."""

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
    # The pattern is for readers of the schema; `is_storable` is stricter.
    Field(min_length=1, max_length=LONGEST, pattern=r"^[^,\x00-\x20][^,\x00-\x1f]*$"),
    AfterValidator(_checked),
]
ImportTool = Literal["wandb", "mlflow", "tensorboard"]
"""A tool whose recorded runs can be imported."""
MAX_IMPORT_POINTS = 20_000_000
"""Most points of an imported run."""
MAX_BATCH_POINTS = 2_000
"""Most points of one request: a JSON document has at most 10,000 items, and a point has four."""
WrittenNumber = (
    Annotated[float, Field(allow_inf_nan=False)]
    | Annotated[str, Field(pattern="^(NaN|-?Infinity)$")]
)
"""A number; strings stand for NaN and infinity, which JSON lacks."""
UnixTime = Annotated[float, Field(ge=0, le=10**11, json_schema_extra={"unit": "s"})]
"""Seconds since 1970."""
MAX_RENAMED = 2000


class ImportedRun(SpecModel):
    """A run that another tool recorded."""

    tool: ImportTool
    """The tool."""
    run_id: Annotated[Text, Field(min_length=1, max_length=200)]
    """Name of the run in that tool."""
    digest: Annotated[str, Field(pattern=PACK_DIGEST)]
    """SHA-256 of the imported content; the same content is stored once."""
    summary: Annotated[dict[MetricName, WrittenNumber], Field(max_length=2000)] = Field(
        default_factory=dict
    )
    """Last or best values that the tool stores separately from the series."""
    renamed: Annotated[
        dict[MetricName, Annotated[Text, Field(max_length=500)]], Field(max_length=MAX_RENAMED)
    ] = Field(default_factory=dict)
    """Original name of each renamed series, by its new name; illegal names are replaced."""
    points: Annotated[int, Field(ge=0, le=MAX_IMPORT_POINTS)]
    """Number of points in all series."""


class ImportView(RecordModel):
    """An imported run, and the progress of its import."""

    job_id: str
    """Its job."""
    run: ImportedRun
    """The run."""
    received: int
    """Points that the server has; the import is complete once it has all of `run.points`."""


class ImportRequest(SpecModel):
    """Body of an import: an ended run, without its points."""

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
    """Words of the command, if the tool recorded it."""
    arguments: Annotated[dict[ArgumentName, ArgumentValue], Field(max_length=256)] = Field(
        default_factory=dict
    )
    """Its configuration, in the form of `program.arguments`."""
    state: Literal["succeeded", "failed", "stopped", "cancelled"]
    """How it ended; `stopped` if the tool recorded no end."""
    reason: Annotated[Text, Field(max_length=500)] = ""
    """How it ended, in the words of the tool."""
    start_time: UnixTime
    """When it started."""
    seconds: Seconds
    """Time from the start to its end, or to its last sign of life."""
    last_step: Steps
    """Greatest step of its points."""
    loss: WrittenNumber | None = None
    """Last loss, for lists."""


class ImportedSeries(SpecModel):
    """Points of one series, by ascending step."""

    name: MetricName
    """Name of the series."""
    points: Annotated[
        list[tuple[Steps, UnixTime, WrittenNumber]],
        Field(min_length=1, max_length=MAX_BATCH_POINTS),
    ]
    """Step, time and value of each."""


class ImportedPoints(SpecModel):
    """Body with the next points of an import."""

    start: Annotated[int, Field(ge=0, le=MAX_IMPORT_POINTS)]
    """Number of points before these."""
    series: Annotated[
        tuple[ImportedSeries, ...],
        Field(strict=False, min_length=1, max_length=MAX_BATCH_POINTS),
    ]
    """The points; the same series may continue in the next request."""
