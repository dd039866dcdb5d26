"""The Celery app of a provisioner: one queue for each source, and one short task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from celery import Celery, signals
from kombu import Queue

from provisioner.api import ProvisionerApi, persevere
from provisioner.base import NodeSource, Place
from provisioner.engine_calls import EngineCalls
from provisioner.engines import open_engine
from provisioner.request_folders import RequestFolders
from provisioner.settings import Settings, SourceConfig
from trainyard.protocol.node_sources.messages import (
    SourceMessage,
    SourceRegistration,
    SourceRegistrationReply,
)
from trainyard.protocol.rest.errors import ApiError
from trainyard.run.atomic import replace_file, sync_folder

logger = logging.getLogger(__name__)

TASK = "provisioner.call"
CONCURRENCY = 4
"""Number of concurrent calls; more than one, so that a hanging engine blocks no other source."""
FOR_EVER = float("inf")
USED_UP = 401


@dataclass(frozen=True)
class OpenSource:
    """A source with its engine, which is ready for calls."""

    config: SourceConfig
    engine: NodeSource
    folder: Path

    @property
    def token_file(self) -> Path:
        """File of the source's own token."""
        return self.folder / "token"

    def token(self) -> str | None:
        """Return the source's own token; None before the source has joined."""
        try:
            return self.token_file.read_text(encoding="ascii").strip() or None
        except FileNotFoundError:
            return None


def open_source(settings: Settings, config: SourceConfig) -> OpenSource:
    """Return a source with its folder and its engine; the engine is not called yet.

    Raises:
        ValueError: an option or a proxy variable is wrong, or the folder cannot be written to; the
            message names the option, the variable or the folder.
    """
    folder = settings.state_dir.resolve() / "sources" / config.name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"TRAINYARD_STATE_DIR: {folder}: {error.strerror}") from error
    place = Place(name=config.name, python=config.python, folder=folder)
    return OpenSource(config, open_engine(config, place), folder)


def join(settings: Settings, source: OpenSource) -> None:
    """Register a source; wait for the server as long as necessary.

    Raises:
        ValueError: the source has neither its own token nor a join token.
        ApiError: the server refuses to register the source.
    """
    registration = source.config.registration(version=_version())
    own, offered = source.token(), filter(None, map(str.strip, settings.join_token.split(",")))
    tokens = [*([own] if own else []), *offered]
    refusal: ApiError | None = None
    for token in tokens:
        try:
            reply = _register(settings, registration, token)
        except ApiError as error:
            if error.status != USED_UP:
                raise
            refusal = error
            continue
        if reply.source_token is not None:
            replace_file(source.token_file, f"{reply.source_token}\n", mode=0o600)
            sync_folder(source.folder)
        return
    if refusal is not None:
        raise refusal
    raise ValueError(
        f"source {source.config.name} has not joined yet: make a join token at the server and set "
        "TRAINYARD_JOIN_TOKEN to it"
    )


def _register(
    settings: Settings, registration: SourceRegistration, token: str
) -> SourceRegistrationReply:
    with ProvisionerApi(settings.url, token, ca_file=settings.ca_file) as api:
        return persevere(lambda: api.register(registration), for_seconds=FOR_EVER)


def create_app(settings: Settings, sources: Mapping[str, OpenSource]) -> Celery:
    """Return the app that makes calls for these sources, from the queues `source.<name>`."""
    app = Celery("trainyard", broker=settings.whole_broker_url())
    app.conf.update(
        task_queues=[Queue(f"source.{name}") for name in sources],
        task_ignore_result=True,
        # A message that a dying provisioner held is delivered again; duplicate messages do no harm.
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        task_serializer="json",
        worker_pool="prefork",
        worker_concurrency=CONCURRENCY,
        accept_content=["json"],
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        # With remote control, any program that can write to the broker could shut the provisioner
        # down.
        worker_enable_remote_control=False,
    )

    @app.task(name=TASK)
    def call(**fields: object) -> None:
        message = SourceMessage.model_validate(fields)
        source = sources.get(message.source)
        if source is None:
            logger.warning("%r: this provisioner has no such source", message)
            return
        with ProvisionerApi(settings.url, source.token(), ca_file=settings.ca_file) as api:
            folders = RequestFolders(source.folder)
            calls = EngineCalls(
                source.config, source.engine, folders=folders, api=api, url=settings.url
            )
            calls.carry_out(message)

    return app


def consume(app: Celery, *, when_ready: Callable[[], None]) -> None:
    """Handle messages until SIGTERM; must run in the main thread.

    Args:
        app: Celery app of the provisioner.
        when_ready: called once Celery has installed its signal handlers.
    """
    signals.worker_ready.connect(lambda **_: when_ready(), weak=False)
    app.Worker(
        loglevel="INFO", without_gossip=True, without_mingle=True, without_heartbeat=True
    ).start()


def _version() -> str:
    try:
        return version("trainyard-library")
    except PackageNotFoundError:  # runs from a source tree
        return "0"
