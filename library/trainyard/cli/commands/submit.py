"""`init`, `schema`, `plan` and `submit`: from a spec file to a job."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard.base.problems import Problem
from trainyard.cli.commands.watch import end_code, watch_job
from trainyard.cli.options import Json, Set, SpecFile
from trainyard.cli.output import emit, note, write_error, write_json, write_text
from trainyard.cli.render import job_line
from trainyard.cli.render_plan import draw_plan
from trainyard.client import spec_file
from trainyard.client.errors import InvalidRequestError
from trainyard.client.sdk import Client
from trainyard.client.spec_file import Assignment
from trainyard.client.template import spec_template

USAGE = 2


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(short_help="Write a commented spec file.")(init)
    app.command(short_help="Write the JSON Schema of the spec.")(schema)
    app.command(short_help="Check a spec and show its plan.")(plan)
    app.command(short_help="Submit a job.")(submit)


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")] = Path("job.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file.")] = False,
) -> None:
    """Write a commented spec file to start from."""
    if file.exists() and not force:
        write_error(f"{file} exists", remedy="Name another file, or add --force to overwrite it.")
        raise typer.Exit(USAGE)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).strip("-._") or "job"
    file.write_text(spec_template(name), encoding="utf-8")
    write_text(f"Wrote {file}. Next: trainyard plan {file}")


def schema() -> None:
    """Write the JSON Schema of the job spec."""
    with Client() as yard:
        write_json(yard.schema())


def plan(file: SpecFile = None, settings: Set = None, json: Json = False) -> None:
    """Check a spec and show its plan; nothing is stored."""
    draft = _draft(file, settings)
    with Client() as yard, draft.explained():
        emit(yard.plan(draft.document), as_json=json, draw=draw_plan)


def submit(
    file: SpecFile = None,
    settings: Set = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            "-w",
            help="Follow the job to its end: exit 0 succeeded, 1 failed, 3 stopped or cancelled.",
        ),
    ] = False,
    key: Annotated[
        str | None,
        typer.Option("--idempotency-key", help="The same key submits one job, however often."),
    ] = None,
    json: Json = False,
) -> None:
    """Submit a job."""
    draft = _draft(file, settings)
    with Client() as yard:
        with draft.explained():
            job = yard.submit(draft.document, idempotency_key=key)
        if wait:
            note(f"Submitted {job.name} ({job.id}).")
            job = yard.wait(job.id) if json else watch_job(yard, job.id)
        if json:
            write_json(job)
        elif not wait:
            write_text(job_line(job), f"\nNext: trainyard watch {job.id}")
        if wait:
            raise typer.Exit(end_code(job.state))


@dataclass(frozen=True)
class Draft:
    """A spec as it was written, and where each field of it came from."""

    document: dict[str, Any]
    where: Callable[[Problem], str | None]

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Explain the server's errors in this spec, field by field, and exit with 2."""
        try:
            yield
        except InvalidRequestError as error:
            problem = error.problem
            write_error(
                "the spec is not valid" if problem.errors else problem.title,
                problem.detail,
                problems=problem.errors,
                where=self.where,
                remedy="`trainyard schema` and docs/spec.md describe every field.",
            )
            raise typer.Exit(USAGE) from None


def _draft(file: Path | None, settings: list[str] | None) -> Draft:
    try:
        assignments = [spec_file.parse_assignment(text) for text in settings or ()]
        document = spec_file.read_spec_file(file) if file else {}
        document = spec_file.apply(document, assignments)
    except ValueError as error:
        write_error(str(error))
        raise typer.Exit(USAGE) from None
    return Draft(document, _places(file, assignments))


def _places(file: Path | None, assignments: list[Assignment]) -> Callable[[Problem], str | None]:
    def where(problem: Problem) -> str | None:
        place = spec_file.origin(problem, file=file, assignments=assignments)
        similar = spec_file.did_you_mean(problem)
        hint = f"did you mean {similar}?" if similar else None
        return "; ".join(part for part in (place, hint) if part) or None

    return where
