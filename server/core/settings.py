"""Settings of the server, from `TRAINYARD_*` environment variables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from server.core.addresses import Networks
from trainyard.base.problems import named
from trainyard.outside.secret_file import url_with_password
from trainyard.run.artifacts.artifact_records import MAX_FILE_BYTES

DAYS_OF_MONTH = 32
"""Days for which at least is kept what is counted by calendar month."""


class Settings(BaseSettings):
    """Settings of a server process; every field is one environment variable."""

    model_config = SettingsConfigDict(env_prefix="TRAINYARD_", frozen=True)

    database_url: str = "sqlite:///trainyard.db"
    """SQLAlchemy URL of the database (`sqlite:///...` or `postgresql://...`)."""
    database_password_file: Path | None = None
    """File that holds the password of this URL, which then has none; no other user can read it."""
    broker_url: str = "redis://127.0.0.1:6379/0"
    """Redis URL of the Celery broker."""
    broker_password_file: Path | None = None
    """File that holds the password of the broker, likewise."""
    host: str = "127.0.0.1"
    """Address on which the API listens."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8470
    """Port on which the API listens."""
    state_dir: Path = Path()
    """Folder for the first admin token, and for `secrets.key` with the keys that encrypt values of
    `env`. Every process of the server needs the same folder."""
    web_dir: Path | None = None
    """Folder of the built dashboard; the one inside the package when absent."""
    public_url: str | None = None
    """URL under which browsers reach the server; writes with a cookie must come from its origin.
    Without it they must come from loopback."""
    roots: Annotated[tuple[str, ...], NoDecode] = ("checkpoints", "data")
    """Names of the storage roots that specs may use, as an array of JSON."""
    allow_code: bool = False
    """Whether jobs may bring code of their own (`model.factory`), which then runs on the nodes."""
    lease_seconds: Annotated[float, Field(ge=12)] = 30.0
    """Silence after which a node of an attempt counts as unreachable. Never so short that a server
    which is away for some seconds makes it look like silence."""
    report_seconds: Annotated[float, Field(gt=0)] = 0.5
    """Longest pause between two reports of a supervisor."""
    heartbeat_seconds: Annotated[float, Field(gt=0)] = 5.0
    """Pause between two heartbeats of a worker; after six without one its node is offline."""
    claim_seconds: Annotated[float, Field(gt=0)] = 120.0
    """Time within which an attempt must be claimed by all of its nodes."""
    cordon_after_failures: Annotated[int, Field(ge=0)] = 3
    """Attempts that fail because of a node within `cordon_window_seconds`, after which nothing new
    is placed there; never when 0."""
    cordon_window_seconds: Annotated[float, Field(gt=0)] = 21_600.0
    """Time within which failures of a node are counted together."""
    clock_skew_seconds: Annotated[float, Field(ge=0)] = 5.0
    """Difference between the clocks of a node and of the database above which nothing new is placed
    on the node; never when 0."""
    recovery_seconds: Annotated[float, Field(ge=0)] = 120.0
    """Longest wait of a job until the commits of its lost attempt are found, once a node sees its
    storage."""
    grow_after_seconds: Annotated[float, Field(ge=0)] = 600.0
    """Time for which an attempt of an elastic job trains before the job grows onto free slots."""
    preemption: bool = True
    """Whether a waiting job preempts attempts of lower priority, and those that overtook it on an
    expected duration alone, of which there are none otherwise: they save, leave and are queued
    again."""
    preempt_after_seconds: Annotated[float, Field(ge=0)] = 600.0
    """Time since its first step after which an attempt may be preempted."""
    resend_seconds: Annotated[float, Field(gt=0)] = 5.0
    """Pause before an unclaimed launch message is sent again; it doubles up to a minute. That of
    operations stays."""
    log_quota_bytes: Annotated[int, Field(ge=1_000_000)] = 64 * 1024 * 1024
    """Bytes of output that are kept for each rank of an attempt; the oldest are dropped."""
    artifact_quota_bytes: Annotated[int, Field(ge=0)] = 1024 * 1024 * 1024
    """Bytes of images and files that are kept for each job; what exceeds them is dropped."""
    artifact_file_bytes: Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)] = MAX_FILE_BYTES
    """Bytes of the largest file among them, at most 256 MiB."""
    log_level: Literal["DEBUG", "INFO", "WARNING"] = "INFO"
    """Least level of the lines that the server logs. Accepted reports and heartbeats, and looks at
    its health, are DEBUG; all other requests INFO."""
    device_gauges: bool = False
    """Whether `/metrics` has gauges of each GPU, in place of one for those of a node: 15 gauges a
    GPU, 120,000 for a thousand nodes of eight."""
    scrub_interval_days: Annotated[float, Field(ge=0)] = 0.0
    """Days without a check after which an idle node compares a checkpoint with its checksums; never
    when 0."""
    operations_kept_days: Annotated[float, Field(ge=0)] = 30.0
    """Days after which operations that have ended are forgotten; never when 0."""
    jobs_kept_days: Annotated[float, Field(ge=0)] = 730.0
    """Days after its end for which a job is kept that nothing needs: it has no checkpoint, none was
    forked from it, and it has no tag `keep`. With it go its series, logs, events and artifacts;
    never when 0."""
    imports_kept_days: Annotated[float, Field(ge=0)] = 730.0
    """Days for which an imported run is kept, on the same conditions; never deleted when 0."""
    logs_kept_days: Annotated[float, Field(ge=0)] = 365.0
    """Days after the end of an attempt for which its output is kept, also where its job stays, but
    for one with the tag `keep`; never deleted when 0."""
    events_kept_days: Annotated[float, Field(ge=0)] = 365.0
    """Days for which events are kept that belong to no job, or to a deleted one; never deleted when
    0. Those of a job are kept as long as the job."""
    goodput_kept_days: Annotated[float, Field(ge=0)] = 400.0
    """Days for which the slot-time of ended attempts and of nodes is kept; never deleted when 0,
    else at least 32: quotas count the calendar month."""
    requests_kept_days: Annotated[float, Field(ge=0)] = 90.0
    """Days for which requests for nodes are kept that have ended; never deleted when 0, else at
    least 32: the limits of a source count the calendar month."""
    max_slots: Annotated[int, Field(ge=1)] = 16_384
    """Most slots that a job may ask for. A job that is larger than all nodes waits for more of
    them; a larger number is a mistake and is refused."""
    max_body_bytes: Annotated[int, Field(ge=100_000)] = 1024 * 1024
    """Largest request body, reports apart."""
    stream_seconds: Annotated[float, Field(gt=0)] = 900.0
    """Longest life of a stream of events; its client reconnects, and its token is checked again."""
    max_connections_per_address: Annotated[int, Field(ge=16)] = 1024
    """Most open connections of one address (of IPv6, of one /64); those of `trusted_proxies` count
    only in the total, which is given by the limit of file descriptors. A browser holds up to seven,
    a node about as many as it runs attempts."""
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = ("127.0.0.1", "::1")
    """Addresses and networks of reverse proxies, divided by commas: their `X-Forwarded-For` and
    `X-Forwarded-Proto` are believed."""

    def whole_database_url(self) -> str:
        """Return `database_url` with its password.

        Raises:
            ValueError: the file of the password cannot be used, or the URL has one already.
        """
        return url_with_password(self.database_url, self.database_password_file, name="DATABASE")

    def whole_broker_url(self) -> str:
        """Return `broker_url` with its password.

        Raises:
            ValueError: as for the database.
        """
        return url_with_password(self.broker_url, self.broker_password_file, name="BROKER")

    @property
    def key_file(self) -> Path:
        """File of the keys that encrypt values of `env`."""
        return self.state_dir / "secrets.key"

    @property
    def is_https(self) -> bool:
        """Whether browsers reach the server by https."""
        return (self.public_url or "").startswith("https:")

    @field_validator("goodput_kept_days", "requests_kept_days")
    @classmethod
    def _check_month(cls, given: float) -> float:
        if 0 < given < DAYS_OF_MONTH:
            raise ValueError(f"{given:g} days: 0 (never) or at least {DAYS_OF_MONTH} are legal")
        return given

    @field_validator("roots", mode="before")
    @classmethod
    def _read_names(cls, given: object) -> object:
        """Read JSON here: an error of pydantic-settings' own reading names no variable."""
        if not isinstance(given, str):
            return given
        try:
            return json.loads(given)
        except (ValueError, RecursionError):
            raise ValueError('an array of JSON is needed, as ["checkpoints", "data"]') from None

    @field_validator("trusted_proxies", mode="before")
    @classmethod
    def _divide(cls, given: object) -> object:
        parts = [part.strip() for part in given.split(",")] if isinstance(given, str) else given
        return tuple(part for part in parts if part) if isinstance(parts, Iterable) else parts

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        Networks(given)
        return given


def setting_problems(error: ValueError) -> list[str]:
    """Return a line for each setting that cannot be used.

    Args:
        error: of pydantic, for which a line has the variable, its value and what is legal; or
            another one, whose text has them.
    """
    if not isinstance(error, ValidationError):
        return [str(error)]
    lines = []
    for each in error.errors(include_url=False):
        detail = each["msg"].removeprefix("Value error, ")
        path = each["loc"]
        # Without a path the value is that of all settings.
        name = f"TRAINYARD_{str(path[0]).upper()}" if path else None
        lines.append(f"{named(name, each['input'])}: {detail}" if name else detail)
    return lines
