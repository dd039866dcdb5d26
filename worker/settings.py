"""Settings of a node's worker, from `TRAINYARD_*` environment variables."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from trainyard.base.labels import parse_labels
from trainyard.base.names import default_node_name
from trainyard.base.redaction import hide_credentials
from trainyard.outside.secret_file import read_secret, url_with_password
from trainyard.protocol.worker_messages import NodeName
from trainyard.spec.storage_uri import ROOT_PATTERN, is_object_store, split_object_store
from worker.node.node_store import RUN_BYTES
from worker.run_as.run_as_owner import parse_run_as


def _check_roots(text: str) -> str:
    parse_roots(text)
    return text


def _check_labels(text: str) -> str:
    parse_labels(text)
    return text


def _check_run_as(text: str) -> str:
    parse_run_as(text)
    return text


def parse_roots(text: str) -> dict[str, str]:
    """Return the folder or URL of each root in a text `name=path,name=s3://bucket/prefix`.

    Raises:
        ValueError: a pair has no name, its value is neither an absolute path nor a bucket, or a
            name is repeated.
    """
    roots: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, equals, path = pair.partition("=")
        if not equals or not ROOT_PATTERN.fullmatch(name):
            raise ValueError(
                f"{hide_credentials(pair)!r} is not name=path, as in checkpoints=/srv/checkpoints"
            )
        if is_object_store(path):
            split_object_store(path)
        elif not Path(path).is_absolute():
            shown = hide_credentials(path)
            raise ValueError(f"root {name}={shown!r} needs an absolute path, or s3://bucket")
        if name in roots:
            raise ValueError(f"root {name!r} is given twice")
        roots[name] = path
    return roots


class Settings(BaseSettings):
    """Settings of a node's worker; each field is one environment variable."""

    model_config = SettingsConfigDict(env_prefix="TRAINYARD_", frozen=True)

    url: str = "http://127.0.0.1:8470"
    """URL of the server."""
    broker_url: str = "redis://127.0.0.1:6379/0"
    """Redis URL of the Celery broker."""
    broker_password_file: Path | None = None
    """File with the password for `broker_url`. The URL must then contain no password, and no other
    user may read the file.
    """
    inbox: Literal["broker", "server"] = "broker"
    """Source of messages: `broker`, or `server` for a node that can reach only the server. With
    `server`, the worker uses long polls, and neither Celery nor `broker_url`.
    """
    ca_file: Path | None = None
    """PEM file with the only certificates trusted for an `https` URL; the system's usual ones when
    absent. `HTTPS_PROXY` and `NO_PROXY` are honoured.
    """
    node_name: NodeName = Field(default_factory=lambda: default_node_name(socket.gethostname()))
    """Name of the node; its host name when absent."""
    address: str = Field(default_factory=socket.gethostname)
    """Host name or address at which other nodes of an attempt reach this node."""
    data_dir: Path = Path("trainyard-node")
    """Node-local folder for run directories, token caches and the node's token."""
    join_token: str | None = None
    """Join token of the node; needed only for the first registration."""
    join_token_file: Path | None = None
    """File with the join token; the token then appears in no environment. A pilot reads the line
    with its own index. No other user may read the file.
    """
    roots: Annotated[str, AfterValidator(_check_roots)] = ""
    """Storage roots as `name=path,name=s3://bucket/prefix`; when empty, the folders `checkpoints`
    and `data` in `data_dir`.
    """
    labels: Annotated[str, AfterValidator(_check_labels)] = ""
    """Labels of the node as `key=value,key=value`; jobs select nodes by labels. `fabric`, `block`
    and `rack` have a special meaning. Labels that people set for the node override these labels.
    """
    slots: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Number of slots that the node offers; by default the number of its GPUs. On a node without
    GPUs, the default is the number of cores, but at least 4.
    """
    allow_code: bool = False
    """Whether this node runs code of jobs; the server has a setting with the same name."""
    run_as: Annotated[str, AfterValidator(_check_run_as)] = ""
    """Users of torchrun, ranks and operations. `user:first-count`: `first` for operations, then one
    id per attempt, in the groups of `user`. The worker then needs the capabilities CHOWN, KILL,
    SETGID and SETUID. `owner`: the Unix account of the job's owner; the worker is then root. When
    empty, ranks run as the worker's user, and a job's code can read the node's token.
    """
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Kind of slots; `auto` uses GPUs if NVML lists some."""

    warm: bool = True
    """Whether an idle process with torch imported waits for launches of the built-in trainer. The
    process takes about 320 MiB of memory. Without this process, torchrun starts the ranks.
    """

    environment_days: Annotated[float, Field(gt=0)] = 30.0
    """Number of days without use after which a build on this node removes another environment of
    the same storage root.
    """

    run_days: Annotated[float, Field(gt=0)] = 7.0
    """Days for which a run directory stays on this node after its attempt has ended. In any case
    the directory stays until the job has ended.
    """

    run_bytes: Annotated[int, Field(ge=2**20)] = RUN_BYTES
    """Maximum disk space for a program's run directory on this node, in bytes. An attempt above the
    limit fails with `disk_limit`. While the disk is nearly full, an attempt with more than a tenth
    of the disk fails too.
    """

    preemption_notice_file: Path | None = None
    """File that announces the end of this machine. When the file appears, attempts save and leave.
    Choose a path that a reboot removes.
    """

    notice_seconds: Annotated[float, Field(ge=0)] | None = None
    """Time, in seconds, from a notice without a deadline, such as SIGTERM, to the end of the
    processes: Slurm's `KillWait`, or a pod's grace period. A save that does not fit into this time
    is not started. No limit when absent.
    """

    def join_secret(self, index: int = 0) -> str | None:
        """Return the join token of the node; None without either setting.

        Args:
            index: number of the line in `join_token_file`, counted from 0.

        Raises:
            ValueError: the file cannot be read, has no such line, or other users can read it.
        """
        if self.join_token_file is None:
            return self.join_token
        return read_secret(self.join_token_file, "TRAINYARD_JOIN_TOKEN_FILE", index)

    def whole_broker_url(self) -> str:
        """Return `broker_url` with its password.

        Raises:
            ValueError: the password file cannot be used, or the URL already has a password.
        """
        return url_with_password(self.broker_url, self.broker_password_file, name="BROKER")

    def root_paths(self) -> dict[str, str]:
        """Return the folder or the URL of each storage root."""
        named = parse_roots(self.roots)
        if named:
            return named
        data_dir = self.data_dir.resolve()
        return {name: str(data_dir / name) for name in ("checkpoints", "data")}
