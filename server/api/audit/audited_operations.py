"""The table of the operations that change or read something, for the audit log (docs/audit.md).

A `GET` that the table omits reads nothing sensitive. Every other operation is in the table, or the
server does not start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi.dependencies.models import Dependant
from fastapi.routing import RouteContext, iter_route_contexts
from starlette.routing import BaseRoute

from server.core.audit.request_rows import Audited, AuditedOperation, PathParameter

SAFE = {"GET", "HEAD", "OPTIONS"}

REGISTRATIONS = frozenset({"workers_register", "provisioners_register"})
CHANGES = frozenset(
    {
        *("jobs_submit", "jobs_delete", "jobs_stop", "jobs_cancel", "jobs_set_priority"),
        *("jobs_resume", "jobs_fork", "jobs_post_request", "jobs_set_owner"),
        *("shells_open_shell", "shells_close_shell"),
        "packs_upload_pack",
        "imports_start",
        *("checkpoints_delete", "checkpoints_verify", "checkpoints_export", "checkpoints_sample"),
        *("checkpoints_pin", "checkpoints_unpin"),
        "operations_cancel",
        *("nodes_drain", "nodes_undrain", "nodes_cordon", "nodes_uncordon", "nodes_label"),
        *("sources_delete", "sources_pause", "sources_unpause", "sources_check"),
        *("sources_request", "sources_cancel", "sources_end"),
        *("projects_create", "projects_change", "projects_delete"),
        *("members_put", "members_remove", "members_put_everyone", "members_patch_limits"),
        "members_put_group",
        *("members_create_service_account", "members_remove_service_account"),
        *("members_create_token", "members_revoke_token"),
        *("access_create", "access_revoke", "access_log_in", "access_log_out"),
        *("access_decide_device", "access_get_device_token"),
        *("access_end_issuer_login", "access_unlink_identity"),
        *("access_log_out_of_issuer", "access_log_out_by_issuer"),
        *("access_end_session", "access_put_password", "access_create_token", "access_accept"),
        *("users_create", "users_change", "users_invite", "users_unlink"),
        *("secrets_put", "secrets_remove", "secrets_put_own", "secrets_remove_own"),
        *REGISTRATIONS,
    }
)
"""Operations with a row for each change. Registrations of machines belong to them, because a
machine that joins receives secrets of jobs."""
SENSITIVE = ("audit_export",)
"""Operations with a row for each call."""
ONLY_READS = "It stores nothing that stays."
MACHINES = "It is traffic of a machine, and repeats while the machine runs."
NOT_AUDITED: Mapping[str, str] = {
    **dict.fromkeys(
        ("jobs_plan", "queue_what_if", "sources_explain", "access_check", "access_check_device"),
        ONLY_READS,
    ),
    **dict.fromkeys(
        (
            *("provisioners_claim", "provisioners_report", "workers_check", "workers_heartbeat"),
            *("workers_ended_jobs", "workers_claim", "workers_report", "workers_messages"),
            *("workers_claim_an_operation", "workers_report_on_an_operation"),
            *("workers_report_output", "workers_poll_input", "workers_upload_block"),
        ),
        MACHINES,
    ),
    **dict.fromkeys(
        ("access_begin_device_login", "access_link_identity", "access_accept_by_issuer"),
        "The row of the end of the login covers it.",
    ),
    "shells_put_input": "The row of the opened command covers its input.",
    "imports_add": "The row of the started import covers its points.",
}
"""Operations without rows for what they do, each with the reason."""


class UndeclaredAuditError(Exception):
    """The table lacks an operation, names it twice, or names an unknown one."""


def audits_of(routes: Sequence[BaseRoute]) -> dict[Callable[..., Any], AuditedOperation]:
    """Return the operations by endpoint function.

    Raises:
        UndeclaredAuditError: the table lacks an operation that is not safe, or it names an
            operation twice, or one that does not exist.
    """
    table = _table()
    found: dict[Callable[..., Any], AuditedOperation] = {}
    for route in iter_route_contexts(routes):
        name = str(getattr(route, "unique_id", route.name))
        is_safe = not (set(route.methods or ()) - SAFE)
        if name not in table and not is_safe:
            raise UndeclaredAuditError(
                f"{name} is not in the table of the audit log: add it to CHANGES, SENSITIVE or "
                "NOT_AUDITED of server/api/audit/audited_operations.py (docs/audit.md)"
            )
        audited = table.get(name, Audited.NO)
        assert route.endpoint is not None
        is_of_machines = NOT_AUDITED.get(name) == MACHINES or name in REGISTRATIONS
        found[route.endpoint] = AuditedOperation(
            name, audited, _parts_of(route), is_of_machines=is_of_machines
        )
    if unknown := sorted(table.keys() - {each.id for each in found.values()}):
        raise UndeclaredAuditError(f"no operation is named {', '.join(unknown)}")
    return found


def _parts_of(route: RouteContext) -> list[str | PathParameter]:
    """Return the parts of a path without `/api/v1`, up to the last parameter."""
    parts = str(route.path).strip("/").split("/")
    last = max((at for at, each in enumerate(parts) if each[:1] == "{"), default=len(parts) - 1)
    dependant = getattr(route, "dependant", None)
    patterns = {} if dependant is None else _patterns_of(dependant)
    return [
        PathParameter(name := each[1:].partition(":")[0].rstrip("}"), patterns.get(name))
        if each[:1] == "{"
        else each
        for each in parts[2 : last + 1]
    ]


def _patterns_of(dependant: Dependant) -> dict[str, str]:
    """Return the regular expressions of the parameters of a path, also those of dependencies."""
    found = {
        each.alias: metadata.pattern
        for each in dependant.path_params
        for metadata in each.field_info.metadata
        if getattr(metadata, "pattern", None) is not None
    }
    for each in dependant.dependencies:
        found |= _patterns_of(each)
    return found


def _table() -> dict[str, Audited]:
    table: dict[str, Audited] = {}
    for audited, names in (
        (Audited.CHANGE, CHANGES),
        (Audited.SENSITIVE, SENSITIVE),
        (Audited.NO, NOT_AUDITED),
    ):
        if twice := sorted(table.keys() & set(names)):
            raise UndeclaredAuditError(f"the table names {', '.join(twice)} twice")
        table |= dict.fromkeys(names, audited)
    return table
