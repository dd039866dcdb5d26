"""Members of a project who submit jobs, and their limits, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import select

from server.cluster.membership.limit_users import limit_users
from server.cluster.membership.service import set_member
from server.core.context import Context
from server.core.people.user_tables import users
from tests.actors import ADA, ADMIN
from tests.server.harness import Harness
from tests.server.members import OURS, add_projects, add_user
from trainyard.protocol.rest.projects import ProjectRole
from trainyard.protocol.user_accounts.members import MemberRequest, UserLimits


def act_as(harness: Harness, name: str) -> None:
    """Let a member of our project submit the following jobs."""
    context, query = harness.context, select(users.c.id).where(users.c.name == name)
    add_projects(context)
    with context.database.read() as connection:
        user_id = connection.scalar(query)
    if user_id is None:
        add_user(context, name, {OURS: "member"})
        with context.database.read() as connection:
            user_id = connection.scalar(query)
    harness.actor = replace(ADA, name=name, user_id=user_id)


def limit(context: Context, **limits: int | None) -> None:
    """Limit each user of our project."""
    limit_users(context, OURS, UserLimits(**limits), actor=ADMIN)


def limit_own(context: Context, name: str, **limits: int | None) -> None:
    """Change the own limits of a member of our project."""
    request = MemberRequest(role=ProjectRole.MEMBER, **limits)
    set_member(context, OURS, name, request=request, actor=ADMIN)


def submit_ours(harness: Harness, size: int = 1, **resources: Any) -> str:
    """Submit a job of our project, a second after the former one; return its id."""
    harness.clock.advance(1)
    return harness.submit(project=OURS, resources={"world_size": size} | resources)
