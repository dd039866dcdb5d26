"""The `trainyard` command: every subcommand with its line in the help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

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
from trainyard.cli.commands.machines import node_sources, projects
from trainyard.cli.errors import CommandGroup
from trainyard.client.settings import choose_profile

HELP = """Train PyTorch models on any number of GPUs, and resume on any other number.

A job is named by its id, the beginning of its id, its name, or @last; a checkpoint by JOB@step-400.
The server is that of TRAINYARD_URL and TRAINYARD_TOKEN, else that of a profile that `up` or `login`
wrote: the default one, or the one of --profile or TRAINYARD_PROFILE."""

# In the order of the help: set up, submit, look, act.
COMMANDS: tuple[tuple[Callable[..., None], str], ...] = (
    (local.up, "Start the control plane on this machine."),
    (local.down, "Save and end what runs on this machine."),
    (local.login, "Keep the address and token of a server."),
    (submit.init, "Write a commented spec file."),
    (submit.schema, "Write the JSON Schema of the spec."),
    (submit.plan, "Check a spec and show its plan."),
    (submit.submit, "Submit a job."),
    (submit.import_, "Import runs of wandb, MLflow or TensorBoard as jobs."),
    (show.ps, "List jobs."),
    (show.queue, "List the jobs that wait, and when they may start."),
    (show.show, "Show one job whole."),
    (show.events, "List what happened to a job."),
    (show.nodes, "List the machines; cordon, drain or label one."),
    (node_sources.sources, "List where nodes come from; check or pause one, request nodes."),
    (projects.projects, "List the projects; create, change or delete one."),
    (watch.watch, "Follow a job live, to its end."),
    (metrics.metrics, "Show a job's metrics, or write them as CSV."),
    (metrics.logs, "Show what a rank wrote."),
    (metrics.artifacts, "List or download images, histograms and files of a job."),
    (compare.compare, "Compare the metrics of several jobs."),
    (goodput.goodput, "Show what the time of a job, or of all slots, was spent on."),
    (goodput.advise, "Show what slows a job, and what to change."),
    (checkpoints.checkpoints, "List a job's checkpoints; verify, pin, unpin or delete one."),
    (operations.operations, "Show operations on checkpoints; cancel one."),
    (operations.export, "Write a checkpoint as Hugging Face's libraries read it."),
    (operations.sample, "Generate a text with a checkpoint."),
    (jobs.stop, "Save, then leave."),
    (jobs.cancel, "Leave now, after showing what is lost."),
    (jobs.kill, "Cancel without a question."),
    (jobs.priority, "Change the priority of a job that waits or runs."),
    (jobs.resume, "Resume, on any legal number of slots."),
    (jobs.delete, "Remove a finished job."),
    (requests.save, "Save a checkpoint now, and continue."),
    (requests.profile, "Record the next steps with torch.profiler."),
    (requests.snapshot, "Record what takes the memory of a GPU."),
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
# `python -m embedded` parses what follows `up` and `down`, `--help` included.
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
for command, summary in COMMANDS:
    passed_on = PASSED_ON if command in (local.up, local.down) else None
    name = command.__name__.removesuffix("_")  # of one that Python keeps for itself
    app.command(name, short_help=summary, context_settings=passed_on)(command)


@app.callback()
def _choose(
    name: Annotated[
        str | None,
        typer.Option("--profile", metavar="NAME", help="Server and token of this name."),
    ] = None,
) -> None:
    choose_profile(name)


def main() -> None:
    """Run the `trainyard` command."""
    app(prog_name="trainyard")
