"""Calls of the server to this source, and the pilot from a pod's environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.api import ProvisionerApi
from provisioner.engine_calls import EngineCalls
from provisioner.request_folders import RequestFolders, hashes
from provisioner.settings import SourceConfig
from tests.provisioner.kubernetes.api import INDEX
from tests.provisioner.kubernetes.conftest import REQUEST, Bench
from tests.provisioner.provisioner_server import SOURCE_TOKEN, ProvisionerServer
from trainyard.protocol.node_sources.messages import RequestOrder, SourceMessage
from worker.pilot.allocation import find_pilot
from worker.settings import Settings

CONFIG = SourceConfig(
    name="k8s-a100", kind="kubernetes", slots=8, roots={"checkpoints": "/srv/checkpoints"}
)


def test_a_request_is_submitted_listed_and_withdrawn(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, folders = ProvisionerServer(), RequestFolders(tmp_path / "state")
    server.orders[REQUEST] = RequestOrder(
        request_id=REQUEST,
        purpose="nodes",
        nodes=2,
        seconds=3600,
        wanted=True,
        urls=("https://train.example",),
    )
    with ProvisionerApi(server.url, SOURCE_TOKEN) as api:
        calls = EngineCalls(CONFIG, bench.source, folders=folders, api=api, url=server.url)

        def call(name: str, request_id: str | None = REQUEST) -> None:
            fields = {"source": "k8s-a100", "call": name, "request_id": request_id}
            calls.carry_out(SourceMessage.model_validate(fields))

        call("submit")
        (job,) = server.reports[-1].jobs
        assert (job.ref, job.state) == (bench.job["metadata"]["uid"], "pending")
        pods = bench.api.pods()
        for pod in pods:
            bench.api.start(pod)
        call("list", None)
        (job,) = server.reports[-1].jobs
        assert (job.state, len(job.nodes)) == ("running", 2)
        secrets = folders.secrets(REQUEST, count=2)
        assert set(server.claims[REQUEST].secret_hashes) == set(hashes(secrets))
        server.withdraw(REQUEST)
        call("cancel")
        assert server.reports[-1].jobs[0].state == "completing"
        for pod in pods:
            bench.api.finish(pod, 143)
        bench.later()
        call("list", None)
        assert server.reports[-1].jobs[0].gone
    server.close()
    written = "".join(report.model_dump_json() for report in server.reports)
    objects = [item for (kind, _), item in bench.api.objects.items() if kind != "secrets"]
    for secret in secrets.read_text().split():
        assert secret not in written
        assert secret not in json.dumps(objects)

    # The worker's view of the pod's variables.
    second = pods[1]
    (container,) = second["spec"]["containers"]
    assert container["command"] == ["python", "-m", "worker", "pilot"]
    fields = {"status.podIP": "10.0.0.2", "metadata.uid": second["metadata"]["uid"]}
    for item in container["env"]:
        given = item.get("value") or fields[item["valueFrom"]["fieldRef"]["fieldPath"]]
        monkeypatch.setenv(item["name"], given)
    monkeypatch.setenv("JOB_COMPLETION_INDEX", second["metadata"]["annotations"][INDEX])
    pilot = find_pilot()
    assert pilot is not None
    assert pilot.name == f"k8s-a100-{REQUEST}-1"
    named = {node.index: node.instance for node in job.nodes}
    assert pilot.allocation.instance == named[1]
    settings = Settings()
    assert (settings.url, settings.inbox, settings.address) == (
        "https://train.example",
        "server",
        "10.0.0.2",
    )
    assert (settings.slots, settings.device) == (8, "cuda")
    assert str(settings.join_token_file) == "/run/trainyard/join/secrets"
