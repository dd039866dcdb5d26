"""Bundle: worker and trainer as wheels, for machines without access to a network.

A bundle is a tar file with `SHA256SUMS`, `manifest.json`, and wheels of the worker, the trainer,
all their dependencies, and pip. The SHA-256 of `SHA256SUMS` is the digest of the bundle. The wheels
come from a folder, or are made from the packages installed in this environment.
"""

from __future__ import annotations

import base64
import email
import email.message
import hashlib
import importlib.metadata
import io
import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from provisioner.base import SourceError
from trainyard.run.atomic import replacing

SUMS, MANIFEST = "SHA256SUMS", "manifest.json"
FORMAT = 1
REQUIREMENTS = ("trainyard-programs[worker,trainer]", "pip")
METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
LEFT_OUT = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")
"""Files in which an installer describes its own work; a wheel does not contain them."""
EPOCH = (1980, 1, 1, 0, 0, 0)
"""Modification time of all files in a wheel; it is fixed, so that equal content has an equal
digest."""
CHUNK = 1 << 20


@dataclass(frozen=True)
class Bundle:
    """Description of a bundle, from its first two files."""

    path: Path
    digest: str
    """SHA-256 of the bundle's `SHA256SUMS`, in hexadecimal."""
    python: str
    """Python version that a machine needs for the bundle, such as `3.11`."""


def read_bundle(path: Path) -> Bundle:
    """Return the description of a bundle.

    Raises:
        SourceError: the bundle is unreadable.
    """
    try:
        with tarfile.open(path, "r:") as tar:
            sums = _content(tar, SUMS)
            manifest = _content(tar, MANIFEST)
        if f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}".encode() not in sums.splitlines():
            raise ValueError(f"{MANIFEST} is not the one of {SUMS}")
        python = str(json.loads(manifest)["python"])
    except (OSError, ValueError, KeyError, tarfile.TarError) as error:
        message = f"bundle={str(path)!r} is no bundle: {error}"
        raise SourceError(message) from error
    return Bundle(path, hashlib.sha256(sums).hexdigest(), python)


def make_bundle(
    to: Path, *, wheels: Path | None = None, requirements: Iterable[str] = REQUIREMENTS
) -> Bundle:
    """Write a bundle for this Python version and this platform.

    Args:
        to: path of the tar file to write.
        wheels: folder of wheels, which may lack pip; by default, the wheels are made from this
            environment's packages.
        requirements: packages for the bundle; their dependencies are added.

    Raises:
        SourceError: a package is missing, or its version does not match a requirement.
        OSError: a file cannot be read or written.
    """
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}.") as folder:
        environment = _Environment(Path(folder))
        catalog = environment if wheels is None else _Wheels(wheels, installer=environment)
        found = [catalog.wheel(name) for name in _closure(requirements, catalog)]
        _write(to, sorted(found, key=lambda path: path.name))
    return read_bundle(to)


class _Environment:
    """The packages installed for this interpreter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def metadata(self, name: str) -> email.message.Message:
        """Return the metadata of a package."""
        text = self._distribution(name).read_text("METADATA")
        return email.message_from_string(text or "")

    def wheel(self, name: str) -> Path:
        """Make the wheel of a package from its installed files; for an editable package, from its
        sources."""
        distribution = self._distribution(name)
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            return self._build(unquote(urlsplit(origin["url"]).path))
        return _pack(distribution, self._folder)

    def _distribution(self, name: str) -> importlib.metadata.Distribution:
        try:
            return importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError as error:
            raise SourceError(f"{name} is not installed in {sys.prefix}") from error

    def _build(self, source: str) -> Path:
        to = Path(tempfile.mkdtemp(dir=self._folder))
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
        words = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(to), source]
        done = subprocess.run([*pip, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SourceError(f"no wheel of {source}: {done.stderr.strip()[-1000:]}")
        (wheel,) = to.glob("*.whl")
        return wheel


class _Wheels:
    """The packages in a folder of wheels; pip may come from this environment instead."""

    def __init__(self, folder: Path, *, installer: _Environment) -> None:
        self._folder = folder
        self._installer = installer
        self._paths: dict[str, Path] = {}
        for path in sorted(folder.glob("*.whl")):
            name = canonicalize_name(path.name.partition("-")[0])
            if name in self._paths:
                raise SourceError(f"{folder} has two wheels of {name}")
            self._paths[name] = path

    def metadata(self, name: str) -> email.message.Message:
        """Return the metadata of a package."""
        if self._is_missing(name):
            return self._installer.metadata(name)
        with zipfile.ZipFile(self._paths[name]) as wheel:
            (member,) = filter(METADATA.fullmatch, wheel.namelist())
            return email.message_from_bytes(wheel.read(member))

    def wheel(self, name: str) -> Path:
        """Return the wheel of a package."""
        return self._installer.wheel(name) if self._is_missing(name) else self._paths[name]

    def _is_missing(self, name: str) -> bool:
        if name not in self._paths and name != "pip":
            raise SourceError(f"{self._folder} has no wheel of {name}")
        return name not in self._paths


def _closure(requirements: Iterable[str], catalog: _Wheels | _Environment) -> list[str]:
    """Return the requirements' direct and indirect dependencies."""
    environment = {key: str(value) for key, value in default_environment().items()}
    waiting = [(Requirement(each), "the bundle") for each in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    names: list[str] = []
    while waiting:
        requirement, needed_by = waiting.pop()
        name = canonicalize_name(requirement.name)
        extras = frozenset(requirement.extras)
        metadata = catalog.metadata(name)
        if not requirement.specifier.contains(metadata["Version"], prereleases=True):
            found = metadata["Version"]
            raise SourceError(f"{needed_by} needs {requirement}, and {name} is {found}")
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        names += [name] if name not in names else []
        for line in metadata.get_all("Requires-Dist", []):
            try:
                wanted = Requirement(line)
            except InvalidRequirement as error:
                raise SourceError(f"{name} requires {line!r}: {error}") from error
            if wanted.marker is None or any(
                wanted.marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras)
            ):
                waiting.append((wanted, name))
    return names


