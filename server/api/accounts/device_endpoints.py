"""`/auth/device`: logins of command lines, which a person approves in a browser."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from server.api.accounts.device_logins import (
    LIFETIME,
    PAUSE_SECONDS,
    begin_device,
    decide,
    exchange,
    find_device,
)
from server.api.accounts.session_endpoints import host_of, refuse_other_sites
from server.api.auth.dependencies import OwnUser, public
from server.api.auth.endpoints import token_view
from server.api.http.dependencies import ServerContext
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply
from trainyard.protocol.rest.access import TokenView
from trainyard.protocol.user_accounts.device_flow import (
    DeviceCode,
    DeviceDecision,
    DeviceLogin,
    DeviceRequest,
    DeviceView,
    UserCode,
)

router = APIRouter(prefix="/auth/device", tags=["access"])


@router.post(
    "",
    dependencies=[public],
    status_code=201,
    response_model=DeviceLogin,
    summary="Begin the login of a device",
)
def begin_device_login(
    context: ServerContext,
    request: Request,
    body: Annotated[DeviceRequest, Depends(JsonBody(DeviceRequest))],
) -> Response:
    """Return a code for the device, and a code with which a person approves the login.

    The person opens the page within ten minutes. Each address has at most 20 waiting devices.
    """
    refuse_other_sites(context, request)
    made = begin_device(context, body, address=host_of(request))
    base = context.settings.public_url or f"{request.url.scheme}://{request.url.netloc}"
    shown = f"{made.user_code[:4]}-{made.user_code[4:]}"
    page = f"{base.rstrip('/')}/device"
    view = DeviceLogin(
        device_code=made.device_code,
        user_code=shown,
        verification_uri=page,
        # Browsers send no fragment, so the code is in no log of a proxy.
        verification_uri_complete=f"{page}#{shown}",
        expires_in=int(LIFETIME.total_seconds()),
        interval=PAUSE_SECONDS,
    )
    return reply(view, status=201)


@router.post("/check", response_model=DeviceView, summary="The device that waits with a code")
def check_device(
    context: ServerContext,
    request: Request,
    principal: OwnUser,
    body: Annotated[UserCode, Depends(JsonBody(UserCode))],
) -> Response:
    """Return host, address and permissions of a device; a wrong code counts as a guess."""
    address = host_of(request)
    found = find_device(context, body.user_code, principal=principal, address=address)
    return reply(found.seen_from(address))


@router.post("/decision", status_code=204, summary="Approve or deny the login of a device")
def decide_device(
    context: ServerContext,
    request: Request,
    principal: OwnUser,
    body: Annotated[DeviceDecision, Depends(JsonBody(DeviceDecision))],
) -> None:
    """Let the device have a token of the caller, or deny it. Needs a browser session."""
    decide(
        context,
        body.user_code,
        approved=body.approved,
        principal=principal,
        address=host_of(request),
    )


@router.post(
    "/token",
    dependencies=[public],
    status_code=201,
    response_model=TokenView,
    summary="Get the token of an approved device",
)
def get_device_token(
    context: ServerContext,
    request: Request,
    body: Annotated[DeviceCode, Depends(JsonBody(DeviceCode))],
) -> Response:
    """Return the token once a person has approved the device; only this reply has the secret.

    Until then the status is 400, and `type` ends with `authorization_pending`, `slow_down`,
    `access_denied` or `expired_token` (RFC 8628).
    """
    refuse_other_sites(context, request)
    row, secret = exchange(context, body.device_code)
    return reply(token_view(row, secret=secret), status=201)
