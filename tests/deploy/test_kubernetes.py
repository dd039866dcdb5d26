"""The manifests of server, broker and nodes: confined pods, known settings, declared volumes.

`tests/provisioner/kubernetes/test_manifests.py` compares them with Kubernetes' published schemas.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

import trainyard
from server.core.settings import Settings as ServerSettings
from tests.deploy.units import ROOT
from worker.settings import Settings as WorkerSettings

FOLDER = ROOT / "deploy" / "kubernetes"
SERVER = list(yaml.safe_load_all((FOLDER / "server.yaml").read_text()))
WORKER = list(yaml.safe_load_all((FOLDER / "worker.yaml").read_text()))
OBJECTS = {(item["kind"], item["metadata"]["name"]): item for item in SERVER + WORKER}
PODS = {
    name: item["spec"]["template"]["spec"]
    for (_, name), item in OBJECTS.items()
    if "template" in item.get("spec", {})
}
CONFINED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def containers(pod: str) -> Iterator[dict[str, Any]]:
    yield from PODS[pod].get("initContainers", [])
    yield from PODS[pod]["containers"]


def claims_of(name: str) -> set[str]:
    """Return the names of a workload's volumes, those of its claim templates included."""
    (owner,) = (
        item
        for (_, each), item in OBJECTS.items()
        if each == name and "spec" in item and "template" in item["spec"]
    )
    templates = owner["spec"].get("volumeClaimTemplates", [])
    volumes = PODS[name].get("volumes", [])
    return {each["metadata"]["name"] for each in templates} | {each["name"] for each in volumes}


def test_the_whole_control_plane_is_there() -> None:
    assert PODS.keys() == {"trainyard-server", "trainyard-broker", "trainyard-worker"}
    (namespace,) = (name for kind, name in OBJECTS if kind == "Namespace")
    labels = OBJECTS["Namespace", namespace]["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}
    for (kind, _), item in OBJECTS.items():
        assert kind == "Namespace" or item["metadata"]["namespace"] == namespace


@pytest.mark.parametrize("pod", PODS)
def test_no_pod_is_root_or_writes_its_image(pod: str) -> None:
    context = PODS[pod]["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert PODS[pod]["automountServiceAccountToken"] is False
    for container in containers(pod):
        assert container["securityContext"] == CONFINED, container["name"]
        resources = container["resources"]
        assert {"cpu", "memory"} <= resources["requests"].keys()
        assert "memory" in resources["limits"]


@pytest.mark.parametrize("pod", PODS)
def test_volumes_are_declared(pod: str) -> None:
    mounted = {mount["name"] for each in containers(pod) for mount in each["volumeMounts"]}
    assert mounted == claims_of(pod)
    for volume in PODS[pod].get("volumes", []):
        if "persistentVolumeClaim" in volume:
            assert (
                "PersistentVolumeClaim",
                volume["persistentVolumeClaim"]["claimName"],
            ) in OBJECTS


@pytest.mark.parametrize("pod", ["trainyard-server", "trainyard-worker"])
def test_images_are_of_this_version_and_start_modules_that_exist(pod: str) -> None:
    for container in containers(pod):
        assert container["image"] == f"registry.example.com/{pod}:{trainyard.__version__}"
        assert container["command"][:2] == ["python", "-m"]
        assert importlib.util.find_spec(f"{container['command'][2]}.__main__") is not None


def test_settings_are_ones_that_are_read_and_hold_no_password() -> None:
    given = OBJECTS["ConfigMap", "trainyard-server"]["data"]
    known = {f"TRAINYARD_{name.upper()}" for name in ServerSettings.model_fields}
    assert given.keys() <= known
    (worker,) = containers("trainyard-worker")
    names = {each["name"] for each in worker["env"]} - {"NODE", "HOME"}
    assert "TRAINYARD_ALLOW_CODE" not in names, "its ranks run as the worker's user"
    assert names <= {f"TRAINYARD_{name.upper()}" for name in WorkerSettings.model_fields}
    values = [*given.values(), *(each.get("value", "") for each in worker["env"])]
    assert not [value for value in values if "@" in value.replace("trainyard@postgres", "")]
    assert not [name for name in names | given.keys() if name.endswith(("_PASSWORD", "_TOKEN"))]


def test_people_behind_the_ingress_have_addresses_of_their_own() -> None:
    given = OBJECTS["ConfigMap", "trainyard-server"]["data"]
    trusted = ServerSettings(trusted_proxies=given["TRAINYARD_TRUSTED_PROXIES"]).trusted_proxies
    assert [each for each in trusted if each not in ServerSettings().trusted_proxies]


def test_the_broker_is_out_of_reach_of_ranks() -> None:
    (worker,) = containers("trainyard-worker")
    given = {each["name"]: each.get("value") for each in worker["env"]}
    assert given["TRAINYARD_INBOX"] == "server"
    assert not [name for name in given if "BROKER" in name]
    secrets = [each["secret"] for each in PODS["trainyard-worker"]["volumes"] if "secret" in each]
    assert [each["secretName"] for each in secrets] == ["trainyard-join"]
    policy = OBJECTS["NetworkPolicy", "trainyard-broker"]["spec"]
    broker = OBJECTS["StatefulSet", "trainyard-broker"]["spec"]
    assert policy["podSelector"] == broker["selector"]
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    (port,) = rule["ports"]
    assert port["port"] == PODS["trainyard-broker"]["containers"][0]["ports"][0]["name"]
    admitted = [each["podSelector"]["matchLabels"] for each in rule["from"]]
    assert {each["app.kubernetes.io/name"] for each in admitted} == {
        "trainyard-server",
        "trainyard-provisioner",
    }


def test_an_upgrade_ends_both_servers_and_migrates_first() -> None:
    deployment = OBJECTS["Deployment", "trainyard-server"]["spec"]
    assert deployment["strategy"] == {"type": "Recreate"}
    commands = [container["command"][3:] for container in containers("trainyard-server")]
    assert commands == [["migrate"], ["api"], ["scheduler"]]
    api = PODS["trainyard-server"]["containers"][0]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert api[probe]["httpGet"] == {"path": "/healthz", "port": "http"}
    (port,) = api["ports"]
    assert port == {"name": "http", "containerPort": 8470}
    for name in ("trainyard-server", "trainyard-broker"):
        selected = OBJECTS["Service", name]["spec"]["selector"]
        assert selected == {"app.kubernetes.io/name": name}


def test_a_node_has_gpus_and_time_to_save() -> None:
    (worker,) = containers("trainyard-worker")
    assert worker["resources"]["limits"]["nvidia.com/gpu"] > 0
    assert worker["command"][3:] == ["init"], "the end of the pod is a drain"
    assert PODS["trainyard-worker"]["terminationGracePeriodSeconds"] >= 600
    spec = OBJECTS["StatefulSet", "trainyard-worker"]["spec"]
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert OBJECTS["Service", spec["serviceName"]]["spec"]["clusterIP"] == "None"
