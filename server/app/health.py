"""Health checks, which need no token."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from sqlalchemy.exc import SQLAlchemyError

from server.api.auth.dependencies import public
from server.api.http.dependencies import ServerContext
from server.app.periodic_tasks import TASKS
from server.core.database.migrate import is_current
from server.core.errors import UnavailableError
from server.core.periodic import PeriodicTask, StoredTimes, TaskTimes, read_times
from trainyard.protocol.rest.common import Readiness, TaskView

router = APIRouter(tags=["health"])


@router.get("/healthz", dependencies=[public], summary="Whether the process lives")
async def healthz() -> dict[str, str]:
    """Respond that the process is alive."""
    return {"status": "ok"}


@router.get(
    "/readyz",
    dependencies=[public],
    summary="Whether requests can be served, and the scheduler's periodic tasks",
)
def readyz(context: ServerContext) -> Readiness:
    """Return 503 if the database does not respond or does not have the newest schema."""
    try:
        if not is_current(context.database):
            raise UnavailableError("the schema is not the newest: run `python -m server migrate`")
        with context.database.read() as connection:
            stored = {each.name: each for each in read_times(connection)}
    except SQLAlchemyError:
        raise UnavailableError("the database does not answer") from None
    return Readiness(
        status="ready", tasks=tuple(_view(t, stored.get(t.name)) for t in TASKS.values())
    )


def _view(task: PeriodicTask, stored: StoredTimes | None) -> TaskView:
    never = {"name": task.name, "stored_at": None, **asdict(TaskTimes())}
    times = never if stored is None else stored.values_for(TaskView)
    return TaskView(every_seconds=task.every_seconds, budget_seconds=task.budget_seconds, **times)
