"""What each route declares about its callers; a route must declare exactly one access."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts
from starlette.routing import BaseRoute

from server.api.auth.dependencies import Access, access_of


class UndeclaredAccessError(Exception):
    """A route does not declare exactly one access; the message names the route."""


def calls_of(dependant: Dependant | None) -> Iterator[Callable[..., Any] | None]:
    """Yield the endpoint of a route and all its dependencies."""
    if dependant is None:
        return
    yield dependant.call
    for dependency in dependant.dependencies:
        yield from calls_of(dependency)


def accesses_of(routes: Sequence[BaseRoute]) -> dict[tuple[str, str], Access]:
    """Return what each method of each route declares, by path template and method.

    Raises:
        UndeclaredAccessError: a route declares nothing, or more than one access.
    """
    found: dict[tuple[str, str], Access] = {}
    for route in iter_route_contexts(routes):
        dependant = getattr(route, "dependant", None)
        declared = {access_of(call) for call in calls_of(dependant)} - {None}
        methods = sorted(getattr(route, "methods", None) or ("any method",))
        if len(declared) != 1:
            given = " and ".join(sorted(str(each) for each in declared)) or "nothing"
            raise UndeclaredAccessError(
                f"{'/'.join(methods)} {route.path} declares {given} about its callers: give the "
                "endpoint one dependency, such as `may(Permission.JOBS_READ)` or `public` "
                "(docs/access.md)"
            )
        (access,) = declared
        assert access is not None
        found |= {(str(route.path), method): access for method in methods}
    return found
