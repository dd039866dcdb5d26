"""Node labels that people set, for the selection of nodes and for their fabric and place."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select, update

from server.cluster.nodes.queries import node_view
from server.core.context import Context
from server.core.database.tables import nodes
from server.core.errors import InvalidRequestError, NotFoundError
from server.core.events.store import NewEvent, append_event
from server.core.subject import Actor, Subject
from trainyard.base.labels import MAX_LABELS
from trainyard.protocol.rest.nodes import NodeLabeled, NodeView


def set_labels(
    context: Context, name: str, labels: Mapping[str, str | None], *, actor: Actor
) -> NodeView:
    """Change labels of a node; its other labels and its running attempts do not change.

    Args:
        context: the server's context.
        name: name of the node.
        labels: values by key; None removes a label.
        actor: who changes the labels.

    Raises:
        NotFoundError: no node has this name.
        InvalidRequestError: the node would have more than `MAX_LABELS` labels set by people.
    """
    with context.database.write() as connection:
        found = select(nodes.c.set_labels).where(nodes.c.name == name)
        row = connection.execute(found.with_for_update(key_share=True)).one_or_none()
        if row is None:
            raise NotFoundError(f"no node has the name {name!r}")
        before: dict[str, str] = row.set_labels
        merged = {**before, **labels}
        after = {key: value for key, value in merged.items() if value is not None}
        if len(after) > MAX_LABELS:
            detail = f"{name} would have {len(after)} labels; at most {MAX_LABELS} are legal"
            raise InvalidRequestError.at("/labels", detail)
        changed = {key: after.get(key) for key in labels if after.get(key) != before.get(key)}
        if changed:
            connection.execute(update(nodes).where(nodes.c.name == name).values(set_labels=after))
            event = NewEvent(
                NodeLabeled(changed=changed), actor, Subject(node=name), _in_words(name, changed)
            )
            append_event(context, connection, event)
        return node_view(context, connection, name)


def _in_words(name: str, changed: Mapping[str, str | None]) -> str:
    parts = [
        f"{key} withdrawn" if value is None else f"{key}={value}"
        for key, value in sorted(changed.items())
    ]
    return f"labels of {name}: {', '.join(parts)}"
