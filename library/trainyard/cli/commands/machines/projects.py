"""`projects`: the projects that share the cluster, their weights and quotas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer
from rich.console import RenderableType
from rich.text import Text

from trainyard.cli import formats
from trainyard.cli.options import Json
from trainyard.cli.output import emit
from trainyard.cli.table import Listing
from trainyard.client.errors import UsageError
from trainyard.client.sdk import Client
from trainyard.protocol.rest.projects import ProjectView

UNLIMITED = "none"
"""Value of an option that removes a quota."""
Number = TypeVar("Number", int, float)


def projects(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="create|set|delete PROJECT",
            help="Create, change or delete one project. Default: list all projects.",
        ),
    ] = None,
    description: Annotated[
        str | None, typer.Option("--description", help="Purpose of the project.")
    ] = None,
    weight: Annotated[
        float | None, typer.Option("--weight", help="Share of slots relative to other projects.")
    ] = None,
    max_slots: Annotated[
        str | None,
        typer.Option("--max-slots", metavar="SLOTS", help="Limit of held slots, or `none`."),
    ] = None,
    slot_hours: Annotated[
        str | None,
        typer.Option("--slot-hours", metavar="HOURS", help="Slot-hours per month, or `none`."),
    ] = None,
    json: Json = False,
) -> None:
    """List projects with their held slots and used slot-hours; create, change or delete one.

    A slot is a GPU, or a CPU rank on a node without GPUs. A slot-hour is one slot for one hour; the
    quota is reset every month (UTC).
    """
    settings: dict[str, Any] = {}
    if description is not None:
        settings["description"] = description
    if weight is not None:
        settings["weight"] = weight
    if max_slots is not None:
        settings["max_slots"] = parse_quota(max_slots, int, option="--max-slots")
    if slot_hours is not None:
        settings["slot_hours_per_month"] = parse_quota(slot_hours, float, option="--slot-hours")
    verb, name = _parsed(given or [], has_settings=bool(settings))
    with Client() as yard:
        match verb:
            case "create":
                shown = [yard.create_project(name, **settings)]
            case "set":
                shown = [yard.change_project(name, **settings)]
            case "delete":
                yard.delete_project(name)
                shown = list(yard.projects())
            case _:
                shown = list(yard.projects())
    emit(shown, draw_projects, as_json=json)


def draw_projects(shown: Sequence[ProjectView]) -> RenderableType:
    """Return the table of projects."""
    rows = Listing("NAME", "WEIGHT", "HELD", "MOST", "SHARE", "FAIR", "HOURS", "QUOTA", "WAITING",
                   "ABOUT",
                   right=("WEIGHT", "HELD", "MOST", "SHARE", "FAIR", "HOURS", "QUOTA", "WAITING"),
                   spare=("ABOUT", "QUOTA", "MOST", "FAIR"), elastic="ABOUT")  # fmt: skip
    for project in shown:
        rows.add(
            project.name,
            f"{project.weight:g}",
            f"{project.held_slots:,}",
            _limit(project.max_slots),
            formats.share(project.share),
            formats.share(project.fair_share),
            f"{project.slot_hours_used:,.1f}",
            _limit(project.slot_hours_per_month),
            f"{project.waiting_jobs:,}",
            Text(project.description, style="dim"),
        )
    return rows


def _parsed(given: list[str], *, has_settings: bool) -> tuple[str | None, str]:
    match given:
        case [] if not has_settings:
            return None, ""
        case ["create" as verb, name]:
            return verb, name
        case ["set" as verb, name] if has_settings:
            return verb, name
        case ["delete" as verb, name] if not has_settings:
            return verb, name
    raise UsageError(
        f"`projects {' '.join(given)}` is not a command.",
        remedy="Write `trainyard projects create NAME`, `trainyard projects set NAME --weight 2` "
        "or `trainyard projects delete NAME`.",
    )


def parse_quota(text: str, kind: Callable[[str], Number], *, option: str) -> Number | None:
    """Return the number in the value of an option, or None for `none`.

    Raises:
        UsageError: the value is neither.
    """
    if text == UNLIMITED:
        return None
    try:
        return kind(text)
    except ValueError:
        raise UsageError(
            f"{option}={text!r} is not a number.", remedy=f"Write a number, or `{UNLIMITED}`."
        ) from None


def _limit(limit: float | None) -> str:
    return formats.DASH if limit is None else f"{limit:,g}"
