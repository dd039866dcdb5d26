"""The Celery app of one node: one queue, one short task that launches, one for operations."""

from __future__ import annotations

import logging

from celery import Celery

from trainyard.protocol.worker_messages import LaunchMessage, OperationMessage
from worker.api import ServerAway, WorkerApi
from worker.launch import AttemptStarter
from worker.node.lock import worker_identity
from worker.operations import OperationStarter
from worker.registration import own_token
from worker.settings import Settings

logger = logging.getLogger(__name__)

TASK, OPERATION_TASK = "worker.launch", "worker.operation"


def create_app(settings: Settings, attempts: AttemptStarter) -> Celery:
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
    def launch(**message: object) -> None:
        _launch(LaunchMessage.model_validate(message), settings, attempts)

    @app.task(name=OPERATION_TASK)
    def operation(**message: object) -> None:
        _start_operation(OperationMessage.model_validate(message), settings, attempts)

    return app


def _launch(message: LaunchMessage, settings: Settings, attempts: AttemptStarter) -> None:
    with _api(settings, attempts) as api:
        try:
            attempts.start(message, api)
        except ServerAway as error:
            logger.warning("attempt %s is not claimed: %s", message.attempt_id, error)


def _start_operation(
    message: OperationMessage, settings: Settings, attempts: AttemptStarter
) -> None:
    starter = OperationStarter(
        attempts.node,
        attempts.name,
        attempts.roots,
        allow_code=attempts.allow_code,
        run_as=attempts.run_as,
    )
    with _api(settings, attempts) as api:
        try:
            starter.start(message, api)
        except ServerAway as error:
            logger.warning("operation %s is not claimed: %s", message.operation_id, error)


def _api(settings: Settings, attempts: AttemptStarter) -> WorkerApi:
    worker = worker_identity(attempts.node.data_dir)
    return WorkerApi(settings.url, own_token(attempts.node), worker=worker)


def consume(app: Celery) -> None:
    """Take messages until SIGTERM. Needs the main thread."""
    app.Worker(
        loglevel="INFO", without_gossip=True, without_mingle=True, without_heartbeat=True
    ).start()
