"""The objects for one request: an indexed Job with the operator's pod template, and its Secret.

The fields that the source depends on (the pilot's command, the restarts, the join secrets, labels,
finalizers) are added last. A template that sets one of these fields is refused; the error names the
field.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from provisioner.base import EngineOptions, Place, Shape, SourceError, Submission
from trainyard.outside.yaml_text import read_yaml
from trainyard.protocol.node_sources.messages import job_name

Manifest = dict[str, Any]
"""An object of the Kubernetes API, as JSON."""

SOURCE_LABEL_KEY, REQUEST_LABEL_KEY = "trainyard.dev/source", "trainyard.dev/request"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
FINALIZER = "trainyard.dev/proof"
"""Finalizer that keeps a deleted Job or pod, with its container states, until the server has read
them. Without it, a vanished pod would prove nothing, because the pod may have been deleted by force
and may still run.
"""
CONTAINER = "pilot"
DEVICES: tuple[Literal["cpu", "cuda"], ...] = ("cpu", "cuda")
SECRETS_FOLDER, DATA_FOLDER = "/run/trainyard/join", "/var/lib/trainyard/pilot"
USER, SECRETS_GROUP = 10002, 10003
"""User id in the worker's image, and id of the group that may read the join secrets. The group
differs from the user's own group. So ranks that run as other users are not members of the group.
"""
KEYS = {
    **dict.fromkeys(("containers", "initContainers", "env", "volumes"), "name"),
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
}
"""Fields by which Kubernetes identifies the items of a list when it merges lists; all other lists
are replaced as a whole.
"""
OURS = {
    "spec": ("activeDeadlineSeconds",),
    f"spec.containers[{CONTAINER}]": ("args", "restartPolicy", "restartPolicyRules", "workingDir"),
}
"""Fields that a template must not set, because they would break the source's guarantees."""


class KubernetesOptions(EngineOptions):
    """Options of a source of kind `kubernetes`."""

    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    """Namespace in which the Jobs are created."""
    image: Annotated[str, Field(min_length=1)]
    """Image with the worker and the trainer (`deploy/worker.Dockerfile`)."""
    kubeconfig: str | None = None
    """Path of a kubeconfig; when absent, the first of `KUBECONFIG`, `~/.kube/config` and the pod's
    service account.
    """
    context: str | None = None
    """Context in the kubeconfig; the current context when absent."""
    login: str | None = None
    """Command that renews the credentials, if a person has to renew them."""
    queue: Annotated[str, Field(min_length=1)] | None = None
    """LocalQueue of Kueue; if set, the Job is created suspended, and Kueue admits it."""
    grace_seconds: Annotated[int, Field(ge=30, le=86_400)] = 300
    """Time, in seconds, for a deleted pod to save and leave."""
    restarts: Annotated[int, Field(ge=0, le=100)] = 3
    """Maximum number of times that a failed pod is replaced, per index; disruptions (evictions,
    drained nodes) do not count.
    """
    gpu_resource: Annotated[str, Field(pattern="/")] = "nvidia.com/gpu"
    """Kubernetes resource of which each slot of kind `cuda` takes one unit."""
    shared_memory: Annotated[str, Field(pattern=r"^[1-9][0-9]*(Mi|Gi|Ti)?$")] | None = None
    """Maximum size of `/dev/shm`, such as `16Gi`; it counts as memory of the pod. When absent, the
    limit is the pod's memory limit, or half of the node's memory.
    """
    pod_template: str | None = None
    """Path of a YAML file with a pod template (`metadata` and `spec`) to merge in, for example for
    volumes, a node selector, tolerations or memory.
    """


def job_manifest(
    place: Place, options: KubernetesOptions, *, submission: Submission, command: list[str]
) -> Manifest:
    """Return the Job for a request.

    Raises:
        SourceError: a final refusal, because the operator's pod template is unreadable or sets a
            field that the source sets.
    """
    name = job_name(submission.request_id)
    labels = {SOURCE_LABEL_KEY: place.name, REQUEST_LABEL_KEY: submission.request_id}
    queue = {QUEUE_LABEL: options.queue} if options.queue else {}
    spec: Manifest = {
        "completions": submission.shape.nodes,
        "parallelism": submission.shape.nodes,
        "completionMode": "Indexed",
        "backoffLimitPerIndex": options.restarts,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                }
            ]
        },
        "podReplacementPolicy": "Failed",  # so that an index never has two live pods
        "suspend": options.queue is not None,
        "template": pod_template(options, submission, command=command, labels=labels),
    }
    if submission.seconds is not None:
        spec["activeDeadlineSeconds"] = max(1, int(submission.seconds))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": options.namespace,
            "labels": labels | queue,
            "finalizers": [FINALIZER],
        },
        "spec": spec,
    }


