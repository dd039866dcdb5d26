"""The documents of an input: found in a fixed order, kept beneath their root, read in pieces."""

from __future__ import annotations

import json
import os
import stat
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import xxhash

from specs.job import JobSpec
from specs.places import split_place
from specs.sections.model import DataSection
from trainer.data.tokenizer import ByteTokenizer
from trainer.errors import DataError

CHUNK_BYTES = 1 << 20

# Left out of the standard library: what is not the library's own (packages, build configuration),
# and the tests, which many distributions of Python do not carry.
NOT_LIBRARY = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
MACHINE_SPECIFIC = ("_sysconfigdata", "sitecustomize", "usercustomize", "config-")


@dataclass(frozen=True)
class Document:
    """One file of an input, as it was found."""

    name: str
    """Path below the input, as it was walked."""
    path: Path
    """The file itself: absolute, every symbolic link followed."""
    stamp: tuple[int, int, int]
    """Size in bytes, modification time and change time in nanoseconds."""

    @property
    def size(self) -> int:
        """Bytes of the file when it was found."""
        return self.stamp[0]

    @property
    def identity(self) -> bytes:
        """Bytes that change when the file is another one, or was written to."""
        return json.dumps([self.name, *self.stamp]).encode() + b"\n"


@dataclass(frozen=True)
class Corpus:
    """The files of one input.

    Files that are empty, and those whose name `wanted` refuses, are left out. The order is that of
    the names' bytes, folder by folder, so it is the same on every machine.
    """

    field: str
    """The spec's words for the input, for messages: `data.path='data:books'`."""
    root: Path
    """Real path of the folder beneath which every file must lie."""
    top: Path
    """Real path of the file or folder that is the input."""
    wanted: Callable[[Path], bool]
    """Whether a file or folder takes part, by its path."""

    def documents(self) -> Iterator[Document]:
        """Yield the documents in order; nothing but their names and stamps is read.

        Raises:
            DataError: an entry cannot be read, leads out of the root, loops, or is a device.
        """
        yield from self._found(self.top, Path(), ())

    def read(self, document: Document) -> Iterator[bytes]:
        """Yield the content of a document in pieces.

        Raises:
            DataError: it cannot be read, was changed since it was found, now leads out of the
                root, or holds a NUL byte and so is no text.
        """
        try:
            # A pipe that took the file's place must not block: O_NONBLOCK.
            fd = os.open(document.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(fd, "rb", buffering=0) as file:
                opened = Path(f"/proc/self/fd/{fd}").readlink()
                if not opened.is_relative_to(self.root):
                    self._refuse(document.path, f"now leads to {shown(opened)}")
                offset = 0
                while chunk := file.read(CHUNK_BYTES):
                    self._check_text(document, chunk, offset)
                    offset += len(chunk)
                    yield chunk
                if _stamp(os.fstat(fd)) != document.stamp or offset != document.size:
                    self._refuse(
                        document.path,
                        "was written to while it was read; start again when it is complete",
                    )
        except OSError as error:
            self._refuse(document.path, f"cannot be read: {error.strerror}")

    def _found(self, entry: Path, name: Path, parents: tuple[Path, ...]) -> Iterator[Document]:
        path = self._beneath_root(entry) if entry.is_symlink() else entry
        try:
            status = path.stat()
        except OSError as error:
            self._refuse(entry, f"cannot be read: {error.strerror}")
        if stat.S_ISDIR(status.st_mode):
            if path in parents:
                self._refuse(entry, f"is a symbolic link to a folder around it, {shown(path)}")
            for child in self._children(path):
                yield from self._found(child, name / child.name, (*parents, path))
        elif not stat.S_ISREG(status.st_mode):
            self._refuse(entry, "is neither a file nor a folder")
        elif status.st_size:
            yield Document(name=os.fspath(name), path=path, stamp=_stamp(status))

    def _children(self, folder: Path) -> list[Path]:
        try:
            return sorted((p for p in folder.iterdir() if self.wanted(p)), key=os.fsencode)
        except OSError as error:
            self._refuse(folder, f"cannot be listed: {error.strerror}")

    def _beneath_root(self, link: Path) -> Path:
        try:
            target = link.resolve(strict=True)
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop, before Python 3.13
            self._refuse(link, f"is a symbolic link that leads nowhere ({_cause(error)})")
        if not target.is_relative_to(self.root):
            self._refuse(
                link,
                f"is a symbolic link to {shown(target)}, which is outside the root "
                f"{shown(self.root)}; legal are files beneath the root",
            )
        return target

    def _check_text(self, document: Document, chunk: bytes, offset: int) -> None:
        place = chunk.find(b"\0")
        if place >= 0:
            self._refuse(
                document.path,
                f"holds a NUL byte at offset {offset + place}, so it is no text; "
                "legal are text files in UTF-8 or another encoding without NUL",
            )

    def _refuse(self, path: Path, what: str) -> NoReturn:
        raise DataError(f"{self.field}: {shown(path)} {what}", path=shown(path)) from None


def open_corpus(data: DataSection, roots: Mapping[str, str]) -> Corpus:
    """Find the input of a spec; only its place is checked.

    Args:
        data: the spec's section.
        roots: absolute path on this node of each named root.

    Raises:
        DataError: the place is outside its root or missing, or its root is unknown here.
    """
    if data.source == "corpus":
        field = f"data.corpus={data.corpus!r}"
        library = _real(Path(sysconfig.get_paths()["stdlib"]), field)
        return Corpus(field, root=library, top=library, wanted=_is_library)
    field = f"data.path={data.path!r}"
    if data.source != "text" or data.path is None:
        raise DataError(f"{field}: data.source={data.source!r} needs another reader or a path")
    name, relative = split_place(data.path)
    if name not in roots:
        known = ", ".join(sorted(roots)) or "none"
        raise DataError(f"{field}: root {name!r} is not defined on this node (defined: {known})")
    root = _real(Path(roots[name]), field)
    top = _real(root / relative, field)
    if not top.is_relative_to(root):
        raise DataError(
            f"{field}: {shown(root / relative)} leads through a symbolic link to {shown(top)}, "
            f"which is outside the root {shown(root)}; legal are files beneath the root",
            path=shown(root / relative),
        )
    return Corpus(field, root=root, top=top, wanted=_is_not_hidden)


def check_corpus(spec: JobSpec, roots: Mapping[str, str]) -> None:
    """Refuse an input that cannot be trained on; reads names and sizes, and no content.

    Args:
        spec: the job's spec.
        roots: absolute path on this node of each named root.

    Raises:
        DataError: it is outside its root, missing, empty, or shorter than one sequence.
    """
    survey(spec, open_corpus(spec.data, roots))


def survey(spec: JobSpec, corpus: Corpus, on_progress: Callable[[], None] = lambda: None) -> str:
    """Look at every document and return the identity of them all, in hexadecimal.

    Names, sizes and times are read, and no content: the identity changes when a file came, went or
    was written to.

    Raises:
        DataError: an entry must not be read, or together they do not fill one sequence.
    """
    tokenizer = ByteTokenizer()
    identity = xxhash.xxh3_128()
    documents = tokens = 0
    for document in corpus.documents():
        identity.update(document.identity)
        documents += 1
        tokens += tokenizer.count(document.size)
        on_progress()
    _refuse_short(spec, corpus, documents=documents, tokens=tokens)
    return identity.hexdigest()


def _refuse_short(spec: JobSpec, corpus: Corpus, *, documents: int, tokens: int) -> None:
    limit = spec.data.max_tokens
    used = tokens if limit is None else min(tokens, limit)
    needed = spec.training.seq_len + 1
    if used >= needed:
        return
    path = shown(corpus.top)
    if not documents:
        raise DataError(
            f"{corpus.field}: {path} is empty: no file with content; one sequence of "
            f"training.seq_len={needed - 1} needs {needed} tokens",
            path=path,
        )
    limited = "" if used == tokens else f", of which data.max_tokens={limit} leaves {used}"
    raise DataError(
        f"{corpus.field}: {path} holds {tokens} tokens in {documents} documents{limited}; one "
        f"sequence of training.seq_len={needed - 1} needs {needed}: give more text or a smaller "
        "seq_len",
        path=path,
    )


def shown(path: Path) -> str:
    """Return a path as text that can be written anywhere, whatever bytes its name holds."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")


def _real(path: Path, field: str) -> Path:
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{field}: {shown(path)} cannot be opened ({_cause(error)}); legal is an existing "
            "file or folder beneath its root",
            path=shown(path),
        ) from None


def _cause(error: OSError | RuntimeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "a loop of symbolic links"


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_library(path: Path) -> bool:
    if path.is_symlink() or path.name.startswith(MACHINE_SPECIFIC):
        return False
    return path.suffix == ".py" or (path.name not in NOT_LIBRARY and path.is_dir())


def _is_not_hidden(path: Path) -> bool:
    return not path.name.startswith(".")
