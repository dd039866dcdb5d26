"""`members`, `groups` and `service-accounts`: who has which role in a project."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from trainyard.cli import formats
from trainyard.cli.commands.machines.access_tokens import draw_tokens
from trainyard.cli.commands.machines.projects import parse_quota
from trainyard.cli.options import Json
from trainyard.cli.output import emit
from trainyard.cli.table import Listing
from trainyard.client.errors import UsageError
from trainyard.client.sdk import Client
from trainyard.protocol.rest.access import TokenView
from trainyard.protocol.rest.projects import ProjectRole, ProjectView
from trainyard.protocol.user_accounts.members import MemberView, ServiceAccountView
from trainyard.protocol.user_accounts.single_sign_on import GroupView
from trainyard.spec.job import DEFAULT_PROJECT

NONE = "none"
"""Word that takes the role of everyone away."""
DAY = 86_400

OfProject = Annotated[str, typer.Option("--project", metavar="NAME", help="Name of the project.")]


def members(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="list|add USER ROLE|remove USER|everyone ROLE|limits",
            help="Give a user a role, end a membership, give every person a role (`none` takes "
            "it away), or limit each user. Default: list the members.",
        ),
    ] = None,
    project: OfProject = DEFAULT_PROJECT,
    max_slots: Annotated[
        str | None,
        typer.Option(
            "--max-slots", metavar="SLOTS", help="With add or limits: held slots, or `none`."
        ),
    ] = None,
    max_running: Annotated[
        str | None,
        typer.Option(
            "--max-running", metavar="JOBS", help="With add or limits: running jobs, or `none`."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List the members of a project with roles, use and limits; add, limit or remove one.

    Roles: a viewer reads, a member submits and changes jobs, a maintainer also deletes jobs and
    changes members. `limits` sets the limits of each user; a limit of `add` replaces them.
    """
    words = given or ["list"]
    limits: dict[str, int | None] = {}
    if max_slots is not None:
        limits["max_slots"] = parse_quota(max_slots, int, option="--max-slots")
    if max_running is not None:
        limits["max_running"] = parse_quota(max_running, int, option="--max-running")
    with Client() as yard:
        match words:
            case ["add", user, role]:
                yard.set_member(project, user, _role(role), **limits)
            case ["limits"] if limits:
                yard.limit_users(project, **limits)
            case _ if limits:
                raise UsageError(
                    "--max-slots and --max-running are options of `add` and `limits`.",
                    remedy="Write `trainyard members add USER member --max-slots 8`.",
                )
            case ["list"]:
                pass
            case ["remove", user]:
                yard.remove_member(project, user)
            case ["everyone", role]:
                yard.set_everyone(project, None if role == NONE else _role(role))
            case _:
                raise UsageError(
                    f"`members {' '.join(words)}` is not a command.",
                    remedy="Write `trainyard members`, `trainyard members add USER member`, "
                    "`trainyard members remove USER`, `trainyard members everyone viewer` or "
                    "`trainyard members limits --max-slots 8`.",
                )
        shown, of = list(yard.members(project)), yard.project(project)
    emit(shown, partial(draw_members, project=of), as_json=json)


def groups(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="list|set GROUP ROLE",
            help="Give the persons of a group of the issuer a role (`none` takes it away). "
            "Default: list the groups with a role.",
        ),
    ] = None,
    project: OfProject = DEFAULT_PROJECT,
    json: Json = False,
) -> None:
    """List the issuer's groups with a role in a project; give one a role."""
    words = given or ["list"]
    with Client() as yard:
        match words:
            case ["list"]:
                pass
            case ["set", group, role]:
                yard.set_group(project, group, None if role == NONE else _role(role))
            case _:
                raise UsageError(
                    f"`groups {' '.join(words)}` is not a command.",
                    remedy="Write `trainyard groups` or `trainyard groups set GROUP member`.",
                )
        shown = list(yard.groups(project))
    emit(shown, draw_groups, as_json=json)


