"""`prove`: shows on the user's own machines that resumes are exact, and measures their speed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from trainyard.cli.commands.local import require_embedded
from trainyard.cli.errors import FAILED
from trainyard.cli.formats import fact
from trainyard.cli.output import console, note, write_text
from trainyard.client.errors import NotConfiguredError
from trainyard.client.sdk import Client
from trainyard.prove.html_report import REPORT, verdict
from trainyard.prove.local_plane import local_plane
from trainyard.prove.proof_lines import ProofRecord, ProofSubject, Time, locked
from trainyard.prove.runner import run_ladder

SIGNS = {
    "passed": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("-", "dim"),
    "not_run": ("○", "yellow"),
}
MAX_SHOWN = 5
"""Maximum number of figures in the line of a check; the report has all."""


def prove(
    slots: Annotated[int, typer.Option("--slots", min=1, help="Slots to test together.")],
    to: Annotated[
        Path,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Folder of the report. The same command continues an interrupted run.",
        ),
    ],
    time: Annotated[Time, typer.Option("--time", help="Time limit of all checks.")] = "10m",
    local: Annotated[
        bool,
        typer.Option(
            "--local",
            help="Test this machine with a control plane in DIR, even if a server is configured.",
        ),
    ] = False,
) -> None:
    """Prove on your own slots that layouts and resumes are exact; measure speed and bandwidth.

    Exit code: 0 if every check held, apart from layouts and strategies that the slots do not allow;
    1 if a check failed or did not run, or the server is lost; 2 if the command line is wrong, or
    the command cannot start or keep its results.
    """
    # As Ctrl-C: jobs continue, and so does the same command later.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = to.expanduser().absolute()
    configured = None if local else _configured()
    with locked(folder):
        subject = ProofSubject(slots=slots, time=time, local=configured is None)
        record = ProofRecord(folder, subject)
        with configured or _local(folder / "plane", slots) as yard, _Lines() as lines:
            held = run_ladder(yard, record, folder, tell=lines.end, announce=lines.begin)
    write_text(f"\n{verdict(record.checks)[1]}. Report: {folder / REPORT}")
    if not held:
        raise typer.Exit(FAILED)


def _configured() -> Client | None:
    try:
        return Client()
    except NotConfiguredError:
        return None


@contextmanager
def _local(folder: Path, slots: int) -> Iterator[Client]:
    require_embedded()
    note(f"Starting a control plane with {slots} slots in {folder}.")
    with local_plane(folder, slots) as yard:
        yield yard
        note("Ending the control plane.")


class _Lines:
    """Writes a line for each check: its number and name when it starts, the result when it ends.

    Each part is flushed, so that a log of stdout and stderr together is in order.
    """

    def __init__(self) -> None:
        self._open = False

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        """End a line whose check was interrupted."""
        if self._open:
            write_text("interrupted")
            sys.stdout.flush()

    def begin(self, name: str, number: int, count: int) -> None:
        """Write number and name of a check."""
        self._open = True
        sys.stdout.write(f"{f'[{number}/{count}]':<8}{name:<28} ")
        sys.stdout.flush()

    def end(self, line: dict[str, Any]) -> None:
        """Write the rest of the line: sign, duration, the bounded figures; then any problems."""
        self._open = False
        sign, style = SIGNS[line["status"]]
        text = Text.assemble((f"{sign} ", style), f"{line['seconds']:>7.1f} s  ")
        bounds = line["bounds"].items()
        shown = [f"{name} {line['figures'][name]} ({bound})" for name, bound in bounds]
        text.append("; ".join(shown[:MAX_SHOWN]) or fact(line.get("reason", "")), "dim")
        # The terminal breaks the line: only it knows where the result starts.
        console().print(text, soft_wrap=True)
        for problem in [*filter(None, [line.get("error")]), *line["findings"]]:
            write_text(Text(f"    {fact(problem)}", "red"))
        sys.stdout.flush()
