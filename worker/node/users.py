"""Unix users of ranks: one user id per attempt, so that a job's code cannot read node files."""

from __future__ import annotations

import grp
import logging
import os
import pwd
import re
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Protocol

from trainyard.base.model_base import RecordModel
from trainyard.protocol.operations import OperationKind
from trainyard.protocol.worker_messages import UNLESS_NULL, Isolation
from worker.node.process_identity import status_field

logger = logging.getLogger(__name__)

RUN_AS = re.compile(r"(?P<user>[a-z_][a-z0-9_-]{0,31}):(?P<first>[0-9]{1,9})-(?P<count>[0-9]{1,4})")
LEAST_ID = 1000
"""Minimum user id of ranks; lower ids belong to the system."""
FIRST_GROUP = 2_001_000_000
"""First id of the groups of attempts that run under accounts. Directory services and containers map
lower ids (systemd.io/UIDS-GIDS; sssd ends at 2,000,200,000).
"""
LAST_GROUP = 2**31 - 1
"""Last id of these groups; some programs fail above it."""
RUN_CODE = frozenset({OperationKind.SAMPLE, OperationKind.BUILD})
"""Kinds of operations that may run a job's code: a sample runs the job's model, a build the job's
packages.
"""
NEEDED = {"CHOWN": 0, "KILL": 5, "SETGID": 6, "SETUID": 7}
"""Capabilities that a worker needs to start ranks as other users (linux/capability.h)."""


class NodeAccount(RecordModel):
    """A Unix account under which ranks run."""

    name: str
    """Name of the account."""
    gid: int
    """Id of its primary group."""
    home: str
    """Its home folder, which may be missing on this node."""
    umask: int
    """Permissions that new files do not get."""


class RankUser(RecordModel):
    """The user that runs the processes of one attempt."""

    uid: int
    """User id."""
    groups: tuple[int, ...]
    """Further groups. In a pool, these are the groups of all attempts of the node, and the first
    one owns storage and caches."""
    own_group: Annotated[int | None, UNLESS_NULL] = None
    """Group of the attempt alone; by default, the group with the number of the user id."""
    account: Annotated[NodeAccount | None, UNLESS_NULL] = None
    """Account of the user id; None in a pool, whose ids have no account."""

    @property
    def own(self) -> int:
        """Id that only processes of the attempt have, as a group and in a pool as the user, too."""
        return self.uid if self.own_group is None else self.own_group

    @property
    def is_fresh(self) -> bool:
        """Whether no other attempt or operation of the node ever has the `own` id."""
        return self.own >= FIRST_GROUP

    @property
    def gid(self) -> int:
        """Id of the primary group."""
        return self.own if self.account is None else self.account.gid

    @property
    def umask(self) -> int:
        """Permissions that new files do not get; in a pool, attempts share files by their group."""
        return 0o007 if self.account is None else self.account.umask

    @property
    def word(self) -> str:
        """The user as an argument of `rank_wrapper.py tie`."""
        own = () if self.own == self.gid else (self.own,)
        return ":".join(map(str, (self.uid, self.gid, self.umask, *own, *self.groups)))

    def environment(self, name: str, home: Path) -> Mapping[str, str]:
        """Return variables with the name and home of the account, or those given for a pool's user.

        Paths of caches below `/tmp` contain the name. Each attempt of a pool has a new name,
        because a later attempt may get the same user id and must not load code from the caches of
        this attempt.
        """
        if self.account is not None:
            name, home = self.account.name, Path(self.account.home)
        return {"USER": name, "LOGNAME": name, "HOME": str(home)}

    @classmethod
    def of_run(cls, run_directory: Path) -> RankUser | None:
        """Return the user of a run directory's attempt; None if the attempt has no user of its own.

        Only its `own` id is known.

        The user is read from the folder's group, because a record in the folder may be damaged.
        Only the worker, with `give`, makes a run directory sticky, so a sticky folder has the group
        of its user.

        A system id is refused, because all processes of the user are ended with the attempt.
        """
        try:
            status = run_directory.stat()
        except FileNotFoundError:
            return None
        has_own = status.st_mode & stat.S_ISVTX and status.st_gid >= LEAST_ID
        return cls(uid=status.st_gid, groups=()) if has_own else None

    def give(self, path: Path, mode: int) -> None:
        """Give the user's group access to a file or a folder of the worker; follow no link."""
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fchown(fd, -1, self.own)
            os.fchmod(fd, mode)
        finally:
            os.close(fd)

    def join_group(self) -> None:
        """Let this process read the user's files, even if it does not run as root.

        A refusal by the kernel is only logged, because the attempt's end can still be reported.
        """
        try:
            os.setgroups(sorted({*os.getgroups(), self.own}))
        except OSError:
            logger.exception(
                "this process cannot join group %d: what its ranks write may be unreadable",
                self.own,
            )

    def admit(self, folder: Path) -> None:
        """Open a folder to its user: the last step of root before the user's first process.

        Until then, no process can put a link where root writes.
        """
        self.give(folder, 0o1770)

    def close(self, folder: Path) -> None:
        """Close a folder to its user, before the user's first process and after the last one.

        In a pool, a later attempt may get this user. The folder's group still identifies the user
        (`of_run`).
        """
        self.give(folder, 0o1700)


