"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobReference = Annotated[
    str, typer.Argument(metavar="JOB", help="Job id, prefix of an id, name, or @last.")
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]
SpecFile = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="Job spec in TOML, YAML or JSON. Default: all defaults."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.FIELD=VALUE",
        help="Set one field of the spec. Repeatable; the last value wins.",
    ),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--wait",
        "-w",
        help="Follow the job until it ends. Exit code: 0 succeeded, 1 failed, 3 stopped or "
        "cancelled.",
    ),
]
Wait = Annotated[
    bool, typer.Option("--wait", "-w", help="Wait until the job or operation has ended.")
]
Newest = Annotated[
    str,
    typer.Argument(
        metavar="JOB@step-400", help="Checkpoint; JOB alone is the newest of its lineage."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]
Reason = Annotated[str, typer.Option("--reason", help="Reason, shown in the job's events.")]
Limit = Annotated[
    int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows; the newest are shown.")
]
