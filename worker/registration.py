"""Registers the node: first with a join token, later with the node's own token."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from trainyard.base.labels import parse_labels
from trainyard.protocol.node_sources.messages import PilotIdentity
from trainyard.protocol.rest.errors import ApiError
from trainyard.protocol.worker_messages import PROTOCOL, Registration, RegistrationReply
from trainyard.run.atomic import replace_file
from worker.api import WorkerApi, persist
from worker.node.node_store import LocalNode, NodeStore
from worker.settings import Settings

logger = logging.getLogger(__name__)

FOR_EVER = float("inf")
ANOTHER_WORKER = 409
ANOTHER_WORKER_SECONDS = 1.0
"""Pause, in seconds, between tries to register while another worker serves the node."""


def register(
    settings: Settings,
    node: LocalNode,
    api: WorkerApi,
    *,
    roots: Mapping[str, str],
    pilot: PilotIdentity | None = None,
) -> RegistrationReply:
    """Register the node, waiting as long as necessary; return the server's reply.

    This function waits while the server does not respond. It also waits while the server counts
    another worker as serving the node, as after a reboot (docs/lifecycle-failures.md, 46).
    Afterwards `api` has the node's token.

    Raises:
        ValueError: the node has neither its own token nor a join token, or other users can read a
            token file.
        ApiError: the server refuses to register the node.
    """
    registration = Registration(
        protocol=PROTOCOL,
        node=node.name,
        address=settings.address,
        hardware=node.devices.hardware,
        roots=dict(roots),
        worker=node.worker,
        version=_version(),
        labels=parse_labels(settings.labels),
        inbox=settings.inbox,
        pilot=pilot,
    )
    own, line = own_token(node.store), 0 if pilot is None else pilot.index
    # Once the node has its own token, the join token's file may be empty or missing.
    api.token = own or settings.join_secret(line)
    if api.token is None:
        raise ValueError(
            f"node {node.name} has not joined yet: make a join token at the server and "
            "set TRAINYARD_JOIN_TOKEN to it, or TRAINYARD_JOIN_TOKEN_FILE to a file that holds it"
        )
    try:
        reply = _register(api, registration)
    except ApiError as refusal:
        if refusal.status != 401 or own is None:
            raise
        logger.warning("the node's own token is not valid any more: %s", refusal)
        if (join := settings.join_secret(line)) is None:
            raise
        logger.warning("joining anew")
        api.token = join
        reply = _register(api, registration)
    if reply.node_token is not None:
        replace_file(node.store.token, f"{reply.node_token}\n", mode=0o600)
        api.token = reply.node_token
    node.store.remember_server(settings.url, ca_file=settings.ca_file)
    return reply


def own_token(store: NodeStore) -> str | None:
    """Return the token that the node received when it joined; None if it has not joined yet."""
    try:
        return store.token.read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None


def _register(api: WorkerApi, registration: Registration) -> RegistrationReply:
    logged = None
    while True:
        try:
            return persist(lambda: api.register(registration), for_seconds=FOR_EVER)
        except ApiError as refusal:
            if refusal.status != ANOTHER_WORKER:
                raise
            if str(refusal) != logged:
                logged = str(refusal)
                logger.warning("waiting to register: %s", refusal)
        time.sleep(ANOTHER_WORKER_SECONDS)


def _version() -> str:
    try:
        return version("trainyard-library")
    except PackageNotFoundError:  # the worker runs from a source tree
        return "0"
