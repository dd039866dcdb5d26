"""Storage URIs `<root>:<relative path>`; a spec names files only in this form."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field

from trainyard.base.names import ROOT
from trainyard.base.redaction import hide_credentials

ROOT_PATTERN = re.compile(ROOT)
OBJECTS = "s3://"
ROOT_FILE = ".trainyard-root"
"""Name of the file with a storage root's UUID, which proves that nodes see the same root."""
_OBJECT_STORE = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[\w.=-]+(?:/[\w.=-]+)*))?",
    re.ASCII,
)


def split_place(place: str) -> tuple[str, PurePosixPath]:
    """Return the name of the root and the path below the root.

    The settings of each machine define its roots. Code that opens the file resolves symbolic
    links and checks that the resolved path is below the root.

    Raises:
        ValueError: the text contains no root, or the path is empty or absolute, or contains `..` or
            a control character.
    """
    root, colon, relative = place.partition(":")
    if not colon or not ROOT_PATTERN.fullmatch(root):
        raise ValueError(
            f"{place!r} is not below a storage root: write <root>:<relative path>, such as "
            "data:my-corpus"
        )
    if any(not character.isprintable() for character in relative):
        raise ValueError(f"{place!r} holds a control character")
    path = PurePosixPath(relative)
    if not relative or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{place!r} must name a path below its root, without '..'")
    return root, path


def is_object_store(root: str) -> bool:
    """Return whether a root in a machine's settings is a bucket of an object store."""
    return root.startswith(OBJECTS)


def split_object_store(root: str) -> tuple[str, str]:
    """Return the bucket and the prefix of a root in an object store; the prefix may be empty.

    Raises:
        ValueError: the root is neither `s3://bucket` nor `s3://bucket/prefix`.
    """
    match = _OBJECT_STORE.fullmatch(root)
    if match is None or {".", ".."} & set(root.split("/")):
        raise ValueError(
            f"{hide_credentials(root)!r} is no object store: write s3://bucket or "
            "s3://bucket/prefix, without credentials, which come from the environment "
            "(AWS_ACCESS_KEY_ID and the like)"
        )
    return match["bucket"], match["prefix"] or ""


def _check_place(place: str) -> str:
    split_place(place)
    return place


Place = Annotated[
    str,
    AfterValidator(_check_place),
    Field(min_length=3, max_length=1000, examples=["data:books/one.txt"]),
]
RootName = Annotated[str, Field(pattern=ROOT)]
