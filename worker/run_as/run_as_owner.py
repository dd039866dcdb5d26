"""The setting `TRAINYARD_RUN_AS=owner`: each attempt runs under the account of the job's owner."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from trainyard.protocol.operations import OperationKind
from trainyard.protocol.worker_messages import Isolation
from worker.node.users import (
    FIRST_GROUP,
    LAST_GROUP,
    NEEDED,
    RankUser,
    RunAs,
    capabilities,
    in_user_namespace,
)
from worker.run_as.unix_account import AccountRefusedError, look_up

OWNER = "owner"
"""Value of the setting."""
UNMAPPED = (
    "the owner of the job has no Unix account; an admin sets it with `trainyard users change NAME "
    "--unix-account ACCOUNT`"
)


def parse_run_as(text: str) -> RunAs | RunAsOwner | None:
    """Parse the setting `TRAINYARD_RUN_AS`; None if ranks run as the worker's user.

    Raises:
        ValueError: the setting is neither `owner` nor a legal pool.
    """
    if not text:
        return None
    if text == OWNER:
        return RunAsOwner()
    try:
        return RunAs.parse(text)
    except ValueError as error:
        raise ValueError(f"{error}; or {OWNER}, for the accounts of the jobs' owners") from None


@dataclass(frozen=True)
class RunAsOwner:
    """Users of ranks under the accounts of the owners of jobs, each with a fresh group."""

    @property
    def isolation(self) -> Isolation:
        """How ranks are isolated from the node's own files."""
        return "owner"

    @property
    def shares_kernels(self) -> bool:
        """Whether only the worker can change what a job without code compiles."""
        return False  # other processes of the account could change it

    def look_up(self, account: str | None) -> RankUser:
        """Return the user of an account, without a group of its own.

        Raises:
            AccountRefusedError: there is no account, or this node refuses it.
        """
        if account is None:
            raise AccountRefusedError(UNMAPPED)
        try:
            return look_up(account)
        except AccountRefusedError as error:
            raise AccountRefusedError(f"{account} {error}") from None

    def free(
        self, taken: Iterable[int], found: RankUser | None, *, fresh: Callable[[], int]
    ) -> RankUser:
        """Return the user of an attempt, with a fresh group.

        The ids of ended attempts are not used again, because a job may leave programs that run with
        its group (setgid).

        Raises:
            ValueError: every id was used.
        """
        del taken
        assert found is not None, "look_up returns a user"
        return found.model_copy(update={"own_group": fresh()})

    def for_operation(
        self, kind: OperationKind, account: str | None, *, fresh: Callable[[], int]
    ) -> RankUser:
        """Return the user of an operation, with a fresh group.

        A build serves all users, so it has an id without an account: no other process may be able
        to change its files while it runs.

        Raises:
            AccountRefusedError: there is no account, or this node refuses it.
            ValueError: every id was used.
        """
        if kind is OperationKind.BUILD:
            return RankUser(uid=fresh(), groups=())
        return self.free((), self.look_up(account), fresh=fresh)

    def prepare_node(
        self, *, slots: int, data_dir: Path, shared: Collection[Path], roots: Collection[Path]
    ) -> RankUser:
        """Check that ranks can run under accounts, and let them pass through the data folder.

        Returns:
            A user for the check of what all users need to read.

        Raises:
            ValueError: the worker is not root of the machine, lacks a capability, or a group of
                attempts belongs to an account.
        """
        del slots  # each attempt gets a fresh group
        if os.geteuid() != 0 or in_user_namespace():
            raise ValueError(
                f"TRAINYARD_RUN_AS={OWNER} needs a worker that is root, outside a user namespace; "
                f"this worker has uid {os.geteuid()}"
            )
        needed = NEEDED | {"DAC_OVERRIDE": 1}
        missing = sorted(name for name, bit in needed.items() if not capabilities() >> bit & 1)
        if missing:
            raise ValueError(
                f"TRAINYARD_RUN_AS={OWNER} needs the capabilities {', '.join(missing)}"
            )
        ids = range(FIRST_GROUP, LAST_GROUP + 1)
        taken = [each.gr_name for each in grp.getgrall() if each.gr_gid in ids]
        taken += [each.pw_name for each in pwd.getpwall() if each.pw_uid in ids]
        if taken:
            raise ValueError(f"ids from {FIRST_GROUP} on belong to {', '.join(taken)}")
        for folder in (data_dir, data_dir / "runs", data_dir / "operations", *shared):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o711)
        for folder in roots:
            if not folder.exists():
                folder.mkdir(parents=True)
                folder.chmod(0o1777)  # each account makes folders of its own there
        return RankUser(uid=FIRST_GROUP, groups=())
