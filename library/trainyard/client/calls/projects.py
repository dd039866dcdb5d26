"""Calls of the SDK for projects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainyard.client.transport import Transport, read
from trainyard.protocol.rest.common import Page
from trainyard.protocol.rest.projects import ProjectView


class ProjectCalls:
    """Calls of `Client` for projects."""

    transport: Transport
    """Sends the requests."""

    def projects(self) -> Iterator[ProjectView]:
        """Iterate over the projects in the order of their names."""
        return self.transport.pages(Page[ProjectView], "/projects")

    def project(self, name: str) -> ProjectView:
        """Return one project."""
        return self.transport.get(ProjectView, f"/projects/{name}")

    def create_project(self, name: str, **settings: Any) -> ProjectView:
        """Create a project.

        Args:
            name: name of the project.
            settings: fields of `trainyard.protocol.rest.projects.ProjectSettings`.

        Raises:
            ConflictError: another project has the name.
        """
        return self.transport.post(ProjectView, "/projects", {"name": name, **settings})

    def change_project(self, name: str, **settings: Any) -> ProjectView:
        """Change settings of a project; omitted settings stay, and None removes a quota."""
        response = self.transport.send("PATCH", f"/projects/{name}", body=settings)
        return read(ProjectView, response)

    def delete_project(self, name: str) -> None:
        """Delete a project.

        Raises:
            ConflictError: the project has jobs.
        """
        self.transport.send("DELETE", f"/projects/{name}")
