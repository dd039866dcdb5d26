"""The life of a Job, from its submission to its end, and proofs that a pilot is gone."""

from __future__ import annotations

import base64
import json
import time

import pytest

from provisioner.base import Shape, SourceError
from provisioner.kubernetes.manifest import FINALIZER
from provisioner.kubernetes.objects import OVERDUE_SECONDS
from provisioner.kubernetes.source import JOB_SECONDS, LATE_POD_SECONDS, POD_SECONDS
from tests.provisioner.kubernetes.api import INDEX, Fault
from tests.provisioner.kubernetes.conftest import REQUEST, Bench

NAME = f"trainyard-{REQUEST}"


def test_a_job_runs_from_its_submission_to_its_end(bench: Bench) -> None:
    ref = bench.submit()
    assert bench.only().state == "pending"
    first, second = bench.api.pods()
    bench.api.start(first, "node-1", address="10.0.0.1")
    bench.api.start(second, "node-2", address="fd00::2")
    job = bench.only()
    assert (job.request_id, job.ref, job.state, job.gone) == (REQUEST, ref, "running", False)
    assert [(n.index, n.host, n.addresses) for n in job.nodes] == [
        (0, "node-1", ("10.0.0.1",)),
        (1, "node-2", ("fd00::2",)),
    ]
    assert [n.instance for n in job.nodes] == [p["metadata"]["uid"] for p in (first, second)]
    assert job.starts_at is not None
    assert job.ends_at == job.starts_at + 3600
    bench.api.finish(first)
    bench.api.finish(second)
    job = bench.only()
    assert (job.state, job.gone, [n.gone for n in job.nodes]) == ("ended", True, [True, True])


def test_the_secrets_are_in_the_secret_alone(bench: Bench) -> None:
    bench.submit()
    secret = bench.api.named("secrets", NAME)
    assert base64.b64decode(secret["data"]["secrets"]) == b"secret-0\nsecret-1\n"
    assert secret["metadata"]["ownerReferences"][0]["uid"] == bench.job["metadata"]["uid"]
    volumes = {v["name"]: v for v in bench.job["spec"]["template"]["spec"]["volumes"]}
    assert volumes["trainyard-join"]["secret"] == {"secretName": NAME, "defaultMode": 0o400}
    others = [item for (kind, _), item in bench.api.objects.items() if kind != "secrets"]
    assert "secret-0" not in json.dumps(others)
    assert not [line for line in bench.api.lines if "secret-0" in line]


def test_a_repeated_submission_finds_the_job(bench: Bench) -> None:
    ref = bench.submit()
    assert bench.submit() == ref
    assert len(bench.api.all("jobs")) == 1


def test_a_submission_whose_answer_was_lost_is_found(bench: Bench) -> None:
    bench.api.faults.append(Fault("POST .*/jobs", lost=True))
    ref = bench.submit()
    assert bench.job["metadata"]["uid"] == ref
    assert len(bench.api.pods()) == 2


def test_a_submission_that_stopped_before_the_secret_is_completed(bench: Bench) -> None:
    bench.api.allowed.remove(("create", "secrets"))
    with pytest.raises(SourceError, match="create secrets in namespace training"):
        bench.submit()
    assert bench.only().state == "pending"
    bench.api.allowed.add(("create", "secrets"))
    bench.submit()
    assert len(bench.api.all("secrets")) == 1


def test_a_job_of_the_name_that_is_not_ours_is_refused(bench: Bench) -> None:
    bench.submit()
    for item in (bench.job, *bench.api.pods()):
        item["metadata"]["labels"]["trainyard.dev/source"] = "another"
    with pytest.raises(SourceError, match="is not of this source") as caught:
        bench.submit()
    assert caught.value.refused
    assert bench.source.list().jobs == []


# Kueue


def test_kueue_admits_preempts_and_admits_again(bench: Bench) -> None:
    bench.source = bench.make(queue="research")
    bench.submit()
    assert bench.job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    job = bench.only()
    assert (job.state, job.nodes, job.starts_at, job.ends_at) == ("pending", (), None, None)
    assert "insufficient unused quota" in job.reason
    assert "insufficient unused quota" in bench.source.explain(REQUEST)

    bench.api.admit(bench.job)
    pods = bench.api.pods()
    for pod in pods:
        bench.api.start(pod)
    assert bench.only().state == "running"

    bench.api.preempt(bench.job)
    assert bench.only().state == "running", "its pods still save"
    for pod in pods:
        bench.api.finish(pod, 143)
    job = bench.only()
    assert (job.state, job.gone, [n.gone for n in job.nodes]) == ("pending", False, [True, True])

    bench.api.admit(bench.job)
    for pod in bench.api.pods():
        if "deletionTimestamp" not in pod["metadata"]:
            bench.api.start(pod)
    job = bench.only()
    assert [(n.index, n.gone) for n in job.nodes] == [(0, False), (1, False), (0, True), (1, True)]
    assert len({n.instance for n in job.nodes}) == 4


