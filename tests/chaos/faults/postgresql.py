"""Faults of PostgreSQL as the database of the control plane."""

from __future__ import annotations

from tests.chaos.case import Case, silence
from tests.chaos.cluster import DATABASE, Setup
from tests.chaos.conditions import paused
from tests.chaos.fault import AWAY, LONG, fault
from tests.e2e.control_plane import wait_for

POSTGRESQL = Setup(postgresql=True)


@fault("`kill -9` of PostgreSQL and all its sessions; it is started at once", setup=POSTGRESQL)
def postgresql_restarted(case: Case) -> None:
    database = case.cluster.parts[DATABASE]
    case.submit_another()
    database.kill_all()
    database.start()


@fault(f"`kill -9` of PostgreSQL; it is back after {AWAY:g} s", setup=POSTGRESQL)
def postgresql_killed(case: Case) -> None:
    database = case.cluster.parts[DATABASE]
    database.kill_all()
    case.progress()
    silence(AWAY)
    database.start()
    wait_for(case.cluster.answers, "answer of the API")  # PostgreSQL recovers first
    case.submit_another()


@fault(f"SIGSTOP of PostgreSQL and all its sessions for {LONG:g} s", setup=POSTGRESQL)
def postgresql_paused(case: Case) -> None:
    with case.held(), paused(*case.cluster.parts[DATABASE].descendants):
        silence(LONG)
