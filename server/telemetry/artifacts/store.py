"""Stores the artifacts in reports, lists a job's artifacts, and returns an artifact by id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from sqlalchemy import Connection, Table, func, insert, or_, select

from server.core.context import Context
from server.core.database.engine import batches
from server.core.database.metric_and_log_tables import artifact_contents, artifacts
from server.core.database.rows import TypedRow
from server.core.errors import NotFoundError
from server.core.lifecycle import check_job
from server.core.visibility.scope import Scope
from server.jobs.attempts.reports import ReportedShare
from trainyard.protocol.job_artifacts.events import ArtifactGroup, ArtifactsStored, OutputDropped
from trainyard.protocol.job_artifacts.views import ArtifactView, HistogramView
from trainyard.run.artifacts.artifact_records import FILE, HISTOGRAM, IMAGE, ArtifactLine
from trainyard.run.record_base import to_plain

MAX_ARTIFACTS = 20_000
"""Maximum number of artifacts per job."""
OCTETS = "application/octet-stream"
GROUPS: Mapping[str, ArtifactGroup] = {IMAGE: "image", HISTOGRAM: "histogram"}


@dataclass(frozen=True, slots=True)
class ListedArtifact(TypedRow):
    """An artifact with the fields that lists show."""

    table: ClassVar[Table] = artifacts
    id: str
    attempt: int
    process: int | None
    kind: str
    name: str
    step: int | None
    caption: str
    time: float
    content_id: str | None
    histogram: dict[str, Any] | None
    size: Annotated[int | None, artifact_contents.c.size]
    digest: Annotated[str | None, artifact_contents.c.digest]
    image_type: Annotated[str | None, artifact_contents.c.media_type]

    @property
    def media_type(self) -> str | None:
        """Media type of the content."""
        return None if self.content_id is None else self.image_type or OCTETS

    def view(self) -> ArtifactView:
        """Return the artifact as a view of the API."""
        shape = None if self.histogram is None else HistogramView(**self.histogram)
        values = self.values_for(ArtifactView) | {"histogram": shape}
        return ArtifactView(**values)


@dataclass(frozen=True)
class StoredArtifacts:
    """The stored and the dropped artifacts of one report."""

    notices: tuple[ArtifactsStored, ...]
    """Number of stored artifacts by group; groups without stored artifacts are omitted."""
    dropped: tuple[OutputDropped, ...]
    """Artifacts and output that supervisor or server dropped, in the order of the report."""


_LISTED = ListedArtifact.select().outerjoin(
    artifact_contents, artifact_contents.c.id == artifacts.c.content_id
)


def store_artifacts(
    context: Context, connection: Connection, *, share: ReportedShare, lines: Sequence[ArtifactLine]
) -> StoredArtifacts:
    """Store the histograms, and the artifacts with a content that the server has.

    Other artifacts are dropped, as are those that the supervisor dropped and those above
    `MAX_ARTIFACTS`. An image becomes a file if its content is no image.
    """
    stored = select(func.count()).where(artifacts.c.job_id == share.job_id)
    number = connection.scalar(stored) or 0
    contents = _contents(connection, share.job_id, lines)
    rows: list[dict[str, Any]] = []
    dropped: list[OutputDropped] = []
    for line in lines:
        record, reason = line.record, line.dropped
        if record is None:
            dropped.append(OutputDropped(what="logs", reason=reason or "disk_full", first=None))
            continue
        content_id, media_type = contents.get(line.digest or "", (None, None))
        if reason is None and content_id is None and record.histogram is None:
            reason = "unreadable"
        if reason is None and number + len(rows) >= MAX_ARTIFACTS:
            reason = "too_many"
        if reason is not None:
            dropped.append(OutputDropped(what="artifacts", reason=reason, first=record.name))
            continue
        rows.append(
            {
                "job_id": share.job_id,
                "attempt": share.number,
                "process": None if line.process < 0 else line.process,
                "kind": FILE if record.kind == IMAGE and media_type is None else record.kind,
                "name": record.name,
                "step": record.step,
                "caption": record.caption,
                "time": record.time,
                "content_id": content_id,
                "histogram": to_plain(record.histogram),
            }
        )
    if rows:
        # Sorted because ids from the same millisecond must be in the order of logging.
        ids = sorted(context.new_id() for _ in rows)
        rows = [{"id": each, **row} for each, row in zip(ids, rows, strict=True)]
        connection.execute(insert(artifacts), rows)
    groups = Counter(GROUPS.get(row["kind"], "files") for row in rows)
    notices = (ArtifactsStored(count=n, group=group) for group, n in groups.items())
    return StoredArtifacts(tuple(notices), tuple(dropped))


def list_artifacts(
    context: Context,
    job_id: str,
    *,
    scope: Scope,
    kind: str | None,
    without: Sequence[str],
    name: str | None,
    after: str | None,
    limit: int,
) -> list[ArtifactView]:
    """Return a page of a job's artifacts, the newest first.

    The page begins after the id `after`, the last id of the previous page. `name` selects the
    artifacts with this name, and the artifacts in the folder with this name. `without` has the
    kinds to leave out.

    Raises:
        NotFoundError: no job has this id.
    """
    query = _LISTED.where(artifacts.c.job_id == job_id)
    if kind is not None:
        query = query.where(artifacts.c.kind == kind)
    if without:
        query = query.where(artifacts.c.kind.not_in(without))
    if name is not None:
        below = artifacts.c.name.startswith(f"{name}/", autoescape=True)
        query = query.where(or_(artifacts.c.name == name, below))
    if after is not None:
        query = query.where(artifacts.c.id < after)
    with context.database.read() as connection:
        check_job(connection, job_id, scope=scope)
        rows = ListedArtifact.all(connection, query.order_by(artifacts.c.id.desc()).limit(limit))
    return [row.view() for row in rows]


def read_artifact(
    context: Context, job_id: str, artifact_id: str, *, scope: Scope
) -> ListedArtifact:
    """Return an artifact with content.

    Raises:
        NotFoundError: no such job or artifact exists, or the artifact is a histogram.
    """
    mine = artifacts.c.job_id == job_id, artifacts.c.id == artifact_id
    with context.database.read() as connection:
        check_job(connection, job_id, scope=scope)
        found = ListedArtifact.one_or_none(connection, _LISTED.where(*mine))
    if found is None or found.content_id is None:
        raise NotFoundError(
            f"the job has no artifact {artifact_id} with content; a histogram is in the list"
        )
    return found


def _contents(
    connection: Connection, job_id: str, lines: Sequence[ArtifactLine]
) -> dict[str, tuple[str, str | None]]:
    """Return content id and image type by digest; unknown and incomplete contents are omitted."""
    digests = sorted({line.digest for line in lines if line.digest is not None})
    found: dict[str, tuple[str, str | None]] = {}
    for some in batches(digests, 500):  # SQLite limits the number of parameters
        query = select(
            artifact_contents.c.digest, artifact_contents.c.id, artifact_contents.c.media_type
        ).where(
            artifact_contents.c.job_id == job_id,
            artifact_contents.c.complete,
            artifact_contents.c.digest.in_(some),
        )
        locked = query.with_for_update(read=True, key_share=True)  # prevents a release
        found |= {row.digest: (row.id, row.media_type) for row in connection.execute(locked)}
    return found