def _pack(distribution: importlib.metadata.Distribution, folder: Path) -> Path:
    """Pack the files of an installed package into a wheel with the name and tags of the
    original."""
    name = re.sub(r"[-_.]+", "_", distribution.metadata["Name"])
    stem = f"{name}-{distribution.version}"
    described = email.message_from_string(distribution.read_text("WHEEL") or "")
    parts = zip(*(tag.split("-") for tag in described.get_all("Tag", [])), strict=True)
    tag = "-".join(".".join(dict.fromkeys(part)) for part in parts)
    made = {entry.name for entry in distribution.entry_points if "scripts" in entry.group}
    files: dict[str, Path] = {}
    for file in distribution.files or ():
        target = _target(file, stem, made)
        if target is not None:
            files[target] = Path(str(distribution.locate_file(file))).resolve()
    path = folder / f"{stem}-{tag}.whl"
    record = ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        for target, source in sorted(files.items()):
            digest = _add(wheel, target, source)
            record += f'"{target}",sha256={digest},{source.stat().st_size}\n'
            (info,) = (t.partition("/")[0] for t in files if METADATA.fullmatch(t))
        lines = f'{record}"{info}/RECORD",,\n'
        wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD", EPOCH), lines)
    return path


def _target(file: PurePosixPath, stem: str, made: set[str]) -> str | None:
    """Return the path of an installed file in the wheel; None if an installer created the file."""
    of_installer = re.fullmatch(r"[^/]+\.dist-info", str(file.parent)) and file.name in LEFT_OUT
    if file.suffix == ".pyc" or of_installer:
        return None
    above = [part for part in file.parts if part == ".."]
    if not above:
        return str(file)
    inside = PurePosixPath(*file.parts[len(above) :])
    if inside.parts[0] != "bin":
        return f"{stem}.data/data/{inside}"
    return None if inside.name in made else f"{stem}.data/scripts/{inside.name}"


def _add(wheel: zipfile.ZipFile, target: str, source: Path) -> str:
    """Copy a file into a wheel; return its digest in the format of RECORD."""
    info = zipfile.ZipInfo(target, EPOCH)
    info.compress_type = wheel.compression
    info.external_attr = (source.stat().st_mode & 0o777 | 0o100000) << 16
    digest = hashlib.sha256()
    with source.open("rb") as file, wheel.open(info, "w", force_zip64=True) as to:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            to.write(chunk)
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def _write(to: Path, wheels: Iterable[Path]) -> None:
    files: Mapping[str, Path] = {f"wheels/{path.name}": path for path in wheels}
    sums = {name: _digest(path) for name, path in files.items()}
    manifest = {
        "format": FORMAT,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "platform": sysconfig.get_platform(),
        "wheels": sorted(PurePosixPath(name).name for name in files),
    }
    text = json.dumps(manifest, indent=1).encode()
    sums[MANIFEST] = hashlib.sha256(text).hexdigest()
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())).encode()
    with replacing(to) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in ((SUMS, lines), (MANIFEST, text)):
            tar.addfile(_member(name, len(content)), io.BytesIO(content))
        for name, path in files.items():
            with path.open("rb") as wheel:
                tar.addfile(_member(name, path.stat().st_size), wheel)


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    return member


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    member = tar.next()
    if member is None or member.name != name or member.size > CHUNK:
        raise ValueError(f"its next file is not {name}")
    file = tar.extractfile(member)
    assert file is not None
    return file.read()
