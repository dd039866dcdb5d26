"""The digest of an own model's code, over every file in the folder that `model.code` names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import xxhash

from trainer.data.files.corpus import Corpus
from trainer.data.files.places import resolve
from trainer.errors import LaunchError
from trainyard.spec.job import JobSpec

MAX_FILES = 10_000
MAX_BYTES = 256 * 2**20
READ_SIZE = 2**20
COMPILED = "__pycache__"


def code_field(spec: JobSpec) -> str:
    """Return the field with the folder of an own model's code, and its value, for messages."""
    name = "code" if spec.model.hugging_face is None else "hugging_face"
    return f"model.{name}={getattr(spec.model, name)!r}"


def code_digest(spec: JobSpec, roots: Mapping[str, str]) -> str | None:
    """Return the XXH3-128 of names and contents of an own model's code; None without a folder.

    The code of a hub model is the `config.json` and the Python files of its folder.

    Excluded are files that an import writes (`__pycache__`, `*.pyc`), hidden names (such as
    `.git`), and empty files. A link counts as its target.

    Raises:
        DataError: the folder or a file cannot be read, or lies outside of its root.
        LaunchError: the folder exceeds `MAX_FILES` or `MAX_BYTES`.
    """
    section, wanted = spec.model, _is_code
    place = section.code if section.factory is not None else None
    if section.hugging_face is not None:
        place, wanted = section.hugging_face, _defines_hub_model
    if place is None:
        return None
    field = code_field(spec)
    root, top = resolve(place, field, roots)
    code = Corpus(field, root, top, wanted=wanted)
    hasher, size = xxhash.xxh3_128(), 0
    for count, file in enumerate(code.files(), start=1):
        size += file.size
        if count > MAX_FILES or size > MAX_BYTES:
            raise LaunchError(
                f"{field}: the folder holds more than {MAX_FILES:,} files or "
                f"{MAX_BYTES // 2**20} MiB, all of which count as code; legal: a folder of the "
                "model's code alone (hidden names and __pycache__ do not count)",
                path=str(top),
            )
        hasher.update(json.dumps([file.name, file.size]).encode())
        with code.open(file) as opened:
            while chunk := opened.read(READ_SIZE):
                hasher.update(chunk)
    return hasher.hexdigest()


def _is_code(path: Path) -> bool:
    return not (path.name.startswith(".") or path.name == COMPILED or path.suffix == ".pyc")


def _defines_hub_model(path: Path) -> bool:
    return path.name == "config.json" or (path.suffix == ".py" and _is_code(path))
