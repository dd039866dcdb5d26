"""Calls of the SDK for artifacts: images, histograms and files of jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx

from trainyard.client.errors import UnknownReferenceError
from trainyard.client.transport import Transport, given, unreachable
from trainyard.protocol.job_artifacts.views import ArtifactView
from trainyard.protocol.rest.common import Page
from trainyard.run.artifacts.artifact_records import check_name
from trainyard.run.atomic import replacing


class ArtifactCalls:
    """Calls of `Client` for artifacts."""

    transport: Transport
    """Sends the requests."""

    def artifacts(
        self, job_id: str, *, kind: str | None = None, name: str | None = None
    ) -> Iterator[ArtifactView]:
        """Iterate over the artifacts of a job, the newest first; pages are fetched on demand.

        Args:
            job_id: id of the job.
            kind: only this kind: `image`, `histogram`, `output`, or a kind that the script named.
            name: only artifacts with this name, or below this name as a folder.
        """
        path, query = f"/jobs/{job_id}/artifacts", given(kind=kind, name=name)
        yield from self.transport.pages(Page[ArtifactView], path, query)

    def artifact_content(self, job_id: str, artifact_id: str) -> Iterator[bytes]:
        """Iterate over the bytes of an image or a file.

        Raises:
            NotFoundError: no such artifact exists, or the artifact is a histogram.
            ConnectionFailedError: the server could not be reached, or sent nothing for too long.
        """
        path = f"/jobs/{job_id}/artifacts/{artifact_id}/content"
        try:
            with self.transport.stream(path) as response:
                yield from response.iter_bytes()
        except httpx.TransportError as error:
            raise unreachable(self.transport.connection.url, error) from error

    def download_artifacts(
        self, job_id: str, name: str, folder: str | os.PathLike[str]
    ) -> list[Path]:
        """Download the newest artifact of each name at or below `name` into a folder.

        The path of a file in the folder is the artifact's name. An existing file is replaced
        atomically.

        Returns:
            Paths of the files.

        Raises:
            UnknownReferenceError: the job has no image or file with this name.
            OSError: a file cannot be written.
        """
        newest: dict[str, ArtifactView] = {}
        for view in self.artifacts(job_id, name=name):
            if view.digest is not None:
                newest.setdefault(check_name(view.name), view)
        if not newest:
            raise UnknownReferenceError(
                f"The job has no image or file {name!r}, nor any below it.",
                remedy="`trainyard artifacts JOB` lists its artifacts.",
            )
        return [
            self._download(job_id, view, Path(folder) / each)
            for each, view in sorted(newest.items())
        ]

    def _download(self, job_id: str, view: ArtifactView, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, durable=False) as file:
            for part in self.artifact_content(job_id, view.id):
                file.write(part)
        return path
