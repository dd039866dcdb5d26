"""The node's own files: run directories, live attempts, the node's token, the server's URL.

```
<data_dir>/node.token          the node's token (0600)
<data_dir>/node.id, worker.lock  which worker serves the node (`worker.node.lock`)
<data_dir>/server.url          URL of the server, as last seen by the worker
<data_dir>/server.pem          trusted certificates of the server, if the worker names some
<data_dir>/leaving             why attempts must leave this node, written by `worker.init`
<data_dir>/deadline            time at which a notice ends the processes, if it is known
<data_dir>/idle.sock, idle.log  socket and output of the idle process, which waits for launches
<data_dir>/cache/              token caches, shared by all attempts
<data_dir>/packs/               packs of code, by digest
<data_dir>/kernels/             archives of compiled kernels, which ranks only read
<data_dir>/attempts/<id>       one file for each attempt that is not over, locked by its supervisor
<data_dir>/runs/<job>/<n>/     run directories
```

The lock of an attempt excludes a second supervisor, and a free lock proves the end of the first.
The kernel releases the lock when the last process that holds it ends, in any way. `worker.launch`
takes the lock before the claim and passes it to the supervisor.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from trainyard.base.ids import is_id
from trainyard.base.model_base import RecordModel
from trainyard.protocol.worker_messages import PROTOCOL, Claim, Identity, WorkerIdentity
from trainyard.run.atomic import replace_file
from trainyard.run.directory import Entry, RunDirectory
from worker.node.files import read_record
from worker.node.hardware.devices import Devices
from worker.node.process_identity import is_alive
from worker.node.users import FIRST_GROUP, LAST_GROUP, RankUser, UsersOfRanks

RUN_BYTES = 64 * 2**30
"""Maximum size of a program's run directory, in bytes; a node may set another limit."""
RANK_RECORDS = ("start", "end")
"""Suffixes of a rank's records in `ranks`."""


class LaunchRecord(RecordModel):
    """`launch.json`: the supervisor's parameters beyond `spec.json` and `attempt.json`."""

    attempt_id: str
    """Id of the attempt."""
    node: str
    """Name of this node."""
    node_rank: int
    """Rank of this node in the attempt."""
    rendezvous: str
    """`host:port` at which the nodes of the attempt meet."""
    others: tuple[str, ...] = ()
    """Addresses of the other nodes of the attempt."""
    report_seconds: float
    """Maximum pause between two reports, in seconds."""
    data_dir: str
    """Data folder of the node."""
    environment: dict[str, str]
    """Variables that the node sets for the ranks: visible GPUs and number of threads."""
    allow_code: bool = False
    """Whether the node allows code that jobs bring."""
    user: RankUser | None = None
    """User of torchrun, ranks and check; by default, the worker's own user."""
    run_bytes: int = RUN_BYTES
    """Maximum disk space for the run directory of a program, in bytes."""


@dataclass(frozen=True)
class WorkerRun(RunDirectory):
    """A run directory with the files that only the worker uses."""

    delivered = Entry("secrets.json")
    """Values of the attempt's secrets by variable, until the end of the attempt (0600; the ranks
    get them as variables)."""
    launch = Entry("launch.json")
    """The `LaunchRecord`; written last, because it marks the directory as complete."""
    identity = Entry("supervisor.json")
    """The `Identity` of the attempt's present or last supervisor."""
    ranks = Entry("ranks")
    """Folder of the records that rank wrappers write: `<rank>.start` and `<rank>.end`."""
    code = Entry("code")
    """The attempt's own copy of a pack, or an empty folder for a program without code."""
    artifact_lines = Entry("artifacts.jsonl")
    """An `ArtifactLine` for each artifact whose content the server has."""
    artifact_state = Entry("artifacts.json")
    """Offsets up to which dropped records have no `ArtifactLine`."""
    event_records = Entry("event_files.jsonl")
    """A `MetricRecord` for each step in a program's event files."""
    event_offsets = Entry("event_files.json")
    """Number of bytes of each event file already converted to records."""
    over = Entry("over")
    """Empty file; its change time is when the attempt stopped needing a process on this node."""
    home = Entry("home")
    """Home folder of the ranks' user, who has no account."""
    supervisor_log = Entry("logs/supervisor.log")
    """Output of the supervisor."""
    launcher_log = Entry("logs/launcher.log")
    """Output of the launcher itself, such as torchrun."""
    torchrun = Entry("torchrun")
    """Folder of torchrun, with the errors that programs record there."""

    @cached_property
    def writer(self) -> int:
        """User id of the ranks, who own the files that they write."""
        launch = read_record(self.launch, LaunchRecord)
        return launch.user.uid if launch is not None and launch.user else os.geteuid()

    def records(self, ranks: Iterable[int]) -> frozenset[Path]:
        """Return all named paths of this directory, and the paths of the records of `ranks`."""
        kinds = [vars(kind) for kind in type(self).__mro__]
        named = {
            self.root / e.name for kind in kinds for e in kind.values() if isinstance(e, Entry)
        }
        return frozenset(named | {self.ranks / f"{r}.{end}" for r in ranks for end in RANK_RECORDS})


