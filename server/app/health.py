"""Health checks, which need no token."""

from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy.exc import SQLAlchemyError

from server.api.http.dependencies import ServerContext
from server.app.periodic_tasks import TASKS
from server.core.context import Context
from server.core.database.migrate import is_current
from server.core.errors import UnavailableError
from server.core.periodic import PeriodicTask, StoredTimes, read_times
from trainyard.protocol.rest.common import Readiness, TaskView

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Whether the process lives")
async def healthz() -> dict[str, str]:
    """Respond that the process is alive."""
    return {"status": "ok"}


@router.get("/readyz", summary="Whether requests can be served, and the scheduler's periodic tasks")
def readyz(context: ServerContext) -> Readiness:
    """Return 503 if the database does not respond or does not have the newest schema."""
    try:
        current = is_current(context.database)
        stored = _stored_times(context) if current else {}
    except SQLAlchemyError:
        raise UnavailableError("the database does not answer") from None
    if not current:
        raise UnavailableError("the schema is not the newest: run `python -m server migrate`")
    return Readiness(status="ready", tasks=tuple(_view(t, stored.get(t.name)) for t in TASKS))


def _stored_times(context: Context) -> dict[str, StoredTimes]:
    with context.database.read() as connection:
        return {each.name: each for each in read_times(connection)}


def _view(task: PeriodicTask, stored: StoredTimes | None) -> TaskView:
    return TaskView(
        name=task.name,
        every_seconds=task.every_seconds,
        budget_seconds=task.budget_seconds,
        stored_at=None if stored is None else stored.stored_at,
        runs=0 if stored is None else stored.runs,
        failures=0 if stored is None else stored.failures,
        seconds=0.0 if stored is None else stored.seconds,
        lag_seconds=0.0 if stored is None else stored.lag_seconds,
    )
