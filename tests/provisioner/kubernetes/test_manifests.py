"""The objects of a request and the files of the deployment, against the published schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from provisioner.base import Place, Shape, SourceError, Submission
from provisioner.engines import open_engine
from provisioner.kubernetes.manifest import (
    CONTAINER,
    KubernetesOptions,
    Manifest,
    job_manifest,
    secret_manifest,
)
from provisioner.settings import read_sources
from tests.provisioner.kubernetes.api import ROOT

REQUEST = "01hf7yat00ekjk5hxa9f0e4cqz"
VERSIONS = ("1.29", "1.31", "1.34", "1.37")
DEPLOYED = [
    (path.name, item)
    for path in sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
    for item in yaml.safe_load_all(path.read_text())
]


def submission(tmp_path: Path, *, device: Any = "cuda", **changes: Any) -> Submission:
    secrets = tmp_path / "secrets"
    secrets.write_text("secret-0\nsecret-1\n")
    fields: dict[str, Any] = {
        "request_id": REQUEST,
        "purpose": "nodes",
        "shape": Shape(nodes=2, slots=8, device=device),
        "seconds": 3600.5,
        "secrets": secrets,
        "environment": {"TRAINYARD_URL": "https://train.example"},
    }
    return Submission(**(fields | changes))


def manifest(tmp_path: Path, template: str | None = None, **changes: Any) -> Manifest:
    if template is not None:
        path = tmp_path / "pod.yaml"
        path.write_text(template)
        changes["pod_template"] = str(path)
    device = changes.pop("device", "cuda")
    options = KubernetesOptions(namespace="training", image="worker:1", **changes)
    return job_manifest(
        Place(name="k8s", python="python", folder=tmp_path),
        options,
        submission=submission(tmp_path, device=device),
        command=["python", "-m", "worker", "pilot"],
    )


def pod_spec(job: Manifest) -> Any:
    return job["spec"]["template"]["spec"]


def pilot(job: Manifest) -> Any:
    (container,) = (c for c in pod_spec(job)["containers"] if c["name"] == CONTAINER)
    return container


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_job_is_one_that_the_published_schemas_have(
    tmp_path: Path, version: str, device: str
) -> None:
    job = manifest(tmp_path, device=device, queue="research", shared_memory="16Gi")
    kubernetes_validate.validate(job, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_secret_is_one_that_the_published_schemas_have(tmp_path: Path, version: str) -> None:
    options = KubernetesOptions(namespace="training", image="worker:1")
    place = Place(name="k8s", python="python", folder=tmp_path)
    secret = secret_manifest(place, options, submission=submission(tmp_path), job_uid="uid")
    kubernetes_validate.validate(secret, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("file", "item"), DEPLOYED, ids=[f"{f}-{i['kind']}" for f, i in DEPLOYED])
def test_a_file_of_the_deployment_is_one_that_the_published_schemas_have(
    version: str, file: str, item: Manifest
) -> None:
    kubernetes_validate.validate(item, version, strict=True)


def test_the_schemas_refuse_a_field_that_is_none(tmp_path: Path) -> None:
    job = manifest(tmp_path)
    job["spec"]["backOffLimitPerIndex"] = 3
    with pytest.raises(kubernetes_validate.ValidationError, match="backOffLimitPerIndex"):
        kubernetes_validate.validate(job, VERSIONS[0], strict=True)


def test_what_the_source_relies_on(tmp_path: Path) -> None:
    spec = manifest(tmp_path, grace_seconds=600)["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
    assert (spec["podReplacementPolicy"], spec["suspend"]) == ("Failed", False)
    assert spec["activeDeadlineSeconds"] == 3600
    (rule,) = spec["podFailurePolicy"]["rules"]
    condition = {"type": "DisruptionTarget", "status": "True"}
    assert rule == {"action": "Ignore", "onPodConditions": [condition]}
    pod = spec["template"]["spec"]
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", 600)
    assert pod["automountServiceAccountToken"] is False
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["trainyard-shm"]["emptyDir"] == {"medium": "Memory"}
    container = pod["containers"][0]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    env = {variable["name"]: variable for variable in container["env"]}
    address = env["TRAINYARD_ADDRESS"]["valueFrom"]["fieldRef"]["fieldPath"]
    instance = env["TRAINYARD_PILOT_INSTANCE"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert (address, instance) == ("status.podIP", "metadata.uid")
    assert env["TRAINYARD_NOTICE_SECONDS"]["value"] == "600"


def test_an_operators_template_is_merged_as_kubernetes_merges(tmp_path: Path) -> None:
    job = manifest(
        tmp_path,
        """
        metadata:
          labels: {team: research}
          annotations: {note: x}
        spec:
          nodeSelector: {gpu: a100}
          tolerations: [{key: nvidia.com/gpu, operator: Exists}]
          securityContext: {runAsUser: 5000}
          containers:
          - name: sidecar
            image: proxy:1
          - name: pilot
            env: [{name: NCCL_DEBUG, value: INFO}]
            resources: {requests: {cpu: "64"}, limits: {memory: 512Gi}}
            volumeMounts: [{name: data, mountPath: /srv/data}]
          volumes: [{name: data, persistentVolumeClaim: {claimName: corpora}}]
        """,
    )
    kubernetes_validate.validate(job, "1.34", strict=True)
    metadata = job["spec"]["template"]["metadata"]
    assert metadata["labels"] == {
        "team": "research",
        "trainyard.dev/source": "k8s",
        "trainyard.dev/request": REQUEST,
    }
    assert metadata["annotations"] == {"note": "x"}
    spec = pod_spec(job)
    assert [c["name"] for c in spec["containers"]] == ["pilot", "sidecar"]
    assert (
        spec["securityContext"] | {"runAsUser": 5000, "runAsNonRoot": True}
        == (spec["securityContext"])
    )
    container = pilot(job)
    assert container["resources"] == {
        "requests": {"cpu": "64"},
        "limits": {"memory": "512Gi", "nvidia.com/gpu": "8"},
    }
    assert "NCCL_DEBUG" in {v["name"] for v in container["env"]}
    assert {m["mountPath"] for m in container["volumeMounts"]} >= {"/srv/data", "/dev/shm"}
    assert {v["name"] for v in spec["volumes"]} >= {"data", "trainyard-join"}
    assert container["command"] == ["python", "-m", "worker", "pilot"]


def test_the_cpu_of_a_cpu_node_may_be_set(tmp_path: Path) -> None:
    template = "spec: {containers: [{name: pilot, resources: {requests: {cpu: '4'}}}]}"
    assert pilot(manifest(tmp_path, device="cpu"))["resources"]["requests"] == {"cpu": "8"}
    job = manifest(tmp_path, template, device="cpu")
    assert pilot(job)["resources"]["requests"] == {"cpu": "4"}


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ("spec: {restartPolicy: Always}", "spec.restartPolicy"),
        ("spec: {terminationGracePeriodSeconds: 5}", "spec.terminationGracePeriodSeconds"),
        ("spec: {activeDeadlineSeconds: 60}", "spec.activeDeadlineSeconds"),
        ("spec: {containers: [{name: pilot, command: [sh]}]}", "spec.containers[pilot].command"),
        ("spec: {containers: [{name: pilot, args: [x]}]}", "spec.containers[pilot].args"),
        ("spec: {containers: [{name: pilot, image: x}]}", "spec.containers[pilot].image"),
        (
            "spec: {containers: [{name: pilot, restartPolicy: Always}]}",
            "spec.containers[pilot].restartPolicy",
        ),
        (
            "spec: {containers: [{name: pilot, env: [{name: TRAINYARD_URL, value: x}]}]}",
            "spec.containers[pilot].env[TRAINYARD_URL]",
        ),
        (
            "spec: {containers: [{name: pilot, volumeMounts: [{name: x, mountPath: /dev/shm/}]}]}",
            "spec.containers[pilot].volumeMounts[/dev/shm]",
        ),
        (
            "spec: {volumes: [{name: trainyard-join, emptyDir: {}}]}",
            "spec.volumes[trainyard-join]",
        ),
        (
            "spec: {containers: [{name: pilot, resources: {limits: {nvidia.com/gpu: 1}}}]}",
            "spec.containers[pilot].resources.limits.nvidia.com/gpu",
        ),
        ("metadata: {labels: {trainyard.dev/source: x}}", "metadata.labels.trainyard.dev/source"),
        ("metadata: {name: x}", "metadata may have"),
        ("metadata: {finalizers: [x]}", "metadata may have"),
        ("spec: {containers: [{image: x}]}", "spec.containers needs the field 'name'"),
        ("spec: 3", "spec=3"),
        ("kind: Pod", "needs the fields metadata and spec alone"),
        ("{", "cannot be read"),
    ],
)
def test_a_template_that_defeats_the_source_is_refused_by_field(
    tmp_path: Path, template: str, field: str
) -> None:
    with pytest.raises(SourceError) as caught:
        manifest(tmp_path, template)
    assert field in str(caught.value)
    assert str(caught.value).startswith("pod_template")
    assert caught.value.refused


def sources_file(folder: Path, options: str = "") -> Path:
    """Write a file with one source."""
    file = folder / "sources.toml"
    file.write_text(
        """
        [[sources]]
        name = "k8s"
        kind = "kubernetes"
        slots = 8
        roots = { checkpoints = "/srv/checkpoints" }
        [sources.options]
        namespace = "training"
        image = "worker:1"
        """
        + options
    )
    return file


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("spec: {restartPolicy: Always}", "spec.restartPolicy"),
        ("{", "read"),
        ("spec: {volumes: [{secret: {defaultMode: 0644}}]}", "line 1: 0644 begins with a zero"),
        ("spec: {hostNetwork: yes}", "line 1: yes is a truth value or a number for YAML 1.1"),
    ],
)
def test_a_source_with_such_a_template_is_not_opened(
    tmp_path: Path, template: str, why: str
) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(template)
    (config,) = read_sources(sources_file(tmp_path, f"pod_template = '{path}'\n"))
    place = Place(name="k8s", python="python", folder=tmp_path)
    with pytest.raises(ValueError, match="/sources/k8s/options: pod_template") as caught:
        open_engine(config, place)
    assert why in str(caught.value)
    path.write_text("spec: {nodeSelector: {gpu: a100}}")
    open_engine(config, place)


def test_a_source_is_not_opened_with_a_proxy_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("all_proxy", "socks5://ada:secret@127.0.0.1:9")
    (config,) = read_sources(sources_file(tmp_path))
    place = Place(name="k8s", python="python", folder=tmp_path)
    with pytest.raises(ValueError, match="all_proxy='socks5://127") as caught:
        open_engine(config, place)
    assert "secret" not in str(caught.value)


def test_a_template_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read") as caught:
        manifest(tmp_path, pod_template=str(tmp_path / "none.yaml"))
    assert caught.value.refused


def test_the_deployment_sets_what_the_role_allows(tmp_path: Path) -> None:
    files = {"provisioner.yaml", "role.yaml"}
    kinds = {item["kind"]: item for name, item in DEPLOYED if name in files}
    account = kinds["ServiceAccount"]["metadata"]["name"]
    assert kinds["RoleBinding"]["subjects"][0]["name"] == account
    assert kinds["RoleBinding"]["roleRef"]["name"] == kinds["Role"]["metadata"]["name"]
    pod = kinds["Deployment"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account
    (container,) = pod["containers"]
    assert not [v for v in container["env"] if "PASSWORD" in v.get("value", "")]
    rules = {tuple(rule["resources"]): rule["verbs"] for rule in kinds["Role"]["rules"]}
    assert rules["secrets",] == ["create"]
    assert rules["workloads",] == ["list"]
