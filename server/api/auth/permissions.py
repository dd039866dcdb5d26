"""The table of permissions, and the permissions of roles and tokens (docs/access.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Literal

from server.api.auth.tokens import TokenKind
from server.core.visibility.scope import Projects, Scope
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.projects import ProjectRole
from trainyard.protocol.user_accounts.views import ClusterRole

Role = ProjectRole | ClusterRole


@dataclass(frozen=True)
class Meaning:
    """What a permission allows, and who has it."""

    sentence: str
    least_role: Role

    @property
    def about(self) -> Literal["project", "cluster"]:
        """Whether the permission is about a project or about the cluster."""
        return "project" if isinstance(self.least_role, ProjectRole) else "cluster"


MEANINGS: Mapping[Permission, Meaning] = {
    Permission.JOBS_READ: Meaning(
        "See jobs, their output, checkpoints and places in the queue; plan jobs.",
        ProjectRole.VIEWER,
    ),
    Permission.JOBS_WRITE: Meaning(
        "Submit, import, stop, resume and fork jobs; verify, export, sample and pin checkpoints.",
        ProjectRole.MEMBER,
    ),
    Permission.JOBS_DELETE: Meaning("Delete jobs and checkpoints.", ProjectRole.MAINTAINER),
    Permission.CODE_RUN: Meaning(
        "Submit, resume and fork jobs that bring code of their own; upload packs.",
        ProjectRole.MEMBER,
    ),
    Permission.SHELL_RUN: Meaning("Run commands in running attempts.", ProjectRole.MEMBER),
    Permission.PROJECTS_READ: Meaning(
        "See projects with their quotas and use.", ProjectRole.VIEWER
    ),
    Permission.MEMBERS_WRITE: Meaning(
        "Add, limit and remove members, make service accounts, and transfer jobs.",
        ProjectRole.MAINTAINER,
    ),
    Permission.SECRETS_USE: Meaning(
        "List secrets without values, and use secrets in jobs.", ProjectRole.MEMBER
    ),
    Permission.SECRETS_WRITE: Meaning(
        "Store and delete secrets of projects.", ProjectRole.MAINTAINER
    ),
    Permission.PROJECTS_WRITE: Meaning(
        "Change description, weight and quotas of projects.", ClusterRole.OPERATOR
    ),
    Permission.PROJECTS_ADMIN: Meaning("Create and delete projects.", ClusterRole.ADMIN),
    Permission.NODES_READ: Meaning(
        "See nodes, their metrics, the slot-time of the cluster, and calibrations.",
        ClusterRole.USER,
    ),
    Permission.NODES_WRITE: Meaning("Drain, cordon and label nodes.", ClusterRole.OPERATOR),
    Permission.SOURCES_READ: Meaning(
        "See sources of nodes and their requests, and the reasons why requests wait.",
        ClusterRole.USER,
    ),
    Permission.SOURCES_WRITE: Meaning(
        "Check, pause and delete sources; request nodes, cancel and end requests.",
        ClusterRole.ADMIN,
    ),
    Permission.METRICS_READ: Meaning("Read the metrics for Prometheus.", ClusterRole.OPERATOR),
    Permission.TOKENS_ADMIN: Meaning(
        "Create join tokens; list and revoke the tokens of all users.", ClusterRole.ADMIN
    ),
    Permission.USERS_ADMIN: Meaning(
        "List, create, change and disable users; make invitations.", ClusterRole.ADMIN
    ),
    Permission.AUDIT_READ: Meaning("Read and export the audit log.", ClusterRole.ADMIN),
}
"""The only table of permissions: what each allows, and the least role that has it."""

ALL = frozenset(Permission)
WITHOUT_SCOPES = ALL - {
    Permission.AUDIT_READ,
    Permission.SOURCES_WRITE,
    Permission.TOKENS_ADMIN,
    Permission.USERS_ADMIN,
}
"""Permissions of an API token without scopes."""


@cache
def held_by_role(role: Role) -> frozenset[Permission]:
    """Return the permissions of a role, those of the roles before it included."""
    before = [*type(role)]
    upto = before[: before.index(role) + 1]
    return frozenset(each for each, meaning in MEANINGS.items() if meaning.least_role in upto)


@cache
def held_by_user(role: ClusterRole) -> frozenset[Permission]:
    """Return the permissions that a caller needs in order to give a user this role.

    These are the permissions of the role, those of a member, and for an admin of a maintainer.
    """
    is_admin = role == ClusterRole.ADMIN
    in_projects = ProjectRole.MAINTAINER if is_admin else ProjectRole.MEMBER
    return held_by_role(ClusterRole(role)) | held_by_role(in_projects)


@dataclass(frozen=True)
class Roles:
    """The present roles of a user."""

    cluster: ClusterRole
    in_projects: tuple[tuple[str, ProjectRole], ...] = ()
    """Projects in which the user has a role, each once. An admin has a role in all projects."""

    @property
    def is_admin(self) -> bool:
        """Whether the user is a maintainer of every project."""
        return self.cluster is ClusterRole.ADMIN


def most_scoped(kind: TokenKind, scopes: tuple[str, ...] | None) -> frozenset[Permission]:
    """Return the permissions that a token leaves to its user; tokens of machines leave none.

    Args:
        kind: kind of the token.
        scopes: the stored scopes. A scope that this version does not know gives nothing.
    """
    if kind is TokenKind.ADMIN:
        return ALL
    if kind is not TokenKind.API:
        return frozenset()
    return WITHOUT_SCOPES if scopes is None else frozenset(known(scopes))


@lru_cache(maxsize=4096)
def scope_of(roles: Roles, most: frozenset[Permission] = ALL) -> Scope:
    """Return the projects in which a user has each permission, and those in the cluster.

    `most` has the permissions that the user's token allows.
    """
    projects: dict[Permission, Projects] = {}
    for permission in most & PROJECT_PERMISSIONS:
        if roles.is_admin or (permission in SEEN_BY_OPERATORS and _is_operator(roles)):
            projects[permission] = None
        else:
            projects[permission] = frozenset(
                project for project, role in roles.in_projects if permission in held_by_role(role)
            )
    in_projects = MappingProxyType(dict(roles.in_projects))
    in_cluster = most & held_by_role(roles.cluster)
    return Scope(MappingProxyType(projects), NEEDS, in_projects, roles.is_admin, in_cluster)


def _is_operator(roles: Roles) -> bool:
    return roles.cluster is not ClusterRole.USER


PROJECT_PERMISSIONS = frozenset(each for each in MEANINGS if MEANINGS[each].about == "project")
"""Permissions that a role in a project gives."""
SEEN_BY_OPERATORS = frozenset({Permission.PROJECTS_READ})
"""Permissions in all projects of operators and admins."""
NEEDS = MappingProxyType({each: MEANINGS[each].least_role.value for each in PROJECT_PERMISSIONS})


def known(scopes: Collection[str]) -> tuple[Permission, ...]:
    """Return the scopes that this version knows, in the order of the table."""
    return tuple(each for each in Permission if each in scopes)
