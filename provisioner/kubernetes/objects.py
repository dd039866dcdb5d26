"""The fields of Jobs and pods that the source reads, and what these fields prove."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from provisioner.kubernetes.manifest import FINALIZER, REQUEST_LABEL_KEY
from trainyard.protocol.node_sources.messages import EngineNode

INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
BY_THE_CONTROL_PLANE = ("DeletionByPodGC", "DeletionByTaintManager")
"""Reasons, in the condition `DisruptionTarget`, for which the control plane ends a pod of an absent
node."""


OVERDUE_SECONDS = 600.0
"""Time, in seconds, after which the kubelet of a deleted pod counts as unreachable. The time starts
at the end of the pod's grace period. It is longer than the difference between the clocks.
"""


class _Part(BaseModel):
    """A part of an object, with only the fields that the source reads."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)


class Metadata(_Part):
    """Metadata of an object of any kind."""

    name: str
    uid: str = Field(pattern=r"^[0-9A-Za-z-]{1,100}$")  # becomes a file name
    resource_version: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    creation_timestamp: str = ""
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None

    @property
    def request_id(self) -> str:
        """Id of the request; empty if the label is missing."""
        return self.labels.get(REQUEST_LABEL_KEY, "")

    @property
    def kept(self) -> bool:
        """Whether the object is deleted but kept by the source's finalizer."""
        return self.deletion_timestamp is not None and FINALIZER in self.finalizers


class Condition(_Part):
    """A condition of a Job, a pod or a Workload."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class ContainerEnd(_Part):
    """Reason why a container waits, or how it ended."""

    reason: str = ""
    message: str = ""
    exit_code: int | None = None


class ContainerState(_Part):
    """State of a container; exactly one of the three fields is set."""

    waiting: ContainerEnd | None = None
    running: dict[str, object] | None = None
    terminated: ContainerEnd | None = None


class ContainerStatus(_Part):
    """Status of a container."""

    name: str
    state: ContainerState = ContainerState()


class _PodSpec(_Part):
    node_name: str = ""


class _PodIp(_Part):
    ip: str


class _PodStatus(_Part):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    pod_ips: tuple[_PodIp, ...] = Field(default=(), alias="podIPs")


class Pod(_Part):
    """A pod that belongs to a request."""

    metadata: Metadata
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    @property
    def index(self) -> int:
        """Index of the pilot in the pod."""
        return int(self.metadata.annotations[INDEX_ANNOTATION])

    @property
    def indexed(self) -> bool:
        """Whether the pod belongs to an indexed Job."""
        return self.metadata.annotations.get(INDEX_ANNOTATION, "").isdecimal()

    @property
    def begun(self) -> bool:
        """Whether a process of the pod may run or may have run."""
        return bool(self.spec.node_name)

    @property
    def running(self) -> bool:
        """Whether the containers of the pod were started."""
        return self.begun and self.status.phase != "Pending"

    @property
    def gone(self) -> bool:
        """Whether the cluster proves that no process of the pod is left.

        The kubelet's report is a proof, because the kubelet marks a container as terminated only
        once the container has ended. The phase alone is no proof, because the control plane also
        sets the phase if a node is unreachable.
        """
        deleted = self.metadata.deletion_timestamp is not None
        if not self.begun:
            return deleted  # a deleted pod that has no node never gets one
        if not deleted and self.status.phase not in ("Succeeded", "Failed"):
            return False
        statuses = self.status.container_statuses
        if not statuses:  # the kubelet refused the pod before it created a container
            return self.status.phase == "Failed" and not self._ended_from_afar
        inits = self.status.init_container_statuses
        return all(s.state.terminated for s in statuses) and not any(s.state.running for s in inits)

    def lost(self, now: float) -> bool:
        """Return whether the end of a started pod is likely but not proved.

        The pod was deleted by force, is overdue or has the phase `Failed`, but the kubelet has not
        reported the pod's end.

        Args:
            now: present Unix time.
        """
        if not self.begun or self.gone:
            return False
        deleted = self.metadata.deletion_timestamp  # for a pod, the end of its grace period
        overdue = deleted is not None and now > deleted.timestamp() + OVERDUE_SECONDS
        forced = self.metadata.deletion_grace_period_seconds == 0
        return forced or overdue or self.status.phase == "Failed"

    @property
    def _ended_from_afar(self) -> bool:
        return any(
            c.type == "DisruptionTarget" and c.reason in BY_THE_CONTROL_PLANE
            for c in self.status.conditions
        )

    def reason(self, now: float) -> str:
        """Return the cluster's reason why the pod waits or how it ended; empty while it runs."""
        where = self.metadata.name
        if self.lost(now):
            node = self.spec.node_name
            return f"{where}: its end is not proved; node {node} has not reported its containers"
        for status in self.status.container_statuses:
            end = status.state.waiting or status.state.terminated
            if end is not None and not (end.exit_code == 0 and not end.message):
                code = "" if end.exit_code is None else f" (exit code {end.exit_code})"
                return _sentence(f"{where}: {status.name}", end.reason + code, end.message)
        if self.status.phase == "Failed":
            return _sentence(where, self.status.reason, self.status.message)
        for condition in self.status.conditions:
            if condition.type == "PodScheduled" and condition.status == "False":
                return _sentence(where, condition.reason, condition.message)
        return ""

    def node(self) -> EngineNode:
        """Return the pod as a node, in the form that reports use."""
        return EngineNode(
            index=self.index,
            instance=self.metadata.uid,
            host=self.spec.node_name,
            addresses=tuple(address.ip for address in self.status.pod_ips),
            gone=self.gone,
        )


class _JobSpec(_Part):
    suspend: bool = False
    active_deadline_seconds: int | None = None


class _JobStatus(_Part):
    start_time: datetime | None = None
    completion_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()


class IndexedJob(_Part):
    """The Job for a request."""

    metadata: Metadata
    spec: _JobSpec = _JobSpec()
    status: _JobStatus = _JobStatus()

    @property
    def finished(self) -> Condition | None:
        """Condition that shows that the Job has ended or is ending; None while the Job
        continues."""
        ends = ("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget")
        return next((c for c in self.status.conditions if c.type in ends and holds(c)), None)

    @property
    def ends_at(self) -> float | None:
        """Unix time of the Job's deadline, or of its success if it has succeeded; None if
        unknown."""
        if self.status.completion_time is not None:
            return self.status.completion_time.timestamp()
        if self.status.start_time is None or self.spec.active_deadline_seconds is None:
            return None
        return self.status.start_time.timestamp() + self.spec.active_deadline_seconds


class Workload(_Part):
    """Kueue's Workload object for a Job."""

    metadata: Metadata
    status: _JobStatus = _JobStatus()


class ClusterEvent(_Part):
    """An event about an object."""

    type: str = ""
    reason: str = ""
    message: str = ""
    last_timestamp: datetime | None = None
    event_time: datetime | None = None

    @property
    def at(self) -> float:
        """Unix time of the last occurrence; 0 if it is unknown."""
        time = self.last_timestamp or self.event_time
        return time.timestamp() if time else 0.0

    def __str__(self) -> str:
        return _sentence("", self.reason, self.message)


def holds(condition: Condition) -> bool:
    """Return whether a condition has the status true."""
    return condition.status == "True"


def in_words(conditions: Sequence[Condition]) -> str:
    """Return the reasons of the conditions, as a text; conditions without a reason are omitted."""
    return "; ".join(_sentence("", c.reason, c.message) for c in conditions if c.reason)


def _sentence(where: str, reason: str, message: str) -> str:
    return ": ".join(part.strip() for part in (where, reason, message) if part.strip())
