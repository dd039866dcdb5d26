"""Settings of the provisioner, in environment variables, and of its sources, in a TOML file."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from trainyard.base.labels import Labels, in_words
from trainyard.base.problems import Problem, SpecError, problems_of
from trainyard.outside.secret_file import url_with_password
from trainyard.protocol.node_sources.messages import (
    LONGEST_SECONDS,
    USEFUL_SECONDS,
    NodeShape,
    SourceKind,
    SourceLimits,
    SourceName,
    SourceRegistration,
)
from trainyard.protocol.worker_messages import PROTOCOL
from trainyard.spec.storage_uri import ROOT_PATTERN

Url = Annotated[str, Field(pattern=r"^https?://[^\s@]+$", max_length=300)]
Root = Annotated[str, Field(pattern=ROOT_PATTERN.pattern)]
Place = Annotated[str, Field(pattern=r"^(/|s3://)[^,\s]*$", max_length=500)]
Parsed = TypeVar("Parsed", bound=BaseModel)


class Settings(BaseSettings):
    """Settings of a provisioner; each field is one environment variable."""

    model_config = SettingsConfigDict(env_prefix="TRAINYARD_", frozen=True)

    url: str = "http://127.0.0.1:8470"
    """URL of the server."""
    broker_url: str = "redis://127.0.0.1:6379/0"
    """Redis URL of the Celery broker; it is never passed to pilots."""
    broker_password_file: Path | None = None
    """File with the password for `broker_url`, which must then contain no password. No other user
    may read the file.
    """
    join_token: str = ""
    """Join tokens, separated by commas; each source that has not joined yet needs one."""
    ca_file: Path | None = None
    """File of CA certificates for the server's certificate; if absent, those of the system."""
    state_dir: Path = Path("trainyard-provisioner")
    """Folder for the sources' tokens and the pilots' join secrets."""

    def whole_broker_url(self) -> str:
        """Return `broker_url` with its password.

        Raises:
            ValueError: the password file cannot be used, or the URL already has a password.
        """
        return url_with_password(self.broker_url, self.broker_password_file, name="BROKER")


class _Table(BaseModel):
    """A table in the file of sources; unknown keys and values of a wrong type are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PilotSettings(_Table):
    """Settings of the worker that are passed to pilots (docs/worker.md)."""

    allow_code: bool = False
    """Whether the nodes run code of jobs."""
    run_as: str | None = None
    """Users of ranks, as in the worker's setting `run_as`."""
    ca_file: Annotated[str, Field(pattern="^/")] | None = None
    """File of CA certificates, at its path on the nodes."""
    notice_seconds: Annotated[float, Field(ge=0, le=LONGEST_SECONDS)] | None = None
    """Time, in seconds, between a pilot's preemption notice and the end of its processes, such as
    Slurm's `KillWait` or a pod's grace period; a save that does not fit into this time is not
    started.
    """


