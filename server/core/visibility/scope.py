"""The scope of a caller: which permissions the caller has in which projects (docs/members.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from sqlalchemy import ColumnElement, false, true

from server.core.errors import ForbiddenError, NotFoundError
from trainyard.base.problems import Problem
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.projects import ProjectRole

HIDDEN_JOB = "another project's job"
"""Words that stand for a job that the caller does not see."""
Projects = frozenset[str] | None
"""Names of projects; None for all projects, also for those that do not exist yet."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Permissions of a caller in projects; only the authenticator constructs one.

    A query for a caller takes the caller's scope as an argument.
    """

    projects: Mapping[Permission, Projects]
    """Projects in which the caller has a permission; absent permissions are held in none."""
    needs: Mapping[Permission, str] = field(default_factory=dict, compare=False)
    """Least role with a permission, for errors."""
    roles: Mapping[str, ProjectRole] = field(default_factory=dict, compare=False)
    """Roles of the caller's user by project."""
    everywhere: bool = False
    """Whether the caller's user has all permissions in all projects. The token may allow less."""
    in_cluster: frozenset[Permission] = frozenset()
    """Permissions that are about the cluster."""

    @property
    def anywhere(self) -> frozenset[Permission]:
        """Permissions in the cluster, or in at least one project."""
        in_projects = {each for each, within in self.projects.items() if within is None or within}
        return self.in_cluster | in_projects

    def role_in(self, project: str) -> ProjectRole | None:
        """Return the role of the caller's user in a project; None without a role."""
        return ProjectRole.MAINTAINER if self.everywhere else self.roles.get(project)

    def covers(self, other: Scope) -> bool:
        """Return whether this scope has all permissions of another one."""

        def is_within(permission: Permission, projects: Projects) -> bool:
            own = self.within(permission)
            return own is None or (projects is not None and projects <= own)

        in_projects = all(is_within(each, within) for each, within in other.projects.items())
        return in_projects and other.in_cluster <= self.in_cluster

    def within(self, permission: Permission) -> Projects:
        """Return the projects in which the caller has a permission; None for all."""
        return self.projects.get(permission, frozenset())

    def may(self, permission: Permission, project: str | None) -> bool:
        """Return whether the caller has a permission in a project.

        `project` is None for rows whose project is unknown: these are visible in all projects only.
        """
        projects = self.within(permission)
        return projects is None or project in projects

    def sees(self, project: str | None) -> bool:
        """Return whether the caller sees the jobs of a project."""
        return self.may(Permission.JOBS_READ, project)

    def knows(self, project: str) -> bool:
        """Return whether the caller has any permission in a project."""
        return any(self.may(each, project) for each in self.projects)

    def known(self, column: ColumnElement[str]) -> ColumnElement[bool]:
        """Return the SQL condition that the caller has any permission in the project of a row."""
        within = [*self.projects.values()]
        if None in within:
            return true()
        names = {name for some in within for name in some or ()}
        return column.in_(sorted(names)) if names else false()

    @property
    def sees_all(self) -> bool:
        """Whether the caller sees the jobs of all projects."""
        return self.within(Permission.JOBS_READ) is None

    def filter(
        self, column: ColumnElement[str], permission: Permission = Permission.JOBS_READ
    ) -> ColumnElement[bool]:
        """Return the SQL condition that the caller has a permission in the project of a row.

        A row without a project meets the condition only if the caller has the permission in all
        projects.
        """
        projects = self.within(permission)
        if projects is None:
            return true()
        return column.in_(sorted(projects)) if projects else false()

    def check(self, project: str | None, permission: Permission, *, missing: NotFoundError) -> None:
        """Check a permission on an object of a project.

        Raises:
            NotFoundError: `missing`, because the caller does not see the object.
            ForbiddenError: the caller sees the object, and lacks the permission.
        """
        if self.may(permission, project):
            return
        if not self.sees(project):
            raise missing
        raise self.refusal([permission], project)

    def refusal(
        self,
        permissions: Iterable[Permission],
        project: str | None,
        problems: Sequence[Problem] = (),
    ) -> ForbiddenError:
        """Return the error for permissions that the caller lacks in a visible project.

        `problems` are the fields of the request that need the permissions.
        """
        lacking = [each for each in permissions if not self.may(each, project)]
        named = " and ".join(f"{each} (role {self.needs[each]})" for each in lacking)
        fields = ", ".join(each.pointer for each in problems)
        because = f", because of {fields}" if fields else ""
        return ForbiddenError(f"this needs {named} in project {project!r}{because}", problems)


SYSTEM_SCOPE = Scope(
    MappingProxyType(dict.fromkeys(Permission)), everywhere=True, in_cluster=frozenset(Permission)
)
"""Scope of the system's own work: all permissions in all projects."""
NO_SCOPE = Scope(MappingProxyType({}))
"""Scope of machines, which act on what is assigned to them and read nothing else."""
