"""Finds the files that match `program.artifacts`, after the ranks of a share have ended.

Ranks may write to the folders of these files. For this reason, links are not followed, and a file
is opened only if it is regular and belongs to the ranks' user.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from trainyard.run.artifacts.artifact_records import check_name
from worker.artifacts.artifact_tail import FOLDER
from worker.launchers.base import Share
from worker.launchers.program_launcher import folder_at
from worker.node.files import open_regular

logger = logging.getLogger(__name__)

MAX_ENTRIES, DEEPEST = 20_000, 16
"""Maximum number of entries read in one output folder, and maximum depth of its subfolders."""
ANY_DEPTH = "**"
Tail = tuple[str, ...]
"""Parts of a pattern that remain to be matched."""


def outputs_of(share: Share) -> Iterator[tuple[str, BinaryIO | None]]:
    """Yield name and open file of each output in the spec; None for an unreadable file.

    The folder `outputs` of the run directory is searched first, then the working folder. All nodes
    may see the same working folder on a storage root, so only the node of global rank 0 searches
    it.
    """
    program = share.spec.program
    if program is None or not program.artifacts:
        return
    patterns = frozenset(PurePosixPath(each).parts for each in program.artifacts)
    folders: list[tuple[Path, Tail]] = [(share.run.outputs, ())]
    code = None if program.code is None else program.code.folder
    working = PurePosixPath(program.working_dir).parts
    if code is None:
        folders.append((share.run.code, working))
    elif share.launch.node_rank == 0:
        try:
            folders.append(
                (folder_at(share.attempt.roots, code, field="program.code.folder"), working)
            )
        except ValueError as error:  # the folder was valid when the share started
            logger.warning("no artifacts of the code: %s", error)
    found: set[str] = set()
    for base, inner in folders:
        for name, file in matching(base, inner, patterns, owner=share.run.writer):
            with nullcontext() if file is None else file:
                if name not in found:
                    found.add(name)
                    yield name, file


def matching(
    base: Path, inner: Tail, patterns: frozenset[Tail], *, owner: int
) -> Iterator[tuple[str, BinaryIO | None]]:
    """Yield the files below a folder that match a pattern; each folder is sorted by name.

    Each file is yielded open, or as None if it cannot be opened. `MAX_ENTRIES` and `DEEPEST` limit
    the search; a folder that cannot be opened yields nothing.

    Args:
        base: a trusted folder.
        inner: path from `base` to the folder that is searched; the path must contain no link.
        patterns: parts of each pattern. `**` matches any number of folders. A name that starts with
            a dot is matched only by a part that starts with a dot.
        owner: user id that must own the files.
    """
    try:
        fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in inner:
            fd = _open_in(fd, part)
    except OSError as error:
        logger.warning("no artifacts of %s: %s", base, error)
        return
    left = [MAX_ENTRIES]
    yield from _walk(fd, "", tails=patterns, owner=owner, left=left)
    if left[0] <= 0:
        logger.warning("%s has more than %d files: the rest is not read", base, MAX_ENTRIES)


def _walk(
    fd: int, prefix: str, *, tails: frozenset[Tail], owner: int, left: list[int]
) -> Iterator[tuple[str, BinaryIO | None]]:
    """Yield the matching files of an open folder, then close the folder."""
    try:
        with os.scandir(fd) as entries:
            seen = list(islice(entries, max(left[0], 0)))
        left[0] -= len(seen)
        for entry in sorted(seen, key=lambda each: each.name):
            following = _after(tails, entry.name)
            try:
                if entry.is_dir(follow_symlinks=False):
                    if following - {()} and prefix.count("/") < DEEPEST:
                        inner = os.open(entry.name, FOLDER, dir_fd=fd)
                        yield from _walk(
                            inner, f"{prefix}{entry.name}/", tails=following, owner=owner, left=left
                        )
                elif entry.is_file(follow_symlinks=False) and _is_match(following):
                    name = check_name(prefix + entry.name)
                    yield name, _open_entry(entry, owner=owner, parent=fd)
            except (OSError, ValueError) as error:
                logger.warning("%s%s is no artifact: %s", prefix, entry.name, error)
    finally:
        os.close(fd)


def _open_entry(entry: os.DirEntry[str], *, owner: int, parent: int) -> BinaryIO | None:
    """Open a file of the owner; return None if it cannot be opened.

    Raises:
        OSError: another user owns the file, or it no longer exists.
    """
    try:
        return open_regular(Path(entry.name), owner=owner, parent=parent)
    except OSError as error:
        if entry.stat(follow_symlinks=False).st_uid != owner:
            raise
        logger.warning("%s cannot be opened: %s", entry.name, error)
        return None


def _after(tails: Iterable[Tail], name: str) -> frozenset[Tail]:
    """Return the remaining parts of each pattern after a folder or file name has matched."""
    found: set[Tail] = set()
    for tail in tails:
        if tail and tail[0] == ANY_DEPTH:
            if not name.startswith("."):
                found.add(tail)
            found |= _after([tail[1:]], name)
        elif tail and fnmatchcase(name, tail[0]) and not (name[0] == "." != tail[0][0]):
            found.add(tail[1:])
    return frozenset(found)


def _is_match(tails: frozenset[Tail]) -> bool:
    return () in tails or (ANY_DEPTH,) in tails


def _open_in(fd: int, name: str) -> int:
    try:
        return os.open(name, FOLDER, dir_fd=fd)
    finally:
        os.close(fd)
