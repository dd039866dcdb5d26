"""Settings of the server, from `TRAINYARD_*` environment variables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from server.core.addresses import Networks
from trainyard.base.loopback import is_secure_url
from trainyard.base.problems import named
from trainyard.outside.secret_file import read_secret, url_with_password
from trainyard.run.artifacts.artifact_records import MAX_FILE_BYTES

SYSLOG_PORTS = {"tls": 6514, "tcp": 601, "udp": 514}
"""Default ports of syslog receivers by scheme."""
MAX_ISSUER = 500
"""Maximum length of the issuer's URL, in characters."""
DAYS_OF_MONTH = 32
"""Minimum retention, in days, of data that is counted by calendar month."""


class Settings(BaseSettings):
    """Settings of a server process; every field is one environment variable."""

    model_config = SettingsConfigDict(env_prefix="TRAINYARD_", frozen=True)

    database_url: str = "sqlite:///trainyard.db"
    """SQLAlchemy URL of the database (`sqlite:///...` or `postgresql://...`)."""
    database_password_file: Path | None = None
    """File with the password for `database_url`, if the URL contains none; only its owner may read
    the file.
    """
    broker_url: str = "redis://127.0.0.1:6379/0"
    """Redis URL of the Celery broker."""
    broker_password_file: Path | None = None
    """File with the password for `broker_url`, if the URL contains none; only its owner may read
    the file.
    """
    host: str = "127.0.0.1"
    """Address on which the API listens."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8470
    """Port on which the API listens."""
    state_dir: Path = Path()
    """Folder for the first admin token, and for the file `secrets.key` with the keys that encrypt
    values of `env`. Every process of the server needs the same folder.
    """
    web_dir: Path | None = None
    """Folder of the built dashboard; by default the folder inside the package."""
    public_url: str | None = None
    """URL under which browsers reach the server. Writes with a session cookie must come from the
    origin of this URL; if no URL is set, such writes must come from loopback.
    """
    roots: Annotated[tuple[str, ...], NoDecode] = ("checkpoints", "data")
    """Names of the storage roots that specs may use, as a JSON array."""
    allow_code: bool = False
    """Whether jobs may bring code of their own (`model.factory`), which then runs on the nodes."""
    lease_seconds: Annotated[float, Field(ge=12)] = 30.0
    """Time without a report after which a node of an attempt counts as unreachable. With a value
    below the minimum, a server outage of some seconds could make nodes count as unreachable.
    """
    report_seconds: Annotated[float, Field(gt=0)] = 0.5
    """Maximum pause between two reports of a supervisor."""
    heartbeat_seconds: Annotated[float, Field(gt=0)] = 5.0
    """Pause between two heartbeats of a worker. The node is offline after six missed heartbeats."""
    claim_seconds: Annotated[float, Field(gt=0)] = 120.0
    """Time within which every node of an attempt must claim its share."""
    cordon_after_failures: Annotated[int, Field(ge=0)] = 3
    """Minimum number of attempts that fail because of one node within `cordon_window_seconds`
    before nothing new is placed on the node; if 0, failures have no effect.
    """
    cordon_window_seconds: Annotated[float, Field(gt=0)] = 21_600.0
    """Period in which the failures of a node are counted together."""
    clock_skew_seconds: Annotated[float, Field(ge=0)] = 5.0
    """Maximum difference between the clocks of a node and of the database. If the difference is
    larger, nothing new is placed on the node; unlimited if 0.
    """
    recovery_seconds: Annotated[float, Field(ge=0)] = 120.0
    """Maximum time, in seconds, that a job waits for the search for commits of its lost attempt.
    This time begins when a node can access the job's storage.
    """
    grow_after_seconds: Annotated[float, Field(ge=0)] = 600.0
    """Time for which an attempt of an elastic job trains before the job grows onto free slots."""
    preemption: bool = True
    """Whether a waiting job preempts attempts of lower priority. It then also preempts attempts
    that overtook it only because of an expected duration. A preempted attempt saves and leaves, and
    its job is queued again. If false, no attempt overtakes a job only because of an expected
    duration.
    """
    preempt_after_seconds: Annotated[float, Field(ge=0)] = 600.0
    """Time that an attempt must run after its first step before it may be preempted, in seconds."""
    resend_seconds: Annotated[float, Field(gt=0)] = 5.0
    """Pause before an unclaimed launch message is sent again; the pause doubles up to a minute. The
    pause between messages for operations does not grow.
    """
    log_quota_bytes: Annotated[int, Field(ge=1_000_000)] = 64 * 1024 * 1024
    """Maximum size of the output kept for each rank of an attempt, in bytes; the oldest output is
    dropped.
    """
    artifact_quota_bytes: Annotated[int, Field(ge=0)] = 1024 * 1024 * 1024
    """Maximum size of the images and files kept for each job, in bytes; further images and files
    are dropped.
    """
    artifact_file_bytes: Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)] = MAX_FILE_BYTES
    """Maximum size of one image or file of a job, in bytes; at most 256 MiB."""
    log_level: Literal["DEBUG", "INFO", "WARNING"] = "INFO"
    """Minimum level of logged lines. Accepted reports, heartbeats and health checks have the level
    DEBUG, all other requests INFO.
    """
    device_gauges: bool = False
    """Whether `/metrics` has gauges for each GPU instead of one gauge for all GPUs of a node. There
    are 15 gauges per GPU, so 120,000 for a thousand nodes with eight GPUs.
    """
    scrub_interval_days: Annotated[float, Field(ge=0)] = 0.0
    """Number of days without a check after which an idle node verifies the checksums of a
    checkpoint; never if 0.
    """
    operations_kept_days: Annotated[float, Field(ge=0)] = 30.0
    """Number of days from the end of an operation to its deletion; never if 0."""
    jobs_kept_days: Annotated[float, Field(ge=0)] = 730.0
    """Number of days from the end of a job to its deletion with its series, logs, events and
    artifacts; never if 0. A job is not deleted while it has a checkpoint, a fork or the tag `keep`.
    """
    imports_kept_days: Annotated[float, Field(ge=0)] = 730.0
    """Number of days from the import of a run to its deletion; never if 0. The run is not deleted
    while it has a checkpoint, a fork or the tag `keep`.
    """
    logs_kept_days: Annotated[float, Field(ge=0)] = 365.0
    """Number of days from the end of an attempt to the deletion of its output, even if its job
    stays; never if 0, or if the job has the tag `keep`.
    """
    events_kept_days: Annotated[float, Field(ge=0)] = 365.0
    """Number of days after which events without a job or of a deleted job are deleted; never if 0.
    Events of a job are kept as long as the job.
    """
    goodput_kept_days: Annotated[float, Field(ge=0)] = 400.0
    """Number of days after which the slot-time of ended attempts and of nodes is deleted; never if
    0. Other values must be at least 32, because quotas count by calendar month.
    """
    audit_kept_days: Annotated[float, Field(ge=0)] = 730.0
    """Number of days after which a segment of the audit log is deleted; never if 0. Other values
    must be at least 32, so that a slip deletes little.
    """
    audit_file: Path | None = None
    """File to which the leading scheduler appends the audit log as JSON lines."""
    audit_syslog: str | None = None
    """Address of a syslog receiver to which the leading scheduler sends the audit log:
    `tls://HOST:PORT`, `tcp://HOST:PORT` or `udp://HOST:PORT`.
    """
    requests_kept_days: Annotated[float, Field(ge=0)] = 90.0
    """Number of days after which ended requests for nodes are deleted; never if 0. Other values
    must be at least 32, because the limits of a source count by calendar month.
    """
    max_slots: Annotated[int, Field(ge=1)] = 16_384
    """Maximum number of slots of a job. A larger number counts as a mistake and is refused. Below
    this limit, a job may need more slots than all nodes together have; the job then waits for more
    nodes.
    """
    max_body_bytes: Annotated[int, Field(ge=100_000)] = 1024 * 1024
    """Maximum size of a request body in bytes, except logins, packs, and calls of workers and
    provisioners."""
    stream_seconds: Annotated[float, Field(gt=0)] = 900.0
    """Maximum lifetime of a stream of events. After this time the client reconnects, and its token
    is checked again.
    """
    max_connections_per_address: Annotated[int, Field(ge=16)] = 1024
    """Maximum number of open connections from one IPv4 address or IPv6 /64. Connections from
    `trusted_proxies` count only in the total, which follows from the limit on file descriptors. A
    browser holds up to seven connections, a node about one for each attempt that it runs.
    """
    oidc_issuer: str | None = None
    """URL of the OpenID Connect issuer through which people log in (docs/sso.md); none by default.
    """
    oidc_client_id: str | None = None
    """Id of this server as a client of the issuer."""
    oidc_client_secret_file: Path | None = None
    """File with the secret of the client; only its owner may read the file. A public client has no
    secret.
    """
    oidc_name: Annotated[str, Field(min_length=1, max_length=60)] = "single sign-on"
    """Name of the issuer on the login page: the button has the text `Log in with NAME`."""
    oidc_scopes: str = "openid profile email offline_access"
    """Scopes of a login, separated by spaces. Without `offline_access`, most issuers give no
    refresh token, and groups count for one hour after each login.
    """
    oidc_groups_claim: Annotated[str, Field(min_length=1, max_length=200)] = "groups"
    """Claim of the ID token or of the user info that has the names of a person's groups."""
    oidc_sign_up: Literal["groups", "anyone", "invited"] = "groups"
    """Who gets a new user by the first login: persons in a group that has a role here (`groups`),
    every person of the issuer (`anyone`), or only users with an invitation (`invited`).
    """
    oidc_admin_group: Annotated[str, Field(min_length=1)] | None = None
    """Group whose persons have the role `admin` in the cluster."""
    oidc_operator_group: Annotated[str, Field(min_length=1)] | None = None
    """Group whose persons have the role `operator` in the cluster."""
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = ("127.0.0.1", "::1")
    """Addresses and networks of reverse proxies, separated by commas. The headers `X-Forwarded-For`
    and `X-Forwarded-Proto` from these proxies are trusted.
    """

    def whole_database_url(self) -> str:
        """Return `database_url` with the password from its file, or raise `ValueError`."""
        return url_with_password(self.database_url, self.database_password_file, name="DATABASE")

    def whole_broker_url(self) -> str:
        """Return `broker_url` with the password from its file, or raise `ValueError`."""
        return url_with_password(self.broker_url, self.broker_password_file, name="BROKER")

    def oidc_client_secret(self) -> str | None:
        """Return the secret of the client from its file, or raise `ValueError`."""
        file = self.oidc_client_secret_file
        return None if file is None else read_secret(file, "TRAINYARD_OIDC_CLIENT_SECRET_FILE")

    @property
    def key_file(self) -> Path:
        """File with the keys that encrypt values of `env`."""
        return self.state_dir / "secrets.key"

    @property
    def is_https(self) -> bool:
        """Whether browsers reach the server by https."""
        return (self.public_url or "").startswith("https:")

    @model_validator(mode="after")
    def _check_issuer(self) -> Self:
        if self.oidc_issuer is None:
            _check_unset(
                TRAINYARD_OIDC_CLIENT_ID=self.oidc_client_id,
                TRAINYARD_OIDC_CLIENT_SECRET_FILE=self.oidc_client_secret_file,
                TRAINYARD_OIDC_ADMIN_GROUP=self.oidc_admin_group,
                TRAINYARD_OIDC_OPERATOR_GROUP=self.oidc_operator_group,
            )
            return self
        _check_secure_url("TRAINYARD_OIDC_ISSUER", self.oidc_issuer)
        if not self.oidc_client_id:
            raise ValueError("TRAINYARD_OIDC_ISSUER is set, and TRAINYARD_OIDC_CLIENT_ID is not")
        if self.public_url is None:
            raise ValueError("TRAINYARD_OIDC_ISSUER is set, and TRAINYARD_PUBLIC_URL is not")
        _check_secure_url("TRAINYARD_PUBLIC_URL", self.public_url)
        if "openid" not in self.oidc_scopes.split():
            raise ValueError(f"TRAINYARD_OIDC_SCOPES={self.oidc_scopes!r}: 'openid' is missing")
        self.oidc_client_secret()
        return self

    @field_validator("goodput_kept_days", "requests_kept_days", "audit_kept_days")
    @classmethod
    def _check_month(cls, given: float) -> float:
        if 0 < given < DAYS_OF_MONTH:
            raise ValueError(f"{given:g} days: 0 (never) or at least {DAYS_OF_MONTH} are legal")
        return given

    @field_validator("audit_syslog")
    @classmethod
    def _check_syslog(cls, given: str | None) -> str | None:
        try:
            parts = urlsplit(given or "tcp://none")
            legal = parts.scheme in SYSLOG_PORTS and parts.hostname and parts.port != 0
            legal = legal and not (parts.path or parts.query or parts.username)
        except ValueError:  # the port is no number, or too large
            legal = False
        if not legal:
            raise ValueError("legal: tls://HOST:PORT, tcp://HOST:PORT or udp://HOST:PORT")
        return given

    @field_validator("roots", mode="before")
    @classmethod
    def _read_names(cls, given: object) -> object:
        """Parse JSON here, because parse errors of pydantic-settings do not name the variable."""
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


