"""Check that the folder of a job's checkpoints belongs to the account of its owner."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from trainyard.spec.storage_uri import is_object_store
from worker.launchers.base import Share
from worker.launchers.rank_environment import output_of
from worker.node.process_tree import WRAPPER

SECONDS = 60.0
LOOK = """
import os, pwd, stat, sys
folder = sys.argv[1]
try:
    os.mkdir(folder, 0o755)
except FileExistsError:
    pass
except OSError as error:
    sys.exit(print(f"cannot create {folder}: {error.strerror}"))
found = os.lstat(folder)
if not stat.S_ISDIR(found.st_mode):
    print(f"cannot use {folder}, which is no folder")
elif found.st_uid != os.getuid():
    try:
        owner = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        owner = f"uid {found.st_uid}"
    print(f"cannot use {folder}, which belongs to {owner}")
elif found.st_mode & stat.S_IWOTH:
    print(f"cannot use {folder}, to which every user can write")
elif not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
    print(f"cannot write {folder}")
"""
"""Script that creates a folder, and prints why this process' account cannot use it."""


def closed_storage(share: Share) -> str | None:
    """Return why the account of a share cannot use its job's folder; None if it can.

    The check runs under the account, because a shared file system may refuse root. It creates a
    missing folder, so that no other user can create the folder first: who owns it could replace
    checkpoints, which are code for the ranks that load them.

    Raises:
        ValueError: the file system does not respond, or the check cannot be started.
        OSError, SpecError: the spec is missing or damaged.
    """
    user, attempt = share.launch.user, share.attempt
    section = attempt.overrides.checkpoint or share.spec.checkpoint
    place = attempt.roots.get(section.root)
    if user is None or user.account is None or place is None or is_object_store(place):
        return None
    folder = Path(place, attempt.job_id)
    command = [sys.executable, "-I", "-S", "-c", LOOK, str(folder)]
    words = [*WRAPPER, "tie", str(os.getpid()), user.word, "--", *command]
    found = output_of(
        words, seconds=SECONDS, folder=Path("/"), user=user
    )  # the run directory is closed
    if not found:
        return None
    name = user.account.name
    return (
        f"the account {name} {found}; after a transfer of the job, an administrator of the file "
        f"system gives the folder to the account (chown -R {name} {folder})"
    )
