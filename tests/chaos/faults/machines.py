"""Faults of machines and of the network between them."""

from __future__ import annotations

from uuid import uuid4

from tests.chaos.case import Case, silence
from tests.chaos.cluster import API, LEASE_SECONDS
from tests.chaos.fault import AWAY, LONG, fault

LOST_AFTER = 20.0


@fault(
    "`kill -9` of every process of a node at once; its worker is started again",
    attempts=2,
    retries_used=1,
)
def node_killed(case: Case) -> None:
    node = case.nodes()[1]
    node.worker.kill_all()
    node.worker.start()


@fault(
    "`kill -9` of every process of both nodes at once; their workers are started again",
    attempts=2,
    retries_used=1,
)
def nodes_killed(case: Case) -> None:
    for node in case.nodes():
        node.worker.kill_all()
    for node in case.nodes():
        node.worker.start()


@fault("a machine reboots: its processes are gone, and it has another boot id", attempts=2)
def node_rebooted(case: Case) -> None:
    node = case.nodes()[1]
    node.worker.kill_all()
    node.boot_id.write_text(f"{uuid4()}\n")
    node.worker.start()


@fault(f"a machine has no network for {LONG:g} s")
def node_cut(case: Case) -> None:
    machine = case.nodes()[1].machine
    machine.cut()
    silence(LONG)
    machine.join()


@fault(
    f"a machine has no network to the end of the job: it is lost after {LOST_AFTER:g} s",
    attempts=2,
    retry={"node_lost_after_seconds": LOST_AFTER},
)
def node_lost(case: Case) -> None:
    machine = case.nodes()[1].machine
    case.cleanup.callback(machine.join)
    machine.cut()


@fault(
    "the same with an elastic job of 4 ranks, which continues on 2",
    attempts=2,
    same_layout=False,
    resources={
        "world_size": 4,
        "nodes": None,
        "min_world_size": 2,
        "max_world_size": 4,
        "shrink_after_seconds": LEASE_SECONDS,
        "exclude_nodes": ["n3"],
    },
)
def node_lost_to_elastic_job(case: Case) -> None:
    node_lost(case)


@fault(f"a machine receives no packets for {LONG:g} s, but sends")
def node_deaf(case: Case) -> None:
    _filtered(case, "input")


@fault(f"no packet of a machine arrives for {LONG:g} s, but it receives")
def node_mute(case: Case) -> None:
    _filtered(case, "output")


@fault(f"a machine loses 30 % of all packets, in both directions, for {LONG:g} s")
def packets_lost(case: Case) -> None:
    _filtered(case, "input", "output", match="numgen random mod 100 < 30")


@fault(f"a machine has a link of 64 KiB/s, in both directions, for {LONG:g} s")
def link_slow(case: Case) -> None:
    _filtered(case, "input", "output", match="limit rate over 64 kbytes/second")


@fault(f"the control plane has no network for {LONG:g} s")
def control_plane_cut(case: Case) -> None:
    machine = case.cluster.parts[API].machine
    machine.cut()
    case.progress()
    silence(LONG)
    machine.join()


@fault(f"the network of a machine fails five times, for {AWAY / 4:g} s each")
def node_flapping(case: Case) -> None:
    machine = case.nodes()[0].machine
    for _ in range(5):
        machine.cut()
        silence(AWAY / 4)
        machine.join()
        silence(AWAY / 4)


def _filtered(case: Case, *hooks: str, match: str = "") -> None:
    machine = case.nodes()[1].machine
    for hook in hooks:
        machine.drop(hook, *match.split())
    silence(LONG)
    machine.join()
