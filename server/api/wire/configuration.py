"""uvicorn's configuration: the HTTP protocol with limits, and the trusted proxies."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from server.api.wire.connections import Connections
from server.api.wire.http_protocol import Limits, bounded
from server.core.addresses import Networks
from server.core.settings import Settings

SHUTDOWN_SECONDS = 10
"""Time for open requests to finish at shutdown, in seconds; streams and long polls end at once."""


def configured(
    app: FastAPI,
    settings: Settings,
    *,
    connections: int,
    limits: Limits | None = None,
    shutdown_seconds: int = SHUTDOWN_SECONDS,
) -> uvicorn.Config:
    """Return uvicorn's configuration for an application with at most `connections` connections."""
    admission = Connections(
        per_address=settings.max_connections_per_address,
        total=connections,
        exempt=Networks(settings.trusted_proxies),
    )
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=bounded(limits or Limits(), admission),
        ws="none",  # a web socket would use another protocol class, without limits
        access_log=False,  # the application's own log has request ids
        log_config=None,
        server_header=False,
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_graceful_shutdown=shutdown_seconds,
    )


class Server(uvicorn.Server):
    """uvicorn's server; at shutdown it first lets the application answer all long polls."""

    def __init__(self, config: uvicorn.Config, *, before_end: Callable[[], None]) -> None:
        super().__init__(config)
        self._before_end = before_end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer long polls, then let open requests finish."""
        self._before_end()
        await super().shutdown(sockets)
