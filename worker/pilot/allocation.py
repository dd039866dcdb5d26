"""The allocation of a pilot: index and instance of the pilot, and end of the allocation."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from trainyard.protocol.node_sources.messages import (
    PilotIdentity,
    Purpose,
    RequestId,
    SourceKind,
    SourceName,
    pilot_name,
)

logger = logging.getLogger(__name__)

END_SECONDS = 60.0
"""Interval, in seconds, between checks of the allocation's end, which people may change."""
ASK_SECONDS = 20.0
"""Time limit of one check, in seconds."""


class PilotVariables(BaseSettings):
    """Variables that the provisioner sets for a pilot; each field is one environment variable."""

    model_config = SettingsConfigDict(env_prefix="TRAINYARD_PILOT_", frozen=True)

    kind: SourceKind
    """Kind of the engine."""
    source: SourceName
    """Name of the source."""
    request: RequestId
    """Id of the request, which is part of the name of the engine's job."""
    purpose: Purpose = "nodes"
    """Whether the pilot serves a node, or only checks the allocation and exits."""
    ends_at: Annotated[float, Field(ge=0)] | None = None
    """End of the allocation in Unix time, if it is known in advance and fixed."""


class Allocation(Protocol):
    """Place of a pilot in an engine's allocation."""

    @property
    def index(self) -> int:
        """Index of the pilot in its request."""

    @property
    def instance(self) -> str:
        """The engine's name for this instance of the pilot."""

    def end(self) -> float | None:
        """Return the end of the allocation, in Unix time; None without a time limit.

        Raises:
            OSError: the engine does not respond.
        """


@dataclass(frozen=True)
class GivenAllocation:
    """A machine reached by ssh, or a pod; its facts are passed to the pilot at the start."""

    index: int
    instance: str
    ends_at: float | None

    def end(self) -> float | None:
        """Return the allocation's end, which was passed at the start of the pilot."""
        return self.ends_at


@dataclass(frozen=True)
class SlurmAllocation:
    """A task of a Slurm job with one task per node."""

    index: int
    instance: str
    job_id: str

    def end(self) -> float | None:
        """Return the end according to the job's present time limit."""
        command = ["squeue", "--noheader", "--states=all", f"--jobs={self.job_id}", "--format=%e"]
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=ASK_SECONDS,
                check=True,
            )
        except subprocess.SubprocessError as error:
            raise OSError(f"squeue gave no end of job {self.job_id}: {error}") from None
        words = done.stdout.split()
        if words and words[0].isdigit():
            return float(words[0])
        return None  # N/A: no time limit


def find_allocation(settings: PilotVariables, environment: Mapping[str, str]) -> Allocation:
    """Return the place of this process in its engine's allocation.

    Raises:
        ValueError: a variable is missing; the error names the variable.
    """
    if settings.kind == "slurm":
        job_id = _needed(environment, "SLURM_JOB_ID", "srun")
        index = int(_needed(environment, "SLURM_PROCID", "srun"))
        life = environment.get("SLURM_RESTART_COUNT") or "0"
        return SlurmAllocation(index, f"{job_id}.{life}.{index}", job_id)
    instance = _needed(environment, "TRAINYARD_PILOT_INSTANCE", "the provisioner")
    name = "JOB_COMPLETION_INDEX" if settings.kind == "kubernetes" else "TRAINYARD_PILOT_INDEX"
    given = int(_needed(environment, name, "the provisioner or the engine"))
    return GivenAllocation(given, instance, settings.ends_at)


def _needed(environment: Mapping[str, str], name: str, giver: str) -> str:
    value = environment.get(name)
    if not value:
        raise ValueError(f"{name} is not set; {giver} sets it for a pilot")
    return value


@dataclass(frozen=True)
class OwnPilot:
    """This process as a pilot, with its settings and allocation."""

    settings: PilotVariables
    allocation: Allocation

    @property
    def identity(self) -> PilotIdentity:
        """Identity of the pilot, to which its join secret is bound."""
        return PilotIdentity(
            request_id=self.settings.request,
            index=self.allocation.index,
            instance=self.allocation.instance,
        )

    @property
    def name(self) -> str:
        """Node name of the pilot."""
        return pilot_name(self.settings.source, self.settings.request, self.allocation.index)

    @property
    def folder(self) -> str:
        """Name of the pilot's data folder."""
        return f"trainyard-{self.settings.request}-{self.allocation.index}"


def find_pilot() -> OwnPilot | None:
    """Return this process as a pilot; None outside of a source's allocation.

    Raises:
        ValueError: a variable is missing or malformed; the error names the variable.
    """
    if "TRAINYARD_PILOT_REQUEST" not in os.environ:
        return None
    try:
        settings = PilotVariables()
    except ValidationError as error:
        first = error.errors()[0]
        name = f"TRAINYARD_PILOT_{str(first['loc'][0]).upper()}"
        raise ValueError(f"{name}: {first['msg']}") from None
    return OwnPilot(settings, find_allocation(settings, os.environ))


class EndWatch(threading.Thread):
    """Checks the allocation's end every minute in a thread, so that heartbeats never block."""

    def __init__(self, allocation: Allocation, *, seconds: float = END_SECONDS) -> None:
        super().__init__(name="end", daemon=True)
        self._allocation = allocation
        self._seconds = seconds
        self._stopping = threading.Event()
        self._answered = True
        self.ends_at: float | None = None
        """End of the allocation, in Unix time, from the last successful check; None if unknown."""

    def poll(self) -> None:
        """Check now; if the engine does not respond, keep the last known end."""
        try:
            self.ends_at = self._allocation.end()
            self._answered = True
        except OSError as error:
            if self._answered:
                logger.warning("the end of the allocation is not known anew: %s", error)
            self._answered = False

    def run(self) -> None:
        """Check until `stop`."""
        while not self._stopping.wait(self._seconds):
            self.poll()

    def stop(self) -> None:
        """Stop checking."""
        self._stopping.set()