class UsersOfRanks(Protocol):
    """A form of the setting `TRAINYARD_RUN_AS`."""

    @property
    def isolation(self) -> Isolation:
        """How ranks are isolated from the node's own files."""

    @property
    def shares_kernels(self) -> bool:
        """Whether only the worker can change what a job without code compiles."""

    def look_up(self, account: str | None) -> RankUser | None:
        """Return the user of the Unix account of a job's owner, without an `own` id; None in a
        pool, which has no accounts.
        """

    def free(
        self, taken: Iterable[int], found: RankUser | None, *, fresh: Callable[[], int]
    ) -> RankUser:
        """Return the user of an attempt, with an `own` id that no other attempt has.

        Raises `ValueError` without such an id. `found` is the result of `look_up`, and `fresh`
        returns an id that the node has never used.
        """

    def for_operation(
        self, kind: OperationKind, account: str | None, *, fresh: Callable[[], int]
    ) -> RankUser | None:
        """Return the user of an operation, or None for the worker's own user."""

    def prepare_node(
        self, *, slots: int, data_dir: Path, shared: Collection[Path], roots: Collection[Path]
    ) -> RankUser:
        """Check that ranks can run as these users, and let them reach the data folder."""


@dataclass(frozen=True)
class RunAs:
    """The setting `TRAINYARD_RUN_AS=user:first-count`."""

    user: str
    """Account whose groups the ranks get; the first group owns storage and caches."""
    first: int
    """First user id, which operations use; attempts use the following ids."""
    count: int
    """Number of user ids."""

    @classmethod
    def parse(cls, text: str) -> RunAs:
        """Parse the setting.

        Raises:
            ValueError: the text does not have the form `user:first-count`, or the setting has too
                few ids.
        """
        match = RUN_AS.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not user:first-count, as in trainyard:200000-65")
        found = cls(match["user"], int(match["first"]), int(match["count"]))
        if found.first < LEAST_ID or found.count < 2:
            raise ValueError(f"{text!r} needs a first id of {LEAST_ID} or more, and at least 2 ids")
        return found

    @property
    def groups(self) -> tuple[int, ...]:
        """Groups of the account: first its primary group, then all others except group 0.

        Raises:
            ValueError: the account is missing, or an account or group has an id of the range.
        """
        try:
            account = pwd.getpwnam(self.user)
        except KeyError:
            raise ValueError(
                f"TRAINYARD_RUN_AS names the user {self.user!r}, who is unknown"
            ) from None
        taken = [one.pw_name for one in pwd.getpwall() if one.pw_uid in self.ids]
        taken += [one.gr_name for one in grp.getgrall() if one.gr_gid in self.ids]
        if taken:
            raise ValueError(f"ids of TRAINYARD_RUN_AS belong to {', '.join(taken)}; take others")
        every = os.getgrouplist(self.user, account.pw_gid)
        return (account.pw_gid, *sorted({*every} - {account.pw_gid, 0}))

    @property
    def ids(self) -> range:
        """All user ids of the range."""
        return range(self.first, self.first + self.count)

    @property
    def shares_kernels(self) -> bool:
        """Whether only the worker can change what a job without code compiles."""
        return True

    @property
    def isolation(self) -> Isolation:
        """How ranks are isolated from the node's own files."""
        return "namespace" if in_user_namespace() else "user"

    def look_up(self, account: str | None) -> None:
        """Return no user, because the pool has no accounts."""
        del account

    def for_operation(
        self,
        kind: OperationKind,
        account: str | None = None,
        *,
        fresh: Callable[[], int] | None = None,
    ) -> RankUser | None:
        """Return the user of an operation, or None for the worker's own user.

        A node runs one operation at a time, so all operations have the same user.
        """
        del account, fresh
        return self.for_operations() if kind in RUN_CODE else None

    def for_operations(self) -> RankUser:
        """Return the user of operations that may run code of a job."""
        return RankUser(uid=self.first, groups=self.groups)

    def free(
        self,
        taken: Iterable[int],
        found: RankUser | None = None,
        *,
        fresh: Callable[[], int] | None = None,
    ) -> RankUser:
        """Return a user that no attempt uses.

        Raises:
            ValueError: every id is taken.
        """
        del found, fresh
        used = set(taken)
        uid = next((uid for uid in self.ids[1:] if uid not in used), None)
        if uid is None:
            raise ValueError(f"all {self.count - 1} ids of TRAINYARD_RUN_AS for attempts are taken")
        return RankUser(uid=uid, groups=self.groups)

    def prepare_node(
        self, *, slots: int, data_dir: Path, shared: Collection[Path], roots: Collection[Path] = ()
    ) -> RankUser:
        """Check that ranks can run as these users, and give their group access to shared folders.

        Args:
            slots: number of slots, and thus the maximum number of concurrent attempts.
            data_dir: data folder of the node; ranks may traverse it but not list it.
            shared: folders of caches; folders of other owners are not changed.
            roots: storage roots, treated like `shared`. In addition, no user can rename or remove
                there an entry of another user or of the worker, such as an environment.

        Returns:
            A user for the check of what all users need to read.

        Raises:
            ValueError: a capability, the account or ids are missing, or ids are unmapped or taken.
        """
        if self.count <= slots:
            raise ValueError(
                f"TRAINYARD_RUN_AS has {self.count} ids; {slots} slots need {slots + 1} or more"
            )
        unmapped = [
            one for one in self.ids if not (is_mapped(one, "uid") and is_mapped(one, "gid"))
        ]
        if unmapped:
            raise ValueError(
                f"TRAINYARD_RUN_AS: the worker's user namespace has no ids {unmapped[0]} to "
                f"{unmapped[-1]}; map them as users and groups, or take others"
            )
        missing = sorted(name for name, bit in NEEDED.items() if not capabilities() >> bit & 1)
        if missing:
            raise ValueError(f"TRAINYARD_RUN_AS needs the capabilities {', '.join(missing)}")
        group = self.groups[0]
        for folder in roots:
            folder.mkdir(parents=True, exist_ok=True)
        for folder in (data_dir, data_dir / "runs", data_dir / "operations"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o711)
        modes = [*((folder, 0o2770) for folder in shared), *((folder, 0o3770) for folder in roots)]
        for folder, mode in modes:
            if folder.is_dir() and folder.stat().st_uid == os.geteuid():
                os.chown(folder, -1, group)
                folder.chmod(mode)  # new files get the folder's group
        return self.for_operations()


def in_user_namespace() -> bool:
    """Return whether this process runs in a user namespace other than the machine's own."""
    return _mappings("uid") != [(0, 2**32 - 1)]


def is_mapped(number: int, kind: Literal["uid", "gid"]) -> bool:
    """Return whether this process' user namespace maps an id; an unmapped id is unusable."""
    return any(first <= number < first + count for first, count in _mappings(kind))


def _mappings(kind: Literal["uid", "gid"]) -> list[tuple[int, int]]:
    """Return the first id and length of each mapped range (user_namespaces(7))."""
    lines = Path(f"/proc/self/{kind}_map").read_text(encoding="ascii").splitlines()
    return [(int(inside), int(count)) for inside, _, count in map(str.split, lines)]


def capabilities() -> int:
    """Return the effective capabilities of this process as a bit set."""
    return int(status_field("self", "CapEff"), 16)
