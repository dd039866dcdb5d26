"""Inputs of an environment's build: the lock files of a job's code, and facts about the node."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from trainyard.base.model_base import RecordModel
from trainyard.spec.sections.program import UV_LOCK
from worker.environments.account_files import read_as_account
from worker.environments.interpreters import PythonFacts, cuda_version, python_facts
from worker.node.files import LARGEST_RECORD, read_beneath
from worker.node.users import RankUser

PROJECT = "pyproject.toml"
LARGEST_LOCK = 4 * 2**20


class BuildRequest(RecordModel):
    """Everything that determines an environment; its digest names the environment."""

    python: PythonFacts
    """Interpreter of the requesting node; the environment runs with this interpreter."""
    cuda: str
    """CUDA version of the requesting node."""
    lock: str
    """Text of the `uv.lock`, or of the requirements file."""
    project: str | None = None
    """Text of the `pyproject.toml` next to a `uv.lock`."""

    @property
    def text(self) -> str:
        """Text form of the request, as stored."""
        return self.model_dump_json()

    @property
    def digest(self) -> str:
        """SHA-256 of the request's text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def request_of(
    base: Path,
    folder: Sequence[str],
    lock: str,
    *,
    python: str | None,
    user: RankUser | None = None,
) -> BuildRequest:
    """Return the request to build a lock's environment for this node.

    Args:
        base: a trusted folder.
        folder: path below `base` to the code, as a list of names.
        lock: path of the lock relative to the code.
        python: version of the interpreter; if None, the worker's own version.
        user: user of the ranks; an account reads the files with its own rights.

    Raises:
        ValueError: a file is missing or unsuitable, or the node lacks the interpreter.
    """
    path = PurePosixPath(lock)
    project = None
    account = None if user is None or user.account is None else user

    def read(parts: Sequence[str], shown: str) -> str:
        return _text(base, parts, shown, account=account)

    if path.name == UV_LOCK:
        project = read((*folder, *path.parent.parts, PROJECT), str(path.parent / PROJECT))
    text = read((*folder, *path.parts), lock)
    facts = python_facts(python)
    request = BuildRequest(python=facts, cuda=cuda_version(), lock=text, project=project)
    if len(request.text.encode()) > LARGEST_RECORD:
        raise ValueError(
            f"program.environment.lock={lock!r} takes more than {LARGEST_RECORD:,} bytes"
        )
    return request


def _text(base: Path, parts: Sequence[str], shown: str, *, account: RankUser | None) -> str:
    try:
        if account is not None:
            return read_as_account(account, base, parts, limit=LARGEST_LOCK).decode()
        return read_beneath(base, parts, limit=LARGEST_LOCK).decode()
    except UnicodeDecodeError:
        raise ValueError(f"program.environment.lock: {shown} is not text in UTF-8") from None
    except OSError as error:
        why = error.strerror or error
        raise ValueError(
            f"program.environment.lock: {shown} of the code cannot be read: {why}. Legal: a "
            f"regular file of at most {LARGEST_LOCK:,} bytes, in folders that are no links"
        ) from None
