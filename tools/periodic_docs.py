"""Generates the page of periodic work from the table of its tasks."""

from __future__ import annotations

from server.app.periodic_tasks import TASKS
from server.core.periodic import PeriodicTask

HEAD = """# Periodic work

The scheduler that leads runs a round every quarter of a second. In each round it runs the tasks
below that are due, in this order. `curl http://HOST:8470/readyz` lists them with their last times:

```json
{"name": "plan_supply", "every_seconds": 1.0, "budget_seconds": 0.1,
 "stored_at": "2026-11-29T12:00:00Z", "runs": 3600, "failures": 0, "seconds": 0.004,
 "lag_seconds": 0.12}
```

`/metrics` has the same as `trainyard_task_seconds`, `trainyard_task_lag_seconds`,
`trainyard_task_runs` and `trainyard_task_failures`, with the label `task`.

- **Periods** are of the monotonic clock, from the start of a run to the start of the next one:
  setting the clock changes none. The first runs of the upkeep tasks are spread over their period.
- **Budgets**: a run in steps pauses when its time in a round is up, and continues in the next
  round; a task of the upkeep (60 s) leaves the rest to its next run.
- **Errors**: a failed task does not block the others, and runs again after its period, or after
  0.5 s, doubled with each failure in a row up to 10 s. An error of one job is logged, and that job
  is skipped for a while.
- **Takeover**: a scheduler that takes the lead starts without state; writes of the former one are
  refused.

A new task is an entry of the table in `server/app/periodic_tasks.py`; the function that it runs is
in `server/app/periodic_work.py`.

| task | every | budget | |
|---|---|---|---|
"""


def periodic_markdown() -> str:
    """Return the page."""
    return HEAD + "".join(map(_row, TASKS.values()))


def _row(task: PeriodicTask) -> str:
    every = f"{task.every_seconds:g} s" if task.every_seconds else "round"
    return f"| `{task.name}` | {every} | {task.budget_seconds:g} s | {task.purpose} |\n"
