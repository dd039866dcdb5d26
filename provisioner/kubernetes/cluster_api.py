"""Calls to the Kubernetes API in one namespace with kr8s: time limits, retries and paging."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import httpx
import kr8s
import kr8s.asyncio

from provisioner.base import LoginNeeded, SourceError
from provisioner.kubernetes.manifest import KubernetesOptions, Manifest
from trainyard.base.backoff import Backoff, Retries, retry
from trainyard.outside.http_client import has_socks
from trainyard.outside.proxies import for_other_readers

Result = TypeVar("Result")
Verb = Literal["get", "list", "create", "patch", "delete"]
METHODS = {"get": "GET", "list": "GET", "create": "POST", "patch": "PATCH", "delete": "DELETE"}
REQUEST_SECONDS = 20.0
"""Time limit of one request, in seconds, including reading the credentials."""
RETRY_SECONDS = 15.0
"""Maximum time, in seconds, from the first failure of a request to its last retry."""
PAGE = 500
MAX_PAGES = 400
"""Maximum number of pages in a listing, because a broken server could name a next page for ever."""
TRIES = 3
"""Maximum number of tries of one listing. A listing begins again if the server no longer knows the
position of the next page."""
GONE = httpx.codes.GONE
SHOWN = 1000
"""Maximum number of characters that an error quotes from the server's message."""


@dataclass(frozen=True)
class Resource:
    """A kind of object: its API version and its plural name, as in the paths of the API."""

    version: str
    plural: str

    def __str__(self) -> str:
        group = self.version.rpartition("/")[0]
        return f"{self.plural}.{group}" if group else self.plural


JOBS, PODS = Resource("batch/v1", "jobs"), Resource("v1", "pods")
SECRETS, EVENTS = Resource("v1", "secrets"), Resource("v1", "events")
WORKLOADS = Resource("kueue.x-k8s.io/v1beta1", "workloads")


