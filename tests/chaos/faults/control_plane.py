"""Faults of API server and schedulers, and of their database on SQLite."""

from __future__ import annotations

import sqlite3

from tests.chaos.case import Case, silence
from tests.chaos.cluster import API, SCHEDULER, STANDBY
from tests.chaos.conditions import full, paused
from tests.chaos.fault import AWAY, LONG, fault
from tests.chaos.proxies import failing_requests


@fault(f"`kill -9` of the API server; it is back after {AWAY:g} s")
def api_killed(case: Case) -> None:
    api = case.cluster.parts[API]
    api.kill()
    case.progress()
    silence(AWAY)
    api.start()


@fault(f"SIGSTOP of the API server for {LONG:g} s")
def api_paused(case: Case) -> None:
    with case.held(), paused(case.cluster.parts[API].pid):
        silence(LONG)


@fault(
    "every second request of the nodes to the API fails to the end of the job: 503, 429, refused, "
    "or done without an answer, in turn"
)
def requests_failing(case: Case) -> None:
    case.cleanup.enter_context(failing_requests(case.cluster, every=2))
    case.submit_another()


@fault("`kill -9` of the leading scheduler while a job waits; a standby takes over")
def leader_killed(case: Case) -> None:
    case.cluster.parts[SCHEDULER].kill()
    case.submit_another()
    case.wait_until_placed()
    case.cluster.parts[SCHEDULER].start()


@fault("SIGSTOP of both schedulers in turn while jobs wait; a continued scheduler no longer leads")
def leaders_paused(case: Case) -> None:
    for name in (SCHEDULER, STANDBY):
        with paused(case.cluster.parts[name].pid):
            case.submit_another()
            case.wait_until_placed()
    case.submit_another()


@fault("`kill -9` of both schedulers; they are back later")
def schedulers_killed(case: Case) -> None:
    for name in (SCHEDULER, STANDBY):
        case.cluster.parts[name].kill()
    case.submit_another()
    case.progress()
    silence(AWAY)
    for name in (SCHEDULER, STANDBY):
        case.cluster.parts[name].start()


@fault(f"SIGSTOP of both schedulers for {LONG:g} s")
def schedulers_paused(case: Case) -> None:
    with case.held(), paused(*(case.cluster.parts[name].pid for name in (SCHEDULER, STANDBY))):
        silence(LONG)


@fault(f"the database is locked by another process for {AWAY:g} s")
def database_locked(case: Case) -> None:
    with sqlite3.connect(case.cluster.state / "trainyard.db", timeout=30) as connection:
        connection.execute("BEGIN IMMEDIATE")
        case.progress()
        silence(AWAY)
        connection.rollback()


@fault(f"the disk of the database is full for {AWAY:g} s")
def database_disk_full(case: Case) -> None:
    with full(case.cluster.state):
        case.progress()
        silence(AWAY)
