"""A query for a caller takes the caller's scope; a forgotten filter fails here."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fastapi.routing import iter_route_contexts

from server.api.auth.declarations import accesses_of
from server.app.factory import _routes
from trainyard.protocol.rest.access import Permission

ROOT = Path(__file__).resolve().parent.parent

MAKERS = {
    "server/api/auth/permissions.py": "makes the scope of a request from roles and token",
    "server/core/visibility/scope.py": "defines the scope of the system and the empty one",
}
"""Modules that construct a `Scope`."""
OF_SYSTEM = {
    "server/core/visibility/scope.py": "defines it",
    "server/core/subject.py": "the actors of the system's parts, such as the scheduler",
    "server/core/events/tail.py": "reads each event once for all clients; each client filters",
    "server/app/monitoring.py": "metrics:read shows all projects",
    "server/scheduler/rounds/operations.py": "queues the automatic checks of checkpoints",
}
"""Modules that use `SYSTEM_SCOPE`."""
LOCKING = {
    "server/core/lifecycle.py": "defines it",
    "server/jobs/checkpoints/guards.py": "after the check of the project",
    "server/jobs/jobs/fork.py": "after the check of the checkpoint",
    "server/jobs/operations/service.py": "operations of nodes; cancel checks the project",
    "server/jobs/shells/worker_api.py": "reports of nodes about their own attempts",
    "server/telemetry/artifacts/uploads.py": "reports of nodes about their own attempts",
    "server/scheduler/": "acts for no caller",
}
"""Modules and folders that lock a job without a scope; others use `lock_own_job`."""
NO_ROWS_OF_JOBS = {
    "check_spec": "compares the spec with the server's settings",
    "check_world_size": "compares the spec with the server's settings",
    "check_hardware": "reads the hardware of nodes",
    "read_order": "orders the whole queue; its entries are filtered",
    "key_of_candidate": "orders the whole queue; its entries are filtered",
    "count_up_to": "positions count all waiting jobs",
    "read_waiting": "the whole page, whose hidden jobs become anonymous entries",
    "find_waiting": "after the check of the job",
    "names_of": "names of users; owners of filtered jobs",
    "read_metrics": "samples of a node",
    "list_sources": "sources of nodes",
    "source_view": "sources of nodes",
    "list_requests": "requests for nodes name their jobs by labels",
    "request_view": "requests for nodes name their jobs by labels",
    "read_calibrations": "coefficients of kinds of hardware, fitted to all jobs",
    "list_users": "users, for admins",
    "user_view": "users, for admins",
    "_invitation_view": "users, for admins",
    "list_rows": "the audit log, for admins",
    "export": "the audit log, for admins",
}
"""Functions that endpoints call without a scope, each with the reason."""

NOT_HELD = {
    "server/api/auth/": "changes of tokens and sessions, which lock users in their own order",
    "server/jobs/packs/store.py": "a read renews the pack's time; an upload is watched",
    "server/jobs/shells/service.py": "a read of output drops what has been read",
}
"""Modules whose functions for people open a transaction without `write_as` or a `hold_...`."""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / "server").rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), tree_of(path)


def called(node: ast.Call) -> str:
    """Return the last name of the called function."""
    of = node.func
    return of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""


def is_listed(name: str, listed: Mapping[str, str]) -> bool:
    return any(name == each or (each.endswith("/") and name.startswith(each)) for each in listed)


def test_the_authenticator_alone_makes_scopes() -> None:
    made = {
        name
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called(node) == "Scope"
    }
    assert made == MAKERS.keys()


def test_the_scope_of_the_system_is_used_where_it_is_listed() -> None:
    used = {
        name
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
        and (node.id if isinstance(node, ast.Name) else node.attr) == "SYSTEM_SCOPE"
    }
    assert used == OF_SYSTEM.keys()
    assert not [name for name in used if name.endswith("endpoints.py")]


def test_a_job_is_locked_without_a_scope_where_it_is_listed() -> None:
    locking = {
        name
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called(node) == "lock_job"
    }
    assert [name for name in sorted(locking) if not is_listed(name, LOCKING)] == []
    unused = [each for each in LOCKING if not any(is_listed(n, {each: ""}) for n in locking)]
    assert unused == []


def test_a_function_uses_the_scope_that_it_takes() -> None:
    unused = []
    for name, tree in modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if any(is_scope(each) for each in arguments(node)):
                body = (each for part in node.body for each in ast.walk(part))
                if not any(isinstance(each, ast.Name) and each.id == "scope" for each in body):
                    unused.append((name, node.name))
    assert unused == []


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def is_scope(argument: ast.arg) -> bool:
    """Return whether an argument is the scope of a caller, not that of ASGI."""
    of_caller = argument.annotation is not None and ast.unparse(argument.annotation) == "Scope"
    return argument.arg == "scope" and of_caller


def test_a_change_for_a_person_holds_the_access_of_the_person() -> None:
    """A role that is lost while a request runs would otherwise still store a change."""
    found = {
        name
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and is_unheld_write(node)
    }
    assert [name for name in sorted(found) if not is_listed(name, NOT_HELD)] == []
    unused = [each for each in NOT_HELD if not any(is_listed(n, {each: ""}) for n in found)]
    assert unused == []


def is_unheld_write(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function, or a class with a method, for a person writes without a hold."""
    parts = [each for each in ast.walk(node) if isinstance(each, ast.FunctionDef)]
    given = {ast.unparse(a.annotation) for f in parts for a in arguments(f) if a.annotation}
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    writes = any(ast.unparse(each.func).endswith("database.write") for each in calls)
    held = any(called(each).lstrip("_").startswith("hold_") for each in calls)
    return writes and not held and bool(given & {"Actor", "Scope"})