class ClusterError(SourceError):
    """The API server refused a request, or its response was missing or unreadable."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """Status of the response; None without a response."""


class Cluster:
    """One namespace of a cluster; calls block, and calls of several threads wait for each other."""

    def __init__(self, options: KubernetesOptions) -> None:
        """Prepare the connection; the first call opens the connection.

        Raises:
            ProxyError: a proxy variable, which kr8s itself reads, cannot be used.
        """
        os.environ.update(for_other_readers(os.environ, socks=has_socks()))
        self._options = options
        self._lock = threading.Lock()
        self._runner: asyncio.Runner | None = None
        self._api: kr8s.asyncio.Api | None = None

    def close(self) -> None:
        """Close the event loop; the next call opens a new one."""
        with self._lock:
            self._api = None
            if self._runner is not None:
                self._runner.close()
                self._runner = None

    def call(
        self,
        verb: Verb,
        resource: Resource,
        name: str = "",
        *,
        body: Manifest | None = None,
        params: dict[str, str] | None = None,
    ) -> Manifest:
        """Return the response to one request; retry while the server is busy or unreachable.

        Raises:
            ClusterError: the server refused the request or did not respond in time; the error has
                the status of the response, and `refused` is set if a retry is useless.
            LoginNeeded: the credentials have expired, and a person must renew them.
        """
        what = f"{verb} {resource} in namespace {self._options.namespace}"
        return retry(
            lambda: self._answer(
                self._request(verb, resource, name=name, body=body, params=params), what
            ),
            when=_may_pass,
            retries=Retries(Backoff(first=0.2, longest=2.0), for_seconds=RETRY_SECONDS),
        )

    def items(self, resource: Resource, params: dict[str, str]) -> list[Manifest]:
        """Return all objects that match the parameters, from one state of the cluster."""
        for _ in range(TRIES):
            try:
                return self._pages(resource, params)
            except ClusterError as error:
                if error.status != GONE:
                    raise
        raise ClusterError(
            f"list {resource}: the pages expired {TRIES} times; the API server forgets faster"
            " than it answers"
        )

    def _pages(self, resource: Resource, params: dict[str, str]) -> list[Manifest]:
        items: list[Manifest] = []
        following = ""
        for _ in range(MAX_PAGES):
            asked = params | {"limit": str(PAGE)}
            page = self.call(
                "list", resource, params=asked | ({"continue": following} if following else {})
            )
            if "items" not in page:
                raise ClusterError(f"list {resource}: the answer is no list")
            items += page["items"] or ()
            following = (page.get("metadata") or {}).get("continue") or ""
            if not following:
                return items
        raise ClusterError(f"list {resource}: the answer has more than {MAX_PAGES} pages")

    def _answer(self, request: Coroutine[Any, Any, httpx.Response], what: str) -> Manifest:
        """Send a request; return its response."""
        response = self._run(request, what)
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if response.is_success and isinstance(answer, dict):
            return answer
        text = answer.get("message") if isinstance(answer, dict) else response.text
        if response.is_success:
            raise ClusterError(f"{what}: the answer is no JSON object: {str(text)[:SHOWN]}")
        raise self._refusal(what, response.status_code, str(text))

    def _run(self, request: Coroutine[Any, Any, httpx.Response], what: str) -> httpx.Response:
        """Run a request in the event loop for this cluster."""
        with self._lock:
            if self._runner is None:
                self._runner = asyncio.Runner()
            try:
                return self._runner.run(request)
            except (TimeoutError, kr8s.APITimeoutError) as error:
                raise ClusterError(f"{what}: no answer in {REQUEST_SECONDS:.0f} s") from error
            except httpx.TransportError as error:
                raise ClusterError(f"{what}: {error or type(error).__name__}") from error
            except kr8s.ServerError as error:  # from kr8s's first query, for the version
                status = error.response.status_code if error.response is not None else None
                raise self._refusal(what, status, str(error)) from error
            except json.JSONDecodeError as error:
                raise ClusterError(f"{what}: the version of the server is no JSON") from error
            except (ValueError, KeyError, TypeError, OSError, RuntimeError) as error:
                raise self._unusable(f"the credentials cannot be used: {error}") from error

    async def _request(
        self,
        verb: Verb,
        resource: Resource,
        *,
        name: str,
        body: Manifest | None,
        params: dict[str, str] | None,
    ) -> httpx.Response:
        # No connection is kept, because calls are a minute apart and load balancers drop idle
        # connections.
        headers = {"Connection": "close"}
        if verb == "patch":
            headers["Content-Type"] = "application/merge-patch+json"
        async with asyncio.timeout(REQUEST_SECONDS):
            for again in (False, True):
                api = await self._connected(again=again)
                if api.auth.token:
                    headers["Authorization"] = f"Bearer {api.auth.token}"
                async with api.call_api(
                    METHODS[verb],
                    version=resource.version,
                    namespace=self._options.namespace,
                    url=f"{resource.plural}/{name}" if name else resource.plural,
                    raise_for_status=False,
                    params=params,
                    content=json.dumps(body) if body is not None else None,
                    headers=headers,
                ) as response:
                    pass
                if response.status_code != httpx.codes.UNAUTHORIZED:
                    break
            answer: httpx.Response = response
        return answer

    async def _connected(self, *, again: bool) -> kr8s.asyncio.Api:
        """Return kr8s's client; if `again`, read the credentials again, because they may have
        expired."""
        if self._api is None:
            self._api = await kr8s.asyncio.api(
                kubeconfig=self._options.kubeconfig,
                context=self._options.context,
                namespace=self._options.namespace,
            )
        elif again:
            await self._api.reauthenticate()
        return self._api

    def _refusal(self, what: str, status: int | None, message: str) -> SourceError:
        if status == httpx.codes.UNAUTHORIZED:
            return self._unusable(f"{what}: the server does not accept the credentials: {message}")
        error = ClusterError(f"{what}: {status} {message[:SHOWN]}", status=status)
        # A full quota may become free later; a missing right, a wrong field or a wrong namespace
        # stays.
        error.refused = status in (400, 403, 404, 422) and "exceeded quota" not in message
        return error

    def _unusable(self, message: str) -> SourceError:
        if self._options.login is not None:
            return LoginNeeded(message, command=self._options.login)
        return ClusterError(message, status=httpx.codes.UNAUTHORIZED)


def _may_pass(error: Exception) -> bool:
    """Return whether a retry may succeed because the server is unreachable, busy or broken."""
    return isinstance(error, ClusterError) and (
        error.status is None or error.status == 429 or error.status >= 500
    )
