"""The command group, and the only place that maps errors to text and exit codes."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trainyard.cli.commands import (
    checkpoints,
    compare,
    exports,
    fork,
    jobs,
    local,
    metrics,
    operations,
    requests,
    show,
    submit,
    watch,
)
from trainyard.cli.output import write_error
from trainyard.client.errors import (
    ApiError,
    ConnectionFailedError,
    ForbiddenError,
    InvalidRequestError,
    NotConfiguredError,
    NotFoundError,
    ServerError,
    TrainyardError,
    UnauthenticatedError,
    UnknownReferenceError,
)
from trainyard.client.settings import choose_profile

FAILED, USAGE = 1, 2
HELP = """Train PyTorch models on any number of GPUs, and go on with any other number.

A job is named by its id, the beginning of its id, its name, or @last; a checkpoint by JOB@step-400.
The server is that of TRAINYARD_URL and TRAINYARD_TOKEN, else that of a profile that `up` or `login`
wrote: the default one, or the one of --profile or TRAINYARD_PROFILE."""

REMEDIES: dict[type[TrainyardError], str] = {
    UnauthenticatedError: "Log in with `trainyard login URL`, or set TRAINYARD_TOKEN.",
    ForbiddenError: "Use a token that may do this, such as the admin token.",
    ConnectionFailedError: "Start the control plane with `trainyard up`, or check TRAINYARD_URL.",
    ServerError: "Try again in a moment; the server's log has details under the request id.",
}


class CommandGroup(TyperGroup):
    """Runs a command and turns what it raises into an explanation and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            typer.Exit: 2 for an error in the command line or the spec, else 1.
        """
        try:
            return super().invoke(ctx)
        except ApiError as error:
            _explain(error)
            usage = isinstance(error, InvalidRequestError | NotFoundError)
            raise typer.Exit(USAGE if usage else FAILED) from None
        except (UnknownReferenceError, NotConfiguredError) as error:
            write_error(str(error))
            raise typer.Exit(USAGE) from None
        except TrainyardError as error:
            write_error(str(error), remedy=_remedy(error))
            raise typer.Exit(FAILED) from None


app = typer.Typer(
    cls=CommandGroup,
    help=HELP,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback()
def _choose(
    name: Annotated[
        str | None,
        typer.Option("--profile", metavar="NAME", help="Server and token of this name."),
    ] = None,
) -> None:
    choose_profile(name)


for part in (
    *(local, submit, show, watch, metrics, compare),
    *(checkpoints, operations, exports, jobs, requests, fork),
):
    part.register(app)


def main() -> None:
    """Run the `trainyard` command."""
    app(prog_name="trainyard")


def _explain(error: ApiError) -> None:
    problem = error.problem
    if "--json" in sys.argv[1:]:
        print(json.dumps(problem.model_dump(mode="json")), file=sys.stderr)
        return
    write_error(problem.title, problem.detail, problems=problem.errors, remedy=_remedy(error))


def _remedy(error: TrainyardError) -> str:
    return next((text for kind, text in REMEDIES.items() if isinstance(error, kind)), "")
