"""The Celery app of one node: one queue, and short tasks for launches and operations."""

from __future__ import annotations

from celery import Celery

from trainyard.protocol.worker_messages import LaunchMessage, OperationMessage
from worker.inbox.start import start
from worker.node.node_store import LocalNode
from worker.settings import Settings

TASK, OPERATION_TASK = "worker.launch", "worker.operation"


def create_app(settings: Settings, node: LocalNode) -> Celery:
    """Return the app that launches granted shares; the app reads the queue `node.<name>`."""
    app = Celery("trainyard", broker=settings.whole_broker_url())
    app.conf.update(
        task_default_queue=f"node.{settings.node_name}",
        task_ignore_result=True,
        # A message that a dying worker held is delivered again; duplicates do no harm.
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        task_serializer="json",
        worker_pool="prefork",
        worker_concurrency=2,
        accept_content=["json"],
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        # With remote control, any program that can write to the broker could shut the worker down.
        worker_enable_remote_control=False,
    )

    @app.task(name=TASK)
    def launch(**fields: object) -> None:
        start(LaunchMessage.model_validate(fields), settings, node)

    @app.task(name=OPERATION_TASK)
    def operation(**fields: object) -> None:
        start(OperationMessage.model_validate(fields), settings, node)

    return app


def consume(app: Celery) -> None:
    """Handle messages until SIGTERM; must run in the main thread."""
    app.Worker(
        loglevel="INFO", without_gossip=True, without_mingle=True, without_heartbeat=True
    ).start()
