"""The only factory of HTTP clients; it sets their proxies, certificates and redirects."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import httpx

from trainyard.base.loopback import uses_tls
from trainyard.outside.proxies import ProxyError, proxy_of, without_login


def http_client(
    url: str,
    *,
    verify: ssl.SSLContext | bool | None = None,
    transport: httpx.BaseTransport | None = None,
    **options: Any,
) -> httpx.Client:
    """Return a client for one server; it follows no redirects and uses no proxy for this machine.

    Args:
        url: absolute URL of the server.
        verify: trusted certificates; if None, the machine's certificates, or none for plain HTTP.
        transport: replaces the network, for tests.
        options: other options of `httpx.Client`.

    Raises:
        ProxyError: the variable that names the proxy for the URL is invalid.
    """
    if transport is None:
        routes = _Routes(uses_tls(url) if verify is None else verify)
        routes.check(url)
        transport = routes
    return httpx.Client(transport=transport, follow_redirects=False, **options)


def async_http_client(
    url: str, *, verify: ssl.SSLContext | bool | None = None, **options: Any
) -> httpx.AsyncClient:
    """Return a client as `http_client` does, for one server and for a coroutine.

    Raises:
        ProxyError: the variable that names the proxy for the URL is invalid.
    """
    proxy = proxy_of(url, os.environ, socks=has_socks())
    trusted = uses_tls(url) if verify is None else verify
    transport = httpx.AsyncHTTPTransport(verify=trusted, proxy=proxy)
    return httpx.AsyncClient(transport=transport, follow_redirects=False, **options)


def answers_with_success(url: str, *, seconds: float) -> bool:
    """Return whether a GET of a URL succeeds.

    Raises:
        httpx.TransportError: the server does not respond.
        ProxyError: the variable that names the proxy for the URL is invalid.
    """
    with http_client(url, timeout=seconds) as client:
        return client.get(url).is_success


def has_socks() -> bool:
    """Return whether clients can use a SOCKS proxy."""
    return find_spec("socksio") is not None


class _Routes(httpx.BaseTransport):
    """Transport that sends each request through the proxy for its URL, or without a proxy.

    It replaces httpx's own selection of proxies, which cannot exclude the loopback networks and
    fails on a misspelt variable even if no request needs the variable. The environment is read
    once.
    """

    def __init__(self, verify: ssl.SSLContext | bool) -> None:
        self._verify = verify
        self._environment: Mapping[str, str] = dict(os.environ)
        self._socks = has_socks()
        self._lock = threading.Lock()
        self._proxies: dict[tuple[str, str, int | None], str | None] = {}
        self._transports: dict[str | None, httpx.HTTPTransport] = {}

    def check(self, url: str) -> None:
        """Raise ProxyError if the proxy for a URL cannot be used."""
        proxy_of(url, self._environment, socks=self._socks)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request.

        Raises:
            httpx.TransportError: the request failed; if the proxy may be the cause, the error's
                text names the proxy without its login.
        """
        try:
            proxy, transport = self._transport(request.url)
        except ProxyError as error:
            raise httpx.ProxyError(str(error), request=request) from error
        try:
            return transport.handle_request(request)
        except (httpx.ConnectError, httpx.ProxyError) as error:
            if proxy is None:
                raise
            why = f"{error}, through the proxy {without_login(proxy)} of the environment"
            raise type(error)(why, request=request) from error

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            transports = list(self._transports.values())
            self._transports.clear()
        for transport in transports:
            transport.close()

    def _transport(self, url: httpx.URL) -> tuple[str | None, httpx.HTTPTransport]:
        origin = (url.scheme, url.host, url.port)
        with self._lock:
            if origin not in self._proxies:
                self._proxies[origin] = proxy_of(str(url), self._environment, socks=self._socks)
            proxy = self._proxies[origin]
            if proxy not in self._transports:
                self._transports[proxy] = httpx.HTTPTransport(verify=self._verify, proxy=proxy)
            return proxy, self._transports[proxy]