def secret_manifest(
    place: Place, options: KubernetesOptions, *, submission: Submission, job_uid: str
) -> Manifest:
    """Return the Secret with the join secrets for a request; the Secret disappears with the Job."""
    name = job_name(submission.request_id)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": options.namespace,
            "labels": {SOURCE_LABEL_KEY: place.name, REQUEST_LABEL_KEY: submission.request_id},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job_uid}
            ],
        },
        "type": "Opaque",
        "immutable": True,
        "data": {"secrets": base64.b64encode(submission.secrets.read_bytes()).decode()},
    }


def check_template(options: KubernetesOptions) -> None:
    """Check the operator's pod template by merging it for sample requests.

    Raises:
        SourceError: a final refusal; the message names the field.
    """
    for device in DEVICES:
        submission = Submission(
            request_id="check",
            purpose="nodes",
            shape=Shape(nodes=1, slots=1, device=device),
            seconds=None,
            secrets=Path("secrets"),
            environment={},
        )
        pod_template(
            options,
            submission,
            command=["pilot"],
            labels={SOURCE_LABEL_KEY: "", REQUEST_LABEL_KEY: ""},
        )


def pod_template(
    options: KubernetesOptions,
    submission: Submission,
    *,
    command: list[str],
    labels: Mapping[str, str],
) -> Manifest:
    """Return the pod template: defaults, then the operator's fields, then fixed fields."""
    operators = _operators_template(options)
    return overlay(
        overlay(_defaults(submission), operators),
        _fixed(options, submission, command=command, labels=labels),
        refuse=True,
    )


def overlay(base: Manifest, top: Manifest, *, refuse: bool = False, path: str = "") -> Manifest:
    """Return `base` with `top` merged in, as Kubernetes does: some lists are merged by key.

    Args:
        base: object to merge into.
        top: object to merge; its values have priority.
        refuse: whether it is an error if `base` has a different value for a field in `top`.
        path: location of both objects, for error messages.

    Raises:
        SourceError: a final refusal; the message names the field.
    """
    result = dict(base)
    for name, value in top.items():
        where = f"{path}.{name}" if path else name
        if name not in base or base[name] == value:
            result[name] = value
        elif isinstance(value, dict) and isinstance(base[name], dict):
            result[name] = overlay(base[name], value, refuse=refuse, path=where)
        elif isinstance(value, list) and isinstance(base[name], list) and name in KEYS:
            result[name] = _overlay_list(base[name], value, refuse=refuse, path=where)
        elif refuse:
            raise _refusal(where, base[name], f"the source sets it to {value!r}")
        else:
            result[name] = value
    return result


def _overlay_list(base: list[Any], top: list[Any], *, refuse: bool, path: str) -> list[Any]:
    field = path.rpartition(".")[2]
    key = KEYS[field]
    result = list(base)
    at = {_keyed(item, key, path): place for place, item in enumerate(base)}
    for item in top:
        place = at.get(_keyed(item, key, path))
        if place is None:
            result.append(item)
        elif field in ("containers", "initContainers"):
            where = f"{path}[{item[key]}]"
            result[place] = overlay(result[place], item, refuse=refuse, path=where)
        elif refuse and result[place] != item:
            raise _refusal(f"{path}[{item[key]}]", result[place], "the source sets it")
        else:
            result[place] = item
    return result


def _keyed(item: Any, key: str, path: str) -> str:
    if not isinstance(item, dict) or not isinstance(item.get(key), str):
        raise SourceError.refusal(f"pod_template: each item of {path} needs the field {key!r}")
    return str(item[key]).rstrip("/")


