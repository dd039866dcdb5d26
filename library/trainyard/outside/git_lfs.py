"""Git LFS pointers: small text files that a clone without `git lfs` has instead of the files.

The format is specified in https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
"""

from __future__ import annotations

import re

LONGEST_POINTER = 1023
"""Maximum size of a pointer in bytes; a larger file is not a pointer."""
SHORTEST_POINTER = 120
"""Minimum size of a pointer, in bytes; such a pointer has only a version, a digest and a size."""
_POINTER = re.compile(
    rb"\s*version https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v\d+\r?\n"
    rb"(?:[a-z0-9.-]+ [^\r\n]*\r?\n)*?oid sha256:[0-9a-f]{64}\r?\n"
    rb"(?:[a-z0-9.-]+ [^\r\n]*\r?\n)*?size (\d+)\s*"
)


def pointer_problem(content: bytes) -> str | None:
    """Return the problem with a file that is a Git LFS pointer; None for any other file.

    Args:
        content: the whole content of a file, or at least the first `LONGEST_POINTER` + 1 bytes.
    """
    if not SHORTEST_POINTER <= len(content) <= LONGEST_POINTER:
        return None
    found = _POINTER.fullmatch(content.removeprefix(b"\xef\xbb\xbf"))
    if found is None:
        return None
    return (
        f"is a pointer of Git LFS to a file of {int(found[1]):,} bytes, not the file; fetch it "
        "with `git lfs pull`, or download it again"
    )
