"""Lookup of a Unix account: its ids and groups as this node knows them, and which are refused."""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path

from worker.node.users import FIRST_GROUP, LEAST_ID, NodeAccount, RankUser

LOGIN_DEFS = Path("/etc/login.defs")
"""Settings of the system's tools for accounts (login.defs(5))."""
STRICTEST_UMASK = 0o077
NO_ONE = 65_534
"""User id without rights, to which NFS and user namespaces map other ids."""


class AccountRefusedError(ValueError):
    """This node cannot run jobs under an account; the text completes a sentence about it."""


def look_up(name: str) -> RankUser:
    """Return the user for processes under an account, without a group of an attempt.

    Raises:
        AccountRefusedError: the account is unknown, belongs to the system, or cannot be read.
    """
    try:
        found = pwd.getpwnam(name)
        groups = os.getgrouplist(name, found.pw_gid)
    except KeyError:
        raise AccountRefusedError("has no account") from None
    except OSError as error:  # the directory service does not respond
        raise AccountRefusedError(f"cannot be looked up ({error.strerror})") from None
    if found.pw_name != name:  # a directory may ignore case, or know other names of an account
        raise AccountRefusedError(f"has the name {found.pw_name}, which an admin can map instead")
    least = max(1, _setting("UID_MIN", LEAST_ID, base=10))
    if found.pw_uid < least:
        raise AccountRefusedError(
            f"has uid {found.pw_uid}, and uids below {least} belong to the system"
        )
    if found.pw_uid == NO_ONE or name == "nobody":
        raise AccountRefusedError(f"has uid {found.pw_uid}, which stands for unknown users")
    if found.pw_gid == 0:
        raise AccountRefusedError("has the primary group 0, which belongs to the system")
    if (greatest := max(found.pw_uid, *groups)) >= FIRST_GROUP:
        raise AccountRefusedError(f"has id {greatest}; ids from {FIRST_GROUP} on are of attempts")
    umask = _setting("UMASK", STRICTEST_UMASK, base=8) & 0o777
    account = NodeAccount(name=name, gid=found.pw_gid, home=found.pw_dir, umask=umask)
    further = sorted({*groups} - {found.pw_gid, 0})
    return RankUser(uid=found.pw_uid, groups=tuple(further), account=account)


def answer_of(name: str) -> int | str:
    """Return the user id of an account, or why this node cannot run jobs under the account."""
    try:
        return look_up(name).uid
    except AccountRefusedError as error:
        return str(error)


def _setting(name: str, default: int, *, base: int) -> int:
    """Return a number in `/etc/login.defs`; the default if the file or the setting is missing."""
    try:
        text = LOGIN_DEFS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return default
    found = re.findall(rf"^\s*{name}\s+(\S+)", text, flags=re.MULTILINE)
    try:
        return int(found[-1], base) if found else default
    except ValueError:
        return default
