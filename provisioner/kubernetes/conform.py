"""Conformance of a real cluster: one small Job checks the behaviour that the source needs.

`python -m provisioner conform CONFIG SOURCE` needs the rights of the provisioner, but no server and
no broker. The container runs a script instead of the pilot. The script writes its findings as the
container's termination message, so that no right to read logs is needed.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner.base import Place, Shape, SourceError, Submission
from provisioner.kubernetes.cluster_api import JOBS, PODS, SECRETS, Cluster, ClusterError
from provisioner.kubernetes.manifest import (
    FINALIZER,
    REQUEST_LABEL_KEY,
    SOURCE_LABEL_KEY,
    KubernetesOptions,
    Manifest,
)
from provisioner.kubernetes.source import LATE_POD_SECONDS, KubernetesSource
from provisioner.settings import SourceConfig, parse_table
from trainyard.base.ids import make_id
from trainyard.protocol.node_sources.messages import EngineJob, EngineNode, job_name

START_SECONDS = 900.0
"""Time limit, in seconds, until a pod runs, including the queue and the image download."""
END_SECONDS = 120.0
"""Time limit, in seconds, from the end of the grace period to the proof that the pod has ended."""
POLL_SECONDS = 2.0
LINGER_SECONDS = 5.0
"""Time, in seconds, for which the script continues after SIGTERM, to test the grace period."""
FACTS = """
import json, os, signal, stat, sys, time
path, linger = sys.argv[1], float(sys.argv[2])
file = os.environ["TRAINYARD_JOIN_TOKEN_FILE"]
mounts = {line.split()[1]: line.split()[2] for line in open("/proc/mounts")}
facts = {"index": os.environ.get("JOB_COMPLETION_INDEX"), "python": sys.version.split()[0],
         "instance": os.environ.get("TRAINYARD_PILOT_INSTANCE"), "user": os.getuid(),
         "address": os.environ.get("TRAINYARD_ADDRESS"), "shm": mounts.get("/dev/shm"),
         "token": os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token")}
def tried(name, call):
    try:
        facts[name] = call()
    except OSError as error:
        facts[name] = str(error)
tried("mode", lambda: stat.S_IMODE(os.stat(file).st_mode))
tried("secrets", lambda: len(open(file).read().split()))
tried("leaked", lambda: sorted(k for k, v in os.environ.items()
                               if any(s in v for s in open(file).read().split())))
tried("data", lambda: open(os.environ["TMPDIR"] + "/probe", "w").write("x"))
def leave(*_):
    begun = time.monotonic()
    while time.monotonic() - begun < linger:
        time.sleep(0.05)
        facts["lingered"] = time.monotonic() - begun
        open(path, "w").write(json.dumps(facts))
    sys.exit(143)
signal.signal(signal.SIGTERM, leave)
open(path, "w").write(json.dumps(facts))
while True:
    signal.pause()
"""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    passed: bool
    detail: str


class StoppedError(Exception):
    """The remaining checks cannot be made."""


class Conformance:
    """The conformance check of one source."""

    def __init__(
        self,
        config: SourceConfig,
        folder: Path,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        linger: float = LINGER_SECONDS,
        message_path: str = "/dev/termination-log",
    ) -> None:
        """Prepare the check; no call is made yet.

        Args:
            config: configuration of a source of kind `kubernetes`.
            folder: empty folder for the files of the check, including its secrets.
            clock: returns the present Unix time.
            sleep: waits for a number of seconds between two polls.
            linger: time, in seconds, for which the script continues after SIGTERM.
            message_path: file in the container whose content becomes the termination message.
        """
        options = parse_table(
            KubernetesOptions, config.options, pointer=f"/sources/{config.name}/options"
        )
        self._grace = options.grace_seconds
        self._clock, self._sleep = clock, sleep
        self._cluster = Cluster(options)
        self._request = make_id(
            milliseconds=int(time.time() * 1000), entropy=secrets.token_bytes(10)
        )
        self._name = job_name(self._request)
        # Another name than the source's: a running provisioner would take the Job for an orphan and
        # cancel it.
        name = f"{config.name}-conformance"
        self._source = KubernetesSource(
            Place(name=name, python=config.python, folder=folder),
            options,
            command=[config.python, "-c", FACTS, message_path, str(linger)],
            job_seconds=0.0,
            clock=clock,
        )
        self._labels = {SOURCE_LABEL_KEY: name, REQUEST_LABEL_KEY: self._request}
        self._secrets = folder / "secrets"
        self._submission = Submission(
            request_id=self._request,
            purpose="check",
            shape=Shape(nodes=1, slots=config.slots, device=config.device),
            seconds=START_SECONDS + self._grace + 4 * END_SECONDS,
            secrets=self._secrets,
            environment=config.pilot_environment(
                url=config.url or "http://127.0.0.1", request_id=self._request, purpose="check"
            ),
        )

    def run(self) -> Iterator[Finding]:
        """Make the checks and yield each finding; at the end, remove all created objects."""
        descriptor = os.open(self._secrets, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"ty_pilot_{secrets.token_urlsafe(32)}\n")
        try:
            yield from self._check()
        except (SourceError, StoppedError) as error:
            yield Finding("stopped", False, str(error))
        finally:
            yield self._clean()
            self._secrets.unlink()
            self._source.close()
            self._cluster.close()

    def _check(self) -> Iterator[Finding]:
        ref = self._source.submit(self._submission)
        again = self._source.submit(self._submission)
        yield Finding("submit", ref == again, f"Job {self._name}; a repeat finds it")
        first = self._running(after="")
        yield Finding("start", True, f"the pod of index {first.index} runs on {first.host}")
        yield from self._objects()
        yield from self._forced_deletion(first)
        second = self._running(after=first.instance)
        replaced = (second.index, second.instance != first.instance) == (first.index, True)
        yield Finding("replacement", replaced, f"index {second.index} has a new pod with a new uid")
        self._source.cancel(self._request)
        job = self._wait("the end of the Job", self._grace + END_SECONDS, lambda job: job.gone)
        yield Finding("deletion", job.state == "ended", "the end of every container is proved")
        yield from self._facts(second)

    def _objects(self) -> Iterator[Finding]:
        for resource, name in ((JOBS, "labels of the Job"), (PODS, "labels of the pods")):
            items = self._items(resource)
            good = bool(items) and all(
                self._labels.items() <= (item["metadata"].get("labels") or {}).items()
                and FINALIZER in (item["metadata"].get("finalizers") or ())
                for item in items
            )
            yield Finding(name, good, f"{len(items)} with both labels and the finalizer")

    def _forced_deletion(self, node: EngineNode) -> Iterator[Finding]:
        (pod,) = (p for p in self._items(PODS) if p["metadata"]["uid"] == node.instance)
        forced = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        self._cluster.call("delete", PODS, pod["metadata"]["name"], body=forced)
        kept = any(p["metadata"]["uid"] == node.instance for p in self._items(PODS))
        yield Finding("forced deletion", kept, "the pod stays until its end is proved")
        self._wait(
            "the kubelet's report of a pod that was deleted by force",
            END_SECONDS,
            lambda job: any(n.instance == node.instance and n.gone for n in job.nodes),
        )
        yield Finding("proof", True, "the kubelet reports the containers of a deleted pod")

    def _facts(self, node: EngineNode) -> Iterator[Finding]:
        facts = self._message(node.instance)
        mode, count = facts.get("mode"), facts.get("secrets")
        shown = oct(mode) if isinstance(mode, int) else mode
        closed = isinstance(mode, int) and mode & 0o227 == 0
        yield Finding("secret", closed and count == 1, f"mode {shown}, {count} join secrets")
        leaked = facts.get("leaked")
        yield Finding("environment", leaked == [], f"variables with a secret: {leaked}")
        same = facts.get("instance") == node.instance and facts.get("index") == str(node.index)
        yield Finding("identity", same, f"index {facts.get('index')}, {facts.get('instance')}")
        address = facts.get("address")
        known = f"{address} is one of {', '.join(node.addresses)}"
        yield Finding("address", address in node.addresses, known)
        yield Finding("shared memory", facts.get("shm") == "tmpfs", f"/dev/shm: {facts.get('shm')}")
        yield Finding("data", facts.get("data") == 1, "the folder of TMPDIR can be written")
        lingered = facts.get("lingered")
        detail = f"{self._grace} s after SIGTERM; {lingered or 0:.1f} s were used"
        yield Finding("grace", lingered is not None, detail)
        detail = "the pod has no service account token"
        yield Finding("no credentials", facts.get("token") is False, detail)

    def _clean(self) -> Finding:
        """Repeat the cancellation until no object is left, as the server does."""
        try:
            deadline = self._clock() + self._grace + END_SECONDS + LATE_POD_SECONDS
            while self._clock() < deadline:
                self._source.cancel(self._request)
                if not self._source.status([self._request]):
                    return self._secret_is_gone()
                self._sleep(POLL_SECONDS)
        except SourceError as error:
            return Finding("removal", False, f"{self._name} may be left: {error}")
        return Finding("removal", False, f"{self._name} is left: see docs/kubernetes.md")

    def _secret_is_gone(self) -> Finding:
        deadline = self._clock() + END_SECONDS
        while self._clock() < deadline:
            try:
                self._cluster.call("get", SECRETS, self._name)
            except ClusterError as error:
                if error.status == 404:
                    return Finding("removal", True, "Job, pods and Secret are gone")
                detail = "Job and pods are gone; the Secret may not be read, as it should be"
                return Finding("removal", error.status == 403, detail)
            self._sleep(POLL_SECONDS)
        return Finding("removal", False, f"Secret {self._name} is left")

    def _running(self, *, after: str) -> EngineNode:
        """Wait for a running pod other than the pod `after`."""

        def found(job: EngineJob) -> list[EngineNode]:
            live = [n for n in job.nodes if not n.gone and n.instance != after and n.addresses]
            return live if job.state == "running" else []

        return found(self._wait("a running pod", START_SECONDS, lambda job: bool(found(job))))[0]

    def _wait(self, what: str, seconds: float, true: Callable[[EngineJob], bool]) -> EngineJob:
        deadline = self._clock() + seconds
        while self._clock() < deadline:
            jobs = self._source.status([self._request])
            if jobs and true(jobs[0]):
                return jobs[0]
            self._sleep(POLL_SECONDS)
        why = self._source.explain(self._request)
        raise StoppedError(f"{what} did not come within {seconds:.0f} s: {why}")

    def _message(self, uid: str) -> dict[str, Any]:
        for pod in self._items(PODS):
            for status in pod["status"].get("containerStatuses") or ():
                end = (status.get("state") or {}).get("terminated")
                if pod["metadata"]["uid"] == uid and status["name"] == "pilot" and end:
                    try:
                        return dict(json.loads(end.get("message") or "{}"))
                    except ValueError as error:
                        raise StoppedError(
                            f"the script left no facts: {end.get('message')}"
                        ) from error
        raise StoppedError("the pod that ended is not listed")

    def _items(self, resource: Any) -> list[Manifest]:
        selector = ",".join(f"{key}={value}" for key, value in self._labels.items())
        return self._cluster.items(resource, {"labelSelector": selector})
