"""The table of permissions, and the permissions of roles and tokens (docs/access.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from typing import Literal

from server.api.auth.tokens import TokenKind
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.user_accounts.views import ClusterRole


class ProjectRole(StrEnum):
    """Roles in a project; each has the permissions of the roles before it."""

    VIEWER = "viewer"
    MEMBER = "member"
    MAINTAINER = "maintainer"


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
}
"""The only table of permissions: what each allows, and the least role that has it."""

ALL = frozenset(Permission)
WITHOUT_SCOPES = ALL - {
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
    """Return the permissions of a user with this role.

    Until projects have members, each user is a member of every project, and an admin a maintainer.
    """
    is_admin = role == ClusterRole.ADMIN
    in_projects = ProjectRole.MAINTAINER if is_admin else ProjectRole.MEMBER
    return held_by_role(ClusterRole(role)) | held_by_role(in_projects)


@lru_cache(maxsize=4096)
def held_by_token(
    kind: TokenKind, scopes: tuple[str, ...] | None, *, role: ClusterRole | None
) -> frozenset[Permission]:
    """Return the permissions of a token of a person; tokens of machines have none.

    Args:
        kind: kind of the token.
        scopes: the stored scopes. A scope that this version does not know gives nothing.
        role: present role of the token's user; None gives nothing.
    """
    if kind is TokenKind.ADMIN:
        return ALL
    if kind is not TokenKind.API or role is None:
        return frozenset()
    most = WITHOUT_SCOPES if scopes is None else frozenset(known(scopes))
    return most & held_by_user(role)


def known(scopes: Collection[str]) -> tuple[Permission, ...]:
    """Return the scopes that this version knows, in the order of the table."""
    return tuple(each for each in Permission if each in scopes)