def test_the_rule_finds_a_write_without_a_hold() -> None:
    for body, is_found in (
        ("with context.database.write() as c: pass", True),
        ("with write_as(context, actor) as c: pass", False),
        ("with context.database.write() as c: hold_token(c, actor, now)", False),
    ):
        (node,) = ast.parse(f"def change(context: Context, *, actor: Actor):\n    {body}").body
        assert isinstance(node, ast.FunctionDef)
        assert is_unheld_write(node) is is_found


def endpoints() -> Iterator[tuple[Callable[..., Any], Permission]]:
    """Yield the endpoints that need a permission."""
    accesses = accesses_of(_routes())
    for route in iter_route_contexts(_routes()):
        for method in route.methods or ():
            access = accesses.get((str(route.path), method))
            if isinstance(access, Permission) and route.endpoint is not None:
                yield route.endpoint, access


def test_an_endpoint_passes_its_scope_to_every_function_with_the_database() -> None:
    found = {f"{e.__module__}.{e.__qualname__}": e for e, _ in endpoints()}
    assert len(found) > 60
    forgotten, excused = [], set()
    for name, endpoint in found.items():
        tree = ast.parse(textwrap.dedent(inspect.getsource(endpoint)))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not takes_database(node):
                continue
            if called(node) in NO_ROWS_OF_JOBS:
                excused.add(called(node))
            elif not passes_scope(node):
                forgotten.append((name, ast.unparse(node)[:80]))
    assert forgotten == []
    assert excused == NO_ROWS_OF_JOBS.keys(), "an exception that nothing needs"


def takes_database(node: ast.Call) -> bool:
    """Return whether a call gets the context, or a connection to the database."""
    given = [*node.args, *(each.value for each in node.keywords)]
    return any(
        isinstance(each, ast.Name) and each.id in {"context", "connection"} for each in given
    )


def passes_scope(node: ast.Call) -> bool:
    """Return whether a call gets the scope, the actor or the principal of the request."""
    given = [*node.args, *(each.value for each in node.keywords)]
    words = {"scope", "actor", "principal"}
    return any(
        (isinstance(each, ast.Name) and each.id in words)
        or (isinstance(each, ast.Attribute) and each.attr in words)
        for part in given
        for each in ast.walk(part)
    )


def test_the_rules_find_a_forgotten_scope() -> None:
    call = ast.parse("job_view(context, job_id)", mode="eval").body
    assert isinstance(call, ast.Call)
    assert takes_database(call)
    assert not passes_scope(call)
