"""Kubelets of a test's cluster: they run the command of each pod as a process of this machine."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path

from tests.provisioner.kubernetes.api import INDEX, KubernetesApi, Object

ADDRESS = "10.1.2.3"


class Kubelets:
    """Starts processes of new pods, ends those of deleted pods, and reports their messages."""

    def __init__(self, api: KubernetesApi, folder: Path) -> None:
        """Use a folder for the volumes."""
        self._api = api
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.message = folder / "message"
        """File that stands for `/dev/termination-log`."""

    def step(self) -> None:
        """Handle each pod once."""
        for pod in self._api.pods():
            name, deleted = pod["metadata"]["name"], "deletionTimestamp" in pod["metadata"]
            if name in self._running:
                self._watch(pod, deleted)
            elif not deleted and pod["status"]["phase"] == "Pending":
                self._start(pod)

    def close(self) -> None:
        """End what still runs."""
        for process in self._running.values():
            process.kill()
            process.wait()

    def _start(self, pod: Object) -> None:
        self._api.start(pod, address=ADDRESS)
        (container,) = pod["spec"]["containers"]
        name = pod["metadata"]["name"]
        self.message.unlink(missing_ok=True)
        process = subprocess.Popen(container["command"], env=self._environment(pod, container))
        while not self.message.exists() or not self.message.read_text():
            assert process.poll() is None
        self._running[name] = process

    def _watch(self, pod: Object, deleted: bool) -> None:
        name = pod["metadata"]["name"]
        process = self._running[name]
        if deleted and pod["metadata"]["deletionGracePeriodSeconds"] == 0:
            process.kill()
        elif deleted:
            process.terminate()
        if deleted:
            code = process.wait(30)
            del self._running[name]
            self._api.finish(pod, code & 0xFF, self.message.read_text())

    def _environment(self, pod: Object, container: Object) -> dict[str, str]:
        """Return the variables of a container, its volumes replaced by folders of the test."""
        fields = {"status.podIP": ADDRESS, "metadata.uid": pod["metadata"]["uid"]}
        values = {
            item["name"]: item.get("value") or fields[item["valueFrom"]["fieldRef"]["fieldPath"]]
            for item in container["env"]
        }
        values["JOB_COMPLETION_INDEX"] = pod["metadata"]["annotations"][INDEX]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        for mount in container["volumeMounts"]:
            if mount["mountPath"] == "/dev/shm":
                continue
            folder = self._folder / pod["metadata"]["name"] / mount["name"]
            folder.mkdir(parents=True)
            if secret := volumes[mount["name"]].get("secret"):
                data = self._api.named("secrets", secret["secretName"])["data"]
                for key, value in data.items():
                    (folder / key).write_bytes(base64.b64decode(value))
                    (folder / key).chmod(secret["defaultMode"])
            values = {k: v.replace(mount["mountPath"], str(folder)) for k, v in values.items()}
        return {"PATH": os.environ["PATH"], **values}
