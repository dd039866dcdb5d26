"""Refusals as RFC 9457 problem documents, for errors of this server, FastAPI and the database."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from server.core.errors import InvalidRequestError, NotFoundError, RefusalError, UnavailableError
from trainyard.base.problems import Problem, SpecError
from trainyard.protocol.rest.common import ProblemDetails

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"


def install(app: FastAPI) -> None:
    """Register handlers that answer every refusal of the application with a problem document."""
    app.add_exception_handler(RefusalError, _refusal)
    app.add_exception_handler(SpecError, _spec)
    app.add_exception_handler(RequestValidationError, _parameters)
    app.add_exception_handler(HTTPException, _framework)
    app.add_exception_handler(OperationalError, _database)
    app.add_exception_handler(PoolTimeoutError, _database)


def refuse(scope: Scope, error: RefusalError) -> Response:
    """Return the problem document of a typed refusal."""
    return problem(
        scope,
        status=error.status,
        title=error.title,
        kind=error.type,
        detail=error.detail,
        errors=error.problems,
        headers=error.headers,
    )


def problem(
    scope: Scope,
    *,
    status: int,
    title: str,
    kind: str,
    detail: str,
    errors: Iterable[Problem] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a problem document for the request of `scope`."""
    details = ProblemDetails(
        type=kind,
        title=title,
        status=status,
        detail=detail,
        errors=tuple(errors),
        request_id=scope.get("state", {}).get("request_id", ""),
    )
    return Response(details.model_dump_json(), status, dict(headers or {}), MEDIA_TYPE)


def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusalError)
    return refuse(request.scope, error)


def _spec(request: Request, error: Exception) -> Response:
    assert isinstance(error, SpecError)
    return refuse(request.scope, InvalidRequestError.of(error.problems))


def _parameters(request: Request, error: Exception) -> Response:
    """Return the problem document of invalid parameters; a malformed id in the path gets 404."""
    assert isinstance(error, RequestValidationError)
    for item in error.errors():
        if item["loc"][0] == "path":
            given = _detail("", item.get("input")).removeprefix(", got ")
            what = str(item["loc"][1]).removesuffix("_id")
            hint = "; GET /api/v1/jobs?name=NAME finds the ids of a name" if what == "job" else ""
            return refuse(request.scope, NotFoundError(f"no {what} has the id {given}{hint}"))
    problems = [
        Problem(
            pointer="/".join(map(str, item["loc"])), detail=_detail(item["msg"], item.get("input"))
        )
        for item in error.errors()
    ]
    return refuse(request.scope, InvalidRequestError.of(problems))


def _detail(message: str, given: object) -> str:
    shown = repr(given)
    return f"{message}, got {shown if len(shown) <= 80 else shown[:77] + '...'}"


def _framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == NotFoundError.status:
        return refuse(request.scope, NotFoundError(f"nothing answers at {request.url.path}"))
    phrase = HTTPStatus(error.status_code).phrase
    return problem(
        request.scope,
        status=error.status_code,
        title=phrase,
        kind="about:blank",
        detail=f"{request.method} {request.url.path}: {error.detail}",
        headers=error.headers,
    )


def _database(request: Request, error: Exception) -> Response:
    # The text of the error may contain host names and SQL statements, so it goes only to the log.
    logger.error("the database does not answer", exc_info=error)
    return refuse(request.scope, UnavailableError("the database does not answer; try again soon"))
