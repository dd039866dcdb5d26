"""Places: `<root>:<relative path>`, the only way in which a spec names a file."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field

ROOT_PATTERN = re.compile(r"[a-z][a-z0-9_-]{0,31}")


def split_place(place: str) -> tuple[str, PurePosixPath]:
    """Return the root's name and the path below it.

    Roots are named in the settings of the machine that opens the place; whoever opens it also
    resolves symbolic links and checks that the result is still beneath the root.

    Raises:
        ValueError: the text is no place, or its path is absolute or climbs out with `..`.
    """
    root, colon, relative = place.partition(":")
    if not colon or not ROOT_PATTERN.fullmatch(root):
        raise ValueError(f"{place!r} is no place: write <root>:<relative path>, as in data:corpus")
    if any(not character.isprintable() for character in relative):
        raise ValueError(f"{place!r} holds a control character")
    path = PurePosixPath(relative)
    if not relative or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{place!r} must name a path below its root, without '..'")
    return root, path


def _check_place(place: str) -> str:
    split_place(place)
    return place


Place = Annotated[
    str,
    AfterValidator(_check_place),
    Field(min_length=3, max_length=1000, examples=["data:books/one.txt"]),
]
RootName = Annotated[str, Field(pattern=rf"^{ROOT_PATTERN.pattern}$")]
