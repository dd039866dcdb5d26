"""Methods of each path, merged over all routes; `Allow` of OPTIONS and 405 responses lists them."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from server.api.http.problems import problem

Routes = Iterable[tuple[str, Iterable[str]]]
"""Path templates with their methods; one template may occur several times."""


class AllowedMethods:
    """The methods of every path of an application."""

    def __init__(self, routes: Routes) -> None:
        methods: dict[str, set[str]] = {}
        for path, names in routes:
            methods.setdefault(path, set()).update(names)
        implied = {
            path: frozenset(names | {"OPTIONS"} | ({"HEAD"} if "GET" in names else set()))
            for path, names in methods.items()
        }
        self._literal = {path: names for path, names in implied.items() if "{" not in path}
        self._patterns = [(compile_path(p)[0], n) for p, n in implied.items() if "{" in p]

    def of(self, path: str) -> frozenset[str]:
        """Return the methods that are allowed for `path`; empty for an unknown path."""
        # A literal path wins: `/jobs/plan` is not matched by `/jobs/{job_id}`.
        if path in self._literal:
            return self._literal[path]
        found = (names for pattern, names in self._patterns if pattern.match(path))
        return next(found, frozenset())


class MethodsMiddleware:
    """Answers OPTIONS requests, and refuses methods that are not allowed for a path."""

    def __init__(self, app: ASGIApp, *, allowed: AllowedMethods) -> None:
        self.app = app
        self.allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer OPTIONS and illegal methods; pass on any other request."""
        legal = self.allowed.of(scope["path"]) if scope["type"] == "http" else frozenset()
        if not legal or (scope["method"] in legal and scope["method"] != "OPTIONS"):
            await self.app(scope, receive, send)
            return
        headers = {"allow": ", ".join(sorted(legal))}
        if scope["method"] == "OPTIONS":
            await Response(status_code=204, headers=headers)(scope, receive, send)
            return
        answer = problem(
            scope,
            status=405,
            title="The method is not allowed",
            kind="/problems/method-not-allowed",
            detail=f"{scope['path']} takes {headers['allow']}, not {scope['method']}",
            headers=headers,
        )
        await answer(scope, receive, send)
