"""Registration of a source by its provisioner, and the token of the source."""

from __future__ import annotations

from sqlalchemy import Connection, insert, update

from server.api.auth.service import Principal, replace_token_of, use_up_join_token
from server.api.auth.tokens import TokenKind
from server.api.http.worker_protocol import check_protocol
from server.cluster.supply.changes import source_changed
from server.cluster.supply.rows import StoredSource, open_requests
from server.core.context import Context
from server.core.database.source_tables import sources
from server.core.errors import ConflictError, ForbiddenError
from trainyard.protocol.node_sources.messages import SourceRegistration, SourceRegistrationReply


def check_sender(principal: Principal, source: str, protocol: int) -> None:
    """Check the protocol version and the token of a provisioner's call.

    Raises:
        InvalidRequestError: the protocol is not supported.
        ForbiddenError: the token belongs to another source.
    """
    check_protocol(protocol)
    if principal.kind is TokenKind.SOURCE and principal.source != source:
        raise ForbiddenError(f"this is the token of source {principal.source!r}, not of {source!r}")


def register_source(
    context: Context, registration: SourceRegistration, *, principal: Principal
) -> SourceRegistrationReply:
    """Register a source, or store its changed settings.

    A join token is used up. The reply then has a new token for the source, and earlier tokens end.

    Raises:
        InvalidRequestError: the protocol is not supported.
        ForbiddenError: the token belongs to another source.
        UnauthenticatedError: another registration has used the join token meanwhile.
        ConflictError: another provisioner serves this source, or the source has open requests in
            another kind of engine.
    """
    name = registration.name
    check_sender(principal, name, registration.protocol)
    with context.database.write() as connection:
        found = StoredSource.select().where(sources.c.name == name).with_for_update(key_share=True)
        before = StoredSource.one_or_none(connection, found)
        token = None
        if principal.kind is not TokenKind.SOURCE:
            token = _join(context, connection, name=name, principal=principal, before=before)
        if before is not None and before.kind != registration.kind:
            count = len(open_requests(connection, name))
            if count:
                raise ConflictError(
                    f"source {name!r} has {count} open requests in {before.kind}; end them before "
                    f"it becomes one of {registration.kind}"
                )
        _store(context, connection, registration=registration, before=before)
    return SourceRegistrationReply(source_token=token)


def _join(
    context: Context,
    connection: Connection,
    *,
    name: str,
    principal: Principal,
    before: StoredSource | None,
) -> str:
    """Use the join token up, and return a new token for the source."""
    use_up_join_token(context, connection, principal)
    if before is not None and before.is_online(context.now()):
        raise ConflictError(
            f"a provisioner serves source {name!r}; end it first, or give this source another name"
        )
    return replace_token_of(context, connection, kind=TokenKind.SOURCE, name=name)


def _store(
    context: Context,
    connection: Connection,
    *,
    registration: SourceRegistration,
    before: StoredSource | None,
) -> None:
    now, name = context.now(), registration.name
    settings = {
        field: getattr(registration, field)
        for field in SourceRegistration.model_fields
        if field not in ("protocol", "name")
    }
    settings["version"] = registration.version[:50]
    row = {**settings, "heard_at": now, "is_away": False}
    if before is None:
        connection.execute(insert(sources).values(name=name, registered_at=now, **row))
    else:
        connection.execute(update(sources).where(sources.c.name == name).values(row))
    same = before is not None and all(getattr(before, n) == v for n, v in settings.items())
    if before is None or before.is_away or not same:
        shape, limits = registration.shape, registration.limits
        offers = f"nodes of {shape.slots} {shape.device} slots, at most {limits.nodes}"
        source_changed(
            context, connection, name=name, message=f"source {name} is registered: {offers}"
        )
