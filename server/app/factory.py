"""The application: all routes, the middleware, and the background threads."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.concurrency import run_in_threadpool
from starlette.routing import BaseRoute

import server.api.accounts.device_endpoints
import server.api.accounts.endpoints
import server.api.accounts.session_endpoints
import server.api.audit.endpoints
import server.api.auth.endpoints
import server.api.issuer_logins.endpoints
import server.api.stream.endpoints
import server.app.worker_endpoints
import server.cluster.inbox.endpoints
import server.cluster.membership.endpoints
import server.cluster.named_secrets.endpoints
import server.cluster.nodes.endpoints
import server.cluster.projects.endpoints
import server.cluster.supply.endpoints
import server.jobs.checkpoints.endpoints
import server.jobs.facts.endpoints
import server.jobs.jobs.endpoints
import server.jobs.operations.endpoints
import server.jobs.owners.endpoints
import server.jobs.packs.endpoints
import server.jobs.queue.endpoints
import server.jobs.ranks.endpoints
import server.jobs.shells.endpoints
import server.telemetry.advice.endpoints
import server.telemetry.artifacts.endpoints
import server.telemetry.calibration.endpoints
import server.telemetry.goodput.endpoints
import server.telemetry.imports.endpoints
import server.telemetry.logs.endpoints
import server.telemetry.metrics.endpoints
from server.api.audit.audited_operations import audits_of
from server.api.audit.refused_attempts import AuditMiddleware, RefusedAttempts
from server.api.auth.declarations import accesses_of
from server.api.auth.lasting_requests import LastingRequests
from server.api.http import problems
from server.api.http.allow_header import AllowedMethods, MethodsMiddleware
from server.api.http.group_commit import Groups
from server.api.http.middleware import (
    BodyLimitMiddleware,
    HeadMiddleware,
    LabelMiddleware,
    RequestMiddleware,
)
from server.api.http.query import no_unknown_query
from server.api.sso.issuer import Issuer
from server.app import health, monitoring, openapi, reference
from server.app.dashboard import Dashboard, dashboard_dir
from server.app.monitoring import Monitoring
from server.cluster.inbox.long_polls import Inboxes
from server.core.context import Context
from server.core.events.tail import Tail
from server.core.liveness import keep_beating
from server.jobs.attempts.reports import AcceptedShares
from server.jobs.packs.endpoints import PACKS_PATH
from server.jobs.queue.forecaster import Forecaster
from server.scheduler.autoscaling.end_shares import end_shares
from server.telemetry.goodput.cluster import ClusterLedger
from trainyard.protocol.worker_messages import MAX_REPORT_BYTES
from trainyard.spec.code_pack import MAX_PACK_BYTES

TITLE = "Trainyard"
API = "/api/v1"
WORKERS = f"{API}/workers/"
PROVISIONERS = f"{API}/provisioners/"
PACKS = f"{API}{PACKS_PATH}"
LOGINS = f"{API}/auth/"
MAX_LOGIN_BYTES = 32 * 1024
"""Maximum size of the body of a login, in bytes; no other body is read without a token. A password
of 1,000 characters fits."""

# A request is compared with the routes in this order, so the routes of workers come first, because
# workers send the most requests.
ROUTERS: tuple[APIRouter, ...] = (
    server.app.worker_endpoints.router,
    server.cluster.inbox.endpoints.router,
    server.cluster.supply.endpoints.provisioner_router,
    server.jobs.jobs.endpoints.router,
    server.jobs.shells.endpoints.worker_router,
    server.jobs.shells.endpoints.router,
    server.telemetry.artifacts.endpoints.worker_router,
    server.telemetry.artifacts.endpoints.router,
    server.jobs.packs.endpoints.worker_router,
    server.jobs.packs.endpoints.router,
    server.telemetry.imports.endpoints.router,
    server.telemetry.metrics.endpoints.router,
    server.jobs.facts.endpoints.router,
    server.telemetry.advice.endpoints.router,
    server.telemetry.calibration.endpoints.router,
    server.telemetry.goodput.endpoints.router,
    server.jobs.ranks.endpoints.router,
    server.telemetry.logs.endpoints.router,
    server.jobs.checkpoints.endpoints.router,
    server.jobs.operations.endpoints.router,
    server.jobs.owners.endpoints.router,
    server.cluster.nodes.endpoints.router,
    server.cluster.supply.endpoints.router,
    server.cluster.projects.endpoints.router,
    server.cluster.membership.endpoints.router,
    server.cluster.named_secrets.endpoints.router,
    server.jobs.queue.endpoints.router,
    server.api.stream.endpoints.router,
    server.api.auth.endpoints.router,
    server.api.accounts.session_endpoints.router,
    server.api.accounts.endpoints.router,
    server.api.accounts.device_endpoints.router,
    server.api.issuer_logins.endpoints.router,
    server.api.audit.endpoints.router,
)


def create_app(context: Context) -> FastAPI:
    """Return the application of one server process.

    While the application runs, so do the tail of the events and the thread for the liveness beat.

    Raises:
        UndeclaredAccessError: an endpoint does not declare who may call it.
        UndeclaredAuditError: an operation is not in the table of the audit log.
    """
    tail, ledger, inboxes = Tail(context), ClusterLedger(context), Inboxes(context)
    lasting, refused = LastingRequests(context), RefusedAttempts(context)
    app = FastAPI(
        title=TITLE,
        openapi_url=None,  # `server.app.reference` serves the document and its page
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        routes=_routes(),
        lifespan=_lifespan(
            context, tail, ledger=ledger, inboxes=inboxes, lasting=lasting, refused=refused
        ),
    )
    app.state.context = context
    app.state.tail = tail
    app.state.inboxes = inboxes
    app.state.lasting_requests = lasting
    app.state.groups = Groups(context)
    app.state.issuer = None if context.settings.oidc_issuer is None else Issuer(context)
    app.state.accepted_shares = AcceptedShares()
    app.state.cluster_ledger = ledger
    app.state.monitoring = Monitoring(context, tail, ledger)
    app.state.forecaster = Forecaster(context)
    app.state.end_shares = end_shares
    app.state.refused_attempts = refused
    problems.install(app)
    app.openapi = document  # type: ignore[method-assign]
    folder = dashboard_dir(context.settings.web_dir)
    if folder is not None:
        app.router.default = Dashboard(folder, otherwise=app.router.default)
    _surround(app, context)
    return app


@cache
def document() -> openapi.Document:
    """Return the OpenAPI document; cached, because FastAPI takes seconds to derive it."""
    return openapi.build(TITLE, _routes())


def openapi_text() -> str:
    """Return the OpenAPI document as the text of a file."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