class SourceConfig(_Table):
    """One source of nodes, in a table `[[sources]]`."""

    name: SourceName
    """Name of the source; the names of the source's nodes start with it."""
    kind: SourceKind
    """Kind of the source's engine."""
    slots: Annotated[int, Field(ge=1, le=1024)]
    """Number of slots per node."""
    device: Literal["cpu", "cuda"] = "cuda"
    """Kind of the slots."""
    labels: Labels = Field(default_factory=dict)
    """Labels of the source's nodes, in addition to `source=<name>`."""
    roots: Annotated[dict[Root, Place], Field(min_length=1, max_length=64)]
    """For each storage root, its path on the nodes or its URL `s3://bucket/prefix`."""
    limits: SourceLimits = Field(default_factory=SourceLimits)
    """Limits on requests to the source."""
    request_seconds: Annotated[float, Field(ge=60, le=LONGEST_SECONDS)] | None = None
    """Duration of an allocation, in seconds; unlimited when absent."""
    idle_seconds: Annotated[float, Field(ge=0, le=LONGEST_SECONDS)] = 300.0
    """Time without an attempt, in seconds, after which nodes are released."""
    leave_seconds: Annotated[float, Field(ge=30, le=LONGEST_SECONDS)] = 300.0
    """Time before the end of an allocation, in seconds, at which attempts save and leave."""
    check_addresses: bool = True
    """Whether a pilot must join from an address that the engine lists; `false` allows NAT."""
    url: Url | None = None
    """URL at which pilots reach the server; when absent, the URL that the server sends."""
    python: Annotated[str, Field(min_length=1, max_length=500)] = "python3"
    """Python interpreter on the nodes; it must be able to import the worker and the trainer."""
    worker: PilotSettings = PilotSettings()
    """Settings of the worker that are passed to pilots."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Options for the engine."""

    @model_validator(mode="after")
    def _must_leave_time_to_work(self) -> Self:
        least = self.leave_seconds + USEFUL_SECONDS
        if self.request_seconds is not None and self.request_seconds <= least:
            raise ValueError(
                f"request_seconds={self.request_seconds:g} needs to be above {least:g}: "
                f"attempts leave leave_seconds={self.leave_seconds:g} before the end, and in the "
                f"last {USEFUL_SECONDS:g} s before that nothing is placed on a node"
            )
        if self.labels.get("source", self.name) != self.name:
            raise ValueError(f"labels.source={self.labels['source']!r} needs to be {self.name!r}")
        return self

    def registration(self, *, version: str) -> SourceRegistration:
        """Return the registration of the source."""
        return SourceRegistration(
            protocol=PROTOCOL,
            name=self.name,
            kind=self.kind,
            shape=NodeShape(
                slots=self.slots,
                device=self.device,
                labels=self.labels | {"source": self.name},
                roots=tuple(self.roots),
            ),
            limits=self.limits,
            request_seconds=self.request_seconds,
            idle_seconds=self.idle_seconds,
            leave_seconds=self.leave_seconds,
            check_addresses=self.check_addresses,
            version=version,
        )

    def pilot_environment(self, *, url: str, request_id: str, purpose: str) -> dict[str, str]:
        """Return the environment for a request's pilots, without secrets (docs/sources.md)."""
        environment = {
            "TRAINYARD_URL": url,
            "TRAINYARD_INBOX": "server",
            "TRAINYARD_ROOTS": ",".join(f"{name}={place}" for name, place in self.roots.items()),
            "TRAINYARD_LABELS": in_words(self.labels | {"source": self.name}),
            "TRAINYARD_SLOTS": str(self.slots),
            "TRAINYARD_DEVICE": self.device,
            "TRAINYARD_PILOT_KIND": self.kind,
            "TRAINYARD_PILOT_SOURCE": self.name,
            "TRAINYARD_PILOT_REQUEST": request_id,
            "TRAINYARD_PILOT_PURPOSE": purpose,
        }
        passed = self.worker.model_dump(exclude_none=True, exclude_defaults=True)
        for name, value in passed.items():
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            environment[f"TRAINYARD_{name.upper()}"] = shown
        return environment


class _File(_Table):
    sources: Annotated[tuple[SourceConfig, ...], Field(min_length=1, max_length=64)]
    """Sources of one provisioner."""

    @model_validator(mode="after")
    def _names_must_differ(self) -> Self:
        names = [source.name for source in self.sources]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"sources have the name {twice[0]!r} twice; each needs its own")
        return self


def read_sources(path: Path) -> tuple[SourceConfig, ...]:
    """Return the sources in a TOML file.

    Raises:
        ValueError: the file is unreadable, or a field is wrong; the message names each wrong field
            and its value.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    try:
        return parse_table(_File, document).sources
    except SpecError as error:
        raise ValueError(f"{path}: {error}") from error


def parse_table(model: type[Parsed], table: Any, *, pointer: str = "") -> Parsed:
    """Parse a TOML table as a model.

    Raises:
        SpecError: a field is wrong; the message names each wrong field, its value, and the legal
            values.
    """
    text = json.dumps(table, default=str)  # in JSON, strict models accept arrays for tuples
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise SpecError(
            Problem(pointer=pointer + each.pointer, detail=each.detail)
            for each in problems_of(error, json.loads(text))
        ) from error
