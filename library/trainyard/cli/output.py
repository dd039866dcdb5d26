"""Writes to stdout: tables and text for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

from pydantic import BaseModel
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from trainyard.protocol.states import JobState

Item = TypeVar("Item")
Value = TypeVar("Value", bound=BaseModel | Sequence[BaseModel])

WIDE = 10_000
"""Width of the output if there is no terminal; so large that lines are not cut."""

STATES: dict[str, tuple[str, str]] = {
    JobState.QUEUED: ("○", "blue"),
    JobState.STARTING: ("◔", "cyan"),
    JobState.RUNNING: ("●", "green"),
    JobState.STOPPING: ("◑", "yellow"),
    JobState.SUCCEEDED: ("✓", "green"),
    JobState.FAILED: ("✗", "red"),
    JobState.STOPPED: ("■", "yellow"),
    JobState.CANCELLED: ("⊘", "dim"),
}
"""Sign and colour of each state of a job or an operation; the signs differ even without colour."""


def console(*, stderr: bool = False) -> Console:
    """Return a console for the current stdout or stderr, which respects NO_COLOR."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDE
    return Console(file=stream, width=width, highlight=False, soft_wrap=False, emoji=False)


def write_text(*parts: RenderableType) -> None:
    """Write text or tables for a person."""
    out = console()
    if out.is_terminal:
        out.print(*parts, sep="\n", markup=False)
        return
    with out.capture() as captured:
        out.print(*parts, sep="\n", markup=False)
    # Rich pads the last column of tables with blanks, which a pipe must not receive.
    out.file.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def has_terminal() -> bool:
    """Return whether stdin is a terminal, so that a person can answer a prompt."""
    return sys.stdin.isatty()


def note(text: str) -> None:
    """Write a note to stderr, separate from the output."""
    console(stderr=True).print(Text(text, style="dim"))


def at_most(limit: int, found: Iterable[Item]) -> list[Item]:
    """Return the first `limit` items; write a note to stderr if there are more."""
    shown = list(islice(found, limit + 1))
    if len(shown) > limit:
        note(f"Only {limit:,} are shown; --limit N shows more.")
    return shown[:limit]


def emit(value: Value, draw: Callable[[Value], RenderableType], *, as_json: bool) -> None:
    """Write one or more views, as JSON or as drawn by `draw`."""
    if as_json:
        write_json(value)
    else:
        write_text(draw(value))


def write_json(value: BaseModel | Sequence[BaseModel] | dict[str, Any]) -> None:
    """Write an indented JSON document."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False))


def write_json_line(value: BaseModel | dict[str, Any]) -> None:
    """Write a JSON document on one line, and flush stdout."""
    print(json.dumps(plain(value), ensure_ascii=False), flush=True)


def plain(value: Any) -> Any:
    """Return a value with models converted to JSON values, also in lists and tuples."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def state_text(state: str) -> Text:
    """Return a state with its sign."""
    sign, style = STATES.get(state, ("·", ""))
    return Text(f"{sign} {state}", style=style)


def facts(rows: Iterable[tuple[str, RenderableType | None]], *, indent: int = 2) -> Table:
    """Return pairs of name and value in two columns; pairs without a value are left out."""
    result = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    result.add_column(no_wrap=True, style="dim")
    result.add_column(overflow="fold")
    for name, value in rows:
        if value is not None and value != "":
            shown = Text(value) if isinstance(value, str) else value
            result.add_row(f"{' ' * indent}{name}", shown)
    return result


def heading(text: str) -> Text:
    """Return the heading of a section, with an empty line above it."""
    return Text(f"\n{text}", style="bold")