class AttemptLock:
    """The lock of one attempt; it is free once no process holds a copy of its descriptor."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def inherited(cls, fd: int) -> Self:
        """Return the lock for an inherited descriptor."""
        return cls(Path(f"/proc/self/fd/{fd}").readlink(), fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    @property
    def run(self) -> WorkerRun | None:
        """Run directory of the attempt; None until it is recorded."""
        return _read_run(self.path)

    def lead_to(self, run: WorkerRun) -> None:
        """Record the attempt's run directory in the lock file."""
        os.pwrite(self.fd, f"{run.root}\n".encode(), 0)
        os.fsync(self.fd)

    def forget(self) -> None:
        """Remove the lock file, because the attempt has ended on this node."""
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class NodeStore:
    """The files of one node; `data_dir` is absolute."""

    data_dir: Path

    @property
    def token(self) -> Path:
        """File of the node's token."""
        return self.data_dir / "node.token"

    @property
    def packs(self) -> Path:
        """Folder of the fetched packs; only the worker reads them."""
        return self.data_dir / "packs"

    @property
    def cache_dir(self) -> Path:
        """Folder of the token caches."""
        return self.data_dir / "cache"

    @property
    def kernels(self) -> Path:
        """Folder of the archives of compiled kernels; ranks only read them."""
        return self.data_dir / "kernels"

    @property
    def idle_log(self) -> Path:
        """Output file of the idle process and of the forkservers."""
        return self.data_dir / "idle.log"

    @property
    def leaving(self) -> Path:
        """File with the reason why attempts must leave; the container's next start removes it."""
        return self.data_dir / "leaving"

    def deadline(self) -> float | None:
        """Return the Unix time at which a notice ends the node's processes; None without one."""
        try:
            return float((self.data_dir / "deadline").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def set_deadline(self, deadline: float | None) -> None:
        """Write the deadline for the node's supervisors, before they receive the signal to leave.

        Raises:
            OSError: the file cannot be written.
        """
        if deadline is None:
            (self.data_dir / "deadline").unlink(missing_ok=True)
        else:
            replace_file(self.data_dir / "deadline", f"{deadline}\n")

    @property
    def attempts(self) -> Path:
        """Folder of the attempts' lock files."""
        return self.data_dir / "attempts"

    @property
    def runs(self) -> Path:
        """Folder of the run directories, by job and attempt number."""
        return self.data_dir / "runs"

    def run(self, job_id: str, attempt: int) -> WorkerRun:
        """Return the run directory of an attempt."""
        return WorkerRun(self.runs / job_id / str(attempt))

    @property
    def server_url(self) -> str | None:
        """URL of the server, as last seen by the worker; it may change while a supervisor runs."""
        try:
            return self._server_url_file.read_text(encoding="utf-8").strip() or None
        except OSError:
            return None

    @property
    def server_ca(self) -> Path | None:
        """File of the only certificates trusted for the server; None for the usual ones."""
        path = self.data_dir / "server.pem"
        return path if path.exists() else None

    def remember_server(self, url: str, *, ca_file: Path | None = None) -> None:
        """Write the server's URL and a copy of its certificates for all supervisors."""
        if ca_file is None:
            (self.data_dir / "server.pem").unlink(missing_ok=True)
        else:
            replace_file(self.data_dir / "server.pem", ca_file.read_text(encoding="ascii"))
        if self.server_url != url:
            replace_file(self._server_url_file, f"{url}\n")

    @property
    def _server_url_file(self) -> Path:
        return self.data_dir / "server.url"

    def live(self) -> list[str]:
        """Return the ids of the attempts that have not ended on this node."""
        if not self.attempts.is_dir():
            return []
        return sorted(path.name for path in self.attempts.iterdir() if is_id(path.name))

    @contextmanager
    def users(self) -> Iterator[set[int]]:
        """While the block runs, let no other launch choose an `own` id; yield the ids in use."""
        fd = os.open(self.data_dir / "users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            runs = filter(None, map(self.run_of, self.live()))
            users = [RankUser.of_run(run.root) for run in runs]
            yield {user.own for user in users if user is not None}
        finally:
            os.close(fd)

    def fresh_group(self) -> int:
        """Return a group id that this data folder has never returned before.

        The first id is random, so ids are hardly used again after the loss of the data folder.

        Raises:
            ValueError: every id was used, or the record of the last one is damaged.
            OSError: the record cannot be read or written.
        """
        fd = os.open(self.data_dir / "last_group", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            last = os.pread(fd, 20, 0)
            before = (
                int(last)
                if last
                else FIRST_GROUP + secrets.randbelow((LAST_GROUP - FIRST_GROUP) // 2)
            )
            if not FIRST_GROUP <= before < LAST_GROUP:
                raise ValueError(f"{self.data_dir}/last_group={before}: no group id follows")
            os.pwrite(fd, f"{before + 1}\n".encode(), 0)
            os.fsync(fd)  # before the first use of the id
        finally:
            os.close(fd)
        return before + 1

    def lock(self, attempt_id: str, *, create: bool = False) -> AttemptLock | None:
        """Take the lock of an attempt; return None if another process holds it.

        Args:
            attempt_id: id of the attempt.
            create: whether to create a missing lock; otherwise a missing lock yields None.

        Raises:
            ValueError: `attempt_id`, which becomes a file name, is invalid.
        """
        if not is_id(attempt_id):
            raise ValueError(f"{attempt_id!r} is no id of an attempt")
        path = self.attempts / attempt_id
        if create:
            self.attempts.mkdir(parents=True, exist_ok=True)
        try:
            fd = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0) | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        # The holder may have removed the file between open and flock. A lock on a removed file
        # excludes no other process.
        if not _is_at(path, fd):
            os.close(fd)
            return None
        return AttemptLock(path, fd)

    def run_of(self, attempt_id: str) -> WorkerRun | None:
        """Return the run directory of an attempt that has not ended here; None without one."""
        return _read_run(self.attempts / attempt_id)

    def supervisors(self) -> frozenset[int]:
        """Return the pids of the supervisors of attempts that have not ended on this node."""
        runs = filter(None, map(self.run_of, self.live()))
        identities = (identity_of(run) for run in runs)
        return frozenset(each.pid for each in identities if each is not None and is_alive(each))

    def is_held(self, attempt_id: str) -> bool:
        """Return whether a process is launching or supervising the attempt."""
        lock = self.lock(attempt_id)
        if lock is None:
            return (self.attempts / attempt_id).exists()
        os.close(lock.fd)
        return False


@dataclass(frozen=True)
class LocalNode:
    """This node, for launches and operations."""

    store: NodeStore
    """Files of the node."""
    name: str
    """Name of the node."""
    worker: WorkerIdentity
    """Identity of the worker that serves the node."""
    roots: Mapping[str, str]
    """Folder or URL of each storage root, by name."""
    devices: Devices
    """Slots of the node."""
    allow_code: bool = False
    """Whether the node runs code of jobs."""
    run_as: UsersOfRanks | None = None
    """Users of the ranks; by default, the worker's own user."""
    environment_days: float = 30.0
    """Number of days without use after which a build removes an environment."""
    run_bytes: int = RUN_BYTES
    """Maximum disk space for the run directory of a program, in bytes."""
    warm: bool = True
    """Whether the node keeps an idle process for launches."""

    @property
    def claim(self) -> Claim:
        """Claim of this node for an attempt or an operation."""
        return Claim(protocol=PROTOCOL, node=self.name, worker=self.worker)


def identity_of(run: WorkerRun) -> Identity | None:
    """Return the identity of an attempt's present or last supervisor; None without one."""
    return read_record(run.identity, Identity)


def _read_run(path: Path) -> WorkerRun | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return WorkerRun(Path(text)) if text else None


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
