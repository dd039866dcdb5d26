"""`nodes`: the list of nodes, and actions on one."""

from __future__ import annotations

import json

from sqlalchemy import insert

from server.core.database.metric_and_log_tables import stragglers
from server.jobs.attempts.node_heartbeat import node_heartbeat
from tests.library.conftest import Run, Yard
from tests.server.harness import WORKER
from trainyard.protocol.node_samples import HostSample, NodeSample
from trainyard.protocol.worker_messages import PROTOCOL, NodeHeartbeat


def test_a_node_is_drained_and_what_runs_there_named(yard: Yard, run: Run) -> None:
    yard.harness.running(name="story")
    drained = run("nodes", "drain", "node-1", "--json")
    assert "story" in drained.stderr
    assert json.loads(drained.stdout)[0]["drain"]["running"] == "move"
    finishing = run("nodes", "drain", "node-1", "--finish", "--json")
    assert (finishing.stderr, json.loads(finishing.stdout)[0]["drain"]["running"]) == ("", "finish")
    assert "cordoned" in run("nodes").stdout
    assert "online" in run("nodes", "undrain", "node-1").stdout
    run("nodes", "drain", "node-1")
    assert "draining" in run("nodes").stdout
    for wrong in (("kill", "node-1"), ("drain",), ("undrain", "node-1", "--finish")):
        refused = run("nodes", *wrong)
        assert refused.exit_code == 2
        assert "nodes drain NODE" in refused.stderr


def test_a_node_is_cordoned_with_a_reason(yard: Yard, run: Run) -> None:
    yard.harness.running(name="story")
    shown = run("nodes", "cordon", "node-1", "--reason", "new power supply").stdout
    assert "cordoned" in shown
    assert "node-1 was cordoned by admin: new power supply" in shown
    assert "online" in run("nodes", "uncordon", "node-1").stdout
    for wrong in (("uncordon", "node-1", "--reason", "x"), ("cordon", "node-1", "--finish")):
        refused = run("nodes", *wrong)
        assert (refused.exit_code, "nodes cordon NODE" in refused.stderr) == (2, True)


def test_a_node_is_labeled(yard: Yard, run: Run) -> None:
    labeled = run("nodes", "label", "node-1", "zone=a", "rack=r7", "--json")
    assert json.loads(labeled.stdout)[0]["labels"] == {"zone": "a", "rack": "r7"}
    withdrawn = run("nodes", "label", "node-1", "rack-", "--json")
    assert json.loads(withdrawn.stdout)[0]["labels"] == {"zone": "a"}
    for wrong, text in ((("zone",), "'zone' is not key=value"), (("zone=a b",), "is no value")):
        refused = run("nodes", "label", "node-1", *wrong)
        assert (refused.exit_code, text in refused.stderr) == (2, True)
    assert run("nodes", "label", "node-1").exit_code == 2


def test_a_node_that_is_about_to_leave_gives_its_reason(yard: Yard, run: Run) -> None:
    going = NodeHeartbeat(protocol=PROTOCOL, node="node-1", worker=WORKER, notice="ends [12:00]")
    node_heartbeat(yard.harness.context, going)
    shown = run("nodes", "undrain", "node-1").stdout
    assert "draining" in shown
    assert "node-1 is about to leave: ends [12:00]" in shown


def test_what_is_wrong_with_a_node_is_listed(yard: Yard, run: Run) -> None:
    host = HostSample(load=0, memory_bytes=1, memory_used_bytes=0)
    sample = NodeSample(host=host, problems=("/srv [nfs]: the file system does not answer",))
    beat = NodeHeartbeat(protocol=PROTOCOL, node="node-1", worker=WORKER, sample=sample)
    node_heartbeat(yard.harness.context, beat)
    shown = run("nodes").stdout
    assert "node-1 has a problem: /srv [nfs]: the file system does not answer" in shown


def test_slow_slots_are_listed(yard: Yard, run: Run) -> None:
    harness = yard.harness
    for _ in range(2):
        job_id, (supervisor,) = harness.running()
        row = {
            "attempt_id": harness.attempt(job_id).id,
            "node": "node-1",
            "slot": 3,
            "found_at": harness.clock.now(),
            "rank": 0,
            "step": 20,
            "kind": "compute",
            "factor": 2.0,
            "share": 0.5,
        }
        with harness.context.database.write() as connection:
            connection.execute(insert(stragglers).values(row))
        supervisor.end("succeeded")
    assert "slot 3 of node-1 slowed 2 jobs of the last 30 days" in run("nodes").stdout