def test_a_missing_right_to_kueues_workloads_leaves_the_list(bench: Bench) -> None:
    bench.source = bench.make(queue="research")
    bench.submit()
    bench.api.allowed.remove(("list", "workloads"))
    assert "list workloads.kueue.x-k8s.io" in bench.only().reason


# Proofs


def test_an_evicted_pod_is_gone_once_its_containers_are_and_has_a_successor(bench: Bench) -> None:
    bench.submit()
    for pod in bench.api.pods():
        bench.api.start(pod)
    evicted = bench.api.pods()[0]
    index = int(evicted["metadata"]["annotations"][INDEX])
    bench.api.evict(evicted)
    assert [n.gone for n in bench.only().nodes] == [False, False], "it saves"
    assert len(bench.api.pods()) == 2, "no successor while it may live"
    bench.api.finish(evicted, 143)
    job = bench.only()
    assert [n.instance for n in job.nodes if n.gone] == [evicted["metadata"]["uid"]]
    (successor,) = (p for p in bench.api.pods() if not p["spec"].get("nodeName"))
    bench.api.start(successor, "node-3")
    lives = [(n.instance, n.gone) for n in bench.only().nodes if n.index == index]
    assert lives == [
        (successor["metadata"]["uid"], False),
        (evicted["metadata"]["uid"], True),
    ]


def test_a_drained_node_is_let_go_once_the_server_has_the_proof(bench: Bench) -> None:
    bench.submit()
    pods = bench.api.pods()
    for pod in pods:
        bench.api.start(pod)
    bench.api.evict(pods[0])
    bench.api.finish(pods[0], 143)
    bench.only()
    bench.later(POD_SECONDS - 1)
    assert [n.gone for n in bench.only().nodes].count(True) == 1
    bench.later(2)
    assert [n.gone for n in bench.only().nodes].count(True) == 1, "reported a last time"
    assert bench.only().nodes[0].gone is False
    assert pods[0]["metadata"]["uid"] not in str(bench.api.pods())


def test_a_forced_deletion_is_no_proof(bench: Bench) -> None:
    bench.submit(shape=Shape(nodes=1, slots=8, device="cuda"))
    (pod,) = bench.api.pods()
    bench.api.start(pod)
    bench.api.delete("pods", pod["metadata"]["name"], {"gracePeriodSeconds": 0})
    for _ in range(3):
        bench.later()
        (node,) = bench.only().nodes
        assert (node.instance, node.gone) == (pod["metadata"]["uid"], False)
    bench.api.finish(pod, 137)
    assert bench.only().nodes[0].gone, "the kubelet has reported its containers"


def test_a_node_that_is_lost_proves_nothing_and_an_ended_job_is_unknown(bench: Bench) -> None:
    bench.submit(shape=Shape(nodes=1, slots=8, device="cuda"))
    (pod,) = bench.api.pods()
    bench.api.start(pod, "node-9")
    bench.api.lose_node("node-9")
    assert pod["status"]["phase"] == "Failed"
    assert [n.gone for n in bench.only().nodes] == [False]
    assert "node node-9 has not reported" in bench.only().reason
    bench.source.cancel(REQUEST)
    for _ in range(3):
        bench.later()
        job = bench.only()
        assert (job.state, job.gone) == ("unknown", False)
        bench.source.cancel(REQUEST)
    assert bench.api.named("pods", pod["metadata"]["name"]), "kept as the only evidence"


def test_the_proof_of_one_pod_is_reported_before_a_job_is_unknown(bench: Bench) -> None:
    bench.submit()
    ended, lost = bench.api.pods()
    bench.api.start(ended, "node-1")
    bench.api.start(lost, "node-9")
    bench.source.cancel(REQUEST)
    bench.api.finish(ended)
    bench.api.lose_node("node-9")
    job = bench.only()
    assert (job.state, sorted(n.gone for n in job.nodes)) == ("completing", [False, True])
    bench.later(POD_SECONDS)
    assert bench.only().state == "unknown"