@cache
def _routes() -> list[BaseRoute]:
    """Return all routes; cached, so that FastAPI analyzes parameters only once per process.

    Raises:
        UndeclaredAccessError: an endpoint does not declare who may call it.
    """
    every = APIRouter(generate_unique_id_function=_operation_id)
    for router in (reference.router, health.router, monitoring.router):
        every.include_router(router)
    for router in ROUTERS:
        every.include_router(router, prefix=API, dependencies=[no_unknown_query])
    every.include_router(server.api.issuer_logins.endpoints.callback_router, prefix=API)
    accesses_of(every.routes)  # a route that declares nothing about its callers is an error
    return every.routes


def _operation_id(route: APIRoute) -> str:
    return "_".join([*map(str, route.tags), route.name]).rstrip("_")


def routes_of(app: FastAPI) -> Iterable[tuple[str, frozenset[str]]]:
    """Return the path template and the methods of every route."""
    for route in iter_route_contexts(app.routes):
        if route.path is not None:
            yield route.path, frozenset(route.methods or ())


def _surround(app: FastAPI, context: Context) -> None:
    """Add the middleware; the middleware added last handles a request first."""
    app.add_middleware(LabelMiddleware)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(MethodsMiddleware, allowed=AllowedMethods(routes_of(app)))
    app.add_middleware(BodyLimitMiddleware, limit_of=_body_limits(context))
    app.add_middleware(
        AuditMiddleware, refused=app.state.refused_attempts, operations=audits_of(app.routes)
    )
    app.add_middleware(
        RequestMiddleware, observe=app.state.monitoring.observe, is_https=context.settings.is_https
    )


def _body_limits(context: Context) -> Callable[[str], int]:
    limit = context.settings.max_body_bytes

    def limit_of(path: str) -> int:
        if path.startswith((WORKERS, PROVISIONERS)):
            return MAX_REPORT_BYTES
        if path == PACKS:
            return MAX_PACK_BYTES
        return MAX_LOGIN_BYTES if path.startswith(LOGINS) else limit

    return limit_of


def _lifespan(
    context: Context,
    tail: Tail,
    *,
    ledger: ClusterLedger,
    inboxes: Inboxes,
    lasting: LastingRequests,
    refused: RefusedAttempts,
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        stop = threading.Event()
        beat = threading.Thread(
            target=keep_beating, args=(context, stop), name="liveness", daemon=True
        )
        await run_in_threadpool(tail.start)
        beat.start()
        lasting.start()
        refused.start()
        try:
            yield
        finally:
            stop.set()
            await inboxes.stop()
            await run_in_threadpool(tail.stop)
            await run_in_threadpool(lasting.stop)
            await run_in_threadpool(refused.stop)
            await run_in_threadpool(ledger.close)  # before the caller closes the database
            await run_in_threadpool(beat.join)

    return lifespan
