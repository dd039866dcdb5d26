"""A source of kind `kubernetes`, its cluster, and their clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.base import Place, Shape, Submission
from provisioner.kubernetes.manifest import KubernetesOptions
from provisioner.kubernetes.source import KubernetesSource
from tests.provisioner.kubernetes.api import NAMESPACE, KubernetesApi
from tests.provisioner.kubernetes.serving import kubeconfig, served
from trainyard.protocol.node_sources.messages import EngineJob, job_name

REQUEST = "01hf7yat00ekjk5hxa9f0e4cqz"


@dataclass
class Clock:
    """Seconds that a test moves."""

    now: float = 0.0


@dataclass
class Bench:
    """A source, its cluster, and their clock."""

    api: KubernetesApi
    source: KubernetesSource
    make: Callable[..., KubernetesSource]
    submission: Submission
    clock: Clock

    def submit(self, **changes: Any) -> str:
        return self.source.submit(replace(self.submission, **changes))

    def only(self) -> EngineJob:
        (job,) = self.source.list().jobs
        return job

    def later(self, seconds: float = 60.0) -> None:
        self.clock.now += seconds

    @property
    def job(self) -> dict[str, Any]:
        return self.api.named("jobs", job_name(REQUEST))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    api, clock = KubernetesApi(), Clock()
    secrets = tmp_path / "secrets"
    secrets.write_text("secret-0\nsecret-1\n")
    secrets.chmod(0o600)
    made: list[KubernetesSource] = []
    with served(api) as url:

        def make(**options: Any) -> KubernetesSource:
            fields = {"kubeconfig": str(kubeconfig(tmp_path, url))} | options
            source = KubernetesSource(
                Place(name="k8s-a100", python="python", folder=tmp_path),
                KubernetesOptions(namespace=NAMESPACE, image="trainyard/worker:1", **fields),
                clock=lambda: clock.now,
            )
            made.append(source)
            return source

        submission = Submission(
            request_id=REQUEST,
            purpose="nodes",
            shape=Shape(nodes=2, slots=8, device="cuda"),
            seconds=3600.0,
            secrets=secrets,
            environment={"TRAINYARD_URL": "https://train.example", "TRAINYARD_INBOX": "server"},
        )
        yield Bench(api, make(), make, submission, clock)
        api.woken.set()
        for source in made:
            source.close()