def test_a_deleted_pod_of_a_node_that_is_away_is_lost_after_its_grace(bench: Bench) -> None:
    bench.submit(shape=Shape(nodes=1, slots=8, device="cuda"))
    (pod,) = bench.api.pods()
    bench.api.start(pod, "node-9")
    bench.source.cancel(REQUEST)
    assert bench.only().state == "completing"
    bench.clock.now = time.time() + 300 + OVERDUE_SECONDS + 60
    job = bench.only()
    assert (job.state, job.gone, [n.gone for n in job.nodes]) == ("unknown", False, [False])
    assert "node node-9 has not reported" in job.reason


def test_a_pod_that_the_kubelet_refused_is_gone(bench: Bench) -> None:
    bench.submit(shape=Shape(nodes=1, slots=8, device="cuda"))
    (pod,) = bench.api.pods()
    bench.api.schedule(pod)
    pod["status"] = {
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": "Allocate failed due to no healthy devices present",
    }
    (node,) = bench.only().nodes
    assert node.gone
    assert "no healthy devices" in bench.only().reason


# Ends


def test_a_cancelled_job_saves_is_proved_gone_and_vanishes(bench: Bench) -> None:
    bench.submit()
    pods = bench.api.pods()
    for pod in pods:
        bench.api.start(pod)
    bench.source.cancel(REQUEST)
    assert all(p["metadata"]["deletionGracePeriodSeconds"] == 300 for p in pods)
    assert (bench.only().state, bench.only().gone) == ("completing", False)
    for pod in pods:
        bench.api.finish(pod)
    bench.source.cancel(REQUEST)
    bench.later(LATE_POD_SECONDS)
    job = bench.only()
    assert (job.state, job.gone) == ("ended", True)
    bench.later(JOB_SECONDS - 1)
    bench.source.cancel(REQUEST)
    assert bench.only().gone, "the server may not have had the report"
    bench.later(2)
    assert bench.only().gone, "reported a last time"
    assert bench.api.objects == {}
    assert bench.source.list().jobs == []
    bench.source.cancel(REQUEST)


def test_a_job_that_ended_by_itself_is_removed_once_the_server_has_the_proof(bench: Bench) -> None:
    bench.submit()
    for pod in bench.api.pods():
        bench.api.start(pod)
        bench.api.finish(pod)
    assert bench.only().gone
    bench.later(JOB_SECONDS - 1)
    assert bench.only().gone
    assert "deletionTimestamp" not in bench.job["metadata"]
    bench.later(2)
    assert bench.only().gone
    bench.source.list()
    assert bench.api.objects == {}


def test_a_job_that_was_cancelled_before_it_had_pods_is_proved_gone(bench: Bench) -> None:
    bench.source = bench.make(queue="research")
    bench.submit()
    bench.source.cancel(REQUEST)
    assert bench.only().state == "completing", "its controller may see the deletion later"
    bench.later(LATE_POD_SECONDS)
    assert (bench.only().state, bench.only().gone) == ("ended", True)


def test_pods_that_wait_for_a_node_are_gone_with_their_deletion(bench: Bench) -> None:
    bench.submit()
    pod = bench.api.pods()[0]
    pod["status"]["conditions"] = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/5 nodes are available: 5 Insufficient nvidia.com/gpu.",
        }
    ]
    assert "0/5 nodes are available" in bench.only().reason
    bench.source.cancel(REQUEST)
    bench.only()
    bench.later(LATE_POD_SECONDS)
    assert bench.only().gone


def test_a_job_at_its_deadline_ends_when_its_pods_do(bench: Bench) -> None:
    bench.submit()
    for pod in bench.api.pods():
        bench.api.start(pod)
    bench.api.fail(bench.job, "DeadlineExceeded", "Job was active longer than specified deadline")
    assert bench.only().state == "completing"
    for pod in bench.api.pods():
        bench.api.finish(pod)
    job = bench.only()
    assert (job.state, job.gone) == ("ended", True)
    assert "DeadlineExceeded" in job.reason


def test_pods_without_their_job_prove_no_end_of_it(bench: Bench) -> None:
    bench.submit()
    pods = bench.api.pods()
    for pod in pods:
        bench.api.start(pod)
    bench.job["metadata"]["finalizers"] = []
    bench.api.delete("jobs", NAME, {})
    assert (bench.only().state, bench.only().gone) == ("completing", False)
    for pod in pods:
        bench.api.finish(pod)
    job = bench.only()
    assert (job.state, job.gone, [n.gone for n in job.nodes]) == ("completing", False, [True, True])
    bench.later(POD_SECONDS)
    bench.source.list()
    assert bench.source.list().jobs == [], "the server finds it missing, which proves nothing"


def test_objects_carry_the_finalizer(bench: Bench) -> None:
    bench.submit()
    for item in (bench.job, *bench.api.pods()):
        assert FINALIZER in item["metadata"]["finalizers"]
