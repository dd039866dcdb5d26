"""`goodput`: the wall time of a job by category."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from trainyard.cli.formats import DASH, counted, duration
from trainyard.cli.options import JobReference, Json
from trainyard.cli.output import emit
from trainyard.cli.table import Listing
from trainyard.client.references import resolve_job
from trainyard.client.sdk import Client
from trainyard.protocol.goodput import GoodputView, TimeCategory

WORDS: Mapping[TimeCategory, str] = {
    TimeCategory.PRODUCTIVE: "productive steps",
    TimeCategory.DATA_WAIT: "waiting for data",
    TimeCategory.COMPILATION: "compilation",
    TimeCategory.SAVE_STALL: "stalls of saves",
    TimeCategory.VALIDATION: "validation",
    TimeCategory.STARTUP: "start-up",
    TimeCategory.ENDING: "saving and leaving",
    TimeCategory.QUEUED: "first wait for slots",
    TimeCategory.REQUEUED: "later waits for slots",
    TimeCategory.BACKOFF: "pause before a retry",
    TimeCategory.PAUSED: "stopped by a person",
    TimeCategory.LOST: "steps lost",
    TimeCategory.IDLE_AFTER_FAILURE: "idle after a failure",
    TimeCategory.UNREACHABLE: "unreachable",
    TimeCategory.OTHER: "other",
}
"""Each category in words, as on the job's page."""
BAR = 30
"""Characters of a bar that stands for the whole wall time."""


def goodput(reference: JobReference, json: Json = False) -> None:
    """Show what the time of a job was spent on, from its submission to its end or to now.

    The categories sum to the wall time exactly; docs/goodput.md has the source of each.
    """
    with Client() as yard:
        view = yard.goodput(resolve_job(yard, reference))
    emit(view, draw, as_json=json)


def draw(view: GoodputView) -> RenderableType:
    """Return a line for each category that has time, the longest first, and the ratios."""
    wall = view.wall_milliseconds
    rows = Listing(
        "CATEGORY", "TIME", "SHARE", "", right=("TIME", "SHARE"), spare=("",), elastic="CATEGORY"
    )
    for each in sorted(view.categories, key=lambda each: -each.milliseconds):
        if each.milliseconds:
            part = each.milliseconds / wall
            rows.add(
                WORDS[each.category],
                duration(each.milliseconds / 1000),
                share(part),
                "█" * max(1, round(part * BAR)),
            )
    rows.add("wall time", duration(wall / 1000), "", "")
    return Group(rows, Text(""), Text(_ratios(view)))


def share(ratio: float | None) -> str:
    """Return `12.3%`, or a dash where the ratio is unknown."""
    return DASH if ratio is None else f"{ratio:.1%}"


def _ratios(view: GoodputView) -> str:
    failed = counted(view.failures, "failure")
    if view.mttf_seconds is not None:
        failed += f", mean time to failure {duration(view.mttf_seconds)}"
    return f"Goodput {share(view.goodput)}, ETTR {share(view.ettr)}, {failed}."
