"""The allocation of a pilot: its index, its instance, and its end."""

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
"""Interval between two checks of the allocation's end: people change limits."""
ASK_SECONDS = 20.0
"""Time limit of one check."""


class PilotVariables(BaseSettings):
    """The provisioner's variables for a pilot; every field is one environment variable."""

    model_config = SettingsConfigDict(env_prefix="TRAINYARD_PILOT_", frozen=True)

    kind: SourceKind
    """Kind of the engine."""
    source: SourceName
    """Source."""
    request: RequestId
    """The request; it names the engine's job."""
    purpose: Purpose = "nodes"
    """Whether the pilot serves a node, or checks the place and exits."""
    ends_at: Annotated[float, Field(ge=0)] | None = None
    """End of the allocation, Unix time, if it is known in advance and never changes."""


class Allocation(Protocol):
    """A place in an engine's allocation."""

    @property
    def index(self) -> int:
        """Index of the pilot in its request."""

    @property
    def instance(self) -> str:
        """The engine's name of this run of the pilot."""

    def end(self) -> float | None:
        """Return the end of the allocation, Unix time; None without a limit.

        Raises:
            OSError: the engine does not answer.
        """


@dataclass(frozen=True)
class GivenAllocation:
    """A machine reached by ssh, or a pod: the facts were passed at the start."""

    index: int
    instance: str
    ends_at: float | None

    def end(self) -> float | None:
        """Return the end passed at the start."""
        return self.ends_at


@dataclass(frozen=True)
class SlurmAllocation:
    """A task of a Slurm job, one on each node."""

    index: int
    instance: str
    job_id: str

    def end(self) -> float | None:
        """Return the end according to the job's present limit."""
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
        return None  # N/A: without a limit


def find_allocation(settings: PilotVariables, environment: Mapping[str, str]) -> Allocation:
    """Return the place of this process in its engine's allocation.

    Raises:
        ValueError: a variable is missing; the error names it.
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
    """This process as a pilot."""

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
        """Name of the node that the pilot becomes."""
        return pilot_name(self.settings.source, self.settings.request, self.allocation.index)

    @property
    def folder(self) -> str:
        """Name of its data folder."""
        return f"trainyard-{self.settings.request}-{self.allocation.index}"


def find_pilot() -> OwnPilot | None:
    """Return this process as a pilot; None outside an allocation of a source.

    Raises:
        ValueError: a variable is missing or malformed; the error names it.
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
    """Checks the end of an allocation every minute: a check may block, heartbeats may not."""

    def __init__(self, allocation: Allocation, *, seconds: float = END_SECONDS) -> None:
        super().__init__(name="end", daemon=True)
        self._allocation = allocation
        self._seconds = seconds
        self._stopping = threading.Event()
        self._answered = True
        self.ends_at: float | None = None
        """The end of the allocation by the last answer; None if it is unknown."""

    def poll(self) -> None:
        """Check now; without an answer the last end stays."""
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
