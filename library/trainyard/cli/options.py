"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobReference = Annotated[
    str, typer.Argument(metavar="JOB", help="Id, beginning of an id, name, or @last.")
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]
SpecFile = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="Job spec in TOML, YAML or JSON; all defaults without."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.FIELD=VALUE",
        help="Set one field of the spec; repeatable, later ones win.",
    ),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--wait",
        "-w",
        help="Follow it to its end: exit 0 succeeded, 1 failed, 3 stopped or cancelled.",
    ),
]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Until it has ended.")]
Newest = Annotated[
    str,
    typer.Argument(
        metavar="JOB@step-400", help="A checkpoint; the newest of the lineage for JOB alone."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; shown in the job's events.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Rows at most, newest first.")]
