"""Turns errors of the SDK into text on stderr and exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.padding import Padding
from rich.text import Text
from typer.core import TyperGroup

from trainyard.base.problems import Problem
from trainyard.cli.output import console
from trainyard.client.errors import (
    ApiError,
    ConnectionFailedError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    ServerError,
    TrainyardError,
    UnauthenticatedError,
    UsageError,
)

FAILED, USAGE = 1, 2
REMEDIES: dict[type[TrainyardError], str] = {
    UnauthenticatedError: "Log in with `trainyard login URL`, or set TRAINYARD_TOKEN.",
    ForbiddenError: "Use a token with this permission, such as the admin token.",
    ConnectionFailedError: "Start the control plane with `trainyard up`, or check TRAINYARD_URL.",
    ServerError: "Try again in a moment. The server's log has details under the request id.",
}

Origin = Callable[[Problem], str | None]
"""Function that returns the source of a problem's field, such as an option or a file."""


class CommandGroup(TyperGroup):
    """Runs a command, and turns a `TrainyardError` into an explanation and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            typer.Exit: with 2 for an error in the command line or the spec, and for an unknown id;
                with 1 for another `TrainyardError`.
        """
        try:
            return super().invoke(ctx)
        except TrainyardError as error:
            _write(error)
            usage = isinstance(error, UsageError | InvalidRequestError | NotFoundError)
            raise typer.Exit(USAGE if usage else FAILED) from None


@contextmanager
def explained(
    origin: Origin,
    *,
    remedy: str,
    title: str = "",
    spec_field: Callable[[str], str] = lambda pointer: pointer,
) -> Iterator[None]:
    """Explain errors that the server found in the user's input, and exit with code 2.

    Args:
        origin: function from a problem to the source of the field in which the problem is.
        remedy: text of the last line.
        title: text of the first line if the error names fields; by default the server's title.
        spec_field: function that converts a pointer into the request to a pointer into the spec.
    """
    try:
        yield
    except InvalidRequestError as error:
        problem = error.problem
        errors = [e.model_copy(update={"pointer": spec_field(e.pointer)}) for e in problem.errors]
        first = title if title and errors else problem.title
        write_error(first, problem.detail, problems=errors, origin=origin, remedy=remedy)
        raise typer.Exit(USAGE) from None


def write_error(
    title: str,
    detail: str = "",
    *,
    problems: Sequence[Problem] = (),
    origin: Origin = lambda _: None,
    remedy: str = "",
) -> None:
    """Write an error: its text, each wrong field with the field's source, and the remedy."""
    err = console(stderr=True)

    def write(text: str | Text, *, style: str = "", indent: int = 2) -> None:
        shown = Text(text, style=style) if isinstance(text, str) else text
        err.print(Padding(shown, (0, 0, 0, indent), expand=False))

    write(f"Error: {title}", style="bold red", indent=0)
    if detail and not problems:
        write(detail)
    for problem in problems:
        field = problem.pointer.strip("/").replace("/", ".") or "the whole document"
        write(Text.assemble((field, "bold"), f"  {problem.detail}"))
        if place := origin(problem):
            write(place, style="dim", indent=4)
    if remedy:
        write(remedy, style="cyan")


def _write(error: TrainyardError) -> None:
    if isinstance(error, UsageError):
        write_error(str(error), remedy=error.remedy)
        return
    remedy = next((text for kind, text in REMEDIES.items() if isinstance(error, kind)), "")
    if not isinstance(error, ApiError):
        write_error(str(error), remedy=remedy)
    elif "--json" in sys.argv[1:]:
        print(json.dumps(error.problem.model_dump(mode="json")), file=sys.stderr)
    else:
        problem = error.problem
        write_error(problem.title, problem.detail, problems=problem.errors, remedy=remedy)