def service_accounts(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="list|create NAME|token NAME TOKEN|tokens NAME|revoke NAME TOKEN|remove NAME",
            help="Create an account; create, list or revoke tokens of an account; or end an "
            "account. Default: list the accounts.",
        ),
    ] = None,
    project: OfProject = DEFAULT_PROJECT,
    role: Annotated[
        str | None, typer.Option("--role", help="With create: viewer or member (default).")
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope", metavar="PERMISSION", help="With token: a permission of it; repeat it."
        ),
    ] = None,
    days: Annotated[
        float | None, typer.Option("--days", help="With token: its lifetime. Default: 365.")
    ] = None,
    json: Json = False,
) -> None:
    """List the service accounts of a project; create or end one, or make a token of one.

    A new token is printed once, on stdout: the server stores only its hash.
    """
    words = given or ["list"]
    with Client() as yard:
        match words:
            case ["token", name, token] if role is None:
                seconds = None if days is None else round(days * DAY)
                made = yard.service_token(
                    project, name, name=token, scopes=scope, expires_in_seconds=seconds
                )
                emit(made, _secret, as_json=json)
                return
            case _ if scope is not None or days is not None:
                raise UsageError(
                    "--scope and --days are options of `token`.",
                    remedy="Write `trainyard service-accounts token NAME TOKEN --days 90`.",
                )
            case ["create", name]:
                yard.create_service_account(project, name, role=role and _role(role))
            case ["list"] if role is None:
                pass
            case ["remove", name] if role is None:
                yard.remove_service_account(project, name)
            case ["tokens", name] if role is None:
                emit(list(yard.service_tokens(project, name)), draw_tokens, as_json=json)
                return
            case ["revoke", name, token] if role is None:
                _revoke(yard, project, name, token=token)
                emit(list(yard.service_tokens(project, name)), draw_tokens, as_json=json)
                return
            case _:
                raise UsageError(
                    f"`service-accounts {' '.join(words)}` is not a command.",
                    remedy="Write `trainyard service-accounts`, `trainyard service-accounts create "
                    "NAME`, or `trainyard service-accounts token NAME TOKEN`.",
                )
        shown = list(yard.service_accounts(project))
    emit(shown, draw_service_accounts, as_json=json)


def draw_members(shown: Sequence[MemberView], *, project: ProjectView) -> RenderableType:
    """Return the table of members, and what holds for all users of the project."""
    most = ("slots", project.member_max_slots), ("running jobs", project.member_max_running)
    limits = ", ".join(f"{number} {name}" for name, number in most if number is not None)
    words = f"Role of everyone: {project.everyone or NONE}. Limits of each user: {limits or NONE}."
    everyone = Text(words)
    if not shown:
        return Group(Text("No members."), everyone)
    rows = Listing(
        *("NAME", "ROLE", "KIND", "SLOTS", "RUNNING", "SINCE"), right=("SLOTS", "RUNNING")
    )
    for member in shown:
        rows.add(
            member.user,
            member.role,
            member.kind,
            _use(member.held_slots, member.effective_max_slots),
            _use(member.running_jobs, member.effective_max_running),
            formats.date(member.since),
        )
    return Group(rows, everyone)


def draw_groups(shown: Sequence[GroupView]) -> RenderableType:
    """Return the table of groups."""
    if not shown:
        return Text("No group of the issuer has a role.")
    rows = Listing("GROUP", "ROLE", "SINCE")
    for each in shown:
        rows.add(each.group, each.role, formats.date(each.since))
    return rows


def draw_service_accounts(shown: Sequence[ServiceAccountView]) -> RenderableType:
    """Return the table of service accounts."""
    if not shown:
        return Text("No service accounts.")
    rows = Listing("NAME", "ROLE", "CREATED")
    for account in shown:
        rows.add(account.name, account.role, formats.date(account.created_at))
    return rows


def _revoke(yard: Client, project: str, account: str, *, token: str) -> None:
    for each in yard.service_tokens(project, account):
        if token in (each.id, each.name):
            yard.revoke_service_token(project, account, each.id)
            return
    raise UsageError(
        f"{account} has no token {token!r}.",
        remedy=f"`trainyard service-accounts tokens {account} --project {project}` lists them.",
    )


def _secret(token: TokenView) -> RenderableType:
    return Text(token.secret or "")


def _use(used: int, most: int | None) -> str:
    return f"{used:,}" if most is None else f"{used:,} of {most:,}"


def _role(role: str) -> ProjectRole:
    try:
        return ProjectRole(role)
    except ValueError:
        raise UsageError(
            f"role={role!r} is no role.", remedy=f"Legal: {', '.join(ProjectRole)}."
        ) from None
