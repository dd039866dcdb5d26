"""The Celery app of one node: one queue, one short task that launches, one for operations."""

from __future__ import annotations

import logging
from collections.abc import Callable

from celery import Celery

from trainyard.protocol.worker_messages import LaunchMessage, OperationMessage
from worker.api import ServerAway, WorkerApi
from worker.launch import launch_attempt
from worker.node.node_store import LocalNode
from worker.operations import start_operation
from worker.registration import own_token
from worker.settings import Settings

logger = logging.getLogger(__name__)

TASK, OPERATION_TASK = "worker.launch", "worker.operation"


def create_app(settings: Settings, node: LocalNode) -> Celery:
    """Return the app that launches what the server grants; messages come from `node.<name>`."""
    app = Celery("trainyard", broker=settings.broker_url)
    app.conf.update(
        task_default_queue=f"node.{settings.node_name}",
        task_ignore_result=True,
        # A message that a dying worker had in its hands comes again; doubled ones do no harm.
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        task_serializer="json",
        worker_pool="prefork",
        worker_concurrency=2,
        accept_content=["json"],
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        # Whoever can write to the broker could shut the worker down by remote control.
        worker_enable_remote_control=False,
    )

    @app.task(name=TASK)
    def launch(**fields: object) -> None:
        message = LaunchMessage.model_validate(fields)
        _claim(lambda api: launch_attempt(node, message, api), message, settings, node)

    @app.task(name=OPERATION_TASK)
    def operation(**fields: object) -> None:
        message = OperationMessage.model_validate(fields)
        _claim(lambda api: start_operation(node, message, api), message, settings, node)

    return app


def _claim(
    start: Callable[[WorkerApi], bool],
    message: LaunchMessage | OperationMessage,
    settings: Settings,
    node: LocalNode,
) -> None:
    with WorkerApi(settings.url, own_token(node.store)) as api:
        try:
            start(api)
        except ServerAway as error:
            logger.warning("%r is not claimed: %s", message, error)


def consume(app: Celery) -> None:
    """Take messages until SIGTERM. Needs the main thread."""
    app.Worker(
        loglevel="INFO", without_gossip=True, without_mingle=True, without_heartbeat=True
    ).start()
