"""Clocks that are set: of a node, of the control plane."""

from __future__ import annotations

from tests.chaos.case import Case, silence
from tests.chaos.cluster import API, LEASE_SECONDS, Setup
from tests.chaos.fault import fault

PRELOADED = Setup(preloaded=True)
HOUR = 3600


@fault("the clock of a node is set 1 h ahead, to the end of the job", setup=PRELOADED)
def node_clock_ahead(case: Case) -> None:
    _set(case, case.nodes()[0].name, HOUR)


@fault("the clock of a node is set 1 h back, to the end of the job", setup=PRELOADED)
def node_clock_behind(case: Case) -> None:
    _set(case, case.nodes()[0].name, -HOUR)


@fault("the clock of the control plane is set 1 h ahead, to the end of the job", setup=PRELOADED)
def control_clock_ahead(case: Case) -> None:
    with case.held():
        _set(case, API, HOUR)
        silence(LEASE_SECONDS)
    case.submit_another()


@fault("the clock of the control plane is set 1 h back, to the end of the job", setup=PRELOADED)
def control_clock_behind(case: Case) -> None:
    with case.held():
        _set(case, API, -HOUR)
        silence(LEASE_SECONDS)
    case.submit_another()


def _set(case: Case, machine: str, seconds: int) -> None:
    case.cleanup.enter_context(case.cluster.preload.clock_moved(machine, seconds))
