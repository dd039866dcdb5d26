"""Single sign-on: pages of the issuer, and roles of its groups in projects."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from trainyard.base.model_base import RecordModel, SpecModel
from trainyard.protocol.rest.projects import ProjectRole
from trainyard.protocol.user_accounts.views import GivenPassword

GROUP_NAME = r"^[^\x00-\x1f\x7f]{1,200}$"
GroupName = Annotated[str, Field(pattern=GROUP_NAME)]
"""Name of a group, as the issuer has it in its claim."""


class IssuerPage(RecordModel):
    """A page of the issuer that the browser opens next."""

    url: str
    """Address of the page."""


class LinkRequest(SpecModel):
    """Body of a request that links the caller's user to the issuer."""

    password: GivenPassword | None = None
    """Present password of the user; null only for a user without one."""


class LogoutPage(RecordModel):
    """The page that ends the person's session at the issuer."""

    url: str | None
    """Address of the page; null if the issuer has none, or does not respond."""


class GroupRequest(SpecModel):
    """Body of a request that gives a group of the issuer a role in a project."""

    group: GroupName
    """Name of the group."""
    role: ProjectRole | None
    """Role of the persons in the group; null takes it away."""


class GroupView(RecordModel):
    """A group of the issuer with a role in a project."""

    group: str
    """Name of the group."""
    role: ProjectRole
    """Role of the persons in the group."""
    since: datetime
    """Time at which the group first got a role in the project."""
