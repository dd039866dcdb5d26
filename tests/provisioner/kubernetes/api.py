"""A Kubernetes cluster of the tests: its objects, and their controllers in steps.

It stores objects and answers like the API: conflicts, expiring pages, finalizers, foreground
deletion, preconditions, missing rights. Created objects must conform to the published schemas. The
Job controller and the garbage collector run after each change. The scheduler, the kubelets and
Kueue act when a test calls them.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

ROOT = Path(__file__).resolve().parents[3]
Object = dict[str, Any]
NAMESPACE = "training"
SCHEMAS = "1.34"
PATH = re.compile(rf"/apis?/([a-z0-9.-]+(?:/[a-z0-9]+)?)/namespaces/{NAMESPACE}/([a-z]+)(?:/(.+))?")
INDEX = "batch.kubernetes.io/job-completion-index"
TRACKING = "batch.kubernetes.io/job-tracking"
FOREGROUND = "foregroundDeletion"


class RefusedError(Exception):
    """An error answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Fault:
    """A fault of the next requests with a matching line (`GET /apis/...?limit=1`)."""

    match: str
    times: int = 1
    status: int = 503
    body: bytes | None = None
    seconds: float = 0.0
    """Time that the answer waits."""
    lost: bool = False
    """Whether the request is carried out and its answer lost."""


