"""A control plane with a provisioner, run like by an operator, for tests on real engines."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.e2e.control_plane import REPOSITORY, ControlPlane, spec, wait_for
from trainyard.client.sdk import Client
from trainyard.protocol.node_sources.views import NodeRequestView
from trainyard.protocol.states import AttemptState, NodeRequestState

LONG = 600.0
"""Seconds for what needs an engine, a pilot and the start of ranks on a busy machine."""
PACED = REPOSITORY / "tests" / "e2e" / "own_planes" / "paced_model"
PYTHON = """#!/bin/sh
# Host names of the rig are in no name service.
export TRAINYARD_ADDRESS=$(ip -4 -o addr show {addresses} | sed 's/.*inet \\([0-9.]*\\).*/\\1/')
export PYTHONPATH={repository} OMP_NUM_THREADS=1 {variables}
mkdir -p "$TMPDIR"
exec {python} "$@"
"""


class OpenPlane(ControlPlane):
    """A control plane that other machines reach."""

    def command(self, verb: str, *arguments: str) -> list[str]:
        """Return the command line of `up` or `down` on this folder."""
        host = ("--host", "0.0.0.0") if verb == "up" else ()
        return super().command(verb, *host, *arguments)


def write_python(folder: Path, *, addresses: str, variables: str = "") -> Path:
    """Write the interpreter of the nodes.

    Args:
        folder: folder for it.
        addresses: words of `ip addr show` that select the address of a node.
        variables: further words of `export`.
    """
    python = folder / "python"
    python.write_text(
        PYTHON.format(
            addresses=addresses, variables=variables, repository=REPOSITORY, python=sys.executable
        )
    )
    python.chmod(0o755)
    return python


class Site:
    """A control plane, and a provisioner that serves one source `pool`."""

    def __init__(
        self,
        folder: Path,
        plane: ControlPlane,
        yard: Client,
        *,
        sources: str,
        environment: Mapping[str, str],
    ) -> None:
        """Start the provisioner, and wait until the source is registered.

        Args:
            folder: folder for its files.
            plane: the control plane.
            yard: an admin's connection to it.
            sources: content of `sources.toml`.
            environment: variables of the provisioner, in addition to its settings.
        """
        self.folder = folder
        """Folder of all its files, those of the engine and of the nodes too."""
        self.plane = plane
        self.yard = yard
        self.log = folder / "provisioner.log"
        (folder / "sources.toml").write_text(sources)
        self.pilots_url: str = tomllib.loads(sources)["sources"][0]["url"]
        """URL at which pilots reach the server."""
        settings = {
            "TRAINYARD_URL": yard.url,
            "TRAINYARD_BROKER_URL": plane.broker_url,
            "TRAINYARD_JOIN_TOKEN": yard.create_token("pool", kind="join").secret or "",
            "TRAINYARD_STATE_DIR": str(folder / "state"),
        }
        shutil.copytree(PACED, plane.folders.data / "paced")
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "provisioner", "--config", str(folder / "sources.toml")],
                env={**os.environ, **environment, **settings},
                cwd=REPOSITORY,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(lambda: [source.name for source in yard.sources()], "source")

    def close(self) -> None:
        """End the provisioner."""
        self._process.terminate()
        self._process.wait(60)

    @contextlib.contextmanager
    def provisioner_stopped(self) -> Iterator[None]:
        """Block every call of the provisioner to the engine until the block ends."""
        group = os.getpgid(self._process.pid)
        os.killpg(group, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(group, signal.SIGCONT)

    def add_node(self) -> str:
        """Request a node without a job; return the request once the node is online."""
        request_id = self.yard.request_nodes("pool", nodes=1).id

        def online() -> bool:
            return any(node.online for node in self.yard.nodes() if request_id in node.name)

        wait_for(online, f"node of {request_id}", seconds=LONG)
        return request_id

    def ref(self, request_id: str) -> str:
        """Return the engine's id of the job of a request."""
        ref = self.yard.node_request("pool", request_id).ref
        assert ref is not None
        return ref

    def requests(self, *, after: Sequence[NodeRequestView] = (), count: int) -> Any:
        """Return the requests after earlier ones, once their number is reached."""
        known = {each.id for each in after}

        def look() -> list[NodeRequestView] | None:
            found = [each for each in self.yard.node_requests("pool") if each.id not in known]
            return found[::-1] if len(found) == count else None

        return wait_for(look, f"{count} requests", seconds=LONG)

    def request(self, request_id: str, state: NodeRequestState) -> NodeRequestView:
        """Return a request once it has a state."""

        def look() -> NodeRequestView | None:
            found = self.yard.node_request("pool", request_id)
            return found if found.state == state else None

        return wait_for(look, f"request that is {state}", seconds=LONG)

    def trains(self, job_id: str, *, ranks: int, above: int) -> int:
        """Return the number of an attempt after `above` once it trains on a number of ranks."""

        def look() -> int | None:
            attempt = self.yard.job(job_id).current_attempt
            if attempt is None or attempt.number <= above or attempt.layout.world_size != ranks:
                return None
            return attempt.number if attempt.state == AttemptState.RUNNING else None

        number = wait_for(look, f"attempt on {ranks} ranks", seconds=LONG)
        step = self.yard.job(job_id).progress.step
        wait_for(lambda: self.yard.job(job_id).progress.step > step + 3, "progress", seconds=LONG)
        return number


def paced(name: str, *, seconds: float, **sections: Any) -> dict[str, Any]:
    """Return the spec of a small job with forward passes of a given number of seconds."""
    made = spec(name, **sections)
    made["model"] = {
        "factory": "paced:build",
        "code": "data:paced",
        "arguments": {"width": 16, "seconds": seconds},
        "vocab_size": 320,
    }
    return made


def minutes_since(began: float, *, left: int) -> int:
    """Return the time limit, in minutes, of a job since then for an end some minutes from now."""
    return math.ceil((time.time() - began) / 60) + left
