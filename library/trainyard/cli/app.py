"""The `trainyard` command with all subcommands and their summaries in the help."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from trainyard import __version__
from trainyard.cli.commands import (
    checkpoints,
    compare,
    goodput,
    jobs,
    local,
    metrics,
    operations,
    requests,
    shell,
    show,
    submit,
    watch,
)
from trainyard.cli.commands.machines import (
    access_tokens,
    audit_listing,
    member_commands,
    node_sources,
    projects,
    prove,
    secret_commands,
    user_commands,
)
from trainyard.cli.errors import FAILED, CommandGroup, write_error
from trainyard.cli.other_project import foreign_files
from trainyard.cli.output import write_text
from trainyard.client.settings import choose_profile

HELP = """Train PyTorch models on any number of GPUs, and resume on any other number.

JOB is a job's id, a prefix of its id, its name, or @last. A checkpoint is JOB@step-400.

The server is TRAINYARD_URL with TRAINYARD_TOKEN, if set. Otherwise it is the one of a profile that
`up` or `login` stored: --profile, else TRAINYARD_PROFILE, else the default profile."""

# In the order of the help: set up, submit, inspect, change.
COMMANDS: tuple[tuple[Callable[..., None], str], ...] = (
    (local.up, "Start the control plane on this machine."),
    (local.down, "Save running jobs and stop the control plane here."),
    (prove.prove, "Prove on your own slots that resumes are exact, and measure speed."),
    (local.login, "Store the address and token of a server."),
    (submit.init, "Write a commented spec file."),
    (submit.schema, "Write the JSON Schema of the spec."),
    (submit.plan, "Check a spec and show its plan."),
    (submit.submit, "Submit a job."),
    (submit.import_, "Import runs of wandb, MLflow or TensorBoard as jobs."),
    (show.ps, "List jobs."),
    (show.queue, "List waiting jobs with their reasons and expected starts."),
    (show.show, "Show one job in full."),
    (show.events, "List the events of a job."),
    (show.nodes, "List nodes; cordon, drain or label one."),
    (node_sources.sources, "List node sources; check or pause one, request nodes."),
    (projects.projects, "List projects; create, change or delete one."),
    (member_commands.members, "List the members of a project; add, limit or remove one."),
    (member_commands.groups, "List the issuer's groups with a role; give one a role."),
    (member_commands.service_accounts, "List service accounts of a project; create or end one."),
    (secret_commands.secrets, "List secrets without values; set or remove one."),
    (access_tokens.tokens, "List your tokens with their scopes; create or revoke one."),
    (user_commands.users, "List users; invite, change or disable one."),
    (user_commands.whoami, "Show your user and permissions."),
    (audit_listing.audit, "Show who changed what, and which attempts were refused."),
    (watch.watch, "Follow a job live until it ends."),
    (metrics.metrics, "Show a job's metrics, or write them as CSV."),
    (metrics.logs, "Show the output of a rank."),
    (metrics.artifacts, "List or download images, histograms and files of a job."),
    (compare.compare, "Compare the metrics of several jobs."),
    (goodput.goodput, "Show how a job, or all slots, spent their time."),
    (goodput.advise, "Show what slows a job, with remedies."),
    (checkpoints.checkpoints, "List a job's checkpoints; verify, pin, unpin or delete one."),
    (operations.operations, "List operations on checkpoints; cancel one."),
    (operations.export, "Export a checkpoint in Hugging Face's format."),
    (operations.sample, "Generate text with a checkpoint."),
    (jobs.stop, "Stop a job after saving a checkpoint."),
    (jobs.cancel, "End a job now without saving, after a confirmation."),
    (jobs.kill, "Cancel a job without confirmation."),
    (jobs.priority, "Change the priority of a waiting or running job."),
    (jobs.resume, "Resume a job on any legal number of slots."),
    (jobs.delete, "Delete a finished job."),
    (requests.save, "Save a checkpoint of a running job, which continues."),
    (requests.profile, "Record the next steps with torch.profiler."),
    (requests.snapshot, "Record the GPU memory allocations of the next steps."),
    (shell.shell, "Run a command in a running attempt."),
    (checkpoints.fork, "Start a new job from a checkpoint."),
)

app = typer.Typer(
    cls=CommandGroup,
    help=HELP,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
# `python -m embedded` parses everything that follows `up` and `down`, including `--help`.
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
for command, summary in COMMANDS:
    passed_on = PASSED_ON if command in (local.up, local.down) else None
    # `import_`: Python reserves the name.
    name = command.__name__.removesuffix("_").replace("_", "-")
    app.command(name, short_help=summary, context_settings=passed_on)(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        write_text(f"trainyard {__version__}")
        raise typer.Exit


@app.callback()
def _choose(
    name: Annotated[
        str | None,
        typer.Option("--profile", metavar="NAME", help="Use the server of this stored profile."),
    ] = None,
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    choose_profile(name)


def main() -> None:
    """Run the `trainyard` command.

    Raises:
        SystemExit: with 1 where another project has replaced files of the library.
    """
    if replaced := foreign_files():
        write_error(
            f"the distribution `trainyard` {replaced.version} has installed its files among ours",
            f"It is another project, and owns {replaced.file}.",
            remedy="Remove both distributions, `trainyard` and `trainyard-library`, from this "
            "environment; then install `trainyard-library` again (docs/install.md).",
        )
        raise SystemExit(FAILED)
    try:
        try:
            app(prog_name="trainyard")
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # such as `trainyard ps | head`
        # The interpreter flushes once more at its end, and would report the error again.
        _discard_output()
        raise SystemExit(FAILED) from None
    except OSError as error:
        _discard_output()
        write_error("the output cannot be written", str(error))
        raise SystemExit(FAILED) from None


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