@dataclass
class KubernetesApi:
    """The state of the cluster."""

    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    allowed: set[tuple[str, str]] = field(default_factory=lambda: rights())
    """Verbs and resources that the role of the deployment allows."""
    lines: list[str] = field(default_factory=list)
    """Requests so far."""
    token: str = "the-token"
    page: int = 500
    """Most objects of a page, whatever the request has."""
    expire: int = 0
    """Continue tokens that the server forgets."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    woken: threading.Event = field(default_factory=threading.Event)
    """Ends the wait of slow answers."""
    _version: int = 0
    _pages: dict[str, list[Object]] = field(default_factory=dict)

    # Reads and actions of a test

    def named(self, plural: str, name: str) -> Object:
        return self.objects[plural, name]

    def all(self, plural: str) -> list[Object]:
        return [item for (kind, _), item in sorted(self.objects.items()) if kind == plural]

    def pods(self) -> list[Object]:
        return self.all("pods")

    def schedule(self, pod: Object, node: str = "node-1") -> None:
        """Bind a pod to a node."""
        pod["spec"]["nodeName"] = node
        self._touch(pod)

    def start(self, pod: Object, node: str = "node-1", *, address: str = "10.0.0.1") -> None:
        """Schedule a pod and start its containers."""
        self.schedule(pod, node)
        pod["status"] |= {"phase": "Running", "podIPs": [{"ip": address}]}
        self._containers(pod, {"running": {}})

    def finish(self, pod: Object, code: int = 0, message: str = "") -> None:
        """Report the end of the containers, like the kubelet."""
        pod["status"]["phase"] = "Failed" if code else "Succeeded"
        reason = "Error" if code else "Completed"
        end = {"exitCode": code, "reason": reason, "message": message}
        self._containers(pod, {"terminated": end})

    def evict(self, pod: Object) -> None:
        """Evict a pod, with its grace period."""
        self._disrupt(pod, "EvictionByEvictionAPI")
        self.delete("pods", pod["metadata"]["name"], {})

    def lose_node(self, node: str) -> None:
        """End the pods of a node that the control plane considers gone, without its kubelet."""
        for pod in self.pods():
            if pod["spec"].get("nodeName") == node:
                self._disrupt(pod, "DeletionByPodGC")
                pod["status"]["phase"] = "Failed"
                self.delete("pods", pod["metadata"]["name"], {"gracePeriodSeconds": 0})

    def admit(self, job: Object) -> None:
        """Admit a Job, like Kueue."""
        job["spec"]["suspend"] = False
        job["status"]["conditions"] = []
        self._touch(job)

    def preempt(self, job: Object) -> None:
        """Suspend a running Job, like Kueue."""
        job["spec"]["suspend"] = True
        for pod in self._of(job):
            self.delete("pods", pod["metadata"]["name"], {})
        self._touch(job)

    def fail(self, job: Object, reason: str, message: str) -> None:
        """End a Job like the Job controller at its deadline."""
        end = {"type": "Failed", "status": "True", "reason": reason, "message": message}
        job["status"]["conditions"] = [end]
        for pod in self._of(job):
            self.delete("pods", pod["metadata"]["name"], {})
        self._touch(job)

    # Requests

    def answer(self, method: str, path: str, *, query: dict[str, str], body: Object) -> Object:
        """Carry out a request."""
        if path.rstrip("/") == "/version":
            return {"major": "1", "minor": "34", "gitVersion": "v1.34.1"}
        found = PATH.fullmatch(path)
        if found is None:
            raise RefusedError(404, "the server could not find the requested resource")
        _, plural, name = found.groups()
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(method)
        verb = verb or ("get" if name else "list")
        if (verb, plural) not in self.allowed:
            raise RefusedError(403, f'{plural} is forbidden: User "x" cannot {verb} {plural}')
        if verb == "create":
            return self.create(plural, body)
        if verb == "list":
            return self._list(plural, query)
        if (plural, name) not in self.objects:
            raise RefusedError(404, f'{plural} "{name}" not found')
        if verb == "delete":
            return self.delete(plural, name, body)
        if verb == "patch":
            return self._patch(plural, name, body)
        return self.objects[plural, name]

    def create(self, plural: str, body: Object) -> Object:
        """Create an object; refuse it if the schemas lack its fields."""
        name = body["metadata"]["name"]
        if (plural, name) in self.objects:
            raise RefusedError(409, f'{plural} "{name}" already exists')
        if plural in ("jobs", "pods", "secrets"):
            try:
                kubernetes_validate.validate(body, SCHEMAS, strict=True)
            except kubernetes_validate.ValidationError as error:
                raise RefusedError(422, f"{plural} is invalid: {error.message}") from error
        item: Object = json.loads(json.dumps(body))
        item["metadata"] |= {"uid": secrets.token_hex(16), "creationTimestamp": now()}
        item.setdefault("status", {})
        self.objects[plural, name] = item
        if plural == "jobs" and item["spec"]["suspend"]:
            self._queue(item)
        self._touch(item)
        return item

    def delete(self, plural: str, name: str, body: Object) -> Object:
        """Mark an object as deleted; it vanishes without finalizers, a pod after its end."""
        item = self.objects[plural, name]
        uid = body.get("preconditions", {}).get("uid")
        if uid is not None and uid != item["metadata"]["uid"]:
            raise RefusedError(409, "the UID in the precondition does not match")
        metadata = item["metadata"]
        grace = 0
        if plural == "pods":
            given = item["spec"].get("terminationGracePeriodSeconds", 30)
            grace = body.get("gracePeriodSeconds", given) if item["spec"].get("nodeName") else 0
        if "deletionTimestamp" not in metadata or grace == 0:
            at = now(timedelta(seconds=grace))
            metadata |= {"deletionTimestamp": at, "deletionGracePeriodSeconds": grace}
        if body.get("propagationPolicy") == "Foreground":
            finalizers = metadata.setdefault("finalizers", [])
            finalizers += [FOREGROUND] if FOREGROUND not in finalizers else []
        self._touch(item)
        return item

    def _patch(self, plural: str, name: str, body: Object) -> Object:
        item = self.objects[plural, name]
        change = dict(body["metadata"])
        if change.pop("resourceVersion") != item["metadata"]["resourceVersion"]:
            raise RefusedError(409, "the object has been modified")
        item["metadata"] |= change
        self._touch(item)
        return item

    def _list(self, plural: str, query: dict[str, str]) -> Object:
        if token := query.get("continue"):
            if self.expire or token not in self._pages:
                self.expire = max(0, self.expire - 1)
                raise RefusedError(410, "The provided continue parameter is too old")
            rest = self._pages.pop(token)
        else:
            rest = [item for item in self.all(plural) if selected(item, query)]
        size = min(self.page, int(query["limit"]))
        metadata = {"resourceVersion": str(self._version)}
        if len(rest) > size:
            metadata["continue"] = secrets.token_hex(4)
            self._pages[metadata["continue"]] = rest[size:]
        return {"kind": "List", "metadata": metadata, "items": rest[:size]}

    # Controllers

    def _touch(self, item: Object) -> None:
        with self.lock:
            self._version += 1
            item["metadata"]["resourceVersion"] = str(self._version)
            self._control()

    def _control(self) -> None:
        """Run the Job controller and the garbage collector once."""
        for job in self.all("jobs"):
            self._make_pods(job)
            if "deletionTimestamp" in job["metadata"]:
                self._collect_pods(job)
        for pod in self.pods():
            if TRACKING in pod["metadata"]["finalizers"] and over(pod):
                pod["metadata"]["finalizers"].remove(TRACKING)
        alive = {job["metadata"]["uid"] for job in self.all("jobs")}
        for key, item in list(self.objects.items()):
            metadata = item["metadata"]
            owners = {owner["uid"] for owner in metadata.get("ownerReferences", ())}
            if owners and not owners & alive and "deletionTimestamp" not in metadata:
                grace = 30 if key[0] == "pods" else 0
                metadata |= {"deletionTimestamp": now(), "deletionGracePeriodSeconds": grace}
            if vanishes(item):
                del self.objects[key]
                self._control()  # what it owned follows
                return

    def _make_pods(self, job: Object) -> None:
        ended = any(c["type"] in ("Failed", "Complete") for c in conditions(job))
        if job["spec"]["suspend"] or "deletionTimestamp" in job["metadata"] or ended:
            return
        job["status"].setdefault("startTime", now())
        pods = self._of(job)
        done = {index_of(pod) for pod in pods if pod["status"]["phase"] == "Succeeded"}
        if len(done) == job["spec"]["completions"]:
            job["status"]["conditions"] = [{"type": "Complete", "status": "True"}]
            job["status"]["completionTime"] = now()
            return
        for index in range(job["spec"]["completions"]):
            mine = [pod for pod in pods if index_of(pod) == index]
            if index not in done and all(over(pod) for pod in mine):
                self._make_pod(job, index)

    def _make_pod(self, job: Object, index: int) -> None:
        template = json.loads(json.dumps(job["spec"]["template"]))
        name = f"{job['metadata']['name']}-{index}-{secrets.token_hex(3)}"
        metadata = template["metadata"] | {
            "name": name,
            "uid": secrets.token_hex(16),
            "creationTimestamp": now(),
            "resourceVersion": str(self._version),
            "annotations": template["metadata"].get("annotations", {}) | {INDEX: str(index)},
            "finalizers": [*template["metadata"].get("finalizers", ()), TRACKING],
            "ownerReferences": [{"uid": job["metadata"]["uid"]}],
        }
        status = {"phase": "Pending"}
        self.objects["pods", name] = {"metadata": metadata, "spec": template["spec"]}
        self.objects["pods", name]["status"] = status

    def _collect_pods(self, job: Object) -> None:
        pods = self._of(job)
        for pod in pods:
            if "deletionTimestamp" not in pod["metadata"]:
                self.delete("pods", pod["metadata"]["name"], {})
        if not self._of(job) and FOREGROUND in job["metadata"].get("finalizers", ()):
            job["metadata"]["finalizers"].remove(FOREGROUND)

    def _of(self, job: Object) -> list[Object]:
        owner = job["metadata"]["uid"]
        return [p for p in self.pods() if p["metadata"]["ownerReferences"][0]["uid"] == owner]

    def _queue(self, job: Object) -> None:
        job["status"]["conditions"] = [
            {
                "type": "Suspended",
                "status": "True",
                "reason": "JobSuspended",
                "message": "suspended",
            }
        ]
        name = f"job-{job['metadata']['name']}"
        labels = {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}
        full = "couldn't assign flavors to pod set main: insufficient unused quota"
        wait = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": full}
        self.objects["workloads", name] = {
            "metadata": {"name": name, "uid": secrets.token_hex(16), "labels": labels},
            "status": {"conditions": [wait]},
        }

    def _disrupt(self, pod: Object, reason: str) -> None:
        conditions(pod).append({"type": "DisruptionTarget", "status": "True", "reason": reason})

    def _containers(self, pod: Object, state: Object) -> None:
        names = [container["name"] for container in pod["spec"]["containers"]]
        pod["status"]["containerStatuses"] = [{"name": name, "state": state} for name in names]
        self._touch(pod)


def rights() -> set[tuple[str, str]]:
    """Return the rights in deploy/kubernetes/role.yaml."""
    text = (ROOT / "deploy" / "kubernetes" / "role.yaml").read_text()
    (role,) = (item for item in yaml.safe_load_all(text) if item["kind"] == "Role")
    return {
        (verb, resource)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def now(later: timedelta = timedelta()) -> str:
    return (datetime.now(UTC) + later).strftime("%Y-%m-%dT%H:%M:%SZ")


def conditions(item: Object) -> list[Object]:
    found: list[Object] = item["status"].setdefault("conditions", [])
    return found


def over(pod: Object) -> bool:
    """Whether a pod has ended for the Job controller: by its phase, or before it had a node."""
    ended = pod["status"]["phase"] in ("Succeeded", "Failed")
    unbound = "deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName")
    return ended or unbound


def index_of(pod: Object) -> int:
    return int(pod["metadata"]["annotations"][INDEX])


def vanishes(item: Object) -> bool:
    """Whether a deleted object can go: no finalizer, and no running pod in its grace period."""
    metadata = item["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    return not metadata["deletionGracePeriodSeconds"] or over(item)


def selected(item: Object, query: Mapping[str, str]) -> bool:
    """Whether an object has the labels and the field of a request."""
    labels = item["metadata"].get("labels", {})
    for part in re.split(r",(?![^(]*\))", query.get("labelSelector", "")):
        if " in " in part:
            key, values = part.split(" in ")
            if labels.get(key) not in values.strip("()").split(","):
                return False
        elif part and labels.get(part.split("=")[0]) != part.split("=")[1]:
            return False
    uid = query.get("fieldSelector", "").partition("involvedObject.uid=")[2]
    return not uid or item["involvedObject"]["uid"] == uid
