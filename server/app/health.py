"""Health checks, the only routes apart from the dashboard's files that need no token."""

from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy.exc import SQLAlchemyError

from server.api.http.dependencies import ServerContext
from server.core.database.migrate import is_current
from server.core.errors import UnavailableError

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Whether the process lives")
async def healthz() -> dict[str, str]:
    """Answer, which is all."""
    return {"status": "ok"}


@router.get("/readyz", summary="Whether requests can be served")
def readyz(context: ServerContext) -> dict[str, str]:
    """Answer 503 while the database does not answer or has another schema."""
    try:
        current = is_current(context.database)
    except SQLAlchemyError:
        raise UnavailableError("the database does not answer") from None
    if not current:
        raise UnavailableError("the schema is not the newest: run `python -m server migrate`")
    return {"status": "ready"}
