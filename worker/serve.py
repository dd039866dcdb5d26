"""Serves a node: registers it, adopts running attempts, then handles messages."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from trainyard.protocol.worker_messages import WorkerIdentity
from trainyard.spec.storage_uri import is_object_store
from worker.adopt import adopt
from worker.api import WorkerApi
from worker.environments.environment_store import EnvironmentStore
from worker.heartbeat import Heart
from worker.inbox.polls import ServerInbox
from worker.launchers.rank_environment import check_reach
from worker.masking import forget_left_secrets
from worker.node.hardware.accelerators import open_accelerators
from worker.node.hardware.devices import find_devices
from worker.node.hardware.samples import Sampler, folders_of
from worker.node.lock import lock_folder
from worker.node.node_store import LocalNode, NodeStore
from worker.node.users import RunAs, UsersOfRanks, in_user_namespace
from worker.pilot.allocation import EndWatch, find_pilot
from worker.registration import register
from worker.run_as.account_answers import AccountAnswers
from worker.run_as.run_as_owner import OWNER, parse_run_as
from worker.settings import Settings
from worker.supervisor.preemption import read_notice
from worker.upkeep.idle_keeper import IdleKeeper
from worker.upkeep.roots import identify_roots
from worker.upkeep.run_cleaner import RunCleaner

logger = logging.getLogger(__name__)

SAMPLE_SECONDS = 1.0
"""Minimum interval, in seconds, between device samples; a sample takes a few milliseconds for each
device.
"""


def serve() -> None:
    """Serve this node until SIGTERM; training continues afterwards.

    Raises:
        ValueError: the settings cannot be used on this machine, or another worker serves the data
            folder.
        ApiError: the server refuses the node, or another worker now serves the node.
    """
    settings = Settings()
    node = NodeStore(settings.data_dir.resolve())
    node.data_dir.mkdir(parents=True, exist_ok=True)
    with (
        lock_folder(node.data_dir) as worker,
        WorkerApi(settings.url, token=None, ca_file=settings.ca_file) as api,
    ):
        _serve(settings, node, api=api, worker=worker)


def _prepare_environments(node: LocalNode) -> None:
    """Create each root's folder of environments, before any rank runs on this node."""
    for name, place in node.roots.items():
        if not is_object_store(place):
            try:
                EnvironmentStore(Path(place)).prepare()
            except OSError as error:
                logger.info("root %s can have no environments from here: %s", name, error)


def _serve(settings: Settings, store: NodeStore, *, api: WorkerApi, worker: WorkerIdentity) -> None:
    accelerators = None if settings.device == "cpu" else open_accelerators()
    devices = find_devices(accelerators, device=settings.device, slots=settings.slots)
    run_as = _prepare_users(settings, store, slots=devices.hardware.slots)
    hardware = devices.hardware.model_copy(
        update={"isolation": "none" if run_as is None else run_as.isolation}
    )
    node = LocalNode(
        store,
        settings.node_name,
        worker,
        roots=settings.root_paths(),
        devices=replace(devices, hardware=hardware),
        allow_code=settings.allow_code,
        run_as=run_as,
        environment_days=settings.environment_days,
        run_bytes=settings.run_bytes,
        warm=settings.warm,
    )
    storages = identify_roots(node.roots)
    if node.allow_code:
        _prepare_environments(node)
    pilot = find_pilot()
    identity = None if pilot is None else pilot.identity
    reply = register(settings, node, api, roots=storages, pilot=identity)
    if reply.slots:
        node = replace(node, devices=replace(node.devices, visible=reply.slots))
    seconds = reply.heartbeat_seconds
    logger.info("node %s offers %d slots (%s)", node.name, hardware.slots, hardware.device_name)
    forget_left_secrets(store)
    for attempt_id in adopt(store):
        logger.info("attempt %s is supervised", attempt_id)
    notices = [store.leaving]
    if settings.preemption_notice_file is not None:
        notices.append(settings.preemption_notice_file)
    folders = folders_of(store.data_dir, node.roots)
    sampler = Sampler(
        accelerators,
        folders,
        seconds=max(seconds, SAMPLE_SECONDS),
        supervisors=store.supervisors,
    )
    end = None if pilot is None else EndWatch(pilot.allocation)
    if end is not None:
        end.poll()
        end.start()
    heart = Heart(
        node,
        api,
        seconds=seconds,
        notices=notices,
        sampler=sampler,
        ends_at=lambda: None if end is None else end.ends_at,
        notice_seconds=settings.notice_seconds,
        accounts=AccountAnswers() if hardware.isolation == "owner" else None,
    )
    heart.beat()
    if heart.refusal is not None:
        raise heart.refusal
    heart.start()
    with _upkeep(settings, node):
        _take_messages(settings, node)
    heart.stop()
    heart.join()
    if heart.refusal is not None:
        raise heart.refusal
    if read_notice(notices) is not None:
        heart.beat()  # maybe the last heartbeat of this node


@contextmanager
def _upkeep(settings: Settings, node: LocalNode) -> Iterator[None]:
    """While the block runs, remove old run directories and keep an idle process ready."""
    threads: list[RunCleaner | IdleKeeper] = [
        RunCleaner(node.store, node.name, days=settings.run_days)
    ]
    if node.warm:
        threads.append(IdleKeeper(node))
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.stop()


def _take_messages(settings: Settings, node: LocalNode) -> None:
    """Handle messages until SIGTERM."""
    if settings.inbox == "server":
        ServerInbox(settings, node).consume()
        return
    from worker.inbox.app import consume, create_app  # Celery is needed only here

    consume(create_app(settings, node))


def _prepare_users(settings: Settings, node: NodeStore, *, slots: int) -> UsersOfRanks | None:
    """Return the users of ranks, or None if ranks run as the worker's user.

    Raises:
        ValueError: `TRAINYARD_RUN_AS` cannot be used on this machine.
    """
    if os.geteuid() == 0 and not in_user_namespace() and settings.run_as != OWNER:
        logger.warning(
            "the worker is root%s; run it as a user of its own (docs/worker-processes.md)",
            "" if settings.run_as else ", and so is code of jobs",
        )
    run_as = parse_run_as(settings.run_as)
    if run_as is None:
        return None
    folders = [
        Path(place) for place in settings.root_paths().values() if not is_object_store(place)
    ]
    node.cache_dir.mkdir(exist_ok=True)
    caches = [node.cache_dir]
    user = run_as.prepare_node(slots=slots, data_dir=node.data_dir, shared=caches, roots=folders)
    # With accounts, the permissions of a root decide who reads it.
    shared = [*folders, *caches] if isinstance(run_as, RunAs) else []
    check_reach(user, run_directories=node.data_dir / "runs", folders=shared)
    return run_as
