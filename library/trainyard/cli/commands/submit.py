"""`init`, `schema`, `plan` and `submit`: from a spec file to a job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard.base.problems import Problem
from trainyard.cli.commands.watch import end_code, watch_job
from trainyard.cli.errors import explained
from trainyard.cli.options import Follow, Json, Set, SpecFile
from trainyard.cli.output import emit, note, write_json, write_text
from trainyard.cli.render import job_line
from trainyard.cli.render_plan import draw_plan
from trainyard.client import spec_file
from trainyard.client.errors import UsageError
from trainyard.client.sdk import Client
from trainyard.client.template import spec_template


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")] = Path("job.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file.")] = False,
) -> None:
    """Write a commented spec file to start from."""
    if file.exists() and not force:
        raise UsageError(
            f"{file} exists", remedy="Name another file, or add --force to overwrite it."
        )
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).strip("-._") or "job"
    file.write_text(spec_template(name), encoding="utf-8")
    write_text(f"Wrote {file}. Next: trainyard plan {file}")


def schema() -> None:
    """Write the JSON Schema of the job spec."""
    with Client() as yard:
        write_json(yard.schema())


def plan(file: SpecFile = None, settings: Set = None, json: Json = False) -> None:
    """Check a spec and show its plan; nothing is stored."""
    with _document(file, settings) as document, Client() as yard:
        emit(yard.plan(document), draw_plan, as_json=json)


def submit(
    file: SpecFile = None,
    settings: Set = None,
    wait: Follow = False,
    key: Annotated[
        str | None,
        typer.Option("--idempotency-key", help="The same key submits one job, however often."),
    ] = None,
    json: Json = False,
) -> None:
    """Submit a job."""
    with Client() as yard:
        with _document(file, settings) as document:
            job = yard.submit(document, idempotency_key=key)
        if wait:
            note(f"Submitted {job.name} ({job.id}).")
            job = yard.wait(job.id) if json else watch_job(yard, job.id)
        if json:
            write_json(job)
        elif not wait:
            write_text(job_line(job), f"\nNext: trainyard watch {job.id}")
        if wait:
            raise typer.Exit(end_code(job.state))


@contextmanager
def _document(file: Path | None, settings: list[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the spec as it is written, and explain the server's errors in it."""
    assignments = [spec_file.parse_assignment(text) for text in settings or ()]
    document = spec_file.apply(spec_file.read_spec_file(file) if file else {}, assignments)

    def origin(problem: Problem) -> str | None:
        place = spec_file.origin(problem, file=file, assignments=assignments)
        similar = spec_file.did_you_mean(problem)
        hint = f"did you mean {similar}?" if similar else None
        return "; ".join(part for part in (place, hint) if part) or None

    remedy = "`trainyard schema` and docs/spec.md describe every field."
    with explained(origin, remedy=remedy, title="the spec is not valid"):
        yield document
