"""Nodes from a Kubernetes cluster: the pods of indexed Jobs in one namespace."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

from pydantic import BaseModel, ValidationError

from provisioner.base import EngineListing, Place, SourceError, Submission
from provisioner.kubernetes.cluster_api import (
    EVENTS,
    JOBS,
    PODS,
    SECRETS,
    WORKLOADS,
    Cluster,
    ClusterError,
    Resource,
)
from provisioner.kubernetes.first_times import FirstTimes
from provisioner.kubernetes.manifest import (
    FINALIZER,
    REQUEST_LABEL_KEY,
    SOURCE_LABEL_KEY,
    KubernetesOptions,
    Manifest,
    job_manifest,
    secret_manifest,
)
from provisioner.kubernetes.objects import (
    ClusterEvent,
    IndexedJob,
    Metadata,
    Pod,
    Workload,
    holds,
    in_words,
)
from trainyard.base.ids import is_id
from trainyard.protocol.node_sources.messages import (
    MAX_NODES,
    EngineJob,
    EngineNode,
    EngineState,
    Purpose,
    job_name,
)

Model = TypeVar("Model", bound=BaseModel)
POD_SECONDS, JOB_SECONDS = 110.0, 600.0
"""Minimum times, in seconds, for which an ended pod and an ended Job remain after the first report
of their end. Listings are a minute apart, so an ended pod is reported twice before its removal. The
time for pods is short, because the drain of a Kubernetes node waits for the node's pods. Nothing
waits for a Job.
"""
LATE_POD_SECONDS = 60.0
"""Time, in seconds, for which a Job's controller may still create pods after the Job's deletion."""
REASON_CHARACTERS = 2000
EXPLAINED_PODS = 5
MODULES: dict[Purpose, str] = {"nodes": "pilot", "check": "probe"}
"""Argument of `python -m worker` in the container, by purpose."""
JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"


class KubernetesSource:
    """Implements `NodeSource` with one Job for each request and one pod for each node."""

    def __init__(
        self,
        place: Place,
        options: KubernetesOptions,
        *,
        command: Sequence[str] = (),
        job_seconds: float = JOB_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare calls in a namespace; the first call connects.

        Args:
            place: facts about the source.
            options: options of the source.
            command: replaces the pilot's command in the container, for tests.
            job_seconds: minimum time, in seconds, from the first report that a Job ended to its
                removal.
            clock: returns the present Unix time; tests pass their own function.
        """
        self._place = place
        self._options = options
        self._command = list(command)
        self._job_seconds = job_seconds
        self._clock = clock
        self._cluster = Cluster(options)
        self._proved = FirstTimes(place.folder / "proved", clock)
        """For each object, the time at which a call first returned proof of the object's end."""
        self._ending = FirstTimes(place.folder / "ending", clock)
        """For each Job, the time at which a call first found the Job deleted or finished."""

    def close(self) -> None:
        """Release the resources that the connection uses."""
        self._cluster.close()

    def submit(self, submission: Submission) -> str:
        """Create the Job, then its Secret, which the Job owns; pods wait for the Secret."""
        command = self._command or [
            *(self._place.python, "-m", "worker", MODULES[submission.purpose])
        ]
        manifest = job_manifest(self._place, self._options, submission=submission, command=command)
        try:
            answer = self._cluster.call("create", JOBS, body=manifest)
        except ClusterError as error:
            if error.status != 409:
                raise
            answer = self._cluster.call("get", JOBS, job_name(submission.request_id))
        job = _read(IndexedJob, answer)
        if job.metadata.labels.get(SOURCE_LABEL_KEY) != self._place.name:
            raise SourceError.refusal(
                f"Job {job.metadata.name} in namespace {self._options.namespace} exists and is"
                f" not of this source: its label {SOURCE_LABEL_KEY} is not {self._place.name}"
            )
        if job.metadata.deletion_timestamp is None:
            self._create_secret(submission, job)
        return job.metadata.uid

    def list(self) -> EngineListing:
        """Return the Jobs of the source; remove Jobs whose end the server knows."""
        jobs, pods = self._select(f"{SOURCE_LABEL_KEY}={self._place.name}")
        described = self._describe(jobs, pods)
        self._release_pods(pods)
        for job in jobs:
            self._remove(job, pods)
        uids = {job.metadata.uid for job in jobs} | {pod.metadata.uid for pod in pods}
        self._proved.keep(uids)
        self._ending.keep(uids)
        return EngineListing(described)

    def status(self, request_ids: Sequence[str]) -> Sequence[EngineJob]:
        """Return the Jobs for these requests; Jobs unknown to the cluster are omitted."""
        described: list[EngineJob] = []
        for request_id in request_ids:
            described += self._describe(*self._select(self._one(request_id)))
        return described

    def cancel(self, request_id: str) -> None:
        """Delete the Job, so that pods can save; a finalizer keeps it until its end is reported."""
        jobs, pods = self._select(self._one(request_id))
        for job in jobs:
            if job.metadata.deletion_timestamp is None:
                self._delete(job)
            else:
                self._remove(job, pods)
        if not jobs:  # the Job was deleted, but its pods were not
            for pod in pods:
                if pod.metadata.deletion_timestamp is None:
                    self._ignore_missing("delete", PODS, name=pod.metadata.name)
            self._release_pods(pods)

    def explain(self, request_id: str) -> str:
        """Return conditions and events of the Job, of its Kueue Workload and of its first pods."""
        jobs, pods = self._select(self._one(request_id))
        lines: list[str] = []
        for job in jobs:
            lines += [in_words(job.status.conditions), *self._workload_reasons([job]).values()]
        waiting = sorted((p for p in pods if not p.gone), key=lambda pod: pod.index)
        lines += [pod.reason(self._clock()) for pod in waiting[:EXPLAINED_PODS]]
        for about in [*(j.metadata for j in jobs), *(p.metadata for p in waiting[:EXPLAINED_PODS])]:
            lines += [f"{about.name}: {event}" for event in self._events(about)]
        text = "\n".join(dict.fromkeys(line for line in lines if line))
        return text[:REASON_CHARACTERS] or (
            "the cluster reports nothing about this Job"
            if jobs
            else f"namespace {self._options.namespace} has no Job {job_name(request_id)}"
        )

    def _one(self, request_id: str) -> str:
        return f"{SOURCE_LABEL_KEY}={self._place.name},{REQUEST_LABEL_KEY}={request_id}"

    def _select(self, labels: str) -> tuple[Sequence[IndexedJob], Sequence[Pod]]:
        # List Jobs before pods: if a pod appears in between, the next listing has its Job.
        jobs = [
            _read(IndexedJob, item) for item in self._cluster.items(JOBS, {"labelSelector": labels})
        ]
        pods = [_read(Pod, item) for item in self._cluster.items(PODS, {"labelSelector": labels})]
        return (
            [job for job in jobs if is_id(job.metadata.request_id)],
            [pod for pod in pods if is_id(pod.metadata.request_id) and pod.indexed],
        )

    def _describe(self, jobs: Sequence[IndexedJob], pods: Sequence[Pod]) -> Sequence[EngineJob]:
        by_request: dict[str, list[Pod]] = defaultdict(list)
        for pod in pods:
            by_request[pod.metadata.request_id].append(pod)
        why = self._workload_reasons([job for job in jobs if job.spec.suspend])
        described = [
            self._engine_job(
                job, by_request.pop(job.metadata.request_id, []), why.get(job.metadata.uid, "")
            )
            for job in jobs
        ]
        for request_id, left in by_request.items():
            described.append(self._without_job(request_id, left))
        return described

    def _engine_job(self, job: IndexedJob, pods: Sequence[Pod], why: str) -> EngineJob:
        live = [pod for pod in pods if not pod.gone]
        state = self._state(job, pods)
        finished = job.finished
        parts = (
            in_words([finished]) if finished else "",
            in_words([c for c in job.status.conditions if c.type == "Suspended" and holds(c)]),
            why,
            *(pod.reason(self._clock()) for pod in sorted(live or pods, key=lambda pod: pod.index)),
        )
        start = job.status.start_time if state != "pending" else None
        return EngineJob(
            request_id=job.metadata.request_id,
            ref=job.metadata.uid,
            state=state,
            gone=state == "ended",
            reason="; ".join(dict.fromkeys(part for part in parts if part))[:REASON_CHARACTERS],
            starts_at=start.timestamp() if start else None,
            ends_at=job.ends_at if state != "pending" else None,
            nodes=_nodes(pods),
        )

    def _without_job(self, request_id: str, pods: Sequence[Pod]) -> EngineJob:
        """Describe the pods of a Job that was deleted, but not by this source.

        The listing may lack some pods of the Job, so it never proves that all of the Job's pods are
        gone.
        """
        live = [pod for pod in pods if not pod.gone]
        newest = self._note_proofs([pod for pod in pods if pod.gone and pod.begun])
        return EngineJob(
            request_id=request_id,
            ref=job_name(request_id),
            state=self._ending_state(live, newest),
            reason="the Job was deleted without its pods",
            nodes=_nodes(pods),
        )

    def _state(self, job: IndexedJob, pods: Sequence[Pod]) -> EngineState:
        live = [pod for pod in pods if not pod.gone]
        newest = self._note_proofs([pod for pod in pods if pod.gone and pod.begun])
        if job.metadata.deletion_timestamp is None and job.finished is None:
            return "running" if any(pod.running for pod in live) else "pending"
        ending_for = self._ending.note(job.metadata.uid)
        if live:
            return self._ending_state(live, newest)
        if job.finished is None and ending_for < LATE_POD_SECONDS:
            return "completing"
        self._note_proofs([job])
        return "ended"

    def _ending_state(self, live: Sequence[Pod], newest: float) -> EngineState:
        """Return `unknown` if all remaining pods are lost and the ends of all other pods were
        reported.

        Otherwise return `completing`, because the server ignores everything that is reported on an
        `unknown` job, even the proof that one pod has ended.
        """
        is_lost = bool(live) and all(pod.lost(self._clock()) for pod in live)
        return "unknown" if is_lost and newest >= POD_SECONDS else "completing"

    def _workload_reasons(self, jobs: Sequence[IndexedJob]) -> dict[str, str]:
        """Return the reason why Kueue holds each of these Jobs, by uid of the Job."""
        if self._options.queue is None or not jobs:
            return {}
        uids = ",".join(job.metadata.uid for job in jobs)
        try:
            found = self._cluster.items(
                WORKLOADS, {"labelSelector": f"{JOB_UID_LABEL} in ({uids})"}
            )
        except ClusterError as error:  # Jobs can be observed even without Kueue's reasons
            return {job.metadata.uid: f"Kueue's reason: {error}" for job in jobs}
        workloads = [_read(Workload, item) for item in found]
        return {
            w.metadata.labels.get(JOB_UID_LABEL, ""): in_words(w.status.conditions)
            for w in workloads
        }

    def _events(self, about: Metadata) -> Iterable[ClusterEvent]:
        selector = f"involvedObject.uid={about.uid}"
        found = self._cluster.items(EVENTS, {"fieldSelector": selector})
        return sorted((_read(ClusterEvent, event) for event in found), key=lambda e: e.at)[-5:]

    def _create_secret(self, submission: Submission, job: IndexedJob) -> None:
        body = secret_manifest(
            self._place, self._options, submission=submission, job_uid=job.metadata.uid
        )
        try:
            self._cluster.call("create", SECRETS, body=body)
        except ClusterError as error:
            if error.status != 409:  # an earlier call created the object
                raise

    def _delete(self, job: IndexedJob) -> None:
        self._ignore_missing(
            "delete",
            JOBS,
            name=job.metadata.name,
            body={
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "propagationPolicy": "Foreground",
                "preconditions": {"uid": job.metadata.uid},
            },
        )

    def _release_pods(self, pods: Sequence[Pod]) -> None:
        """Release deleted pods once the server has the proof of their end, so that node drains can
        end."""
        for pod in pods:
            if (
                pod.metadata.kept
                and pod.gone
                and self._proved.seconds(pod.metadata.uid) >= POD_SECONDS
            ):
                self._release(PODS, pod)

    def _remove(self, job: IndexedJob, pods: Sequence[Pod]) -> None:
        """Remove a Job with its pods and its Secret, once the server has the proof of its end."""
        if self._proved.seconds(job.metadata.uid) < self._job_seconds:
            return
        if job.metadata.deletion_timestamp is None:
            self._delete(job)
        for pod in pods:
            if pod.metadata.request_id == job.metadata.request_id:
                self._release(PODS, pod)
        self._release(JOBS, job)

    def _release(self, resource: Resource, item: IndexedJob | Pod) -> None:
        """Remove the source's finalizer from an object; the cluster then removes the object."""
        metadata = item.metadata
        if FINALIZER in metadata.finalizers:
            left = [name for name in metadata.finalizers if name != FINALIZER]
            patch = {"finalizers": left, "resourceVersion": metadata.resource_version}
            self._ignore_missing("patch", resource, name=metadata.name, body={"metadata": patch})

    def _ignore_missing(
        self,
        verb: Literal["delete", "patch"],
        resource: Resource,
        *,
        name: str,
        body: Manifest | None = None,
    ) -> None:
        """Change an object; do nothing if the object is missing or has changed meanwhile.

        The next call works with the changed object.
        """
        try:
            self._cluster.call(verb, resource, name, body=body)
        except ClusterError as error:
            if error.status not in (404, 409):
                raise

    def _note_proofs(self, items: Iterable[IndexedJob | Pod]) -> float:
        """Record that a call returns the proofs of these objects' ends.

        Returns:
            The age of the newest of these proofs, in seconds; infinity without objects.
        """
        return min((self._proved.note(item.metadata.uid) for item in items), default=math.inf)


def _nodes(pods: Sequence[Pod]) -> tuple[EngineNode, ...]:
    """Return at most `MAX_NODES` started nodes, live nodes first.

    Live and ended nodes are each sorted by index. Nodes with the same index are sorted by age,
    oldest first.
    """
    begun = sorted(
        (pod for pod in pods if pod.begun),
        key=lambda pod: (pod.gone, pod.index, pod.metadata.creation_timestamp),
    )
    return tuple(pod.node() for pod in begun[:MAX_NODES])


def _read(model: type[Model], item: Manifest) -> Model:
    try:
        return model.model_validate(item)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SourceError(f"the cluster's {model.__name__} has no usable {where}") from error
