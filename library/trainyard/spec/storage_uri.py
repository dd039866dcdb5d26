"""Storage URIs `<root>:<relative path>`, the only form in which a spec names a file."""

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
"""File with the UUID of a storage root; it proves that nodes see the same root."""
_OBJECT_STORE = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[\w.=-]+(?:/[\w.=-]+)*))?",
    re.ASCII,
)


def split_place(place: str) -> tuple[str, PurePosixPath]:
    """Return the root's name and the path below it.

    The settings of each machine define its roots. The code that opens the file resolves symbolic
    links and checks that the result is below the root.

    Raises:
        ValueError: the text names no root, or its path is absolute or contains `..`.
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
    """Return whether a root in a machine's settings is a bucket."""
    return root.startswith(OBJECTS)


def split_object_store(root: str) -> tuple[str, str]:
    """Return bucket and prefix of a root in an object store; the prefix may be empty.

    Raises:
        ValueError: it is not `s3://bucket` or `s3://bucket/prefix`.
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
