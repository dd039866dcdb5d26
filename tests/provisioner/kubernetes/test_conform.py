"""The conformance command, against a cluster with kubelets that run the script as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.kubernetes import conform as conform_module
from provisioner.kubernetes.conform import Conformance, Finding
from provisioner.settings import read_sources
from tests.provisioner.kubernetes.api import NAMESPACE, ROOT, Fault, KubernetesApi
from tests.provisioner.kubernetes.conftest import Clock
from tests.provisioner.kubernetes.kubelet import Kubelets
from tests.provisioner.kubernetes.serving import kubeconfig, served

PASSED = [
    "submit",
    "start",
    "labels of the Job",
    "labels of the pods",
    "forced deletion",
    "proof",
    "replacement",
    "deletion",
    "secret",
    "environment",
    "identity",
    "address",
    "shared memory",
    "data",
    "grace",
    "no credentials",
    "removal",
]


class Room:
    """A cluster with kubelets, a clock that only sleeps move, and the command."""

    def __init__(self, folder: Path, url: str, api: KubernetesApi) -> None:
        self.api, self.folder = api, folder
        self.config = folder / "sources.toml"
        self.write(url)
        self.clock = Clock()
        self.kubelets = Kubelets(api, folder / "node")
        self.kubelets.message.parent.mkdir()

    def write(self, url: str) -> None:
        self.config.write_text(
            f"""
            [[sources]]
            name = "k8s"
            kind = "kubernetes"
            slots = 1
            device = "cpu"
            python = "{sys.executable}"
            roots = {{ checkpoints = "/srv/checkpoints" }}
            [sources.options]
            namespace = "{NAMESPACE}"
            image = "trainyard/worker:1"
            grace_seconds = 60
            kubeconfig = "{kubeconfig(self.folder, url)}"
            """
        )

    def sleep(self, seconds: float) -> None:
        self.clock.now += seconds
        self.kubelets.step()

    def run(self) -> list[Finding]:
        (config,) = read_sources(self.config)
        work = self.folder / "work"
        work.mkdir()
        check = Conformance(
            config,
            work,
            clock=lambda: self.clock.now,
            sleep=self.sleep,
            linger=0.1,
            message_path=str(self.kubelets.message),
        )
        return list(check.run())


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    monkeypatch.setattr(conform_module, "POLL_SECONDS", 20.0)
    api = KubernetesApi()
    with served(api) as url:
        room = Room(tmp_path, url, api)
        yield room
        room.kubelets.close()


def failed(findings: list[Finding]) -> dict[str, str]:
    return {each.name: each.detail for each in findings if not each.passed}


def test_a_cluster_that_conforms_passes_and_keeps_nothing(room: Room) -> None:
    findings = room.run()
    assert failed(findings) == {}
    assert [each.name for each in findings] == PASSED
    assert room.api.objects == {}
    assert list((room.folder / "work").glob("secrets")) == []


def test_a_missing_right_is_named_and_nothing_is_left(room: Room) -> None:
    room.api.allowed.remove(("create", "secrets"))
    findings = room.run()
    assert "create secrets in namespace training: 403" in failed(findings)["stopped"]
    assert room.api.objects == {}


def test_a_pod_that_never_runs_is_explained(room: Room) -> None:
    room.kubelets.step = lambda: None  # type: ignore[method-assign]
    findings = room.run()
    assert "a running pod did not come within 900 s" in failed(findings)["stopped"]
    assert room.api.objects == {}


def test_a_cluster_that_lets_go_of_deleted_pods_fails(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = room.api.delete

    def forced(plural: str, name: str, body: Any) -> Any:
        item = deleted(plural, name, body)
        if body.get("gracePeriodSeconds") == 0:
            room.api.objects.pop((plural, name), None)
        return item

    monkeypatch.setattr(room.api, "delete", forced)
    assert "forced deletion" in failed(room.run())


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        (
            'os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token")',
            "True",
            "no credentials",
        ),
        ('mounts.get("/dev/shm")', '"overlay"', "shared memory"),
        ("stat.S_IMODE(os.stat(file).st_mode)", "0o644", "secret"),
        ('os.environ.get("TRAINYARD_ADDRESS")', '"192.0.2.1"', "address"),
    ],
)
def test_a_fact_that_is_otherwise_fails_its_check(
    room: Room, monkeypatch: pytest.MonkeyPatch, old: str, new: str, finding: str
) -> None:
    script = conform_module.FACTS
    assert old in script
    monkeypatch.setattr(conform_module, "FACTS", script.replace(old, new))
    assert finding in failed(room.run())


def test_the_command_writes_a_line_for_each_finding(room: Room, tmp_path: Path) -> None:
    room.api.faults.append(Fault("POST .*/jobs", times=99, status=422))
    command = [sys.executable, "-m", "provisioner", "conform", str(room.config), "k8s"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("TRAINYARD_")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert "FAIL  stopped" in done.stdout
    assert "create jobs.batch in namespace training: 422" in done.stdout


def test_the_command_names_a_proxy_that_cannot_be_used(room: Room) -> None:
    command = [sys.executable, "-m", "provisioner", "conform", str(room.config), "k8s"]
    env = os.environ | {"all_proxy": "socks5://127.0.0.1:9"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "all_proxy='socks5://127.0.0.1:9'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_names_the_sources_that_can_be_checked(room: Room) -> None:
    command = [sys.executable, "-m", "provisioner", "conform", str(room.config), "other"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "source 'other' is not one of kind kubernetes" in done.stderr
