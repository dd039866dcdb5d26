"""Unix users of ranks: one user id per attempt, so that a job's code reads nothing of the node."""

from __future__ import annotations

import grp
import logging
import os
import pwd
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainyard.base.model_base import RecordModel
from trainyard.protocol.worker_messages import Isolation
from worker.node.process_identity import status_field

logger = logging.getLogger(__name__)

RUN_AS = re.compile(r"(?P<user>[a-z_][a-z0-9_-]{0,31}):(?P<first>[0-9]{1,9})-(?P<count>[0-9]{1,4})")
LEAST_ID = 1000
"""Lowest user id of ranks: lower ones belong to the system."""
NEEDED = {"CHOWN": 0, "KILL": 5, "SETGID": 6, "SETUID": 7}
"""Capabilities of a worker that starts ranks as other users; linux/capability.h."""


class RankUser(RecordModel):
    """The user of one attempt's processes."""

    uid: int
    """User id, and id of the attempt's own group."""
    groups: tuple[int, ...]
    """Groups common to all attempts of the node; the first owns storage and caches."""

    @property
    def word(self) -> str:
        """Argument of `rank_wrapper.py tie`."""
        return ":".join(map(str, (self.uid, *self.groups)))

    @classmethod
    def of_run(cls, run_directory: Path) -> RankUser | None:
        """Return the user of a run directory's attempt; None if it has no user of its own.

        A system id does not count: every process of the user is ended after the attempt.

        The folder's group names the user: a record in the folder may be damaged. Only `give` makes
        a run directory sticky, and no rank can change a folder of the worker.
        """
        try:
            status = run_directory.stat()
        except FileNotFoundError:
            return None
        has_own = status.st_mode & stat.S_ISVTX and status.st_gid >= LEAST_ID
        return cls(uid=status.st_gid, groups=()) if has_own else None

    def give(self, path: Path, mode: int) -> None:
        """Give the user's group access to a file or folder of the worker."""
        os.chown(path, -1, self.uid, follow_symlinks=False)
        path.chmod(mode)

    def join_group(self) -> None:
        """Let this process read the user's files: a worker that is not root could not.

        A refusal of the kernel is logged. It ends no attempt: its end can still be reported.
        """
        try:
            os.setgroups(sorted({*os.getgroups(), self.uid}))
        except OSError:
            logger.exception(
                "this process cannot join group %d: what its ranks write may be unreadable",
                self.uid,
            )

    def close(self, folder: Path) -> None:
        """Close the folder of an ended attempt to its user: a later attempt may get the same id.

        A run directory continues to name the user (`of_run`).
        """
        folder.chmod(0o1700)


@dataclass(frozen=True)
class RunAs:
    """`TRAINYARD_RUN_AS=user:first-count`."""

    user: str
    """Account that gives the ranks its groups; its first group owns storage and caches."""
    first: int
    """First user id; operations use it, attempts the following ones."""
    count: int
    """Number of user ids."""

    @classmethod
    def parse(cls, text: str) -> RunAs:
        """Parse the setting.

        Raises:
            ValueError: it is not of that form, or has too few ids.
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
        """Groups of the account, its own first.

        Raises:
            ValueError: there is no such account, or an account has an id of the range.
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
        """All user ids."""
        return range(self.first, self.first + self.count)

    def for_operations(self) -> RankUser:
        """Return the user of operations: a node runs one at a time."""
        return RankUser(uid=self.first, groups=self.groups)

    def free(self, taken: Iterable[int]) -> RankUser:
        """Return a user that no attempt has.

        Raises:
            ValueError: every id is taken.
        """
        used = set(taken)
        uid = next((uid for uid in self.ids[1:] if uid not in used), None)
        if uid is None:
            raise ValueError(f"all {self.count - 1} ids of TRAINYARD_RUN_AS for attempts are taken")
        return RankUser(uid=uid, groups=self.groups)

    def prepare_node(
        self, *, slots: int, data_dir: Path, shared: Iterable[Path], roots: Iterable[Path] = ()
    ) -> None:
        """Check that ranks can run as these users, and give their group access to shared folders.

        Args:
            slots: number of slots of the node: as many attempts may run concurrently.
            data_dir: the node's folder; ranks pass through it without reading it.
            shared: folders of caches; those of other owners stay as they are.
            roots: storage roots; likewise, but no user can rename or remove entries of another user
                or of the worker there, such as its environments.

        Raises:
            ValueError: an id, a capability or the account is missing, or ids are not mapped.
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
        for folder in (data_dir, data_dir / "runs", data_dir / "operations"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o711)
        modes = [*((folder, 0o2770) for folder in shared), *((folder, 0o3770) for folder in roots)]
        for folder, mode in modes:
            if folder.is_dir() and folder.stat().st_uid == os.geteuid():
                os.chown(folder, -1, group)
                folder.chmod(mode)  # files created in it get the group too


def isolation_of(run_as: RunAs | None) -> Isolation:
    """Return how ranks are kept from the node's own files."""
    if run_as is None:
        return "none"
    return "namespace" if in_user_namespace() else "user"


def in_user_namespace() -> bool:
    """Return whether this process has the ids of a user namespace, not the machine's own."""
    return _mappings("uid") != [(0, 2**32 - 1)]


def is_mapped(number: int, kind: Literal["uid", "gid"]) -> bool:
    """Return whether this process' user namespace maps an id; otherwise no process can take it."""
    return any(first <= number < first + count for first, count in _mappings(kind))


def _mappings(kind: Literal["uid", "gid"]) -> list[tuple[int, int]]:
    """Return first id and number of each range; user_namespaces(7)."""
    lines = Path(f"/proc/self/{kind}_map").read_text(encoding="ascii").splitlines()
    return [(int(inside), int(count)) for inside, _, count in map(str.split, lines)]


def capabilities() -> int:
    """Return the effective capabilities of this process, as bits."""
    return int(status_field("self", "CapEff"), 16)


def user_environment(name: str, home: Path) -> Mapping[str, str]:
    """Return the variables by which libraries find a user without an account.

    Caches below `/tmp` carry the name, and a later attempt may get the same id. One attempt's files
    there must not become code of another, so the name is new each time.
    """
    return {"USER": name, "LOGNAME": name, "HOME": str(home)}