def _refusal(field: str, value: object, why: str) -> SourceError:
    return SourceError.refusal(f"pod_template: {field} cannot be {value!r}: {why}; leave it out")


def _operators_template(options: KubernetesOptions) -> Manifest:
    if options.pod_template is None:
        return {}
    try:
        text = Path(options.pod_template).read_text(encoding="utf-8")
        # kubectl reads YAML 1.1, in which the frequent `defaultMode: 0644` is octal and
        # `hostNetwork: yes` means true.
        template = read_yaml(text, as_old=True)
    except (OSError, ValueError) as error:
        raise SourceError.refusal(
            f"pod_template={options.pod_template!r} cannot be read: {error}"
        ) from error
    if not isinstance(template, dict) or not template.keys() <= {"metadata", "spec"}:
        raise SourceError.refusal(
            f"pod_template={options.pod_template!r} needs the fields metadata and spec alone, as"
            " the template of a Job has them"
        )
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    if not isinstance(metadata, dict) or not metadata.keys() <= {"labels", "annotations"}:
        raise SourceError.refusal("pod_template: metadata may have labels and annotations alone")
    if not isinstance(spec, dict):
        raise SourceError.refusal(f"pod_template: spec={spec!r} needs fields of a pod")
    for item in spec.get("containers") or ():
        if _keyed(item, "name", "spec.containers") == CONTAINER:
            _check_unset(item, f"spec.containers[{CONTAINER}]")
    _check_unset(spec, "spec")
    return {"metadata": metadata, "spec": spec}


def _check_unset(fields: Manifest, path: str) -> None:
    for name in OURS[path]:
        if name in fields:
            raise _refusal(f"{path}.{name}", fields[name], "the source leaves it unset")


def _defaults(submission: Submission) -> Manifest:
    """Return the fields that the operator's template may override."""
    pilot: Manifest = {
        "name": CONTAINER,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if submission.shape.device == "cpu":
        pilot["resources"] = {"requests": {"cpu": str(submission.shape.slots)}}
    return {
        "spec": {
            "automountServiceAccountToken": False,  # ranks run code of users
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": SECRETS_GROUP,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [pilot],
        }
    }


def _fixed(
    options: KubernetesOptions,
    submission: Submission,
    *,
    command: list[str],
    labels: Mapping[str, str],
) -> Manifest:
    """Return the fields that the source depends on."""
    memory: Manifest = {"medium": "Memory"}
    if options.shared_memory:
        memory["sizeLimit"] = options.shared_memory
    pilot: Manifest = {
        "name": CONTAINER,
        "image": options.image,
        "command": command,
        "env": _environment(options, submission),
        "volumeMounts": [
            {"name": "trainyard-join", "mountPath": SECRETS_FOLDER, "readOnly": True},
            {"name": "trainyard-data", "mountPath": DATA_FOLDER},
            {"name": "trainyard-shm", "mountPath": "/dev/shm"},
        ],
    }
    if submission.shape.device == "cuda":
        pilot["resources"] = {"limits": {options.gpu_resource: str(submission.shape.slots)}}
    secret = {"secretName": job_name(submission.request_id), "defaultMode": 0o400}
    return {
        "metadata": {"labels": dict(labels), "finalizers": [FINALIZER]},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": options.grace_seconds,
            "containers": [pilot],
            "volumes": [
                {"name": "trainyard-join", "secret": secret},
                {"name": "trainyard-data", "emptyDir": {}},
                {"name": "trainyard-shm", "emptyDir": memory},
            ],
        },
    }


def _environment(options: KubernetesOptions, submission: Submission) -> list[Manifest]:
    """Return the pilot's variables; the indexed Job itself adds JOB_COMPLETION_INDEX."""
    values = {
        **submission.environment,
        "TRAINYARD_JOIN_TOKEN_FILE": f"{SECRETS_FOLDER}/secrets",
        "TRAINYARD_NOTICE_SECONDS": str(options.grace_seconds),
        "TMPDIR": DATA_FOLDER,
    }
    fields = {"TRAINYARD_ADDRESS": "status.podIP", "TRAINYARD_PILOT_INSTANCE": "metadata.uid"}
    return [
        *({"name": name, "value": value} for name, value in values.items() if name not in fields),
        *(
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in fields.items()
        ),
    ]