def _check_unset(**needing_issuer: object) -> None:
    for name, value in needing_issuer.items():
        if value is not None:
            raise ValueError(f"{name} is set, and TRAINYARD_OIDC_ISSUER is not")


def _check_secure_url(variable: str, url: str) -> None:
    """Check that logins can rely on a URL.

    Raises:
        ValueError: the URL has neither https nor a loopback host, or has a query, a fragment or a
            user.
    """
    if len(url) > MAX_ISSUER or not is_secure_url(url):
        raise ValueError(
            f"{variable}={url!r}: legal is a URL with https, or with http and a loopback host, "
            f"without user, query and fragment, of at most {MAX_ISSUER} characters"
        )


def setting_problems(error: ValueError) -> list[str]:
    """Return one line per invalid setting, with the variable, its value and the legal values.

    For an error that pydantic has not raised, the only line is the text of the error.
    """
    if not isinstance(error, ValidationError):
        return [str(error)]
    lines = []
    for each in error.errors(include_url=False):
        detail = each["msg"].removeprefix("Value error, ")
        path = each["loc"]
        # An error without a path applies to all settings together.
        name = f"TRAINYARD_{str(path[0]).upper()}" if path else None
        lines.append(f"{named(name, each['input'])}: {detail}" if name else detail)
    return lines
