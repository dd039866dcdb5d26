"""Packs the code that a spec file names by `code.local`, or by `code.git` with `code.commit`."""

from __future__ import annotations

import difflib
import fnmatch
import gzip
import io
import os
import re
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trainyard.base.redaction import hide_credentials
from trainyard.client.errors import UsageError
from trainyard.spec.code_pack import (
    MAX_ENTRIES,
    MAX_PACK_BYTES,
    MAX_UNPACKED_BYTES,
    stays_inside,
)

OF_SPEC_FILES = ("local", "git", "commit", "include")
"""Fields of `program.code` that exist only in spec files."""
SECRET = (
    *(".env", ".env.*", ".netrc", ".pypirc", ".npmrc", ".git-credentials", ".htpasswd"),
    *(".aws", ".ssh", ".gnupg", ".kube", ".docker"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.keystore", "id_*", "credentials.json"),
)
"""Patterns, in lower case, for names of files and folders that often contain secrets."""
LEFT_OUT = frozenset({".git", "__pycache__"})
"""Names of subfolders that are left out of included folders and of a folder without git."""
DIFF_LINES = 200
LARGEST = 5
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
OF_HOOKS = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"})
"""Variables that git sets in hooks; removed, because they would select another repository here."""
GIT_SECONDS = 600.0
GIT_PROTOCOLS = "file:git:http:https:ssh"
"""Allowed git protocols; `ext` is missing because it lets a URL run a command."""


@dataclass(frozen=True)
class Code:
    """The packed files of a program."""

    archive: bytes
    """A gzipped tar archive; equal files give an equal archive."""
    names: tuple[str, ...]
    """Paths of the packed files and links, in order."""
    commit: str | None = None
    """Commit of the repository; None if there is no repository or no commit."""
    dirty: bool = False
    """Whether files that git does not ignore differ from the commit."""
    changes: tuple[str, ...] = ()
    """Lines that show the differences from the commit, at most `DIFF_LINES` of them."""

    @property
    def summary(self) -> str:
        """The number of packed files, the size and the commit, as readable text."""
        of = f" of commit {self.commit[:12]}" if self.commit else ""
        changed = ", with the changes above" if self.dirty else ""
        files = "1 file" if len(self.names) == 1 else f"{len(self.names)} files"
        return f"{files}, {len(self.archive):,} bytes{of}{changed}"

    def in_place(self, document: Mapping[str, Any], *, pack: str) -> dict[str, Any]:
        """Return the spec with the pack as its code, and with a tag for the commit.

        Args:
            document: the spec as the user wrote it.
            pack: digest of the pack on the server.
        """
        result = dict(document)
        result["program"] = {**document["program"], "code": {"pack": pack}}
        tags = document.get("tags", [])
        if self.commit is not None and isinstance(tags, list):
            tag = f"commit-{self.commit[:12]}{'-dirty' if self.dirty else ''}"
            result["tags"] = tags if tag in tags else [*tags, tag]
        return result

    def missing_script(self, document: Mapping[str, Any]) -> str | None:
        """Return a message if the pack lacks the script that the spec starts; otherwise None.

        Args:
            document: the spec as the user wrote it.
        """
        command = document["program"].get("command")
        word = command[0] if isinstance(command, list) and command else None
        folder = document["program"].get("working_dir", ".")
        if not isinstance(word, str) or not word.endswith(".py") or not isinstance(folder, str):
            return None
        place = PurePosixPath(folder, word)
        if place.is_absolute() or ".." in place.parts or place.as_posix() in self.names:
            return None
        close = difflib.get_close_matches(place.as_posix(), self.names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return f"program.command[0]={word!r}: the pack has no {place.as_posix()}{hint}"


def code_of(document: Mapping[str, Any], *, folder: Path) -> Code | None:
    """Return the packed code of a spec; None if the spec names neither files nor a repository.

    Args:
        document: the spec as the user wrote it.
        folder: base folder of a relative `local`.

    Raises:
        UsageError: a field is invalid, or files cannot be packed; the error names them.
    """
    program = document.get("program")
    code = program.get("code") if isinstance(program, dict) else None
    if not isinstance(code, dict) or not set(OF_SPEC_FILES) & code.keys():
        return None
    include = code.get("include", [])
    if not isinstance(include, list) or not all(isinstance(name, str) for name in include):
        raise UsageError(f"program.code.include={include!r}: write a list of paths")
    given = code.keys() - {"include"}
    if given == {"local"} and isinstance(code["local"], str):
        place = (folder / code["local"]).expanduser()
        if not place.is_dir():
            raise UsageError(f"program.code.local={code['local']!r}: {place} is not a folder")
        return _pack_folder(place.resolve(), include)
    if given == {"git", "commit"} and all(isinstance(code[name], str) for name in given):
        return _pack_commit(code["git"], code["commit"], include)
    raise UsageError(
        f"program.code has {', '.join(sorted(code))}; legal: local, or git with commit, each "
        "optionally with include; or only folder; or only pack"
    )


def _pack_commit(url: str, commit: str, include: Sequence[str]) -> Code:
    if not COMMIT.fullmatch(commit):
        raise UsageError(
            f"program.code.commit={commit!r}: write the whole hash of the commit, as "
            "`git rev-parse HEAD` prints it"
        )
    with tempfile.TemporaryDirectory(prefix="trainyard-git-") as made:
        folder = Path(made)
        try:
            _git(folder, "init", "-q")
            try:
                _git(folder, "fetch", "-q", "--depth=1", "--", url, commit)
            except UsageError:  # the server does not serve single commits
                _git(folder, "fetch", "-q", "--", url, "+refs/*:refs/fetched/*")
            _git(folder, "-c", "advice.detachedHead=false", "checkout", "-q", commit)
        except UsageError as error:
            raise UsageError(f"program.code.git={hide_credentials(url)!r}: {error}") from None
        return _pack_folder(folder, include)


def _pack_folder(folder: Path, include: Sequence[str]) -> Code:
    in_git = _is_repository(folder)
    names = set(_tracked(folder) if in_git else _walked(folder))
    names |= set(_included(folder, include))
    # Without git, .gitignore has no effect.
    ignore = "Add {} to .gitignore" if in_git else "Run `git init` and add {} to .gitignore"
    _refuse_secrets(names, include, ignore=ignore)
    packed = tuple(sorted(names))
    archive = _archive(folder, packed, ignore=ignore)
    commit = _head(folder) if in_git else None
    changes = _changes(folder) if commit else ()
    return Code(archive, packed, commit, dirty=bool(changes), changes=changes)


def _is_repository(folder: Path) -> bool:
    try:
        return _git(folder, "rev-parse", "--is-inside-work-tree").strip() == "true"
    except UsageError:  # no repository, or no git
        if any((one / ".git").exists() for one in (folder, *folder.parents)):
            raise  # otherwise .gitignore would have no effect
        return False


def _tracked(folder: Path) -> Iterator[str]:
    """Yield the files of the work tree that git does not ignore."""
    words = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ".")
    for name in _git(folder, *words).split("\0"):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            if name:
                raise UsageError(
                    f"{path} is a repository within the repository, which git does not pack. Put "
                    "the code into a folder of a storage root, and name it in program.code.folder"
                )
        elif os.path.lexists(path):  # a missing file was removed after the commit
            yield name


def _walked(folder: Path) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise UsageError(f"{error.filename}: {error.strerror}")

    for place, folders, files in os.walk(folder, onerror=refuse):
        links = [name for name in folders if Path(place, name).is_symlink()]
        folders[:] = [name for name in folders if name not in LEFT_OUT and name not in links]
        for name in (*files, *links):
            yield Path(place, name).relative_to(folder).as_posix()


def _included(folder: Path, include: Sequence[str]) -> Iterator[str]:
    for name in include:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not (folder / path).exists():
            raise UsageError(
                f"program.code.include names {name!r}, which is not a file or folder in {folder}"
            )
        if (folder / path).is_dir():
            yield from ((path / inner).as_posix() for inner in _walked(folder / path))
        else:
            yield path.as_posix()


def _refuse_secrets(names: Iterable[str], include: Sequence[str], *, ignore: str) -> None:
    named = {PurePosixPath(name) for name in include}
    refused = sorted(
        name
        for name in names
        if any(
            fnmatch.fnmatchcase(part.lower(), pattern)
            for part in PurePosixPath(name).parts
            for pattern in SECRET
        )
        and not named & {PurePosixPath(name), *PurePosixPath(name).parents}
    )
    if refused:
        more = f" and {len(refused) - 10} more" if len(refused) > 10 else ""
        raise UsageError(
            f"these files may hold secrets, and everyone who sees the job's node could read them: "
            f"{', '.join(refused[:10])}{more}",
            remedy=f"{ignore.format('them')}, move them away, or name them in "
            "program.code.include.",
        )


def _archive(folder: Path, names: Sequence[str], *, ignore: str) -> bytes:
    """Return the archive; equal files give equal bytes, whatever their times, owners and order."""
    sizes = {name: (folder / name).lstat().st_size for name in names}
    if len(names) > MAX_ENTRIES // 2:  # the pack also holds their folders
        raise UsageError(f"{folder} has {len(names):,} files; a pack holds {MAX_ENTRIES // 2:,}")
    if sum(sizes.values()) > MAX_UNPACKED_BYTES:
        before = f"{sum(sizes.values()):,} bytes before compression"
        raise _too_large(folder, sizes, before, ignore=ignore)
    content = io.BytesIO()
    try:
        with (
            gzip.GzipFile(filename="", fileobj=content, mode="wb", mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name in names:
                _add(tar, folder, name)
    except OSError as error:  # a file changed meanwhile, or cannot be read
        raise UsageError(f"{folder} cannot be packed: {error}") from None
    archive = content.getvalue()
    if len(archive) > MAX_PACK_BYTES:
        raise _too_large(folder, sizes, f"{len(archive):,} bytes", ignore=ignore)
    return archive


def _add(tar: tarfile.TarFile, folder: Path, name: str) -> None:
    path = folder / name
    found = path.lstat()
    member = tarfile.TarInfo(name)
    if stat.S_ISLNK(found.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
        if not stays_inside(name, member.linkname):
            raise UsageError(
                f"{path} is a link to {member.linkname!r}; legal: relative links inside {folder}"
            )
        tar.addfile(member)
        return
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{path} is neither a file nor a link")
    with path.open("rb") as file:
        member.size = os.fstat(file.fileno()).st_size
        member.mode = 0o755 if found.st_mode & 0o100 else 0o644
        tar.addfile(member, file)


def _too_large(folder: Path, sizes: Mapping[str, int], size: str, *, ignore: str) -> UsageError:
    largest = sorted(sizes, key=lambda name: -sizes[name])[:LARGEST]
    listed = ", ".join(f"{name} ({sizes[name]:,} bytes)" for name in largest)
    return UsageError(
        f"the pack of {folder} would have {size}; legal: {MAX_PACK_BYTES:,} bytes, and "
        f"{MAX_UNPACKED_BYTES:,} before compression. Largest: {listed}",
        remedy=f"{ignore.format('files that are not code')}, and put data below a storage root.",
    )


def _head(folder: Path) -> str | None:
    try:
        return _git(folder, "rev-parse", "--verify", "-q", "HEAD").strip()
    except UsageError:  # no commit yet
        return None


def _changes(folder: Path) -> tuple[str, ...]:
    """Return lines that show how the work tree differs from its commit; empty if equal."""
    words = ("ls-files", "-z", "--others", "--exclude-standard", "--", ".")
    new = [name for name in _git(folder, *words).split("\0") if name]
    diff = _git(folder, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD", "--", ".")
    lines = [*diff.splitlines(), *(f"Not in the commit: {name}" for name in new)]
    if len(lines) > DIFF_LINES:
        lines[DIFF_LINES:] = [f"... {len(lines) - DIFF_LINES} more lines"]
    return ("Changes that are not committed:", *lines) if lines else ()


def _git(folder: Path, *words: str) -> str:
    """Return the output of git.

    Raises:
        UsageError: git failed (the error text is git's last line), took longer than `GIT_SECONDS`,
            or is not installed.
    """
    variables = {
        **{name: value for name, value in os.environ.items() if name not in OF_HOOKS},
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": GIT_PROTOCOLS,
        "LC_ALL": "C",
    }
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError("git is not installed on this machine") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"git {words[0]} took longer than {GIT_SECONDS:.0f} s") from None
    if done.returncode:
        errors = os.fsdecode(done.stderr).strip().splitlines()
        raise UsageError((errors or [f"git {words[0]} failed with {done.returncode}"])[-1])
    return os.fsdecode(done.stdout)
