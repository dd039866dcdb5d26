"""Faults of the broker and of its messages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import redis

from tests.chaos.case import Case, silence
from tests.chaos.cluster import BROKER
from tests.chaos.conditions import paused
from tests.chaos.fault import AWAY, LONG, fault
from tests.chaos.proxies import Fate, messages
from tests.e2e.control_plane import wait_for

TWO_MINUTES = 120.0
LATE = 5.0
"""Seconds by which a delayed message is late; unclaimed launches are sent again after a second."""


@fault(f"the broker is away for {AWAY:g} s while a job waits for its launch")
def broker_killed(case: Case) -> None:
    broker = case.cluster.parts[BROKER]
    broker.kill()
    case.submit_another()
    case.progress()
    silence(AWAY)
    broker.start()


@fault(f"the broker is away for {TWO_MINUTES:g} s while a job waits for its launch")
def broker_away(case: Case) -> None:
    broker = case.cluster.parts[BROKER]
    with case.held():
        broker.kill()
        case.submit_another()
        silence(TWO_MINUTES)
        broker.start()


@fault("the broker is restarted three times while jobs wait for their launches")
def broker_restarted(case: Case) -> None:
    for _ in range(3):
        case.submit_another()
        case.cluster.parts[BROKER].restart()
        case.wait_until_placed()


@fault(f"SIGSTOP of the broker for {LONG:g} s while a job waits for its launch")
def broker_hung(case: Case) -> None:
    with case.held():
        case.submit_another()
        with paused(case.cluster.parts[BROKER].pid):
            silence(LONG)


@fault("all data of the broker is lost while the workers are paused")
def broker_flushed(case: Case) -> None:
    with _workers_paused(case), redis.Redis.from_url(case.cluster.broker_url) as client:
        case.submit_another()
        case.wait_until_placed()
        client.flushall()


@fault("every launch message comes three times")
def messages_doubled(case: Case) -> None:
    with _workers_paused(case), redis.Redis.from_url(case.cluster.broker_url) as client:
        case.submit_another()
        case.wait_until_placed()

        def copied() -> bool:
            lists = {key: client.lrange(key, 0, -1) for key in client.scan_iter(_type="list")}
            for key, copies in lists.items():
                client.rpush(key, *copies, *copies)
            return bool(lists)

        wait_for(copied, "launch message in the broker")


@fault(f"every message to a node is dropped for {LONG:g} s")
def messages_dropped(case: Case) -> None:
    with messages(case.cluster, Fate.DROPPED) as fate, case.held():
        case.submit_another()
        silence(LONG)
    assert fate.met, "no message was dropped"


@fault(f"every message to a node comes {LATE:g} s late")
def messages_delayed(case: Case) -> None:
    with messages(case.cluster, Fate.DELAYED, seconds=LATE) as fate, case.held():
        case.submit_another()
        silence(LONG)
    assert fate.met, "no message was delayed"


@fault("every message to a node is sent twice while jobs come and go")
def messages_repeated(case: Case) -> None:
    with messages(case.cluster, Fate.REPEATED) as fate, case.held():
        for _ in range(2):
            case.submit_another()
            silence(AWAY)
    assert fate.met, "no message was repeated"


@contextlib.contextmanager
def _workers_paused(case: Case) -> Iterator[None]:
    with paused(*(node.worker.pid for node in case.cluster.nodes.values())):
        yield
